"""
The tables of a report: what each transform promises.
"""

from __future__ import annotations

from pyspark.sql.types import (
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_KINDS = {"long": LongType, "text": StringType, "time": TimestampType, "date": DateType, "share": DoubleType}


def _table(**columns: str) -> StructType:
    return StructType([StructField(name, _KINDS[kind]()) for name, kind in columns.items()])


#: How late first runs began, by topic and the hour in which they were due.
ON_TIME = _table(
    topic="text",
    hour="time",
    jobs="long",
    on_time="share",
    p50_ms="long",
    p90_ms="long",
    p99_ms="long",
    max_ms="long",
)
#: The share of first runs that began within so many milliseconds.
CURVE = _table(share="share", lateness_ms="long")
#: How late, by day and hour of the day, over all topics.
HEAT = _table(date="date", hour="long", jobs="long", p99_ms="long")
#: How much of the lateness that the goal allows was used up: 1 is all of it.
BUDGET = _table(topic="text", jobs="long", late="long", on_time="share", goal="share", used="share")
#: Runs, and those that had to be repeated.
RETRIES = _table(topic="text", hour="time", runs="long", retried="long", crashed="long", released="long")
#: What went wrong, by its signature.
FAILURES = _table(
    topic="text",
    signature="text",
    retried="long",
    buried="long",
    jobs="long",
    first_at="time",
    last_at="time",
    example="text",
)
#: Runs that were lost with their worker: when they were taken back, and how late they began again.
CRASHES = _table(
    worker="text",
    topic="text",
    first_at="time",
    last_at="time",
    lost="long",
    restarted="long",
    buried="long",
    p50_late_ms="long",
    max_late_ms="long",
)
#: How long runs took.
RUN_TIMES = _table(
    topic="text", runs="long", p50_ms="long", p90_ms="long", p99_ms="long", max_ms="long", busy_s="share"
)
#: How much happened in each hour.
BUSIEST = _table(hour="time", accepted="long", started="long", ended="long")
