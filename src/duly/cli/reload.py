"""
``duly work --reload``: start the worker anew when code changes.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duly.cli.loop import run
from duly.cli.main import OK, USAGE
from duly.extras import needed
from duly.supervise.child import Child, Program, duly_command
from duly.supervise.supervisor import said

if TYPE_CHECKING:
    from collections.abc import Sequence


def reload(words: Sequence[str]) -> int:
    """
    Run ``duly WORDS…`` as a child until told to stop, drained and started anew after each change.

    Raises:
        UsageError: What watches files is not installed.
    """
    with needed("--reload"):
        import watchfiles  # noqa: F401  # asked for before anything is started
    return run(Reloader(Program("work", duly_command(*words))).run())


class Reloader:
    """
    One worker process at a time.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._child: Child | None = None
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """
        Go on until a signal; the exit code.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        try:
            return await self._work()
        finally:
            if self._child is not None:
                await self._child.close()

    def _on_signal(self) -> None:
        self._stop.set()
        if self._child is not None:
            # The first makes the worker drain, the second makes it give jobs back.
            self._child.send(signal.SIGTERM)

    async def _work(self) -> int:
        from watchfiles import PythonFilter, awatch

        here = Path.cwd()
        first = True
        changes = awatch(here, watch_filter=PythonFilter(), stop_event=self._stop, step=50, debounce=400)
        change = asyncio.ensure_future(anext(changes, None))
        while not self._stop.is_set():
            self._child = child = await Child.start(self._program)
            ended = asyncio.ensure_future(child.wait())
            await asyncio.wait((ended, change), return_when=asyncio.FIRST_COMPLETED)
            if ended.done() and not self._stop.is_set():
                code = ended.result()
                if first and code == USAGE:
                    return USAGE
                _say(f"the worker {said(code)}; waiting for a change of a Python file")
                await asyncio.wait((change,))
            first = False
            found = change.result() if change.done() else None
            if found:
                names = sorted({str(Path(path).relative_to(here)) for _, path in found})
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                _say(f"{', '.join(names[:3])}{more} changed; starting the worker anew")
                child.send(signal.SIGTERM)
                change = asyncio.ensure_future(anext(changes, None))
            await ended
            await child.close()
        change.cancel()
        await asyncio.gather(change, return_exceptions=True)
        return OK


def _say(text: str) -> None:
    click.echo(f"reload: {text}", err=True)
