"""
Which jobs an assertion means, and how to say what was there instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from duly.codec import decode
from duly.durations import Seconds, parse_duration
from duly.errors import UsageError
from duly.handlers import Handler, NewJob
from duly.job import check_id, check_topic, moment
from duly.options import due_at_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.testing.snapshots import JobSnapshot

LINES = 20  #: of jobs in a message; a test with thousands need not print them all


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING: Final = _Anything()


@dataclass(frozen=True, slots=True)
class Pattern:
    """
    What an assertion says of a job; what it does not say may be anything.
    """

    topic: str
    payload: Any = ANYTHING  #: some of the arguments by name, a function that judges them, or the whole
    whole: bool = False  #: the payload is all of it, not some of its arguments
    id: str | None = None
    delay_ms: int | None = None
    due_ms: int | None = None
    options: dict[str, Any] = field(default_factory=dict)  #: priority and context, of a `NewJob`

    def misses(self, job: JobSnapshot, now_ms: int) -> list[str]:
        """
        Say in what the job differs, for people; nothing if it is one of those that are meant.
        """
        found = []
        if self.id is not None and job.id != self.id:
            found.append(f"its id is {job.id}, not {self.id}")
        found += self._payload_misses(job.payload)
        if self.delay_ms is not None and job.job.due_ms - now_ms != self.delay_ms:
            found.append(f"due in {_span(job.job.due_ms - now_ms)}, not in {_span(self.delay_ms)}")
        # What was due before it was enqueued is due since then.
        if self.due_ms is not None and max(job.job.due_ms, now_ms) != max(self.due_ms, now_ms):
            found.append(f"due at {job.due_at}, not at {moment(self.due_ms)}")
        for name, value in self.options.items():
            if getattr(job, name) != value:
                found.append(f"its {name} is {getattr(job, name)!r}, not {value!r}")
        return found

    def _payload_misses(self, payload: Any) -> list[str]:
        wanted = self.payload
        if wanted is ANYTHING:
            return []
        if isinstance(wanted, Mapping) and not self.whole:
            if not isinstance(payload, dict):
                return [f"its payload is {payload!r}"]
            return [
                f"{name} is {payload[name]!r}, not {value!r}" if name in payload else f"there is no {name}"
                for name, value in wanted.items()
                if name not in payload or payload[name] != value
            ]
        if callable(wanted):
            return [] if wanted(payload) else ["the function says no to its payload"]
        return [] if payload == wanted else [f"its payload is {payload!r}"]

    def __str__(self) -> str:
        words = [f"job of {self.topic}"]
        if self.id is not None:
            words.append(f"with id {self.id}")
        if callable(self.payload):
            words.append(f"whose payload {getattr(self.payload, '__qualname__', self.payload)} accepts")
        elif self.payload is not ANYTHING:
            words.append(f"with payload {self.payload!r}" if self.whole else f"with {self.payload!r}")
        if self.delay_ms is not None:
            words.append(f"due in {_span(self.delay_ms)}")
        if self.due_ms is not None:
            words.append(f"due at {moment(self.due_ms)}")
        words += [f"with {name} {value!r}" for name, value in self.options.items()]
        return " ".join(words)


def pattern(
    what: Handler[..., Any] | NewJob[Any] | str,
    payload: Any,
    *,
    delay: Seconds | None,
    due_at: datetime | None,
    id_: str | None,
) -> Pattern:
    """
    Read what an assertion was called with.

    Raises:
        UsageError: It does not say which jobs are meant.
    """
    whole, options = False, {}
    if isinstance(what, NewJob):
        if payload is not ANYTHING:
            raise UsageError("say the arguments in .job(…) or as a payload, not both")
        topic, payload, whole = what.topic, decode(what.payload), True
        delay = what.delay if delay is None else delay
        due_at = what.due_at if due_at is None else due_at
        id_ = what.id if id_ is None else id_
        options = {
            name: value
            for name, value in (("priority", what.priority), ("context", what.context))
            if value not in (None, "normal")
        }
    elif isinstance(what, Handler):
        topic = what.topic
    elif isinstance(what, str):
        topic = check_topic(what)
    else:
        raise UsageError(f"say which jobs: a handler, handler.job(…) or the name of a topic, not {what!r}")
    if delay is not None and due_at is not None:
        raise UsageError("say either delay or due_at, not both")
    return Pattern(
        topic,
        payload,
        whole,
        None if id_ is None else check_id(id_),
        None if delay is None else parse_duration(delay, "delay"),
        None if due_at is None else due_at_ms(due_at),
        options,
    )


def listed(jobs: Sequence[JobSnapshot], meant: Pattern | None = None, now_ms: int = 0) -> str:
    """
    One line for each job, those of the topic that is meant first, with what is wrong with them.
    """
    if meant is not None:
        jobs = sorted(jobs, key=lambda job: job.topic != meant.topic)
    lines = []
    for job in jobs[:LINES]:
        near = meant is not None and job.topic == meant.topic and job.waits
        wrong = meant.misses(job, now_ms) if meant is not None and near else []
        lines.append(f"  {job}" + (f"   <- {'; '.join(wrong)}" if wrong else ""))
    if len(jobs) > LINES:
        lines.append(f"  and {len(jobs) - LINES} more")
    return "\n".join(lines)


def _span(ms: int) -> str:
    span = timedelta(milliseconds=abs(ms))
    return f"{span}" if ms >= 0 else f"-{span}"
