"""
The last minute of events, by the second: as large as a minute has seconds, however much happens in them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from duly.events import Verb
from duly.figures import percentile_of
from duly.top.snapshot import Failure, Lateness, Rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from duly.events import Event

T = TypeVar("T")

SPAN_S = 60
RATE_S = 10
REASONS = 50  #: different failures that are told apart within a second
FAILURES = 100  #: different failures that are told

#: These end a run, and tell how late it had started.
_TELLING = frozenset({Verb.acked, Verb.retried, Verb.buried})
_FAILING = frozenset({Verb.retried, Verb.buried, Verb.recovered})
_PLANNED = ("snoozed", "clock")


@dataclass
class Second:
    """
    What happened within one second.
    """

    # No whole numbers: where there is too much to read, an event stands for more than itself.
    verbs: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    late: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    failures: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))


def _total(parts: Iterable[Mapping[T, float]]) -> dict[T, float]:
    total: dict[T, float] = defaultdict(float)
    for part in parts:
        for key, value in part.items():
            total[key] += value
    return total


class Window:
    """
    Events of the last minute, counted.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, Second] = {}
        self._since_s = 0
        self._sampled_s = 0

    def add(self, events: Iterable[Event], weight: float = 1.0) -> None:
        """
        Count events, each for *weight* of them.
        """
        for event in events:
            second = self._seconds.setdefault(event.at_ms // 1000, Second())
            second.verbs[event.verb.value] += weight
            if event.verb in _TELLING and event.lateness_ms is not None:
                second.late[event.lateness_ms] += weight
            if event.verb in _FAILING and event.reason not in _PLANNED:
                what = (event.topic, event.reason)
                if what in second.failures or len(second.failures) < REASONS:
                    second.failures[what] += weight

    def begin(self, at_ms: int) -> None:
        """
        Say that nothing is known from before *at_ms*.
        """
        self._since_s = at_ms // 1000
        self.sample(at_ms)

    def sample(self, at_ms: int) -> None:
        """
        Say that at this time there was more than was counted one by one.
        """
        self._sampled_s = at_ms // 1000

    def sampled(self, now_ms: int) -> bool:
        """
        Whether the last minute is known in part only.
        """
        return now_ms // 1000 - self._sampled_s < SPAN_S

    def forget(self, now_ms: int) -> None:
        """
        Drop what is older than a minute.
        """
        oldest = now_ms // 1000 - SPAN_S
        for at in [at for at in self._seconds if at <= oldest]:
            del self._seconds[at]

    def lateness(self) -> Lateness:
        """
        How late runs were.
        """
        late = _total(second.late for second in self._seconds.values())
        return Lateness(
            round(sum(late.values())),
            percentile_of(late, 0.5),
            percentile_of(late, 0.99),
            max(late, default=None),
        )

    def rates(self, now_ms: int) -> tuple[Rate, ...]:
        """
        How often each verb was done, in the order of a job's life.
        """
        now_s = now_ms // 1000
        minute = _total(second.verbs for second in self._seconds.values())
        # The second that is under way is not over: it would make every rate look low.
        lately = _total(second.verbs for at, second in self._seconds.items() if now_s - RATE_S <= at < now_s)
        known_s = min(RATE_S, max(1, now_s - self._since_s))
        return tuple(
            Rate(verb.value, round(lately[verb.value] / known_s, 2), round(minute[verb.value]))
            for verb in Verb
            if minute[verb.value]
        )

    def failures(self, now_ms: int) -> tuple[Failure, ...]:
        """
        What failed, the most frequent first.
        """
        counts = _total(second.failures for second in self._seconds.values())
        last: dict[tuple[str, str], int] = {}
        for at, second in self._seconds.items():
            for what in second.failures:
                last[what] = max(last.get(what, 0), at)
        found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return tuple(
            Failure(topic, error, round(count), max(0, now_ms - last[topic, error] * 1000))
            for (topic, error), count in found[:FAILURES]
        )
