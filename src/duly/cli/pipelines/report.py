"""
``duly pipeline report``: how the jobs went.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import session
from duly.cli.main import OK
from duly.cli.noting import noted, noted_if_there
from duly.cli.options import DURATION, TIME, app_of, as_json, examples, server
from duly.cli.output import print_json, print_table, say
from duly.cli.sparking import open_spark, spark_options, watched

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from pyspark.sql import SparkSession

    from duly.spark.report.pipeline import Report

BEHIND = 3  #: how far a report that gets ready steps back behind processes that run jobs
LOOK_S = 0.05


@click.command(
    short_help="how the jobs went: on time, failures, busiest hours",
    epilog=examples(
        "duly pipeline report --table lake/history --html report.html",
        "duly pipeline report --table lake/history --update --html report.html",
        "duly pipeline report --table lake/history --from 2026-11-01T00:00Z --to 2026-12-01T00:00Z "
        "--out november --format csv",
    ),
)
@click.option("--table", required=True, metavar="PATH", help="The history.")
@click.option(
    "--update", is_flag=True, help="Bring the history up to date first, as duly pipeline history --once does."
)
@click.option("--from", "start", type=TIME, metavar="TIME", help="Default: a day before --to.")
@click.option("--to", "end", type=TIME, metavar="TIME", help="Default: now.")
@click.option(
    "--slo", type=DURATION, metavar="TIME", default="1s", help="Later than that is late. Default: 1s."
)
@click.option("--goal", type=float, default=0.999, help="The share that should be on time. Default: 0.999.")
@click.option("--html", type=click.Path(path_type=Path), help="Write one page with everything to this file.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write tables and pictures there."
)
@click.option(
    "--format", "kind", type=click.Choice(["parquet", "csv", "json"]), default="parquet", help="Of --out."
)
@click.option("--when", type=click.Path(path_type=Path), hidden=True)
@spark_options
@server
@as_json
def report(
    table: str,
    update: bool,
    start: datetime | None,
    end: datetime | None,
    slo: timedelta,
    goal: float,
    html: Path | None,
    out: Path | None,
    kind: Any,
    when: Path | None,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Report from the history: lateness against the due time, error budget, failures, retries, run times.

    The day before now, unless --from and --to say otherwise.  Only --update needs the queue; if there is one,
    the run is noted for `duly stats`.
    """
    from datetime import UTC, datetime, timedelta

    from duly.spark.report.pipeline import ReportOptions, write_tables
    from duly.spark.report.pipeline import report as make

    def options() -> ReportOptions:
        until = end or datetime.now(UTC)
        return ReportOptions(
            table=table,
            start=start or until - timedelta(days=1),
            end=until,
            slo_ms=round(slo.total_seconds() * 1000),
            goal=goal,
        )

    if when is not None:
        os.nice(BEHIND)
    spark = open_spark(master, conf)
    if when is not None:
        _rehearse(when, lambda: _update(spark, table), lambda: make(spark, options()).html())
    if update:
        _update(spark, table)
    with noted_if_there("report") as counts:
        with watched(spark, "report"):
            found = make(spark, options())
        budget = found.tables["budget"]
        counts.update(jobs=int(budget["jobs"].sum()), late=int(budget["late"].sum()))
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(found.html(), "utf-8")
        say(f"The page is {html}")
    if out is not None:
        say(f"{len(write_tables(found, out, kind))} files are in {out}")
    if as_json:
        print_json({name: _records(found, name) for name in found.tables})
    else:
        _print(found)
    return OK


def _rehearse(when: Path, *steps: Callable[[], object]) -> None:
    """
    Go through the *steps* on what there is so far, and return when there is a file *when*.

    The first queries of a Spark load thousands of classes.  `duly demo` has that done while jobs run.
    """
    from duly.errors import DulyError

    for step in steps:
        if when.exists():
            return
        try:
            step()
        except DulyError:
            break  # the report itself tells what is wrong
    while not when.exists():
        time.sleep(LOOK_S)


def _update(spark: SparkSession, table: str) -> None:
    from duly.spark.history.pipeline import HistoryOptions, history

    app = app_of(existing=True)
    with session(app) as ask:
        url = ask(app.store()).link.url
        options = HistoryOptions(url=url, table=table, namespace=app.settings.namespace)
        with noted("history", app, ask) as counts, watched(spark, "history"):
            run = history(spark, options)
            counts.update(events=run.rows, batches=run.batches)
    say(f"{run.rows:,} events are new in {table}")


def _records(found: Report, name: str) -> object:
    import msgspec

    return msgspec.json.decode(found.tables[name].to_json(orient="records", date_format="iso"))


def _print(found: Report) -> None:
    budget, failures, crashes = (found.tables[name] for name in ("budget", "failures", "crashes"))
    print_table(
        ["topic", "jobs", "late", "on time", "budget used"],
        [
            [row.topic, row.jobs, row.late, f"{row.on_time:.2%}", f"{row.used:.2f}"]
            for row in budget.itertuples()
        ],
    )
    if len(crashes):
        print()
        print_table(
            ["lost worker", "topic", "runs lost", "begun again", "dead", "latest"],
            [
                [row.worker, row.topic, row.lost, row.restarted, row.buried, _late(row.max_late_ms)]
                for row in crashes.head(10).itertuples()
            ],
        )
    if len(failures):
        print()
        print_table(
            ["topic", "failed with", "retried", "dead", "example"],
            [
                [row.topic, row.signature, row.retried, row.buried, row.example]
                for row in failures.head(10).itertuples()
            ],
        )


def _late(ms: Any) -> str:
    return "" if ms is None or ms != ms else f"{ms / 1000:.1f} s"  # noqa: PLR0124  # pandas has no number so
