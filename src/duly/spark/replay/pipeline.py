"""
Replay: what a query chooses is sent again, once for each run, however often the run is repeated.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import StorageLevel

from duly.errors import UsageError
from duly.spark.history.reading import read_history
from duly.spark.replay.choosing import KEY, chosen, jobs_of_history, last_events, sent, with_errors
from duly.spark.schedule import Report, format_of, schedule
from duly.spark.session import use
from duly.spark.trouble import explained

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

#: Views of ours that a query may name.
OWN = ("jobs", "dead", "history")
_WHOLE = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """
    What is sent again, and how.
    """

    url: str = field(repr=False)
    where: str  #: a condition on `jobs`, or a whole query that gives topic and id
    namespace: str = "duly"
    table: str | None = None  #: a history
    from_dead: bool = False  #: only dead jobs of the queue
    views: Mapping[str, str] = field(default_factory=dict)  #: name of a view: the file or folder it shows
    same_ids: bool = False
    run: str = ""  #: what tells this replay from others; made of the question unless given
    plan: bool = False
    rate: float | None = None
    rejects: str | None = None
    record: str | None = field(default=None, repr=False)  #: if the queue has one
    limits: Mapping[str, int | str | None] = field(default_factory=dict)  #: and what else the format takes

    def __post_init__(self) -> None:
        """
        Insist on a source and on names that SQL takes.

        Raises:
            UsageError: Something is wrong.
        """
        if self.table is None and not self.from_dead:
            raise UsageError("replay what? Say --table HISTORY, or --from-dead for dead jobs of the queue")
        for name in self.views:
            if not _NAME.fullmatch(name) or name.lower() in OWN:
                raise UsageError(
                    f"--view {name}: use letters, digits and _ for its name, and none of {', '.join(OWN)}"
                )
        if not self.run:
            asked = f"{self.where}\0{self.from_dead}\0{self.same_ids}"
            object.__setattr__(self, "run", hashlib.sha256(asked.encode()).hexdigest()[:12])


class Replay(msgspec.Struct, frozen=True):
    """
    What a replay did.
    """

    run: str
    chosen: int
    without_payload: int  #: chosen, and nobody has the payload any more: not sent
    sent: Report


def replay(spark: SparkSession, options: ReplayOptions) -> Replay:
    """
    Send again what the query chooses, and tell what was done.

    Raises:
        UsageError: The query, a view or an option is wrong.
        StoreUnavailable, OutcomeUnknown: See `duly.errors`; calling again is safe.
    """
    with explained():
        use(spark)
        with _views(spark, options) as jobs:
            found = chosen(jobs, _asked(spark, options.where), options.run).persist(
                StorageLevel.MEMORY_AND_DISK
            )
            try:
                count = found.count()
                whole = found.where("payload is not null")
                rows = sent(whole, options.run, datetime.now(UTC), same_ids=options.same_ids)
                report = schedule(rows, **_writing(options))
                return Replay(options.run, count, count - report.rows, report)
            finally:
                found.unpersist()


def _writing(options: ReplayOptions) -> dict[str, Any]:
    return {
        "url": options.url,
        "namespace": options.namespace,
        "on_conflict": "replace" if options.same_ids else "keep",
        "name": "replay",
        "plan": options.plan,
        "rate": options.rate,
        "rejects": options.rejects,
        "record": options.record,
        **options.limits,
    }


@contextmanager
def _views(spark: SparkSession, options: ReplayOptions) -> Iterator[DataFrame]:
    """
    Let queries name what there is; yields `jobs`.
    """
    scan = spark.read.format("duly").options(url=options.url, namespace=options.namespace).load()
    # Asked for before the error is made of what was read, so that the queue is asked for no more.
    frames = {"dead": with_errors(scan.where("state = 'dead'"))}
    frames["jobs"] = frames["dead"]
    if options.table is not None:
        frames["history"] = last_events(read_history(spark, options.table))
        if not options.from_dead:
            frames["jobs"] = jobs_of_history(frames["history"], with_errors(scan))
    for name, path in options.views.items():
        kind = format_of(path)
        reader = spark.read.format(kind)
        frames[name] = (reader.option("header", "true") if kind == "csv" else reader).load(path)
    try:
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        yield frames["jobs"]
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


def _asked(spark: SparkSession, where: str) -> DataFrame:
    if not _WHOLE.match(where):
        return spark.sql(f"select {', '.join(KEY)} from jobs where {where}")  # noqa: S608  # the user's own
    query = spark.sql(where)
    for name in KEY:
        if name not in query.columns:
            raise UsageError(f"the query gives no column {name}: select topic and id of what is sent again")
    return query
