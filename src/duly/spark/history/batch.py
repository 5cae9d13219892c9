"""
One batch of events into the table: drop what it holds, write the rest, say how far it came.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from duly.errors import UsageError
from duly.events import Offset
from duly.feed import EventsLost
from duly.spark.events.places import TRIMMED, read_places
from duly.spark.filesystem import filesystem
from duly.spark.history.files import WRITTEN, writer
from duly.spark.history.ranges import Gap, missing
from duly.spark.history.table import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame

    from duly.spark.events.places import Place, Places
    from duly.spark.history.files import Committed
    from duly.spark.history.ranges import Run
    from duly.spark.history.table import HistoryTable

BEGUN = "from before the history was begun"


@dataclass
class Batches:
    """
    What `foreachBatch` calls.
    """

    table: HistoryTable
    namespace: str
    checkpoint: str
    settle: Callable[[Places], None]  #: told what is safe now, so that it may be trimmed
    tell: Callable[[int], None] = lambda _: None  #: told how many events came
    strict: bool = True
    rows: int = field(default=0, init=False)  #: events that were added
    batches: int = field(default=0, init=False)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """
        Take one batch.

        Raises:
            EventsLost: Entries are missing between what the table holds and where the batch ends.
            Overtaken: Another pipeline writes to the table.
        """
        places = planned(self.checkpoint, number)
        table = self.table.open()
        before = self.table.progress(table)
        committed = self.table.committed(table, self.namespace, places)
        ahead = {
            shard: replace(place, after=None, lost="")
            for shard, place in places.items()
            if place.lost or place.counter > committed.get((shard, place.epoch), 0)
        }
        self.batches += 1
        if not ahead:
            # Taken again after a kill: the table has it whole, and the queue may have trimmed it.
            self.settle(places)
            return
        told = batch.mapInArrow(writer(self.table.path, committed), WRITTEN).collect()
        runs: dict[int, list[Run]] = {}
        for row in told:
            if row.runs:
                shard, _, found = json.loads(row.runs)
                runs.setdefault(shard, []).extend(tuple(run) for run in found)
        files = [row for row in told if row.path]
        gaps = [
            gap
            for shard, place in places.items()
            for gap in gaps_of(
                shard, place, before.places.get(shard), committed, runs.get(shard, []), strict=self.strict
            )
        ]
        after = Progress(self.namespace, {**before.places, **ahead}, (*before.gaps, *gaps))
        self.table.append(table, files, after)
        rows = sum(json.loads(file.stats)["numRecords"] for file in files)
        self.rows += rows
        self.settle(ahead)
        self.tell(rows)


def planned(checkpoint: str, number: int) -> Places:
    """
    Where batch *number* ends: Spark wrote it to the checkpoint before it began.
    """
    fs, root = filesystem(checkpoint)
    with fs.open_input_stream(f"{root}/offsets/{number}") as file:
        lines = file.read().decode().splitlines()
    return read_places(json.loads(lines[-1]))


def gaps_of(
    shard: int,
    place: Place,
    before: Place | None,
    committed: Committed,
    runs: Iterable[Run],
    *,
    strict: bool,
) -> list[Gap]:
    """
    Name what is missing between what the table holds and where the batch ends.

    Raises:
        EventsLost: Something is, and *strict* does not take it.
    """
    now_ms = time.time_ns() // 1_000_000
    if place.lost and before is not None and not place.lost.endswith(TRIMMED):
        # Another past: how much of the old one is missing cannot be known.
        reason = place.lost.partition(" are lost: ")[2]
        return [Gap(shard, before.epoch, before.counter + 1, None, reason, now_ms)]
    held = committed.get((shard, place.epoch))
    if held is None and place.after is None:
        raise UsageError(
            f"the checkpoint is ahead of the table, which holds nothing of shard {shard}; "
            "delete the checkpoint: the table knows how far it came"
        )
    found = []
    for first, last in missing(runs, (held or 0) + 1, place.counter):
        begun = held is None and last == place.after
        if strict and not begun:
            raise EventsLost(shard, Offset(place.epoch, first - 1, ""), last + 1, TRIMMED)
        found.append(Gap(shard, place.epoch, first, last, BEGUN if begun else TRIMMED, now_ms))
    return found
