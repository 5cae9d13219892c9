"""
``duly pipeline replay``: send again what a query chooses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import OK
from duly.cli.options import app_of, as_json, examples, server
from duly.cli.output import plain, print_json, say
from duly.cli.sparking import open_spark, pairs, print_examples, spark_options, watched

if TYPE_CHECKING:
    from duly.spark.replay.pipeline import Replay


@click.command(
    short_help="send jobs again that a query over history and dead jobs chooses",
    epilog=examples(
        "duly pipeline replay --from-dead --where \"topic = 'mail' and error like '%timeout%'\" --dry-run",
        "duly pipeline replay --table lake/history --where \"state = 'dead' and finished_at > '2026-11-01'\" "
        "--rate 50",
        "duly pipeline replay --from-dead --view vip=vips.csv "
        "--where \"get_json_object(payload, '$.customer') in (select customer from vip)\"",
    ),
)
@click.option(
    "--where", required=True, metavar="SQL", help="A condition on jobs, or a query of topic and id."
)
@click.option("--table", metavar="PATH", help="The history.")
@click.option("--from-dead", is_flag=True, help="Choose among the dead jobs of the queue.")
@click.option(
    "--view", "views", multiple=True, metavar="NAME=PATH", help="A table of yours, for the query; repeatable."
)
@click.option("--new-ids/--same-ids", "new_ids", default=True, help="Default: ids made of the old ones.")
@click.option("--run", default="", metavar="NAME", help="Tells this replay from others. Default: the query.")
@click.option("--rate", type=float, metavar="JOBS", help="At most this many a second.")
@click.option("--rejects", metavar="PATH", help="A folder for jobs that are not accepted.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and change nothing.")
@spark_options
@server
@as_json
def replay(
    where: str,
    table: str | None,
    from_dead: bool,
    views: tuple[str, ...],
    new_ids: bool,
    run: str,
    rate: float | None,
    rejects: str | None,
    dry_run: bool,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Send jobs that ended again, due now, with the job that each comes from in its context.

    The same replay a second time adds nothing. SQL may name the views jobs, dead, history and your own.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        store = ask(app.store())
        from duly.spark.replay.pipeline import ReplayOptions
        from duly.spark.replay.pipeline import replay as pipeline

        options = ReplayOptions(
            url=store.link.url,
            namespace=app.settings.namespace,
            where=where,
            table=table,
            from_dead=from_dead,
            views=pairs(views, "--view"),
            same_ids=not new_ids,
            run=run,
            plan=dry_run,
            rate=rate,
            rejects=rejects,
            record=app.settings.record_url,
            limits={
                "record_schema": app.settings.record_schema,
                "horizon": f"{app.settings.horizon_ms}ms",
                "payload_limit": app.settings.payload_limit,
                "context_limit": app.settings.context_limit,
            },
        )
        spark = open_spark(master, conf)
        with watched(spark, "replay"):
            done = pipeline(spark, options)
    if as_json:
        print_json(done)
    else:
        _print(done, plan=dry_run)
    return OK


def _print(done: Replay, *, plan: bool) -> None:
    would = "would be " if plan else ""
    report = done.sent
    click.echo(
        f"{done.chosen:,} chosen: {report.new:,} {would}new, {report.kept:,} kept, "
        f"{report.replaced:,} {would}replaced, {report.rejected:,} rejected; this is run {plain(done.run)}"
    )
    if plan:
        print_examples(report.examples)
    if done.without_payload:
        say(
            f"{done.without_payload:,} were not sent: the queue does not have their payloads any more. "
            "A query may give them, as a column payload."
        )
