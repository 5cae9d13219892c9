"""
The worker: claims free slots' worth of jobs, runs their handlers, and stores what became of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Envelope, decode_envelope
from duly.errors import DulyError
from duly.interruption import is_interruption
from duly.logs import BRIEF, about, describe
from duly.middleware import Middleware
from duly.outcome import Ack, Raised
from duly.services.calling import Caller
from duly.services.claiming import Claims
from duly.services.deciding import PutOff, decide
from duly.services.outbox import Outbox
from duly.services.running import Run, Running
from duly.services.saving import give_back, save
from duly.services.stragglers import time_over
from duly.services.telling import tell_after_commit, tell_failure, tell_release, tell_successes

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Collection, Coroutine

    from duly.handlers import Handlers
    from duly.hooks import Hooks
    from duly.job import Lease
    from duly.outcome import Outcome
    from duly.services.outlook import Outlook
    from duly.store import Store

log = logging.getLogger("duly.worker")

_NO_ENVELOPE = Envelope()
_DONE = Ack(b"")

SWEEP_S = 0.05
WORN_HANDLERS = 8  #: so many handlers that would not stop, and the process should begin anew
SETTLE_S = 5.0  #: how long what was stopped may take to be given back


def worker_name() -> str:
    """
    A name that is new with every start.
    """
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


class WornOut(Exception):
    """
    Too many handlers would not stop: the process should be started anew.

    No `DulyError`: trying again would not help, so it ends the worker's loop.
    """


class Worker:
    """
    Runs jobs of an app's handlers.
    """

    every_s = 0.0

    def __init__(
        self,
        store: Store,
        handlers: Handlers,
        outlooks: list[Outlook],
        *,
        concurrency: int,
        block_s: float | None = 1.0,
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
        self._grace_s = grace_s
        self._hooks = hooks
        self._topics = topics
        self._tracebacks = tracebacks
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        self._claims = Claims(
            store,
            self.running,
            outlooks,
            role=role,
            block_s=block_s,
            topics=self._my_topics,
            handler=handlers.get,
            begin=self._begin,
            carry_out=self._run,
            # A job whose earlier run goes on here is put off: another worker may be able to begin it.
            looks=lambda: not self._caller.stragglers.by_job,
        )
        self._caller = Caller(
            store,
            self.running,
            limits=handlers.limits,
            hooks=hooks,
            middleware=middleware or Middleware(),
            spawn=self._spawn,
            settle=self._settle,
        )
        self._outbox = Outbox(store, worker=self.name, spawn=self._spawn, settled=self._settled)

    async def run_once(self) -> int:
        """
        Claim what there is for free slots and start it; wait a little if there is nothing.
        """
        worn = self._caller.stragglers.worn
        if worn >= WORN_HANDLERS and not self._claims.stopping:
            msg = f"{worn} handlers did not stop when told: the process should be started anew"
            raise WornOut(msg)
        return await self._claims.run_once()

    def claim_now(self, shard: int) -> bool:
        """
        Claim from *shard* without waiting to be woken, a full worker as soon as it has room; False if it
        takes no more.
        """
        return self._claims.now(shard)

    def topics_with_room(self) -> list[str] | None:
        """
        The topics of which a job could start now, None for more than one call may name.
        """
        return self._claims.topics_with_room()

    def _my_topics(self) -> Collection[str]:
        if self._topics is None:
            return self._handlers.served()
        return [topic for topic in self._topics if self._handlers.get(topic) is not None]

    # -- running ------------------------------------------------------------------------------------------

    def _begin(self, lease: Lease, sent_s: float) -> Run | None:
        self.claimed += 1
        handler = self._handlers.get(lease.key.topic)
        if handler is None or self._claims.stopping:
            # Removed, or told to stop, between the claim and now: somebody else may have it.
            self._spawn(give_back(self._store, lease, self.name))
            return None
        run = Run(lease, handler, sent_s)
        self.running.begin(run)
        return run

    def _spawn(
        self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context | None = None
    ) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: Run) -> None:
        lease, stragglers = run.lease, self._caller.stragglers
        envelope = _NO_ENVELOPE
        answer: object = None
        try:
            if lease.envelope:
                envelope = decode_envelope(lease.envelope)
            if stragglers.by_job and not await stragglers.end_before(run):
                answer = PutOff()
            # Stopped before it began, it does not begin.
            elif not run.stopped:
                answer = await self._caller.call(run, envelope)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and is_interruption(error, run.task):
                raise
            # Whatever a handler raises is its own failure: the loop would end of some of it.
            answer = Raised(error)
        run.interrupt = None
        if run.stopped:
            if stragglers.call_ended(run):
                return
            if isinstance(answer, Raised) and isinstance(answer.exc, asyncio.CancelledError):
                answer = Raised(time_over(lease))
        elif isinstance(answer, Raised) and is_interruption(answer.exc, run.task):
            self._spawn(self._settle_cancelled(run, envelope, answer))
            return
        self._settle(run, envelope, answer)

    async def _settle_cancelled(self, run: Run, envelope: Envelope, answer: object) -> None:
        """
        Settle a run that was cancelled, but not by us: by its own handler, or together with the loop.
        """
        # Whoever cancels all tasks cancels the crew, which by then has said that it ends.
        await asyncio.sleep(0)
        if self._claims.stopping:
            run.stop("drain")
        self._settle(run, envelope, answer)

    def _settle(self, run: Run, envelope: Envelope, answer: object) -> None:
        """
        Decide what becomes of a job and have it stored, by a task that its handler never knew.
        """
        try:
            committed = run.committed
            if committed is not None:
                tell_after_commit(run, answer, self.name)
                answer = committed.value
            elif run.stopped == "lost" or (run.job is not None and run.job.fenced):
                self._lose(run)
                self._end(run)
                return
            if self._over:
                # The store is closed: what could not be stored by now is left to its lease.
                self._end(run)
                return
            if run.stopped == "drain" and committed is None:
                self._spawn(self._save(run, answer, None))
                return
            run.outcome = outcome = self._decide(run, envelope, answer)
            self.running.free_slot(run)
            if isinstance(outcome, Ack) and not self._hooks.any:
                # The usual ending, with nobody else to tell.
                self._outbox.ack(run, outcome.result)
            else:
                self._spawn(self._save(run, answer, outcome))
        except Exception as error:  # noqa: BLE001  # see `_fail`
            self._fail(run, error)
            self._end(run)

    async def _save(self, run: Run, answer: object, outcome: Outcome | None) -> None:
        try:
            if not await save(self._store, run, outcome, self.name):
                self._lose_unless_committed(run)
            elif outcome is None:
                tell_release(run, self.name)
            else:
                self._tell(run, answer, outcome)
        except Exception as error:  # noqa: BLE001  # see `_fail`
            self._fail(run, error)
        finally:
            self._end(run)

    def _fail(self, run: Run, error: Exception) -> None:
        """
        Report a fault of ours, not of the handler: the lease runs out, and counted crashes bound it.
        """
        log.error(
            "run of %s ended without an outcome: %s",
            *(run.lease.key, describe(error)),
            exc_info=error,
            extra=about(run.lease, self.name) | BRIEF,
        )

    def _settled(self, run: Run, word: bytes) -> None:
        if word == b"ok":
            run.verb = "acked"
        else:
            self._lose_unless_committed(run)
        self._end(run)

    def _end(self, run: Run) -> None:
        self.running.end(run)
        self.finished += 1

    def _decide(self, run: Run, envelope: Envelope, answer: object) -> Outcome:
        if run.committed is not None:
            return Ack(run.committed.result)
        if answer is None:
            # As of most handlers.
            return _DONE
        return decide(run, envelope, answer, tracebacks=self._tracebacks)

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

    def _lose_unless_committed(self, run: Run) -> None:
        """
        Note that the store did not take an outcome; where the record has it, the job has succeeded.
        """
        if run.committed is None:
            self._lose(run)
            return
        run.verb = "acked"
        log.info(
            "the lease on %s ran out before its end was stored; the record has it",
            run.lease.key,
            extra=about(run.lease, self.name),
        )

    def _tell(self, run: Run, answer: object, outcome: Outcome) -> None:
        if isinstance(outcome, Ack):
            tell_successes([run], self.name)
        else:
            tell_failure(run, answer, outcome, self.name, tracebacks=self._tracebacks)
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
        self._claims.stop()
        deadline_s = time.monotonic() + self._grace_s
        while self.running.runs or self._claims.under_way or self._claims.unanswered:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            await asyncio.wait([self.running.changed()], timeout=left_s)
        await self.give_back_all()

    async def give_back_all(self) -> None:
        """
        Release whatever still runs, uncounted.
        """
        self._claims.stop()
        try:
            for run in list(self.running.runs.values()):
                if run.slot_held:
                    run.stop("drain")
            if self._claims.unanswered:
                self._spawn(self._give_back_unanswered())
            deadline_s = time.monotonic() + SETTLE_S
            # A claim under way brings jobs that must be given back, too.
            while self._tasks or self.running.runs or self._claims.under_way:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                waiting = [*self._tasks, self.running.changed()]
                await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._over = True
            self._caller.close()
            if self._claims.unanswered:
                log.warning("a claim had no answer until the end; what it took is left to its lease")
            # What could not be stored by now, because the store is away, is left to the leases.
            for run in self.running.runs.values():
                run.task.cancel()
            for task in self._tasks:
                task.cancel()

    async def _give_back_unanswered(self) -> None:
        with suppress(DulyError):  # told of at the end
            await self._store.give_back_unanswered(self.name)

    def about(self) -> bytes:
        """
        What the worker says of itself.
        """
        return msgspec.json.encode(
            {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "topics": list(self._my_topics()),
                "concurrency": self.running.concurrency,
                "running": len(self.running.runs),
                "claimed": self.claimed,
                "finished": self.finished,
                "fenced": self.fenced,
            }
        )
