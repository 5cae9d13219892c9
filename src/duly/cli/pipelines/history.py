"""
``duly pipeline history``: what happened, kept for good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import session
from duly.cli.main import OK
from duly.cli.noting import noted
from duly.cli.options import DURATION, app_of, as_json, examples, server
from duly.cli.output import print_json, say
from duly.cli.sparking import open_spark, spark_options, watched

if TYPE_CHECKING:
    from datetime import timedelta

    from duly.spark.history.pipeline import HistoryOptions


@click.command(
    short_help="keep every event, once, in a table",
    epilog=examples(
        "duly pipeline history --once --table lake/history",
        "duly pipeline history --table lake/history --every 30s",
        "duly pipeline history --compact --table lake/history",
    ),
)
@click.option("--table", required=True, metavar="PATH", help="A folder, or a URI that deltalake writes to.")
@click.option("--once", is_flag=True, help="Bring the table up to date, and end.")
@click.option("--every", type=DURATION, metavar="TIME", default="10s", help="Between batches. Default: 10s.")
@click.option(
    "--compact", is_flag=True, help="Then merge small files and remove those not in use; implies --once."
)
@click.option(
    "--keep",
    type=DURATION,
    metavar="TIME",
    default="7d",
    help="Age of unused files that --compact removes. Default: 7d.",
)
@click.option(
    "--format", "kind", type=click.Choice(["delta", "parquet"]), default="delta", help="Default: delta."
)
@click.option("--checkpoint", metavar="PATH", default="", help="Default: a folder inside the table.")
@click.option(
    "--consumer", metavar="NAME", default="history", help="Trimming waits for this name. Default: history."
)
@click.option(
    "--max-rows", type=click.IntRange(min=1), default=1_000_000, help="Of one batch. Default: 1000000."
)
@click.option(
    "--allow-gaps", is_flag=True, help="Where events are lost, note the range in the table and go on."
)
@click.option("--dry-run", is_flag=True, help="Say how many events the table lacks, and change nothing.")
@spark_options
@server
@as_json
def history(
    table: str,
    once: bool,
    every: timedelta,
    compact: bool,
    keep: timedelta,
    kind: Any,
    checkpoint: str,
    consumer: str,
    max_rows: int,
    allow_gaps: bool,
    dry_run: bool,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Write every event of the queue to a table, once, by date and topic; until Ctrl-C, or --once.

    The table knows how far it came: after a kill, or without its checkpoint, it goes on where it stands. The
    queue trims events that the table holds, and no others. Exits with 1 where events are lost.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        store = ask(app.store())
        from duly.spark.history.pipeline import HistoryOptions, behind

        options = HistoryOptions(
            url=store.link.url,
            table=table,
            namespace=app.settings.namespace,
            checkpoint=checkpoint,
            consumer=consumer,
            format=kind,
            max_rows=max_rows,
            every=every,
            fail_on_data_loss=not allow_gaps,
        )
        if dry_run:
            return _print_behind(behind(options), as_json=as_json)
        with noted("history", app, ask) as counts:
            _write(options, counts, (master, conf), once=once or compact)
            if compact and kind == "delta":
                _compact(table, keep, counts)
    if as_json:
        print_json(counts)
    else:
        print(", ".join(f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items()))
    return OK


def _write(
    options: HistoryOptions, counts: dict[str, int], where: tuple[str | None, tuple[str, ...]], *, once: bool
) -> None:
    from duly.spark.history.pipeline import history as write
    from duly.spark.history.reading import read_gaps

    counts.update(events=0, batches=0)

    def tell(rows: int) -> None:
        counts["events"] += rows
        counts["batches"] += 1
        if not once and rows:
            say(f"{rows:,} events")

    spark = open_spark(*where)
    try:
        if once:
            with watched(spark, "history"):
                run = write(spark, options, tell=tell)
            counts.update(events=run.rows, batches=run.batches)
        else:
            say(f"Writing to {options.table} until Ctrl-C.")
            write(spark, options, once=False, tell=tell)
    except KeyboardInterrupt:
        if once:
            raise
    for gap in read_gaps(options.table):
        say(f"not in the table: {gap}")


def _compact(table: str, keep: timedelta, counts: dict[str, int]) -> None:
    from duly.spark.history.upkeep import compact

    done = compact(table, keep_hours=int(keep.total_seconds() // 3600))
    counts.update(files_before=done.files_before, files_after=done.files_after, files_removed=done.removed)


def _print_behind(found: dict[int, int], *, as_json: bool) -> int:
    if as_json:
        print_json(
            {"behind": sum(found.values()), "shards": {str(shard): rows for shard, rows in found.items()}}
        )
    else:
        print(f"{sum(found.values()):,} events are not in the table yet; nothing was changed")
    return OK
