"""
``duly work``: a worker process.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from duly.app.working import connect
from duly.cli.draining import drained, leave, stopping_when_idle
from duly.cli.loading import load_app
from duly.cli.loop import run_worker
from duly.cli.main import COMMANDS, OK
from duly.cli.metrics import expose
from duly.cli.options import own_server
from duly.errors import UsageError
from duly.logs import set_up
from duly.services.worker import WornOut

if TYPE_CHECKING:
    import asyncio

    from duly.app import Duly
    from duly.settings import Role

log = logging.getLogger("duly.work")


@dataclass(frozen=True, slots=True)
class How:
    """
    What a worker was told.
    """

    concurrency: int | None
    topics: list[str] | None
    burst: bool
    tracebacks: bool
    callbacks: bool


@click.command(
    epilog="\b\nExamples:\n  duly work shop.jobs:app --concurrency 100\n  duly work shop.jobs:app --burst",
    short_help=COMMANDS["work"][1],
)
@click.argument("app", metavar="MODULE:APP")
@own_server
@click.option("--concurrency", type=click.IntRange(min=1), metavar="N", help="How many jobs to run at once.")
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Take only this topic; repeatable.")
@click.option(
    "--role", type=click.Choice(["auto", "leader", "follower"]), help="The timer's duty; default auto."
)
@click.option("--callbacks", is_flag=True, help="Deliver callbacks, too: of every topic of the queue.")
@click.option("--burst", is_flag=True, help="End once nothing is due now, ready or running.")
@click.option("--reload", is_flag=True, help="Start anew when a Python file below this directory changes.")
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"])
)
@click.option("--tracebacks", is_flag=True, help="Log and keep those of failures; they may quote payloads.")
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Expose metrics; 0 takes any port."
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Where; metrics have no password.",
)
def work(
    app: str,
    concurrency: int | None,
    topics: tuple[str, ...],
    role: Role | None,
    callbacks: bool,
    burst: bool,
    reload: bool,
    log_level: str,
    tracebacks: bool,
    log_format: str,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """
    Run the jobs of the handlers of MODULE:APP, e.g. shop.jobs:app, until SIGTERM or Ctrl-C, then drain.

    A second signal ends at once and gives running jobs back.
    """
    if reload:
        from duly.cli.reload import reload as run_again

        if burst:
            raise UsageError("--burst ends when the work is done, --reload goes on: choose one")
        return run_again([word for word in sys.argv[1:] if word != "--reload"])
    if burst and callbacks:
        raise UsageError("--burst ends when the handlers have no work left, --callbacks goes on: choose one")
    set_up(log_level, log_format)
    found = load_app(app)
    if metrics_port is not None:
        expose(found, metrics_port, metrics_host)
    if role is not None:
        found.settings = replace(found.settings, role=role)
    try:
        how = How(concurrency, list(topics) or None, burst=burst, tracebacks=tracebacks, callbacks=callbacks)
        work = drained(lambda stop: _work_until(stop, found, how), log, running="running jobs")
        run_worker(work, log, concurrency or found.settings.concurrency)
    except WornOut as error:
        log.warning("%s; starting anew", error)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # ourselves again
    return OK


async def _work_until(stop: asyncio.Event, app: Duly, how: How) -> None:
    # Before a server is started for nothing.
    app.need_handlers(how.topics)
    async with aclosing(app):
        if not await connect(app, stop):
            return
        topics = how.topics or app.handlers.topics()
        log.info("working on %s at %s", ", ".join(topics) or "nothing", app.place)
        async with stopping_when_idle(stop, app, topics, log) if how.burst else nullcontext():
            await app.work(
                concurrency=how.concurrency,
                topics=how.topics,
                stop=stop,
                stalled=leave,
                tracebacks=how.tracebacks,
                callbacks=how.callbacks,
            )
