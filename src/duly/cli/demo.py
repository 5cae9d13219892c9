"""
``duly demo``: see it work in half a minute.
"""

from __future__ import annotations

import logging
import secrets
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duly.cli.loop import run
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import as_json, duration_between
from duly.cli.output import console, print_json
from duly.cli.signals import until_signal
from duly.demo.report import document, render
from duly.demo.scene import Plan, Scene
from duly.extras import install, installed

if TYPE_CHECKING:
    from datetime import timedelta

    from duly.demo.frame import Frame
    from duly.demo.scene import Played


@click.command(
    epilog="\b\nExample:\n  duly demo --count 200 --within 30 --workers 4", short_help=COMMANDS["demo"][1]
)
@click.option(
    "--count",
    type=click.IntRange(min=4, max=10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="How many jobs to submit.",
)
@click.option(
    "--within",
    type=duration_between("1s", "1h"),
    default="12s",
    show_default=True,
    metavar="TIME",
    help="They are due within so long.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=2, max=32),
    default=3,
    show_default=True,
    metavar="N",
    help="How many worker processes to start; one of them is killed.",
)
@click.option(
    "--lease",
    type=duration_between("500ms", "1m"),
    default="2s",
    show_default=True,
    metavar="TIME",
    help="How long the job of the killed worker waits until it is taken back.",
)
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where the report goes. Default: a new file in the temporary directory.",
)
@click.option("--no-report", is_flag=True, help="End without the report, which takes Spark some seconds.")
@as_json
def demo(
    count: int,
    within: timedelta,
    workers: int,
    lease: timedelta,
    page: Path | None,
    no_report: bool,
    as_json: bool,
) -> int:
    """
    Watch jobs run on time although a worker is killed.

    Starts a server in a temporary directory and some workers, submits jobs (over HTTP where the packages for
    it are installed), kills a worker with SIGKILL while it runs one, and compares what ran with what was
    submitted.  Where Spark is installed (duly[spark]), it ends with the report of duly pipeline report over
    these jobs.  Takes less than a minute, needs nothing, and leaves nothing behind but that page.  Exits with
    1 if a job was lost, early, or completed twice.
    """
    # What services say while they start and stop is not news here.
    logging.getLogger("duly").setLevel(logging.ERROR)
    no_page = "" if no_report else _no_spark()
    plan = Plan(
        count=count,
        within_s=within.total_seconds(),
        workers=workers,
        lease_s=lease.total_seconds(),
        page=None if no_report or no_page else (page.absolute() if page else _new_page()),
    )
    out = console(stderr=as_json)
    played = run(
        until_signal(_live(plan) if out.is_terminal and not as_json else _plain(plan, quiet=as_json))
    )
    if isinstance(played, int):
        return played
    if no_page:
        played = replace(played, no_page=no_page)
    if as_json:
        print_json(document(played))
    else:
        out.print()
        out.print(render(played), soft_wrap=not out.is_terminal)
    return OK if played.shown else NO


def _no_spark() -> str:
    """
    Why no report can be made here, and what to do about it; nothing if one can.
    """
    from duly.errors import UsageError
    from duly.spark.java import find_java

    missing = [name for name in ("pyspark", "deltalake", "matplotlib") if not installed(name)]
    if missing:
        return f"For a report of it as a page ({missing[0]} is missing): {install('spark', 'java')}"
    try:
        find_java()
    except UsageError as error:
        return f"For a report of it as a page: {error}"
    return ""


def _new_page() -> Path:
    return Path(tempfile.gettempdir(), f"duly-demo-{secrets.token_hex(4)}.html")


async def _live(plan: Plan) -> Played:
    from rich.live import Live

    from duly.demo.frame import Frame
    from duly.demo.view import render as picture

    with Live(picture(Frame(0.0, plan.count)), console=console(), refresh_per_second=10) as live:
        scene = Scene(plan, show=lambda frame: live.update(picture(frame)), say=lambda _at, _text: None)
        return await scene.play()


async def _plain(plan: Plan, *, quiet: bool) -> Played:
    told = 0

    def show(frame: Frame) -> None:
        # A line for each tenth that is done.
        nonlocal told
        tenth = frame.ended * 10 // frame.total
        if tenth > told:
            told = tenth
            say(frame.elapsed_s, f"{frame.ended} of {frame.total} jobs have ended")

    def say(at_s: float, text: str) -> None:
        if not quiet:
            click.echo(f"{at_s:5.1f} s  {text}")

    return await Scene(plan, show=show, say=say).play()
