"""
The app that tests of commands run, copied into their folder: its handlers write to a file beside it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from duly import Duly, Fixed, current_job

app = Duly()
VERSION = 1


def note(word: str) -> None:
    with Path("ledger").open("a") as file:
        file.write(f"{word} {current_job().id} {os.getpid()} {VERSION}\n")


@app.handler("quick")
async def quick() -> None:
    note("ran")


@app.handler("slow")
async def slow(seconds: float) -> None:
    note("started")
    await asyncio.sleep(seconds)
    note("finished")


@app.handler("again", max_attempts=3, backoff=Fixed(0.01))
async def again() -> None:
    note("tried")
    if current_job().attempt < 3:
        raise RuntimeError("not yet")


@app.handler("exit")
async def exit_() -> None:
    note("exits")
    os._exit(7)
