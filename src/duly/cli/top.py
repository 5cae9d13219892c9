"""
``duly top``: watch the queue.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import termios
import time
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, as_json, duration_between, own_server
from duly.cli.output import console, print_json, print_json_line
from duly.errors import DulyError
from duly.top.snapshot import Snapshot
from duly.top.view import render
from duly.top.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from duly.app import Duly

PATIENCE_S = 1.0  #: how long one look tries to reach the server


class Show(Protocol):
    """
    Where pictures go.
    """

    def __call__(self, snapshot: Snapshot) -> None:
        """
        Show one.
        """


@click.command(
    epilog="\b\nExamples:\n  duly top\n  duly top --once\n  duly top --once --json | jq .lateness",
    short_help=COMMANDS["top"][1],
)
@own_server
@click.option(
    "--every",
    type=duration_between("100ms", "1h"),
    default="1s",
    show_default=True,
    metavar="TIME",
    help="How often to look.",
)
@click.option("--once", is_flag=True, help="Look once, print it, and end.")
@as_json
def top(every: timedelta, once: bool, as_json: bool) -> int:
    """
    Watch the queue: lateness and rates of the last minute, backlog, what is due in the next ten minutes,
    workers and failures.  q or Ctrl-C ends it.

    It goes on while the server is away and says so.  Without a terminal it prints one picture after another;
    with --json one line for each, or one document with --once.
    """
    # What the connection has to say is said in the picture.
    logging.getLogger("duly").setLevel(logging.CRITICAL)
    return run(
        _once(app_of(existing=True), as_json=as_json)
        if once
        else _watch(app_of(existing=True), every.total_seconds(), as_json=as_json)
    )


async def _once(app: Duly, *, as_json: bool) -> int:
    async with app:
        snapshot = await Watcher(await app.store()).look()
    if as_json:
        print_json(snapshot.document())
    else:
        _plain(snapshot)
    return OK


async def _watch(app: Duly, every_s: float, *, as_json: bool) -> int:
    quit_ = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, quit_.set)
    async with app:
        store = app.make_store()
        store.link.patience_s = PATIENCE_S
        try:
            if as_json:
                await _again(Watcher(store), every_s, quit_, _line)
            elif not console().is_terminal:
                await _again(Watcher(store), every_s, quit_, _frame)
            else:
                with _screen(quit_) as show:
                    await _again(Watcher(store), every_s, quit_, show)
        finally:
            await store.link.aclose()
    return OK


async def _again(watcher: Watcher, every_s: float, quit_: asyncio.Event, show: Show) -> None:
    """
    Look and show until it is time to quit; a server that does not answer stops the looking, not the showing.
    """
    asked = asyncio.ensure_future(quit_.wait())
    look: asyncio.Task[Snapshot] | None = None
    last = Snapshot(time.time_ns() // 1_000_000, "", "")
    answered_s = time.monotonic()
    problem = ""
    try:
        while not quit_.is_set():
            turn_s = time.monotonic() + every_s
            look = look or asyncio.create_task(watcher.look())
            await asyncio.wait((look, asked), timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if look.done():
                try:
                    last, problem, answered_s = look.result(), "", time.monotonic()
                except DulyError as error:
                    problem = str(error)
                look = None
            if look is None and not problem:
                show(last)
            else:
                show(last.without_server(time.monotonic() - answered_s, problem or "no answer yet"))
            await asyncio.wait((asked,), timeout=max(0.0, turn_s - time.monotonic()))
    finally:
        for task in (asked, look):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in (asked, look) if task is not None), return_exceptions=True)


def _line(snapshot: Snapshot) -> None:
    print_json_line(snapshot.document())
    sys.stdout.flush()


def _frame(snapshot: Snapshot) -> None:
    _plain(snapshot)
    print(flush=True)


def _plain(snapshot: Snapshot) -> None:
    out = console()
    out.print(render(snapshot, out.width), crop=False)


@contextmanager
def _screen(quit_: asyncio.Event) -> Iterator[Show]:
    from rich.live import Live

    out = console()
    with (
        _keys(quit_) as keys,
        Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live,
    ):

        def show(snapshot: Snapshot) -> None:
            live.update(render(snapshot, out.width, out.height, keys=keys), refresh=True)

        yield show


@contextmanager
def _keys(quit_: asyncio.Event) -> Iterator[bool]:
    """
    Take single keys from the terminal, if there is one to take them from.
    """
    if not sys.stdin.isatty():
        yield False
        return
    keyboard = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        keys = os.read(keyboard, 64)
        # Nothing to read means that the terminal has gone.
        if not keys or set(keys) & set(b"qQ"):
            quit_.set()

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield True
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
