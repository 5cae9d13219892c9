"""
Reconcile: Spark finds what differs among millions; the live look and the repair are those of one process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it

from duly.job import JobKey, JobState
from duly.record.mending import Ended
from duly.record.reconcile import EXAMPLES, STEP, Reconciler
from duly.record.rules import REPAIRS
from duly.spark.history.reading import read_history
from duly.spark.reconcile.comparing import duplicates, lost_ends, met, suspects
from duly.spark.reconcile.sources import Digests, RecordRows
from duly.spark.recording import absolute
from duly.spark.session import use
from duly.spark.trouble import explained

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from duly.app import Duly
    from duly.record.reconcile import Report as InProcess
    from duly.store import Store

COUNTED = ("rows", "jobs", "on_its_way")
OVER = "over"  #: ended as the history tells, gone from the queue, and open in the record
DUPLICATE = "duplicate"  #: ended twice in one revision, as the history tells

#: What each kind means, and what is done about it.
KINDS = {kind.value: repair for kind, repair in REPAIRS.items()} | {
    OVER: "recorded",
    DUPLICATE: "nothing: it happened",
}


@dataclass
class Report:
    """
    What a reconciliation found, and did about it.
    """

    rows: int = 0  #: of the record
    jobs: int = 0  #: of the queue
    on_its_way: int = 0  #: rows that the relay takes to the queue now or near their time
    suspects: int = 0  #: that differed while Spark read both sides, some only because they were under way
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    brought: int = 0  #: rows that the relay then took to the queue
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def remaining(self) -> int:
        """
        How many of those that were found are still there.
        """
        return sum(self.found.values()) - sum(self.repaired.values())

    def note(self, kind: str, names: list[str], *, repaired: bool) -> None:
        """
        Count some of a kind, and remember the first for examples.
        """
        self.found[kind] += len(names)
        if repaired:
            self.repaired[kind] += len(names)
        named = self.examples.setdefault(kind, [])
        named.extend(names[: EXAMPLES - len(named)])


def reconcile(
    spark: SparkSession,
    app: Duly,
    ask: Callable[[Coroutine[Any, Any, Any]], Any],
    *,
    table: str | None = None,
    apply: bool = False,
) -> Report:
    """
    Compare the record of *app* with its queue, and with the history at *table*.

    With *apply*, what differs is mended, and what has to be put back is taken to the queue.
    *ask* runs a coroutine on the loop of the app, such as `asyncio.Runner().run`.

    Raises:
        UsageError: There is no record, or no history at *table*.
        StoreUnavailable, RecordUnavailable: What was mended before stays mended; run it again.
    """
    record = ask(app.record())
    report = Report()
    reconciler = Reconciler(record.database, record.store, apply=apply, generation=record.guard.generation)
    with explained():
        use(spark)
        seen = Observation()
        both = met(*_sides(spark, app, record.store)).observe(
            seen,
            F.count("promised_revision").alias("rows"),
            F.count("queued_revision").alias("jobs"),
            F.count_if("promised_on_its_way").alias("on_its_way"),
        )
        # Spark would judge in as many tasks as it shuffles, each with a start that costs more than its work.
        few = 2 * spark.sparkContext.defaultParallelism
        found = suspects(both.coalesce(few)).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            report.suspects = found.count()
            report.rows, report.jobs, report.on_its_way = (seen.get[name] for name in COUNTED)
            known_to_have_ended: set[JobKey] = set()
            if table is not None:
                history = read_history(spark, table)
                # First: what has ended must not be put back as missing.
                for rows in _some(lost_ends(found, history)):
                    ended = ask(reconciler.close([_ended(row) for row in rows]))
                    known_to_have_ended.update(ended)
                    report.note(OVER, list(map(str, ended)), repaired=apply)
                for rows in _some(duplicates(history)):
                    report.note(DUPLICATE, [f"{row.topic}/{row.id}" for row in rows], repaired=False)
            for rows in _some(found):
                keys = [JobKey(row.topic, row.id) for row in rows]
                ask(reconciler.mend([key for key in keys if key not in known_to_have_ended]))
        finally:
            found.unpersist()
    _take_over(reconciler.report, report)
    if apply:
        report.brought = ask(record.bring())
    return report


def _sides(spark: SparkSession, app: Duly, store: Store) -> tuple[DataFrame, DataFrame]:
    # Here and not with the others: they need the packages of a record.
    for source in (RecordRows, Digests):
        spark.dataSource.register(source)
    promised = spark.read.format("duly.record").options(
        record=absolute(app.settings.record_url or ""), namespace=store.namespace
    )
    if app.settings.record_schema is not None:
        promised = promised.option("record_schema", app.settings.record_schema)
    queued = spark.read.format("duly.digests").options(url=store.link.url, namespace=store.namespace)
    return promised.load(), queued.load()


def _some(frame: DataFrame) -> Iterator[list[Row]]:
    """
    The rows of a frame, so many at a time as one call of the server takes.
    """
    rows = frame.toLocalIterator()
    while some := list(islice(rows, STEP)):
        yield some


def _ended(row: Row) -> Ended:
    return Ended(
        JobKey(row.topic, row.id),
        row.revision,
        JobState[row.state],
        b"",  # a history has no results
        row.attempt,
        row.crashes,
        row.at_ms - (row.run_ms or 0),
        row.at_ms,
        row.lateness_ms,
    )


def _take_over(inner: InProcess, report: Report) -> None:
    for kind, count in inner.found.items():
        report.found[kind.value] = count
        report.examples[kind.value] = inner.examples[kind]
    report.repaired.update({kind.value: count for kind, count in inner.repaired.items()})
