"""
``duly pipeline report``: read the history, make the tables, write them and the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal

from duly.errors import UsageError
from duly.spark.forecast.transforms import forecast, scheduled_of, service
from duly.spark.history.reading import read_history
from duly.spark.report import plots, transforms
from duly.spark.report.drawing import FILE, PAGE, PHONE, Look
from duly.spark.report.page import Figure, Section, page
from duly.spark.report.plots import ms_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

Format = Literal["parquet", "csv", "json"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportOptions:
    """
    What to report on, and what counts as on time.
    """

    table: str
    start: datetime
    end: datetime
    slo_ms: int = 1_000  #: on time is not more late than that
    goal: float = 0.999  #: the share of jobs that should be on time
    slice_s: int = 3600  #: of the forecast
    hours: float = 24  #: of the forecast, from the end on


@dataclass(frozen=True, slots=True)
class Report:
    """
    The tables by name, and what can be made of them.
    """

    options: ReportOptions
    tables: dict[str, pd.DataFrame]

    def pictures(self, look: Look = FILE) -> dict[str, bytes]:
        """
        Draw what there is something to draw of.
        """
        return pictures_of(self.tables, self.options.slo_ms, look)

    def html(self) -> str:
        """
        All of it on one page.
        """
        start, end = (moment.astimezone(UTC) for moment in (self.options.start, self.options.end))
        span = f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
        return page("How the jobs went", span, self._figures(), self._sections())

    def _figures(self) -> list[Figure]:
        budget, failed, busiest = (self.tables[name] for name in ("budget", "failures", "busiest"))
        jobs, late = int(budget["jobs"].sum()), int(budget["late"].sum())
        share = 1 - late / jobs if jobs else 1.0
        lost = int(self.tables["crashes"]["lost"].sum())
        curve = self.tables["curve"].set_index("share")["lateness_ms"]
        return [
            Figure("jobs started", f"{int(busiest['started'].sum()):,}"),
            Figure("on time", f"{share:.2%}", share >= self.options.goal if jobs else None),
            Figure("p99 lateness", ms_text(float(curve.loc[0.99])) if len(curve) else "none"),
            Figure("lost with a worker", f"{lost:,}", not lost),
            Figure("failed runs", f"{int((failed['retried'] + failed['buried']).sum()):,}"),
            Figure("dead", f"{int(failed['buried'].sum()):,}", not failed["buried"].sum()),
        ]

    def _sections(self) -> list[Section]:
        tables, options = self.tables, self.options
        wide, narrow = self.pictures(PAGE), self.pictures(PHONE)
        within = ms_text(options.slo_ms)
        return [
            Section(
                "On time",
                f"A job is on time if it started within {within} of when it was due. One whose run was lost "
                "with its worker counts by the run that came after.",
                "No job began and ended for the first time in this span.",
                _shown("on-time", wide, narrow),
                "Curve: the share of jobs that started within a time after they were due.",
                tables["on_time"],
            ),
            Section(
                "When it was late",
                "The lateness that one job in a hundred exceeded, for each hour. "
                "In an hour without colour, none was due.",
                "No job was due in this span.",
                _shown("lateness", wide, narrow),
                "Heat map: p99 lateness by day and hour of the day.",
                tables["heat"],
            ),
            Section(
                "Error budget",
                f"{options.goal * 100:g} % of jobs should be on time; used is the part of the rest that is "
                "gone: above 1 the goal was missed.",
                "No job has used any of it.",
                table=tables["budget"],
            ),
            Section(
                "What is coming",
                "Jobs that are scheduled, and what is left over if they are worked off as fast as so far.",
                f"Nothing is scheduled for the next {options.hours:g} hours.",
                _shown("forecast", wide, narrow),
                "Bars: jobs due in each slice of time, by topic.",
                tables["forecast"],
            ),
            Section(
                "Failures",
                "Runs that failed, by what was wrong.",
                "No run failed.",
                _shown("failures", wide, narrow),
                "Bars: failed runs by signature, retried and dead.",
                tables["failures"],
            ),
            Section(
                "Retries",
                "Runs that had to be repeated: after an error, or after a crash of their worker.",
                "No run had to be repeated.",
                _shown("retries", wide, narrow),
                "Share of runs that were retried or crashed, by hour.",
                tables["retries"],
            ),
            Section(
                "Crashes",
                "Runs that were lost with their worker, which was killed or fell silent: taken back when "
                "the lease ran out, begun again by another one. How late counts from when they were due.",
                "No worker was lost while it ran a job.",
                table=tables["crashes"],
            ),
            Section(
                "Run times",
                "How long handlers ran, by topic.",
                "No run ended.",
                table=tables["run_times"],
            ),
            Section(
                "Busiest hours", "How much happened, by hour.", "Nothing happened.", table=tables["busiest"]
            ),
        ]


def _shown(name: str, wide: dict[str, bytes], narrow: dict[str, bytes]) -> tuple[bytes, bytes] | None:
    return (wide[name], narrow[name]) if name in wide else None


def tables_of(history: DataFrame, options: ReportOptions) -> dict[str, DataFrame]:
    """
    The tables of a report over some history.
    """
    told = transforms.between(history, options.start, options.end)
    now_ms = int(options.end.timestamp() * 1000)
    until = history.where(history["at_ms"] < now_ms)
    return {
        "on_time": transforms.on_time(told, options.slo_ms),
        "curve": transforms.curve(told),
        "heat": transforms.heat(told),
        "budget": transforms.budget(told, options.slo_ms, options.goal),
        "retries": transforms.retries(told),
        "crashes": transforms.crashes(told),
        "failures": transforms.failures(told),
        "run_times": transforms.run_times(told),
        "busiest": transforms.busiest(told),
        "forecast": forecast(
            scheduled_of(until), service(told), now_ms=now_ms, slice_s=options.slice_s, hours=options.hours
        ),
    }


def report(spark: SparkSession, options: ReportOptions) -> Report:
    """
    Read the history and make the report.

    Raises:
        UsageError: There is no history, or the times are the wrong way round.
    """
    if options.start >= options.end:
        raise UsageError(
            f"a report from {options.start} to {options.end} covers no time; swap --from and --to"
        )
    if not 0 < options.goal < 1:
        raise UsageError(f"a goal of {options.goal} is none: choose a share between 0 and 1, such as 0.999")
    history = read_history(spark, options.table).cache()
    try:
        tables = {name: frame.toPandas() for name, frame in tables_of(history, options).items()}
    finally:
        history.unpersist()
    return Report(options, tables)


def pictures_of(tables: dict[str, pd.DataFrame], slo_ms: int, look: Look = FILE) -> dict[str, bytes]:
    """
    Draw what there is something to draw of.
    """
    drawn: dict[str, tuple[str, Callable[[Any], bytes]]] = {
        "on-time": ("curve", lambda table: plots.on_time_curve(table, slo_ms, look)),
        "lateness": ("heat", lambda table: plots.heat_map(table, look)),
        "forecast": ("forecast", lambda table: plots.due_forecast(table, look)),
        "failures": ("failures", lambda table: plots.failures_bars(table, look)),
        "retries": ("retries", lambda table: plots.retries_shares(table, look)),
    }
    worth: dict[str, Callable[[Any], bool]] = {
        "forecast": lambda table: table["due"].sum() > 0,
        "retries": lambda table: (table["retried"] + table["crashed"]).sum() > 0,
    }
    return {
        name: draw(tables[table])
        for name, (table, draw) in drawn.items()
        if len(tables[table]) and (name not in worth or worth[name](tables[table]))
    }


def write_tables(report: Report, folder: Path, kind: Format) -> list[Path]:
    """
    Write each table to a file of its own, and the pictures beside them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, table in report.tables.items():
        path = folder / f"{name}.{kind}"
        if kind == "parquet":
            table.to_parquet(path, index=False)
        elif kind == "csv":
            table.to_csv(path, index=False)
        else:
            table.to_json(path, orient="records", date_format="iso", date_unit="ms", indent=1)
        written.append(path)
    for name, png in report.pictures().items():
        path = folder / f"{name}.png"
        path.write_bytes(png)
        written.append(path)
    return written
