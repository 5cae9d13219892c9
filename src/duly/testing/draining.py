"""
Run everything that is due, with an app's own handlers, until nothing is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from duly.errors import UsageError
from duly.handlers import Handler
from duly.outcome import Ack, Planned, Raised, RetryLater, Snooze
from duly.services.worker import Worker
from duly.testing.frozen import stands_still

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.codec import Envelope
    from duly.outcome import Outcome
    from duly.services.running import Run
    from duly.settings import Settings

LOOK_AGAIN_S = 0.02
HANG_S = 3.0  #: how long async handlers may run on a loop whose time is frozen

Ending = Literal["succeeded", "retried", "snoozed", "dead", "lost"]


@dataclass(frozen=True, slots=True)
class Ran:
    """
    One run of one job.
    """

    topic: str
    id: str
    attempt: int
    ending: Ending  #: "lost": it was cancelled or replaced meanwhile, so that this run does not count
    result: Any = None  #: what the handler returned, for "succeeded"
    error: BaseException | None = None  #: what it raised, or `Retry`, `Snooze` or `Bury` that it returned
    reason: str = ""  #: the same in one line, as the events tell it
    again_in: timedelta | None = None  #: how long until the next run, for "retried" and "snoozed"

    def __str__(self) -> str:
        text = f"{self.topic}/{self.id}  attempt {self.attempt}  {self.ending}"
        if self.again_in is not None:
            text += f", again in {self.again_in}"
        return f"{text}: {self.reason}" if self.reason else text


class Drained(tuple[Ran, ...]):
    """
    What a drain ran, in the order in which the runs ended.
    """

    __slots__ = ()

    @property
    def errors(self) -> list[BaseException]:
        """
        What handlers raised that was not planned: no `Retry`, `Snooze` or `Bury`.
        """
        return [ran.error for ran in self if ran.error is not None and not isinstance(ran.error, Planned)]

    def of(self, what: Handler[..., Any] | str) -> list[Ran]:
        """
        The runs of one handler or topic.
        """
        topic = what.topic if isinstance(what, Handler) else what
        return [ran for ran in self if ran.topic == topic]

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "nothing was due"


class Drainer(Worker):
    """
    A worker that waits for nothing, because the clock stands still, and remembers what it ran.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"block_s": None})
        self.ran: dict[Run, Ran] = {}

    def _decide(self, run: Run, envelope: Envelope, answer: object) -> Outcome:
        outcome = super()._decide(run, envelope, answer)
        error = answer.exc if isinstance(answer, Raised) else answer if isinstance(answer, Planned) else None
        if isinstance(outcome, Ack):
            self._note(run, "succeeded", result=answer)
        elif isinstance(outcome, RetryLater):
            self._note(
                run,
                "snoozed" if isinstance(error, Snooze) else "retried",
                error=error,
                reason=outcome.signature,
                again_in=timedelta(milliseconds=outcome.delay_ms),
            )
        else:
            self._note(run, "dead", error=error, reason=outcome.signature)
        return outcome

    def _lose(self, run: Run) -> None:
        super()._lose(run)
        self._note(run, "lost")

    def _note(self, run: Run, ending: Ending, **more: Any) -> None:
        lease = run.lease
        self.ran[run] = Ran(lease.key.topic, lease.key.id, lease.attempt, ending, **more)


async def drain(app: Duly, settings: Settings, limit: int) -> Drained:
    """
    Run what is due now, also what that enqueues for now, until nothing is.

    Raises:
        UsageError: There is no handler, or more than *limit* runs were not enough.
    """
    if not app.handlers.topics():
        raise UsageError("the app has no handler: import the modules that define its handlers, then drain()")
    await app.queue()
    crew = app.crew(settings, worker=Drainer)
    worker = crew.worker
    assert isinstance(worker, Drainer)
    sweep = asyncio.create_task(worker.sweep())
    try:
        await _run_all(worker, limit)
        await worker.drain()
    except BaseException:
        await worker.give_back_all()
        raise
    finally:
        sweep.cancel()
        await asyncio.gather(sweep, return_exceptions=True)
        await crew.store.link.aclose()
    return Drained(worker.ran.values())


async def _run_all(worker: Drainer, limit: int) -> None:
    looks = 0
    while True:
        # What still runs while the claim is under way may enqueue more behind its back.
        idle = not worker.running.runs
        if await worker.run_once():
            if worker.claimed > limit:
                raise UsageError(_too_many(worker.ran, limit))
            looks = 0
        elif worker.running.runs and stands_still(asyncio.get_running_loop()):
            # Timers of this loop never end; another thread sleeps.
            await asyncio.to_thread(time.sleep, LOOK_AGAIN_S)
            looks += 1
            if looks * LOOK_AGAIN_S >= HANG_S:
                _check_for_hang(worker)
        elif worker.running.runs:
            # Not for long: a handler may wait for a job that it has just enqueued.
            await asyncio.wait([worker.running.changed()], timeout=LOOK_AGAIN_S)
        elif idle:
            return


def _check_for_hang(worker: Drainer) -> None:
    runs = worker.running.runs.values()
    topics = sorted({run.handler.topic for run in runs if run.handler.run_in == "loop"})
    if topics:
        raise UsageError(
            f"time stands still for asyncio as well, and handlers of {', '.join(topics)} still wait: "
            "say freeze_time(…, real_asyncio=True), so that asyncio.sleep() and timeouts end"
        )


def _too_many(ran: dict[Run, Ran], limit: int) -> str:
    topics = Counter(each.topic for each in ran.values()).most_common(3)
    counts = ", ".join(f"{count} of {topic}" for topic, count in topics)
    return (
        f"drain() has run {limit} jobs and more are due ({counts}): does a handler enqueue itself, or retry, "
        "without a delay? Give it one and move the clock, or say drain(limit=…) if so many are meant to run"
    )
