"""
``duly pipeline schedule``: the rows of a table become jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import OK
from duly.cli.options import TOPIC, app_of, as_json, examples, server
from duly.cli.output import print_json, say
from duly.cli.sparking import open_spark, pairs, print_examples, spark_options, watched
from duly.durations import say_duration
from duly.options import CARRIED

if TYPE_CHECKING:
    from duly.spark.schedule import Report


_COLUMNS = ("topic", "priority", *(option.name for option in CARRIED))


@click.command(
    help=f"""
    Enqueue each row of a table: columns id, due_at and payload, and maybe {", ".join(_COLUMNS[:-1])} and
    {_COLUMNS[-1]}.

    A run that was interrupted is simply run again: what was accepted is not added twice.
    """,
    short_help="enqueue the rows of a table, once each",
    epilog=examples(
        "duly pipeline schedule --from reminders.parquet --topic mail.reminder --plan",
        "duly pipeline schedule --from reminders.csv --topic mail.reminder --rejects rejects/",
        "duly pipeline schedule --from customers --topic mail --select 'id' "
        "--select 'birthday as due_at' --select 'to_json(struct(name)) as payload'",
    ),
)
@click.option(
    "--from", "source", required=True, metavar="PATH", help="A file, a folder, or a URI that Spark reads."
)
@click.option("--format", "kind", metavar="NAME", help="Of the source. Default: by its name, else parquet.")
@click.option("--option", "reading", multiple=True, metavar="NAME=VALUE", help="For the reader; repeatable.")
@click.option(
    "--select", multiple=True, metavar="EXPR", help="A column, in SQL: 'customer as id'; repeatable."
)
@click.option("--topic", type=TOPIC, metavar="NAME", help="Of rows that name none.")
@click.option(
    "--on-conflict",
    type=click.Choice(["keep", "replace", "raise"]),
    default="keep",
    help="Where the id is taken; an identical row is always kept. Default: keep.",
)
@click.option(
    "--rejects", metavar="PATH", help="A folder for rows that are not accepted; else the first ends the run."
)
@click.option("--rate", type=float, metavar="JOBS", help="At most this many a second.")
@click.option("--plan", "--dry-run", "plan", is_flag=True, help="Say what would be done, and change nothing.")
@spark_options
@server
@as_json
def schedule(
    source: str,
    kind: str | None,
    reading: tuple[str, ...],
    select: tuple[str, ...],
    topic: str | None,
    on_conflict: str,
    rejects: str | None,
    rate: float | None,
    plan: bool,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Enqueue each row of a table.
    """
    from duly.spark import schedule as pipeline
    from duly.spark.trouble import explained

    app = app_of()
    options = pairs(reading, "--option")
    with session(app) as ask:
        store = ask(app.store())
        spark = open_spark(master, conf)
        kind = kind or pipeline.format_of(source)
        with explained():
            # The first line of a file of commas names its columns, unless somebody says otherwise.
            defaults = {"header": "true"} if kind == "csv" else {}
            frame = spark.read.format(kind).options(**(defaults | options)).load(source)
            if select:
                frame = frame.selectExpr(*select)

        with watched(spark, "planning" if plan else "scheduling"):
            report = pipeline.schedule(
                frame,
                url=store.link.url,
                namespace=app.settings.namespace,
                topic=topic,
                on_conflict=on_conflict,
                rejects=rejects,
                rate=rate,
                plan=plan,
                payload_limit=app.settings.payload_limit,
                context_limit=app.settings.context_limit,
                record=app.settings.record_url,
                record_schema=app.settings.record_schema,
                horizon=f"{app.settings.horizon_ms}ms",
            )
    if as_json:
        print_json(report)
    else:
        _print(report, plan=plan, rejects=rejects)
    return OK


def _print(report: Report, *, plan: bool, rejects: str | None) -> None:
    would = "would be " if plan else ""
    click.echo(
        f"{report.rows:,} rows in {say_duration(report.seconds * 1000)}: {report.new:,} {would}new, "
        f"{report.kept:,} kept, {report.replaced:,} replaced, {report.rejected:,} rejected"
    )
    if plan:
        print_examples(report.examples)
    elif report.rejected:
        say(f"Rejected rows are in {rejects}, with the reason of each.")
