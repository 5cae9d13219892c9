"""
Everything that a working process carries: worker, timers, heart, recoverer, pruner, auditor, supervised.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.services.contact import Contact
from duly.services.duties import Duties
from duly.services.heart import Heart
from duly.services.outlook import Outlook
from duly.services.service import Pulse, Watch, end_all, run_forever
from duly.services.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from duly.handlers import Handlers
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.middleware import Middleware
    from duly.record.outcomes import Outcomes
    from duly.record.transactionpools import TransactionPools
    from duly.record.upkeep import Upkeep
    from duly.services.protocols import CrewWorker, NewWorker
    from duly.services.service import Service
    from duly.settings import Settings
    from duly.store import Store

log = logging.getLogger("duly.crew")

RECORD_S = 5.0  #: how long outcomes may take to get into the record when the process ends


class Crew:
    """
    One worker and the duties beside it.  A loop that dies takes the crew down; a lost connection does not.
    """

    def __init__(
        self,
        make_store: Callable[[], Store],
        handlers: Handlers,
        hooks: Hooks,
        settings: Settings,
        *,
        topics: list[str] | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        middleware: Middleware | None = None,
        worker: NewWorker = Worker,
        outcomes: Outcomes | None = None,
        transactions: TransactionPools | None = None,
        upkeep: Upkeep | None = None,
    ) -> None:
        """
        Prepare: with a record, *outcomes* are told to it, its *upkeep* is done beside the work, and handlers
        have *transactions* on its database.
        """
        self.store = store = make_store()
        self.pulse = Pulse()
        self._stalled = stalled
        self._outlooks = [Outlook() for _ in range(store.shards)]
        self.worker: CrewWorker = worker(
            store,
            handlers,
            self._outlooks,
            concurrency=settings.concurrency,
            block_s=settings.block_ms / 1000,
            grace_s=settings.drain_grace_ms / 1000,
            role=settings.role,
            hooks=hooks,
            topics=topics,
            tracebacks=tracebacks,
            middleware=middleware,
        )
        self.worker.running.report_to(hooks.meter, outcomes, transactions)
        self._outcomes = outcomes
        self._upkeep = upkeep
        # It beats each third of a lease.  Leases that others extend as often do not run out in half of one.
        self._contact = Contact(settings.lease_ms / 2000)
        self._duties = Duties(
            store,
            self._outlooks,
            settings,
            name=self.worker.name,
            claim=self.worker.claim_now,
            topics=self.worker.topics_with_room,
            contact=self._contact,
        )
        self.recoverers, self.timers = self._duties.recoverers, self._duties.timers
        self._stall_s = settings.stall_ms / 1000
        self._make_store = make_store

    async def run(self, stop: asyncio.Event) -> None:
        """
        Work until *stop* is set or the task is cancelled, then drain.

        Raises:
            Whatever ended a loop that must not end.
        """
        loop = asyncio.get_running_loop()
        heart_died: asyncio.Future[None] = loop.create_future()
        heart = Heart(
            self._make_store,
            worker=self.worker.name,
            about=self.worker.about,
            held=self.worker.running.held,
            lost=lambda leases: _from_thread(loop, lambda: self._lost(leases)),
            pulse=self.pulse,
            stall_s=self._stall_s,
            stalled=self._on_stall,
            died=lambda error: _from_thread(loop, lambda: _fail(heart_died, error)),
            contact=self._contact,
        )
        heart.start()
        loops = (*self._loops(), self.worker.sweep(), self._listen(), self._watch())
        tasks = [asyncio.create_task(each) for each in loops]
        watched: list[asyncio.Future[None]] = [*tasks, heart_died]
        stopped: asyncio.Future[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((*watched, stopped), return_when=asyncio.FIRST_COMPLETED)
            failed = next((each for each in watched if each.done()), None)
            if failed is not None:
                failed.result()
                raise RuntimeError("a loop of the worker ended by itself")
        finally:
            if self._stalled is not None and any(task.cancelling() for task in tasks):
                # By a handler, as with `all_tasks()`: what is left of this worker serves nobody.
                log.critical("a handler cancelled tasks of its worker: this process does not work any more")
                self._stalled([])
            stopped.cancel()
            heart_died.cancel()
            try:
                # A second cancellation, while draining, means now.
                await self.worker.drain()
            except asyncio.CancelledError:
                await self.worker.give_back_all()
                raise
            finally:
                await end_all(tasks)
                if self._outcomes is not None:
                    await self._outcomes.finish(RECORD_S)
                await asyncio.to_thread(heart.stop)
                await self.store.link.aclose()

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        """
        One loop for each service.
        """
        services: list[tuple[str, Service]] = [("worker", self.worker), *self._duties.services()]
        loops = [run_forever(service, self.pulse, name) for name, service in services]
        # Whether the database answers is no sign of life of this process.
        return loops + (self._upkeep.loops() if self._upkeep is not None else [])

    async def _watch(self) -> None:
        """
        Watch the heart, as it watches the others.
        """
        every_s = self._stall_s / 4
        watch = Watch(self.pulse, self._stall_s, every_s)
        while True:
            await asyncio.sleep(every_s)
            if names := watch.stalled():
                self._on_stall(names)

    def _lost(self, leases: list[Lease]) -> None:
        for lease in leases:
            self.worker.stop_run(lease.key.member, lease.token)

    async def _listen(self) -> None:
        """
        Stop runs whose token is void as soon as that is published.
        """
        channels = [keys.fixed["stop"] for keys in self.store.keys]
        async for channel, message in self.store.link.listen(*channels):
            if channel:
                member, _, token = message.decode().rpartition(" ")
                self.worker.stop_run(member, int(float(token)))

    def _on_stall(self, names: list[str]) -> None:
        log.critical("no progress in %s: this process does not work any more", ", ".join(names))
        if self._stalled is not None:
            self._stalled(names)


async def run_together(crews: list[Crew], stop: asyncio.Event) -> None:
    """
    Run crews until *stop* is set; when one ends by itself, the others drain.

    Raises:
        Whatever ended one of them.
    """
    tasks = [asyncio.create_task(crew.run(stop)) for crew in crews]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _from_thread(loop: asyncio.AbstractEventLoop, fn: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
        loop.call_soon_threadsafe(fn)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
