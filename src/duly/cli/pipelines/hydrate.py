"""
``duly pipeline hydrate``: far-future jobs come to the queue shortly before they are due.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import NO, OK
from duly.cli.noting import noted
from duly.cli.options import DURATION, app_of, as_json, examples, server
from duly.cli.output import plain, print_json, print_json_line, say
from duly.cli.sparking import open_spark, spark_options, watched
from duly.durations import say_duration, say_time
from duly.errors import SERVER_ERRORS, Conflict, UsageError
from duly.job import moment

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from duly.app import Duly
    from duly.cli.loop import Ask
    from duly.spark.horizon.hydrating import Report

COUNTS = ("moved", "kept", "cancelled", "rescheduled", "rejected")


@click.command(
    short_help="move far-future jobs from their table to the queue before they are due",
    epilog=examples(
        "duly pipeline hydrate --table lake/later",
        "duly pipeline hydrate --table lake/later --window 24h --once",
        "duly pipeline hydrate --table lake/later --dry-run",
    ),
)
@click.option(
    "--table", required=True, metavar="PATH", help="The table that put_off wrote: a folder, or a URI."
)
@click.option(
    "--window", type=DURATION, metavar="TIME", default="1h", help="How long before they are due. Default: 1h."
)
@click.option("--every", type=DURATION, metavar="TIME", default="1m", help="Between two passes. Default: 1m.")
@click.option("--once", is_flag=True, help="One pass, and end.")
@click.option("--adopt", is_flag=True, help="This table takes the place of the one that the queue knows.")
@click.option("--dry-run", is_flag=True, help="Say how many rows a pass would look at, and change nothing.")
@spark_options
@server
@as_json
def hydrate(
    table: str,
    window: timedelta,
    every: timedelta,
    once: bool,
    adopt: bool,
    dry_run: bool,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Move jobs that are due within the window from their table to the queue; until SIGTERM, Ctrl-C, or --once.

    A pass that is killed is run again without effect. Exits with 1 where a row of the last pass is no job.
    """
    if every >= window and not once:
        raise UsageError("--every must be shorter than --window, or jobs would come after they are due")
    app = app_of()
    with session(app) as ask:
        store = ask(app.store())
        from duly.spark.horizon.hydrating import waiting
        from duly.spark.horizon.queue import Queue
        from duly.spark.horizon.table import HorizonTable
        from duly.spark.trouble import explained

        queue = Queue(store.link.url, store.namespace, store.shards, app.settings.limits)
        found = HorizonTable(table)
        found.open()
        spark = open_spark(master, conf)
        window_ms = round(window.total_seconds() * 1000)
        if dry_run:
            with watched(spark, "looking"), explained():
                count = waiting(spark, found, queue, window_ms=window_ms)
            if as_json:
                print_json({"waiting": count})
            else:
                click.echo(f"{count:,} rows are due within {say_duration(window_ms)} and not in the queue")
            return OK

        def run_pass() -> Report:
            from duly.spark.horizon.hydrating import hydrate as move

            with watched(spark, "hydrating"), explained():
                return move(spark, found, queue, window_ms=window_ms, instead=adopt)

        if once:
            return _tell(_noted(app, ask, run_pass), as_json=as_json)
        return _go_on(app, ask, run_pass, every.total_seconds(), as_json=as_json)


def _go_on(app: Duly, ask: Ask, run_pass: Callable[[], Report], every_s: float, *, as_json: bool) -> int:
    """
    Pass after pass; what another hydrate did first, and a queue that is away, are no reasons to end.
    """
    from duly.spark.horizon.table import Overtaken

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    code = OK
    while not stop.is_set():
        try:
            report = _noted(app, ask, run_pass)
        except (Conflict, Overtaken, *SERVER_ERRORS) as error:
            say(f"duly: {error}")
        else:
            if report.moved or report.cancelled or report.rejected:
                code = _tell(report, as_json=as_json)
        stop.wait(every_s)
    return code


def _noted(app: Duly, ask: Ask, run_pass: Callable[[], Report]) -> Report:
    with noted("hydrate", app, ask) as counts:
        report = run_pass()
        counts.update({name: getattr(report, name) for name in COUNTS})
    return report


def _tell(report: Report, *, as_json: bool) -> int:
    until = moment(report.until_ms)
    if as_json:
        document = {name: getattr(report, name) for name in ("number", *COUNTS, "seconds", "examples")}
        print_json_line({**document, "until": say_time(until) if until else None})
    else:
        click.echo(
            f"pass {report.number}, up to {say_time(until) if until else 'now'}, in "
            f"{say_duration(report.seconds * 1000)}: {report.moved:,} moved, {report.kept:,} kept, "
            f"{report.cancelled:,} cancelled, {report.rejected:,} rejected"
        )
        for text in report.examples:
            say(f"duly: {plain(text)}")
    return NO if report.rejected else OK
