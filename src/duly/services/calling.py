"""
Calling a handler, wherever it runs: on the loop, in a thread, in a process; through the middleware.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from duly.codec import encode
from duly.context import CURRENT, CurrentJob
from duly.errors import DulyError
from duly.logs import about
from duly.outcome import Raised
from duly.services.children import START_S, Children, call_of
from duly.services.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from duly.codec import Envelope
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.middleware import Middleware
    from duly.newjob import Limits
    from duly.services.children import Child
    from duly.services.running import Run, Running
    from duly.store import Store

log = logging.getLogger("duly.worker")

WORN_S = 2.0  #: how long a thread may take to stop once it was told


class Caller:
    """
    Calls handlers, so that each can be stopped by its run's `interrupt`.
    """

    def __init__(
        self,
        store: Store,
        running: Running,
        *,
        limits: Limits,
        hooks: Hooks,
        middleware: Middleware,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.worn = 0  #: threads that did not stop when told
        self._store = store
        self._running = running
        self._limits = limits
        self._hooks = hooks
        self._middleware = middleware
        self._spawn = spawn
        self._threads = Threads()
        self._children = Children()

    async def call(self, run: Run, envelope: Envelope) -> object:
        """
        Call the handler; the answer is what it returned, or `Raised`.

        Raises:
            Unreadable: Its payload is not what the handler takes.
        """
        lease, handler = run.lease, run.handler
        run.started_s = time.monotonic()
        context = envelope.context or {}
        args, kwargs = handler.bind(lease.payload)
        run.deadline_s = run.started_s + lease.ttr_ms / 1000
        if handler.run_in == "loop":
            run.job = job = CurrentJob(
                lease, context, run.deadline_s, lambda value: self._progress(lease, value)
            )
            CURRENT.set(job)
            task = run.task
            run.interrupt = task.cancel
            try:
                if self._hooks.start:
                    await self._hooks.tell("start", job)
                if self._middleware.around_handler():
                    return await self._middleware.call(job, lambda: handler.fn(*args, **kwargs))
                return await handler.fn(*args, **kwargs)
            except asyncio.CancelledError as error:
                if run.stopped:
                    # The loop counts the request as served: what follows may await again.
                    task.uncancel()
                    return Raised(_time_over(lease))
                if task.cancelling():
                    # Cancelled from outside the worker, maybe with the loop: the lease runs out by itself.
                    raise
                # Something that the handler awaited was cancelled: a failure like any other.
                return Raised(error)
            except Exception as error:  # noqa: BLE001  # a handler may raise anything
                return Raised(error)
        report = self._report_from_thread(lease)
        run.job = job = CurrentJob(lease, context, run.deadline_s, report)
        if self._hooks.start:
            await self._hooks.tell("start", job)
            if run.stopped:
                return Raised(_time_over(lease))

        async def call() -> object:
            if handler.run_in == "process" or run.apart:
                return await self._call_in_child(run, context, report)
            copy = contextvars.copy_context()
            copy.run(CURRENT.set, job)
            return await self._call_in_thread(run, lambda: copy.run(handler.fn, *args, **kwargs))

        return await (self._call_around(run, job, call) if self._middleware.around_handler() else call())

    async def _call_around(self, run: Run, job: CurrentJob, call: Callable[[], Awaitable[object]]) -> object:
        """
        Call a handler of another thread or process through the middleware, which runs on the loop.
        """
        CURRENT.set(job)
        run.interrupt = run.task.cancel

        async def inner() -> object:
            answer = await call()
            run.interrupt = run.task.cancel
            if isinstance(answer, Raised):
                raise answer.exc
            return answer

        try:
            return await self._middleware.call(job, inner)
        except asyncio.CancelledError as error:
            if run.stopped:
                run.task.uncancel()
                return Raised(_time_over(run.lease))
            if run.task.cancelling():
                raise
            return Raised(error)
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001  # as threads may raise
            return Raised(error)

    async def _call_in_thread(self, run: Run, fn: Callable[[], Any]) -> object:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        alarm: asyncio.TimerHandle | None = None
        worn = False

        def settle(answer: object) -> None:
            if not future.done():
                future.set_result(answer)
            elif alarm is not None:
                # Written off, and stopped all the same: in time, or later than it should have.
                alarm.cancel()
                self.worn -= worn

        def done(answer: object, error: BaseException | None) -> None:
            # The loop may be gone when a thread that was written off comes back.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, answer if error is None else Raised(error))

        def wear() -> None:
            nonlocal worn
            worn = True
            self.worn += 1
            self._running.tell_all()

        def interrupt() -> None:
            # A thread cannot be stopped, only told: its slot is written off.
            nonlocal alarm
            if not future.done():
                future.set_result(Raised(_time_over(run.lease)))
                alarm = loop.call_later(WORN_S, wear)

        run.interrupt = interrupt
        self._threads.submit(fn, done)
        return await future

    async def _call_in_child(
        self, run: Run, context: dict[str, Any], report: Callable[[object], None]
    ) -> object:
        # Time to run counts from when the function starts, not from when its process does.
        child: Child | Raised | None = None if run.apart else self._children.waiting(run.handler)
        if child is None:
            run.deadline_s = math.inf
            run.allow_start(START_S)
            self._spawn(self._extend(run))
            child = await self._start_child(run)
        if isinstance(child, Raised):
            return child
        call = call_of(run.lease, context)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        run.allow_start(0)
        run.deadline_s = time.monotonic() + run.lease.ttr_ms / 1000

        def settle(answer: object) -> None:
            if not future.done():
                future.set_result(answer)

        def done(answer: object, error: BaseException | None) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, answer if error is None else Raised(error))

        run.interrupt = child.kill
        self._threads.submit(lambda: child.run(call, report), done)
        answer = await future
        self._children.give_back(run.handler, child)
        return Raised(_time_over(run.lease)) if run.stopped else answer

    async def _extend(self, run: Run) -> None:
        """
        Extend a lease now: one that is as short as its time to run may be over before the heart beats.

        Whether it was lost is left to the heart.
        """
        try:
            await self._store.extend(run.lease.shard, [run.held()])
        except DulyError as error:
            log.info(
                "the lease on %s was not extended: %s",
                *(run.lease.key, error),
                extra=about(run.lease, self._running.worker),
            )

    async def _start_child(self, run: Run) -> Child | Raised:
        """
        A new child for the run, unless it is stopped before there is one: then nobody waits for the start.
        """
        handler = run.handler
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Child | Raised] = loop.create_future()

        def settle(answer: Child | Raised) -> None:
            if not future.done():
                future.set_result(answer)
            elif not isinstance(answer, Raised):
                self._children.give_back(handler, answer)

        def done(child: Child, error: BaseException | None) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, child if error is None else Raised(error))

        run.interrupt = lambda: settle(Raised(_time_over(run.lease)))
        self._threads.submit(lambda: self._children.start(handler), done)
        return await future

    async def _progress(self, lease: Lease, value: object) -> None:
        await self._store.progress(lease, encode(value, what="progress", limit=self._limits.context))

    def _report_from_thread(self, lease: Lease) -> Callable[[object], None]:
        loop = asyncio.get_running_loop()

        async def note(data: bytes) -> None:
            try:
                await self._store.progress(lease, data)
            except DulyError as error:
                log.info(
                    "progress of %s was not stored: %s",
                    lease.key,
                    error,
                    extra=about(lease, self._running.worker),
                )

        def report(value: object) -> None:
            data = encode(value, what="progress", limit=self._limits.context)
            loop.call_soon_threadsafe(lambda: self._spawn(note(data)))

        return report

    def close(self) -> None:
        """
        End the processes; threads cannot be ended.
        """
        self._children.close()


def _time_over(lease: Lease) -> TimeoutError:
    return TimeoutError(f"ran longer than its time to run of {lease.ttr_ms / 1000:g} s")
