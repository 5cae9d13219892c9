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
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from duly.context import CURRENT, CurrentJob
from duly.errors import DulyError
from duly.logs import about
from duly.outcome import Raised
from duly.services.children import START_S, Children, call_of
from duly.services.stragglers import Stragglers, time_over
from duly.services.threads import Threads
from duly.services.transactions import begin_transaction

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from duly.codec import Envelope
    from duly.handlers import Handler
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.middleware import Middleware
    from duly.newjob import Limits
    from duly.services.children import Child
    from duly.services.running import Run, Running
    from duly.store import Store

log = logging.getLogger("duly.worker")


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
        settle: Callable[[Run, Envelope, object], None],
    ) -> None:
        """
        Prepare: *settle* decides what becomes of a run that does not answer although it was told to stop.
        """
        self.stragglers = Stragglers(running)
        self._store = store
        self._running = running
        self._limits = limits
        self._hooks = hooks
        self._middleware = middleware
        self._spawn = spawn
        self._settle = settle
        self._transact = partial(begin_transaction, running)
        self._threads = Threads()
        self._children = Children()

    def call(self, run: Run, envelope: Envelope) -> Coroutine[Any, Any, object]:
        """
        Call the handler; the answer is what it returned, or `Raised`.

        Raises:
            Unreadable: Its payload is not what the handler takes.
            BaseException: What an async handler or middleware raised.
        """
        # Two methods: what inner functions of the second share would slow the first down.
        return (
            self._call_here(run, envelope) if run.handler.run_in == "loop" else self._hand_on(run, envelope)
        )

    def _begin(self, run: Run, envelope: Envelope) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """
        The arguments of a run whose time begins.
        """
        run.started_s = time.monotonic()
        bound = run.handler.bind(run.lease.payload)
        run.deadline_s = run.started_s + run.lease.ttr_ms / 1000
        run.interrupt = partial(self._cancel, run, envelope)
        return bound

    async def _call_here(self, run: Run, envelope: Envelope) -> object:
        lease, handler = run.lease, run.handler
        args, kwargs = self._begin(run, envelope)
        # Nothing that its context holds leads back to the run: that would leave it to the collector.
        report = partial(self._progress, lease, handler)
        run.job = job = CurrentJob(lease, envelope.context or {}, run.deadline_s, report, self._transact)
        CURRENT.set(job)
        if self._hooks.start:
            await self._hooks.tell("start", job)
        if self._middleware.around_handler():
            return await self._middleware.call(job, partial(_called, handler.entry, args, kwargs))
        answer = handler.entry(*args, **kwargs)
        return await answer if type(answer) is CoroutineType or isawaitable(answer) else answer

    async def _hand_on(self, run: Run, envelope: Envelope) -> object:
        """
        Call it in a thread or in a process.
        """
        lease, handler = run.lease, run.handler
        args, kwargs = self._begin(run, envelope)
        interrupt = run.interrupt
        report = self._report_from_thread(lease, handler)
        run.job = job = CurrentJob(lease, envelope.context or {}, run.deadline_s, report, self._transact)
        if self._hooks.start:
            await self._hooks.tell("start", job)
            if run.stopped:
                return Raised(time_over(lease))

        async def call() -> object:
            if handler.run_in == "process" or run.apart:
                return await self._call_in_child(run, envelope, report)
            copy = contextvars.copy_context()
            copy.run(CURRENT.set, job)
            answer = await self._call_in_thread(
                run, envelope, partial(copy.run, handler.entry, *args, **kwargs)
            )
            if isawaitable(answer):
                # A plain function around an async one: what it has set in its context holds within, too.
                run.interrupt = interrupt
                return await asyncio.create_task(_awaited(answer), context=copy)
            return answer

        if not self._middleware.around_handler():
            return await call()

        # Middleware runs on the loop.
        async def inner() -> object:
            answer = await call()
            run.interrupt = interrupt
            if isinstance(answer, Raised):
                raise answer.exc
            return answer

        CURRENT.set(job)
        return await self._middleware.call(job, inner)

    def _cancel(self, run: Run, envelope: Envelope) -> None:
        run.task.cancel()
        self.stragglers.expect_end(run, partial(self._settle, run, envelope))

    async def _call_in_child(self, run: Run, envelope: Envelope, report: Callable[[object], None]) -> object:
        # Time to run counts from when the function starts, not from when its process does.
        child: Child | Raised | None = None if run.apart else self._children.waiting(run.handler)
        if child is None:
            run.deadline_s = math.inf
            run.allow_start(START_S)
            self._spawn(self._extend(run))
            child = await self._start_child(run)
        if isinstance(child, Raised):
            return child
        context = envelope.context or {}
        if self._middleware.telemetry is not None:
            context = self._middleware.telemetry.carried(context)
        call = call_of(run.lease, context)
        run.allow_start(0)
        run.deadline_s = time.monotonic() + run.lease.ttr_ms / 1000
        return await self._call_in_thread(
            run,
            envelope,
            partial(child.run, call, report),
            interrupt=child.kill,
            ended=partial(self._children.give_back, run.handler, child),
        )

    async def _call_in_thread(
        self,
        run: Run,
        envelope: Envelope,
        fn: Callable[[], Any],
        *,
        interrupt: Callable[[], None] = lambda: None,
        ended: Callable[[], None] = lambda: None,
    ) -> object:
        """
        Run *fn* in a thread.  A thread cannot be stopped, only told; *interrupt* may do more.

        *ended* is called once it has, whoever still waits for it.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def settle(answer: object) -> None:
            ended()
            self.stragglers.thread_ended(run)
            if not future.done():
                run.interrupt = None
                future.set_result(Raised(time_over(run.lease)) if run.stopped else answer)

        def done(answer: object, error: BaseException | None) -> None:
            # The loop may be gone when a thread that was written off comes back.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, answer if error is None else Raised(error))

        def give_up(answer: Raised) -> None:
            self._settle(run, envelope, answer)
            if not future.done():
                future.set_result(answer)

        def stop() -> None:
            interrupt()
            self.stragglers.expect_end(run, give_up, in_thread=True)

        run.interrupt = stop
        self._threads.submit(fn, done)
        try:
            return await future
        except asyncio.CancelledError:
            # Middleware has stopped waiting: what runs is told, and nothing else runs beside it.
            if run.job is not None:
                run.job.cancel()
            interrupt()
            self.stragglers.leave_thread(run)
            run.interrupt = partial(self._cancel, run, envelope)
            raise

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

        run.interrupt = lambda: settle(Raised(time_over(run.lease)))
        self._threads.submit(lambda: self._children.start(handler), done)
        return await future

    async def _progress(self, lease: Lease, handler: Handler[..., Any], value: object) -> None:
        await self._store.progress(lease, self._written_progress(handler, value))

    def _written_progress(self, handler: Handler[..., Any], value: object) -> bytes:
        return handler.binding.codec.encode(value, what="progress", limit=self._limits.context)

    def _report_from_thread(self, lease: Lease, handler: Handler[..., Any]) -> Callable[[object], None]:
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
            data = self._written_progress(handler, value)
            loop.call_soon_threadsafe(lambda: self._spawn(note(data)))

        return report

    def close(self) -> None:
        """
        End the processes, and async handlers that would not stop; threads cannot be ended.
        """
        self._children.close()
        self.stragglers.close()


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


async def _called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    answer = fn(*args, **kwargs)
    # A wrapper that is a plain function may have dealt with the awaitable itself.
    return await answer if isawaitable(answer) else answer
