"""
``duly pipeline report``: how the jobs went.
"""

from __future__ import annotations

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
    from datetime import datetime, timedelta

    from pyspark.sql import SparkSession

    from duly.spark.report.pipeline import Report


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

    spark = open_spark(master, conf)
    if update:
        _update(spark, table)
    end = end or datetime.now(UTC)
    options = ReportOptions(
        table=table,
        start=start or end - timedelta(days=1),
        end=end,
        slo_ms=round(slo.total_seconds() * 1000),
        goal=goal,
    )
    with noted_if_there("report") as counts:
        with watched(spark, "report"):
            found = make(spark, options)
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
    budget, failures = found.tables["budget"], found.tables["failures"]
    print_table(
        ["topic", "jobs", "late", "on time", "budget used"],
        [
            [row.topic, row.jobs, row.late, f"{row.on_time:.2%}", f"{row.used:.2f}"]
            for row in budget.itertuples()
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
