"""
Rows of history, written by hand: what happened to a job, step by step.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from duly.spark.history.files import HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
_STATES = {
    "enqueued": "scheduled",
    "hydrated": "scheduled",
    "replaced": "scheduled",
    "rescheduled": "scheduled",
    "requeued": "ready",
    "promoted": "ready",
    "claimed": "running",
    "acked": "succeeded",
    "retried": "scheduled",
    "buried": "dead",
    "released": "ready",
    "recovered": "ready",
    "cancelled": "cancelled",
    "pruned": "succeeded",
    "paused": "scheduled",
    "mended": "ready",
}


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


class Story:
    """
    Events in their order, as the server would have counted them.
    """

    def __init__(self, *, epoch: str = "e1") -> None:
        self.epoch = epoch
        self.rows: list[tuple[Any, ...]] = []
        self._counters = itertools.count(1)

    def tell(self, id_: str, *verbs: str, topic: str = "mail", at: datetime = NOON, **more: Any) -> Story:
        """
        Let so many things happen to a job, one second after the other.
        """
        for step, verb in enumerate(verbs):
            at_ms = ms(at + timedelta(seconds=step))
            fields = {
                "shard": 0,
                "epoch": self.epoch,
                "counter": next(self._counters),
                "row": 0,
                "at_ms": at_ms,
                "verb": verb,
                "topic": topic,
                "id": id_,
                "revision": 1,
                "state": _STATES[verb],
                "priority": "normal",
                "attempt": 1,
                "crashes": 0,
                "due_ms": at_ms,
                "lateness_ms": None,
                "run_ms": None,
                "worker": "",
                "reason": "",
                "date": datetime.fromtimestamp(at_ms / 1000, UTC).date(),
                **more,
            }
            self.rows.append(tuple(fields[name] for name in HISTORY.names))
        return self

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows, HISTORY)
