"""
``duly work``: a worker process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from duly.cli.loading import load_app
from duly.services.worker import WornOut

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine
    from typing import Any

    from duly.app import Duly

log = logging.getLogger("duly.work")

STALLED = 70  #: exit code of a worker that made no progress: a supervisor should start it again


def work(args: argparse.Namespace) -> int:
    """
    Work until SIGTERM or Ctrl-C, then drain; a second signal ends at once.
    """
    logging.basicConfig(level=args.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    app = load_app(args.app)
    if args.role is not None:
        app.settings = replace(app.settings, role=args.role)
    try:
        _run(_work(app, args.concurrency, args.topics))
    except WornOut as error:
        log.warning("%s; starting anew", error)
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # ourselves again
    return 0


async def _work(app: Duly, concurrency: int | None, topics: list[str] | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal: giving running jobs back at once")
            task.cancel()
        else:
            log.info("draining: no more jobs are claimed")
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with app:
        log.info(
            "working on %s at %s", ", ".join(topics or app.handlers.topics()) or "nothing", app.settings.url or app.settings.data
        )
        try:
            await app.work(concurrency=concurrency, topics=topics, stop=stop, stalled=_exit)
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
    log.info("drained")


def _exit(names: list[str]) -> None:
    # Nothing in this process can be relied on any more, so nothing is tidied up: leases run out by themselves.
    logging.shutdown()
    os._exit(STALLED)


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop  # noqa: PLC0415  # an accelerator: used where it is there
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
