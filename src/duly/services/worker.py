"""
The worker: claims free slots' worth of jobs, runs their handlers, and stores what became of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import os
import random
import secrets
import socket
import time
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from duly.backoff import from_wire
from duly.codec import Envelope, Unreadable, decode, decode_envelope, encode, reason_document
from duly.context import CURRENT, CurrentJob
from duly.errors import DulyError, JobNotFound, LeaseLost, UsageError
from duly.logs import about, place_of
from duly.middleware import Middleware
from duly.outcome import Ack, Buried, Planned, Raised, RetryLater, outcome_of
from duly.services.children import ChildError, Children, call_of
from duly.services.outbox import Outbox
from duly.services.running import Run, Running
from duly.services.threads import Threads
from duly.store import PER_CALL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from duly.backoff import Backoff
    from duly.handlers import Handler, Handlers
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.outcome import Outcome
    from duly.services.children import Child
    from duly.services.outlook import Outlook
    from duly.store import Claimed, Store, Want

log = logging.getLogger("duly.worker")
#: Failures of handlers.  `duly work` shows them; a program that has set up no logging is left alone.
runs_log = logging.getLogger("duly.runs")
runs_log.addHandler(logging.NullHandler())

_NO_ENVELOPE = Envelope()
_VERBS = {Ack: "acked", RetryLater: "retried", Buried: "buried", type(None): "released"}

SWEEP_S = 0.05
WORN_THREADS = 8  #: so many threads that would not stop, and the process should begin anew
WORN_S = 2.0  #: how long a thread may take to stop once it was told
SETTLE_S = 5.0  #: how long what was stopped may take to be given back
CLAIMS_AHEAD = 8  #: batches in a row before other duties have their turn
OUTCOMES_PER_SLOT = 4  #: outcomes on their way, for each slot, before no more is claimed
LONGEST_PAUSE_S = 2.0


def worker_name() -> str:
    """
    A name that is new with every start.
    """
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


class WornOut(Exception):
    """
    Too many handler threads would not stop: the process should be started anew.

    No `DulyError`: trying again would not help, so it ends the worker's loop.
    """


class Worker:
    """
    Runs jobs of an app's handlers.
    """

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        outlooks: list[Outlook],
        *,
        concurrency: int,
        block_s: float = 1.0,
        grace_s: float = 25.0,
        role: str = "auto",
        name: str = "",
        hooks: Hooks,
        topics: list[str] | None = None,
        tracebacks: bool = False,
        middleware: Middleware | None = None,
    ) -> None:
        self.name = name or worker_name()
        self.running = Running(concurrency, self.name)
        self.claimed = 0
        self.finished = 0
        self.fenced = 0
        self._store = store
        self._handlers = handlers
        self._outlooks = outlooks
        self._block_s = block_s
        self._grace_s = grace_s
        self._role = role
        self._hooks = hooks
        self._topics = topics
        self._tracebacks = tracebacks
        self._middleware = middleware or Middleware()
        self._number = 0
        self._worn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = Outbox(store, spawn=self._spawn, settled=self._settled)
        self._threads = Threads()
        self._children = Children()
        self._stopping = False
        self._claiming = False
        self._bell: asyncio.Task[bool] | None = None
        self._bell_topics: tuple[str, ...] = ()
        self._encode_result = lambda value: (
            b"" if value is None else encode(value, what="result", limit=handlers.limits.result)
        )

    # -- claiming -----------------------------------------------------------------------------------------

    every_s = 0.0

    async def run_once(self) -> int:
        """
        Claim what there is for free slots and start it; wait a little if there is nothing.
        """
        if self._worn >= WORN_THREADS and not self._stopping:
            msg = f"{self._worn} handler threads did not stop when told: the process should be started anew"
            raise WornOut(msg)
        handlers = self._my_handlers()
        wants = self.running.wants(handlers) if not self._stopping and not self._clogged() else []
        if not wants:
            await self._wait_for_change()
            return 0
        limit = self.running.free
        started = 0
        for shard in self._shard_order():
            taken, unnamed = await self._claim(shard, wants, limit - started)
            started += taken
            if unnamed:
                # Due jobs of topics that others serve: put them within reach of those.
                await self._store.promote(shard, unnamed)
            wants = self.running.wants(handlers)
            if not wants or self._stopping:
                break
        if started < limit and not self._stopping:
            await self._wait_for_work(tuple(want.topic for want in self.running.wants(handlers)))
        return started

    async def _claim(self, shard: int, wants: list[Want], limit: int) -> tuple[int, tuple[str, ...]]:
        """
        Claim, and start what came.

        Where a full batch came, the next is asked for before this one starts:
        the server works on it while this process runs handlers.
        """
        loop = asyncio.get_running_loop()
        started = 0
        self._claiming = True
        try:
            asked, sent_s = self._ask(shard, wants, limit)
            for more in range(CLAIMS_AHEAD, -1, -1):
                claimed = await asked
                self._outlooks[shard].note(claimed.look, sent_s)
                runs = [self._begin(lease, sent_s) for lease in claimed.leases]
                started += len(runs)
                wants = self.running.wants(self._my_handlers()) if len(runs) >= PER_CALL and more else []
                again = bool(wants) and not self._stopping and not self._clogged()
                if again:
                    asked, sent_s = self._ask(shard, wants, self.running.free)
                for run in runs:
                    if run is not None:
                        # Kept from being collected by the table of runs, which it leaves only at its end.
                        run.task = loop.create_task(self._run(run))
                if not again:
                    break
        finally:
            self._claiming = False
            self.running.tell()
        self.claimed += started
        return started, claimed.look.unnamed

    def _ask(self, shard: int, wants: list[Want], limit: int) -> tuple[asyncio.Task[Claimed], float]:
        self._number += 1
        claim = self._store.claim(
            shard,
            wants,
            worker=self.name,
            number=self._number,
            limit=limit,
            suspects=self.running.suspects == 0,
            timer=self.name,
            role=self._role,
        )
        return asyncio.get_running_loop().create_task(claim), time.monotonic()

    def claim_now(self) -> bool:
        """
        Claim without waiting to be woken, a full worker as soon as it has room; False if it takes no more.
        """
        if self._stopping:
            return False
        if self.running.free:
            self.running.tell_all()
        return True

    def _my_handlers(self) -> list[Handler[..., Any]]:
        topics = self._handlers.topics() if self._topics is None else self._topics
        found = (self._handlers.get(topic) for topic in topics)
        return [handler for handler in found if handler is not None]

    def _clogged(self) -> bool:
        if self.running.outcomes is not None and self.running.outcomes.full:
            return True
        return len(self.running.runs) >= OUTCOMES_PER_SLOT * self.running.concurrency + 100

    def _shard_order(self) -> list[int]:
        shards = list(range(self._store.shards))
        turn = self._number % len(shards)
        return shards[turn:] + shards[:turn]

    async def _wait_for_change(self) -> None:
        change = self.running.changed()
        await asyncio.wait([change], timeout=self._block_s + 1)
        change.cancel()

    async def _wait_for_work(self, topics: tuple[str, ...]) -> None:
        """
        Wait until there may be work for *topics*, or a slot for others, or for a while.
        """
        if not topics:
            await self._wait_for_change()
            return
        if self._bell is not None and self._bell_topics != topics:
            # It may have taken a token already, so look once more before listening for these topics.
            self._hush()
            return
        room = self.running.room()
        if self._bell is None:
            self._bell = asyncio.get_running_loop().create_task(self._store.wait(topics, self._block_s))
            self._bell_topics = topics
        bell = self._bell
        # A slot that is freed does not end the listening: it would cost a connection each time.
        either: tuple[asyncio.Future[Any], ...] = (bell, room)
        await asyncio.wait(either, timeout=self._block_s + 1, return_when=asyncio.FIRST_COMPLETED)
        if bell.done():
            self._bell = None
            if not bell.cancelled():
                bell.result()

    def _hush(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None and not bell.cancel() and not bell.cancelled():
            bell.exception()  # asked for, so that nobody reports it as forgotten

    # -- running ------------------------------------------------------------------------------------------

    def _begin(self, lease: Lease, sent_s: float) -> Run | None:
        handler = self._handlers.get(lease.key.topic)
        if handler is None or self._stopping:
            # Removed, or told to stop, between the claim and now: somebody else may have it.
            self._spawn(self._give_back(lease))
            return None
        run = Run(lease, handler, sent_s)
        self.running.begin(run)
        return run

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self._store.release(lease)
        except DulyError as error:
            log.warning("could not release %s: %s", lease.key, error, extra=about(lease, self.name))

    async def _run(self, run: Run) -> None:
        lease = run.lease
        envelope = _NO_ENVELOPE
        answer: object
        handed_over = False
        try:
            try:
                if lease.envelope:
                    envelope = decode_envelope(lease.envelope)
                # Stopped before it began, it does not begin.
                answer = await self._call(run, envelope) if not run.stopped else None
            except Unreadable as error:
                answer = Raised(error)
            run.interrupt = None
            if run.stopped == "lost":
                self._lose(run)
                return
            if run.stopped == "drain":
                await self._save(run, None)
                return
            run.outcome = outcome = self._decide(run, envelope, answer)
            self.running.free_slot(run)
            if isinstance(outcome, Ack) and not self._hooks.any:
                # The usual ending, with nobody else to tell.
                self._outbox.ack(run, outcome.result)
                handed_over = True
            elif await self._save(run, outcome):
                self._tell_hooks(run, answer, outcome)
        except Exception as error:  # noqa: BLE001  # named, without its message, which may quote a payload
            # A fault of ours, not of the handler: the lease runs out, and counted crashes bound it.
            log.error(  # noqa: TRY400  # as above
                "run of %s ended without an outcome: %s",
                *(lease.key, place_of(error)),
                extra=about(lease, self.name),
            )
        finally:
            if not handed_over:
                self.running.end(run)
                self.finished += 1

    def _settled(self, run: Run, word: bytes) -> None:
        if word == b"ok":
            run.verb = "acked"
        else:
            self._lose(run)
        self.running.end(run)
        self.finished += 1

    async def _call(self, run: Run, envelope: Envelope) -> object:
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
            if handler.run_in == "process":
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
                self._worn -= worn

        def done(answer: object, error: BaseException | None) -> None:
            # The loop may be gone when a thread that was written off comes back.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, answer if error is None else Raised(error))

        def wear() -> None:
            nonlocal worn
            worn = True
            self._worn += 1
            self.running.tell_all()

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
        run.deadline_s = math.inf
        child = await self._take_child(run)
        if isinstance(child, Raised):
            return child
        call = call_of(run.lease, context)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
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

    async def _take_child(self, run: Run) -> Child | Raised:
        """
        A child for the run, unless it is stopped before there is one: then nobody waits for the start.
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
        self._threads.submit(lambda: self._children.take(handler), done)
        return await future

    async def _progress(self, lease: Lease, value: object) -> None:
        await self._store.progress(lease, encode(value, what="progress", limit=self._handlers.limits.context))

    def _report_from_thread(self, lease: Lease) -> Callable[[object], None]:
        loop = asyncio.get_running_loop()

        async def note(data: bytes) -> None:
            try:
                await self._store.progress(lease, data)
            except DulyError as error:
                log.info("progress of %s was not stored: %s", lease.key, error, extra=about(lease, self.name))

        def report(value: object) -> None:
            data = encode(value, what="progress", limit=self._handlers.limits.context)
            loop.call_soon_threadsafe(lambda: self._spawn(note(data)))

        return report

    # -- deciding and saving ------------------------------------------------------------------------------

    def _decide(self, run: Run, envelope: Envelope, answer: object) -> Outcome:
        handler = run.handler
        if isinstance(answer, Raised):
            if isinstance(answer.exc, Unreadable):
                return Buried(reason_document("unreadable", str(answer.exc)), "unreadable")
            if isinstance(answer.exc, ChildError):
                return self._decide_child_error(run, envelope, answer.exc)
        return outcome_of(
            answer,
            attempt=run.lease.attempt,
            max_attempts=envelope.max_attempts or handler.max_attempts,
            backoff=_backoff_of(envelope, run.lease) or handler.backoff,
            encode_result=self._encode_result,
            traceback=self._tracebacks,
        )

    def _decide_child_error(self, run: Run, envelope: Envelope, error: ChildError) -> Outcome:
        outcome = self._decide(run, envelope, Raised(Exception(error.signature)))
        if isinstance(outcome, RetryLater):
            return RetryLater(outcome.delay_ms, error.document, error.signature, counted=True)
        return Buried(error.document, error.signature)

    async def _save(self, run: Run, outcome: Outcome | None) -> bool:
        """
        Store an outcome, however long the store is away; None releases the job.  False if it does not count.
        """
        pause_s = 0.05
        while True:
            try:
                await self._save_once(run, outcome)
            except (LeaseLost, JobNotFound):
                self._lose(run)
                return False
            except DulyError as error:
                # Refused, unreachable or unknown: the same call again is safe, and the lease decides.
                log.warning(
                    "outcome of %s not stored yet: %s",
                    *(run.lease.key, error),
                    extra=about(run.lease, self.name),
                )
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            run.verb = _VERBS[type(outcome)]
            if outcome is None:
                runs_log.info("%s: released", run.lease.key, extra=about(run.lease, self.name))
            return True

    def _log_failure(self, run: Run, answer: object, outcome: RetryLater | Buried) -> None:
        """
        Say how a run failed: by type and place.  A message may quote what the job was given.
        """
        lease = run.lease
        error = answer.exc if isinstance(answer, Raised) else answer
        ours = isinstance(error, Planned | Unreadable | ChildError)
        raised = error if isinstance(error, Exception) and not ours else None
        what = _kind_of(outcome.error) + _place_of(raised)
        trace = raised if self._tracebacks else None
        extra = about(lease, self.name)
        if isinstance(outcome, Buried):
            text = "%s, attempt %d: dead: %s"
            runs_log.error(text, lease.key, lease.attempt, what, exc_info=trace, extra=extra)
            return
        level, ending = (logging.WARNING, "failed") if outcome.counted else (logging.INFO, "put off")
        text = "%s, attempt %d: %s, again in %g s: %s"
        words = (lease.key, lease.attempt, ending, outcome.delay_ms / 1000, what)
        runs_log.log(level, text, *words, exc_info=trace, extra=extra)

    async def _save_once(self, run: Run, outcome: Outcome | None) -> None:
        lease, store = run.lease, self._store
        match outcome:
            case None:
                await store.release(lease)
            case Ack(result):
                await store.ack(lease, result, lateness_ms=run.lateness_ms())
            case RetryLater(delay_ms, error, reason, counted):
                await store.retry(
                    lease, delay_ms, error, reason, counted=counted, lateness_ms=run.lateness_ms()
                )
            case Buried(error, reason):
                await store.bury(lease, error, reason, lateness_ms=run.lateness_ms())

    def _lose(self, run: Run) -> None:
        self.fenced += 1
        run.verb = "fenced"
        log.warning(
            "lost the lease on %s; its outcome here does not count",
            run.lease.key,
            extra=about(run.lease, self.name),
        )
        if self._hooks.lease_lost and run.job:
            self._spawn(self._hooks.tell("lease_lost", run.job))

    def _tell_hooks(self, run: Run, answer: object, outcome: Outcome) -> None:
        if not isinstance(outcome, Ack):
            self._log_failure(run, answer, outcome)
        if run.job is None or not self._hooks.any:
            return
        if run.stopped == "timeout":
            self._spawn(self._hooks.tell("timeout", run.job))
        if isinstance(outcome, Ack):
            self._spawn(self._hooks.tell("success", run.job, answer))
        else:
            self._spawn(
                self._hooks.tell("failure", run.job, answer.exc if isinstance(answer, Raised) else answer)
            )

    # -- stopping -----------------------------------------------------------------------------------------

    def stop_run(self, member: str, token: int) -> None:
        """
        Stop a run whose token is void: cancelled, replaced or recovered by others.
        """
        run = self.running.runs.get(member)
        if run is not None and run.lease.token == token:
            run.stop("lost")

    async def sweep(self) -> None:
        """
        Stop what is over its time to run, for ever.
        """
        while True:
            await asyncio.sleep(SWEEP_S)
            for run in self.running.over_time(time.monotonic()):
                log.warning(
                    "%s ran longer than its time to run of %d ms",
                    *(run.lease.key, run.lease.ttr_ms),
                    extra=about(run.lease, self.name),
                )
                run.stop("timeout")

    async def drain(self) -> None:
        """
        Stop claiming, let running jobs finish within the grace, and give back the rest.
        """
        self._stop_claiming()
        deadline_s = time.monotonic() + self._grace_s
        while self.running.runs or self._claiming:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.wait([self.running.changed()], timeout=left_s)
        await self.give_back_all()

    async def give_back_all(self) -> None:
        """
        Release whatever still runs, uncounted.
        """
        self._stop_claiming()
        try:
            for run in list(self.running.runs.values()):
                if run.slot_held:
                    run.stop("drain")
            deadline_s = time.monotonic() + SETTLE_S
            # A claim under way brings jobs that must be given back, too.
            while self._tasks or self.running.runs or self._claiming:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                waiting = [*self._tasks, self.running.changed()]
                await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._children.close()
            # What could not be stored by now, because the store is away, is left to the leases.
            for run in self.running.runs.values():
                run.task.cancel()
            for task in self._tasks:
                task.cancel()

    def _stop_claiming(self) -> None:
        self._stopping = True
        self._hush()
        self.running.tell_all()

    def about(self) -> bytes:
        """
        What the worker says of itself.
        """
        return msgspec.json.encode(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "topics": [handler.topic for handler in self._my_handlers()],
                "concurrency": self.running.concurrency,
                "running": len(self.running.runs),
                "claimed": self.claimed,
                "finished": self.finished,
                "fenced": self.fenced,
            }
        )


def _kind_of(document: bytes) -> str:
    """
    The type in an error document, without the message: that may quote a payload.
    """
    return str(decode(document).get("type", "?"))


def _backoff_of(envelope: Envelope, lease: Lease) -> Backoff | None:
    try:
        return from_wire(envelope.backoff) if envelope.backoff else None
    except UsageError as error:
        # Sent by a newer release, maybe.  The handler's own is better than none.
        log.warning("cannot read the backoff of %s: %s", lease.key, error, extra=about(lease))
        return None


def _place_of(error: Exception | None) -> str:
    """
    Where an exception was raised, as far as is told: the file and line of its innermost frame.
    """
    trace = error.__traceback__ if error else None
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def _time_over(lease: Lease) -> TimeoutError:
    return TimeoutError(f"ran longer than its time to run of {lease.ttr_ms / 1000:g} s")
