"""
Stragglers: runs that were told to stop and have not ended yet.

A thread can only be told, and an async function may catch its cancellation.  After a moment their job is
settled without them, while the lease still holds, and no other run of it begins here until they end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from typing import TYPE_CHECKING

from duly.logs import BRIEF, about, describe
from duly.outcome import Raised

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.job import Lease
    from duly.services.running import Run, Running

log = logging.getLogger("duly.worker")

WORN_S = 2.0  #: how long a run may take to stop once it was told; a lease outlasts the time to run by more
LAST_S = 0.1  #: the same once its worker has ended


class Stragglers:
    """
    The stragglers of one worker, at most one of each job.
    """

    def __init__(self, running: Running) -> None:
        self.worn = 0  #: those that did not end in time
        self._running = running
        self.by_job: dict[str, _Straggler] = {}

    def expect_end(self, run: Run, settle: Callable[[Raised], None], *, in_thread: bool = False) -> None:
        """
        Expect the end of a run that was told to stop; if it does not come, *settle* is called with an answer.
        """
        straggler = self._note(run)
        straggler.settle = settle
        straggler.in_thread = straggler.in_thread or in_thread
        self._set_alarm(straggler)

    def leave_thread(self, run: Run) -> None:
        """
        Note that a run does not wait for its thread any more, which goes on.
        """
        straggler = self._note(run)
        straggler.in_thread = True
        if straggler.alarm is None:
            self._set_alarm(straggler)

    def call_ended(self, run: Run) -> bool:
        """
        Note that the call of a handler has ended; return whether its run was settled before.
        """
        straggler = self.by_job.get(run.member)
        if straggler is None or straggler.run is not run:
            return False
        straggler.settle = None
        self._end(straggler)
        return straggler.settled

    def thread_ended(self, run: Run) -> None:
        """
        Note that the thread of a run has ended.
        """
        straggler = self.by_job.get(run.member)
        if straggler is not None and straggler.run is run:
            straggler.in_thread = False
            self._end(straggler)

    async def end_before(self, run: Run) -> bool:
        """
        Wait, for a moment, until no earlier run of the same job goes on here; return whether none does.
        """
        straggler = self.by_job.get(run.member)
        if straggler is None:
            return True
        try:
            async with asyncio.timeout(WORN_S):
                await straggler.over.wait()
        except TimeoutError:
            return False
        run.allow_start(0)
        return True

    def close(self) -> None:
        """
        End what can be ended: the worker does not go on.
        """
        for straggler in self.by_job.values():
            if straggler.alarm is not None:
                straggler.alarm.cancel()
            task = straggler.run.task
            task.cancel()
            # Nobody can close a loop as long as one of its tasks goes on.
            task.get_loop().call_later(LAST_S, _break_off, task)

    def _note(self, run: Run) -> _Straggler:
        straggler = self.by_job.get(run.member)
        if straggler is None or straggler.run is not run:
            straggler = self.by_job[run.member] = _Straggler(run)
        return straggler

    def _set_alarm(self, straggler: _Straggler) -> None:
        if straggler.alarm is not None:
            straggler.alarm.cancel()
        straggler.alarm = asyncio.get_running_loop().call_later(
            WORN_S, self._give_up, straggler, context=straggler.run.context
        )

    def _give_up(self, straggler: _Straggler) -> None:
        lease = straggler.run.lease
        if not straggler.worn:
            straggler.worn = True
            self.worn += 1
            log.warning(
                "%s did not stop within %g s after it was told; its slot is given to others",
                *(lease.key, WORN_S),
                extra=about(lease, self._running.worker),
            )
        if straggler.settle is not None:
            straggler.settled = True
            straggler.settle(Raised(time_over(lease, " and did not stop when told")))
        self._running.tell_all()

    def _end(self, straggler: _Straggler) -> None:
        if straggler.in_thread or straggler.settle is not None:
            return
        lease = straggler.run.lease
        if straggler.alarm is not None:
            straggler.alarm.cancel()
        del self.by_job[straggler.run.member]
        straggler.over.set()
        if straggler.worn:
            self.worn -= 1
            log.info("%s has stopped at last", lease.key, extra=about(lease, self._running.worker))


class _Straggler:
    __slots__ = ("alarm", "in_thread", "over", "run", "settle", "settled", "worn")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.in_thread = False  #: its thread has yet to end
        self.settle: Callable[[Raised], None] | None = None  #: its call has yet to end; then this is None
        self.settled = False
        self.worn = False  #: it is counted among those that did not end in time
        self.alarm: asyncio.TimerHandle | None = None
        self.over = asyncio.Event()


def time_over(lease: Lease, more: str = "") -> TimeoutError:
    """
    What counts as raised by a run that was stopped because its time was over.
    """
    return TimeoutError(f"ran longer than its time to run of {lease.ttr_ms / 1000:g} s{more}")


def _break_off(task: asyncio.Task[None]) -> None:
    """
    End a task whose handler catches its cancellations, by closing the coroutine that it awaits.
    """
    call = getattr(task.get_coro(), "cr_await", None)
    if task.done() or not inspect.iscoroutine(call):
        return
    try:
        call.close()
    except BaseException as error:  # whatever it does in order to stay
        log.warning(
            "a handler that does not stop cannot be ended either: %s",
            describe(error),
            exc_info=error,
            extra=BRIEF,
        )
    task.cancel()
