"""
``duly pipeline reconcile``: do record, queue and history say the same?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import NO, OK
from duly.cli.noting import noted
from duly.cli.options import app_of, as_json, examples, record_of, server
from duly.cli.output import plain, print_json, print_table, say
from duly.cli.sparking import open_spark, spark_options, watched

if TYPE_CHECKING:
    from duly.spark.reconcile.pipeline import Report


@click.command(
    short_help="compare record, queue and history, and mend what differs",
    epilog=examples(
        "duly pipeline reconcile --record postgresql://duly@db/shop",
        "duly pipeline reconcile --table lake/history --apply",
    ),
)
@click.option("--table", metavar="PATH", help="A history, which knows of ends that the others forgot.")
@click.option("--apply", is_flag=True, help="Mend what differs, after a second look at each job.")
@spark_options
@server
@as_json
def reconcile(
    table: str | None, apply: bool, master: str | None, conf: tuple[str, ...], as_json: bool
) -> int:
    """
    Compare every row of the record with the queue, and every job of the queue with the record.

    Changes nothing without --apply. Both may be in use meanwhile: what differs is looked at again before it
    counts. Exits with 1 if differences remain.
    """
    record_of()
    app = app_of(existing=True)
    with session(app) as ask:
        ask(app.record())
        spark = open_spark(master, conf)
        from duly.spark.reconcile.pipeline import reconcile as compare

        with noted("reconcile", app, ask) as counts:
            with watched(spark, "reconcile"):
                report = compare(spark, app, ask, table=table, apply=apply)
            counts.update(rows=report.rows, jobs=report.jobs, brought=report.brought)
            counts.update(found=sum(report.found.values()), repaired=sum(report.repaired.values()))
    if as_json:
        print_json(report)
    else:
        _print(report, apply=apply)
    return NO if report.remaining else OK


def _print(report: Report, *, apply: bool) -> None:
    from duly.spark.reconcile.pipeline import KINDS

    click.echo(
        f"{report.rows:,} rows of the record and {report.jobs:,} jobs of the queue; "
        f"{report.on_its_way:,} rows are on their way"
    )
    if not report.found:
        click.echo("Nothing differs.")
        return
    print_table(
        ["kind", "found", "repaired", "done about it", "such as"],
        [
            [kind, count, report.repaired[kind], KINDS[kind], plain(report.examples[kind][0])]
            for kind, count in sorted(report.found.items())
        ],
    )
    if not apply:
        say("Nothing was changed: --apply mends.")
    elif report.brought:
        say(f"{report.brought:,} rows were taken to the queue.")
