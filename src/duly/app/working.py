"""
Working: a crew for an app's handlers, and one for callbacks.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from duly.app.connecting import Connecting
from duly.errors import UsageError
from duly.services.crew import Crew, run_together
from duly.services.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.callbacks.queue import CallbackStore
    from duly.settings import Settings

DELIVERIES = 100  #: callbacks under way at once, at least: a dozen hosts that hang leave room for others


class Working(Connecting):
    """
    What workers call.
    """

    async def work(
        self,
        *,
        concurrency: int | None = None,
        topics: Sequence[str] | None = None,
        stop: asyncio.Event | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        callbacks: bool = False,
    ) -> None:
        """
        Run jobs in this process until cancelled or *stop* is set; then drain.

        With *tracebacks* those of failures are logged and kept: they may quote what a job was given.
        With *callbacks* it delivers those as well, see `deliver`.

        Raises:
            UsageError: There is no handler, or the URL is that of an HTTP service.
        """
        self._need_server()
        chosen = list(topics) if topics is not None else None
        for topic in chosen or ():
            if self.handlers.get(topic) is None:
                known = ", ".join(self.handlers.topics()) or "none"
                msg = f"there is no handler of topic {topic}; known are {known}"
                raise UsageError(msg)
        if not self.handlers.topics():
            msg = "there is no handler: decorate a function with @app.handler(topic)"
            if self.handlers.batches():
                msg = "there are only batch handlers, which Spark runs: use `duly pipeline work`"
            raise UsageError(msg)
        self._need_time("app.work()")
        await self.store()
        await self.queue()
        self.middleware.look_for_telemetry()
        settings = self.settings
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency)
        crew = self.crew(settings, topics=chosen, stalled=stalled, tracebacks=tracebacks)
        if callbacks:
            await run_together([crew, self._deliverers(None, stalled)], stop or asyncio.Event())
        else:
            await crew.run(stop or asyncio.Event())

    async def deliver(
        self,
        *,
        concurrency: int | None = None,
        stop: asyncio.Event | None = None,
        stalled: Callable[[list[str]], None] | None = None,
    ) -> None:
        """
        Deliver callbacks from this process, of whatever topic, until cancelled or *stop* is set; then drain.

        Raises:
            UsageError: There is no secret to sign with, or another setting of callbacks is wrong.
        """
        self._need_time("app.deliver()")
        await self.store()
        await self.queue()
        self.middleware.look_for_telemetry()
        await self._deliverers(concurrency, stalled).run(stop or asyncio.Event())

    def crew(
        self,
        settings: Settings,
        *,
        topics: list[str] | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        worker: type[Worker] = Worker,
    ) -> Crew:
        """
        A worker for the handlers of this app, and the duties beside it; none of them has begun.
        """
        crew = Crew(
            self.make_store,
            self.handlers,
            self.hooks,
            settings,
            topics=topics,
            stalled=stalled,
            tracebacks=tracebacks,
            middleware=self.middleware,
            worker=worker,
            outcomes=None if self._record is None else self._record.outcomes(),
            upkeep=None if self._record is None else self._record.upkeep,
        )
        if self.hooks.meter is not None:
            self.hooks.meter.working(crew)
        return crew

    def _deliverers(self, concurrency: int | None, stalled: Callable[[list[str]], None] | None) -> Crew:
        from duly.callbacks.deliver import Deliverer  # noqa: PLC0415  # packages that need not be there
        from duly.callbacks.queue import CallbackHandlers, CallbackStore, Called  # noqa: PLC0415  # as above

        called = Called(self.settings.namespace)
        crew = Crew(
            lambda: self.make_store(partial(CallbackStore, called)),
            CallbackHandlers(called, Deliverer.of(self.settings), self.settings.limits),
            self.hooks,
            replace(self.settings, concurrency=concurrency or max(DELIVERIES, self.settings.concurrency)),
            stalled=stalled,
            middleware=self.middleware,
            outcomes=None if self._record is None else self._record.outcomes(),
            upkeep=None if self._record is None else self._record.upkeep,
        )
        called.store = cast("CallbackStore", crew.store)
        return crew

    def _need_time(self, what: str) -> None:
        if self._now is not None:
            msg = (
                f"{what} waits for time to pass, and the clock of this test stands still: "
                'use `await duly.drain()`, or a test bed with clock="server"'
            )
            raise UsageError(msg)
