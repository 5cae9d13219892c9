"""
``duly up``: server and workers in one terminal.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import click

from duly.cli.loading import load_app
from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK, USAGE
from duly.cli.options import flags_of, own_server
from duly.errors import UsageError
from duly.extras import installed, need
from duly.supervise.child import Program, duly_command
from duly.supervise.supervisor import Supervisor

if TYPE_CHECKING:
    from duly.app import Duly

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
PORT = 8420
SERVICE = ("starlette", "uvicorn", "httptools")  #: what the HTTP service needs
SPARE_S = 15.0  #: beyond the drain grace: what a worker needs to give jobs back and to end


@click.command(epilog="\b\nExample:\n  duly up shop.jobs:app --workers 3", short_help=COMMANDS["up"][1])
@click.argument("app", metavar="MODULE:APP")
@own_server
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
@click.option("--tracebacks", is_flag=True, help="Log and keep those of failures; they may quote payloads.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Of the HTTP service, on this machine only; 0 takes a free one; default: 8420 if it is free.",
)
@click.option("--no-http", is_flag=True, help="Do not serve the queue over HTTP.")
def up(
    app: str,
    workers: int,
    concurrency: int | None,
    log_level: str,
    tracebacks: bool,
    port: int | None,
    no_http: bool,
) -> int:
    """
    Run the server (an embedded one, unless the app has a URL), workers for MODULE:APP, and their queue over
    HTTP, until Ctrl-C.

    What dies is started again, after a pause that grows; one that cannot start, such as a service whose port
    is taken, ends all of them.  Ctrl-C or SIGTERM drains them; a second one gives running jobs back at once.
    """
    if no_http and port is not None:
        raise UsageError("say either --port or --no-http")
    found = load_app(app)
    queue = [word for name, value in flags_of().items() for word in (f"--{name}", value)]
    more = [*queue, "--log-level", log_level]
    if concurrency is not None:
        more += ["--concurrency", str(concurrency)]
    if tracebacks:
        more.append("--tracebacks")
    programs = [
        Program(f"worker-{number}", duly_command("work", app, *more)) for number in range(1, workers + 1)
    ]
    if not no_http:
        programs += _service(app, port, [*queue, "--log-level", log_level])
    return run(_up(found, programs, workers))


def _service(app: str, port: int | None, more: list[str]) -> list[Program]:
    """
    The queue over HTTP as one more program; none where the packages for it are missing and nobody asked.
    """
    if port is not None:
        need("--port", *SERVICE)
    elif not installed(*SERVICE):
        return []
    if port is None:
        port = PORT if _is_free(PORT) else 0
    elif port and not _is_free(port):
        raise UsageError(f"port {port} is taken: choose another with --port, or 0 for a free one")
    return [Program("http", duly_command("serve", app, "--port", str(port), *more))]


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


async def _up(app: Duly, programs: list[Program], workers: int) -> int:
    wide = max(len(program.name) for program in programs)
    colour_of = {program.name: COLOURS[at % len(COLOURS)] for at, program in enumerate(programs)}

    def tell(name: str, line: str) -> None:
        prefix = click.style(f"{name or 'up':{wide}} |", fg=colour_of.get(name, "white"), bold=not name)
        click.echo(f"{prefix} {line}")

    # Held open: the embedded server stays up while workers come and go.
    async with app:
        await app.store()
        count = f"{workers} workers" if workers > 1 else "1 worker"
        if len(programs) > workers:
            count += " and the HTTP service"
        tell("", f"jobs wait at {app.place}; starting {count}; Ctrl-C drains and ends")
        grace_s = app.settings.drain_grace_ms / 1000 + SPARE_S
        supervisor = Supervisor(programs, tell=tell, grace_s=grace_s)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, supervisor.stop)
        gave_up = await supervisor.run()
        tell("", "all have ended")
    return USAGE if gave_up else OK
