"""
``duly up``: server and workers in one terminal.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import click

from duly.cli.loading import load_app
from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.supervise.child import Program, duly_command
from duly.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from duly.app import Duly

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
SPARE_S = 15.0  #: beyond the drain grace: what a worker needs to give jobs back and to end


@click.command(epilog="\b\nExample:\n  duly up shop.jobs:app --workers 3", short_help=COMMANDS["up"][1])
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--workers",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    metavar="N",
    help="How many worker processes.",
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="How many jobs each worker runs at once."
)
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"])
)
def up(app: str, workers: int, concurrency: int | None, log_level: str) -> int:
    """
    Run the server (an embedded one, unless the app has a URL) and workers for MODULE:APP until Ctrl-C.

    A worker that dies is started again, after a pause that grows.  Ctrl-C or SIGTERM drains all of them; a
    second one gives running jobs back at once.
    """
    found = load_app(app)
    more = ["--log-level", log_level]
    if concurrency is not None:
        more += ["--concurrency", str(concurrency)]
    programs = [
        Program(f"worker-{number}", duly_command("work", app, *more)) for number in range(1, workers + 1)
    ]
    return run(_up(found, programs))


async def _up(app: Duly, programs: list[Program]) -> int:
    wide = max(len(program.name) for program in programs)
    colour_of = {program.name: COLOURS[at % len(COLOURS)] for at, program in enumerate(programs)}

    def tell(name: str, line: str) -> None:
        prefix = click.style(f"{name or 'up':{wide}} |", fg=colour_of.get(name, "white"), bold=not name)
        click.echo(f"{prefix} {line}")

    # Held open: the embedded server stays up while workers come and go.
    async with app:
        place = (await app.store()).link.place
        count = f"{len(programs)} workers" if len(programs) > 1 else "1 worker"
        tell("", f"server at {place}; starting {count}; Ctrl-C drains and ends")
        grace_s = app.settings.drain_grace_ms / 1000 + SPARE_S
        supervisor = Supervisor(programs, tell=tell, grace_s=grace_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.stop)
        await supervisor.run()
        tell("", "all workers have ended")
    return OK
