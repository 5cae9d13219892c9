"""
``duly pipeline forecast``: scan what is scheduled, take the measured rates, look ahead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.spark.forecast.transforms import SERVICE, forecast, scheduled_in, scheduled_of, service, summary
from duly.spark.history.reading import read_history

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastOptions:
    """
    What is looked at, and how far ahead.
    """

    url: str | None = None  #: of the queue; without it, the history says what is scheduled
    namespace: str = "duly"
    table: str | None = None  #: the history that rates are taken from
    slice_s: int = 60
    hours: float = 24
    rate_per_s: float | None = None
    now_ms: int | None = None  #: None: now


@dataclass(frozen=True, slots=True)
class Forecast:
    """
    Each slice, and the worst of each topic.
    """

    slices: pd.DataFrame
    topics: pd.DataFrame


def look_ahead(spark: SparkSession, options: ForecastOptions) -> Forecast:
    """
    Make the forecast.

    Raises:
        UsageError: There is no history, or there are too many slices.
    """
    history = read_history(spark, options.table) if options.table else None
    now_ms = options.now_ms if options.now_ms is not None else time.time_ns() // 1_000_000
    found = forecast(
        _scheduled(spark, options, history),
        service(history) if history is not None else spark.createDataFrame([], SERVICE),
        now_ms=now_ms,
        slice_s=options.slice_s,
        hours=options.hours,
        rate_per_s=options.rate_per_s,
    ).cache()
    try:
        return Forecast(found.toPandas(), summary(found).toPandas())
    finally:
        found.unpersist()


def _scheduled(spark: SparkSession, options: ForecastOptions, history: DataFrame | None) -> DataFrame:
    if options.url is None and history is not None:
        return scheduled_of(history)
    jobs = (
        spark.read.format("duly")
        .option("url", options.url or "")
        .option("namespace", options.namespace)
        .option("state", "scheduled")
        .load()
    )
    return scheduled_in(jobs)
