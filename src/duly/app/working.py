"""
Working: a crew for an app's handlers, and one for callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from duly.app.connecting import Connecting
from duly.errors import RecordUnavailable, UsageError
from duly.extras import needed
from duly.forks import importing
from duly.loops import patched_by
from duly.options import at_least_one
from duly.pauses import Pauses
from duly.services.crew import Crew, run_together
from duly.services.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.callbacks.queue import CallbackStore
    from duly.services.protocols import NewWorker
    from duly.settings import Settings

log = logging.getLogger("duly")

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
            UsageError: There is no handler, or gevent or eventlet has patched this process.
            Unsupported: The URL is that of an HTTP service.
        """
        self._need_server()
        _need_threads("app.work()")
        _check_stop(stop)
        if isinstance(topics, str):
            raise UsageError(f"topics={topics!r} must be a list of names: write topics=[{topics!r}]")
        chosen = list(topics) if topics is not None else None
        self.need_handlers(chosen)
        self._need_time("app.work()")
        if not await connect(self, stop):
            return
        self.middleware.look_for_telemetry()
        settings = self.settings
        if concurrency is not None:
            settings = replace(settings, concurrency=at_least_one(concurrency, "concurrency"))
        crew = self.crew(settings, topics=chosen, stalled=stalled, tracebacks=tracebacks)
        if callbacks:
            await run_together([crew, self._deliverers(None, stalled)], stop or asyncio.Event())
        else:
            await crew.run(stop or asyncio.Event())

    def need_handlers(self, topics: Sequence[str] | None = None) -> None:
        """
        Refuse to work on nothing.

        Raises:
            UsageError: There is no handler, or none of one of the *topics*, or one cannot run where it says.
        """
        for topic in topics or ():
            if self.handlers.get(topic) is None:
                known = ", ".join(self.handlers.topics()) or "none"
                msg = f"there is no handler of topic {topic}; known are {known}"
                raise UsageError(msg)
        if not self.handlers.topics():
            msg = "there is no handler: decorate a function with @app.handler(topic)"
            if self.handlers.batches():
                msg = "there are only batch handlers, which Spark runs: use `duly pipeline work`"
            raise UsageError(msg)
        for topic in topics or self.handlers.topics():
            if (handler := self.handlers.get(topic)) is not None:
                handler.check_found()

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
            UsageError: There is no secret to sign with, another setting of callbacks is wrong, or gevent or
                eventlet has patched this process.
        """
        _need_threads("app.deliver()")
        self._need_time("app.deliver()")
        _check_stop(stop)
        if not await connect(self, stop):
            return
        self.middleware.look_for_telemetry()
        if concurrency is not None:
            at_least_one(concurrency, "concurrency")
        await self._deliverers(concurrency, stalled).run(stop or asyncio.Event())

    def crew(
        self,
        settings: Settings,
        *,
        topics: list[str] | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        worker: NewWorker = Worker,
    ) -> Crew:
        """
        A worker for the handlers of this app, and the duties beside it; none of them has begun.
        """
        record = self._record_here
        crew = Crew(
            # Also called in the thread of the heartbeat, which has a loop of its own.
            partial(self._store_beside, record),
            self.handlers,
            self.hooks,
            settings,
            topics=topics,
            stalled=stalled,
            tracebacks=tracebacks,
            middleware=self.middleware,
            worker=worker,
            outcomes=None if record is None else record.outcomes(),
            transactions=None if record is None else record.transactions,
            upkeep=None if record is None else record.upkeep,
        )
        if self.hooks.meter is not None:
            self.hooks.meter.working(crew)
        return crew

    def _deliverers(self, concurrency: int | None, stalled: Callable[[list[str]], None] | None) -> Crew:
        with needed("the delivery of callbacks"), importing():
            from duly.callbacks.deliver import Deliverer  # noqa: PLC0415  # packages that need not be there
            from duly.callbacks.queue import CallbackHandlers, CallbackStore, Called  # noqa: PLC0415  # as above

        called, record = Called(self.settings.namespace), self._record_here
        crew = Crew(
            partial(self._store_beside, record, partial(CallbackStore, called)),
            CallbackHandlers(called, Deliverer.of(self.settings), self.settings.limits),
            self.hooks,
            replace(self.settings, concurrency=concurrency or max(DELIVERIES, self.settings.concurrency)),
            stalled=stalled,
            middleware=self.middleware,
            outcomes=None if record is None else record.outcomes(),
            upkeep=None if record is None else record.upkeep,
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


async def connect(app: Connecting, stop: asyncio.Event | None = None) -> bool:
    """
    Connect as a worker does, which outlives its database: one that is away is waited for.

    Returns:
        Whether it is connected; False if *stop* was set before.

    Raises:
        StoreUnavailable: The server cannot be reached or started.
        ServerUnsuitable, LayoutMismatch: Server or database do not fit.
    """
    pauses = Pauses(0.1, 5.0)
    while stop is None or not stop.is_set():
        try:
            await app.store()
            await app.queue()
        except RecordUnavailable as error:
            log.warning("%s; trying again in %.1f s", error, pauses.next_s)
            await pauses.wait(stop)
        else:
            return True
    return False


def _need_threads(what: str) -> None:
    """
    Refuse to work where threads are greenlets: a loop in one would stop all others.
    """
    if (library := patched_by()) is not None:
        raise UsageError(
            f"{what} runs on asyncio, and {library} has patched the threads of this process: run it in a "
            "process of its own, with `duly work`"
        )


def _check_stop(stop: asyncio.Event | None) -> None:
    if stop is not None and not hasattr(stop, "wait"):
        raise UsageError(f"stop must be an asyncio.Event that is set to end the work, not {stop!r}")
