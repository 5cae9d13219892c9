"""
The app that workers of acceptance tests run: every handler writes to a ledger outside the store.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import time
from pathlib import Path

from duly import Duly, Fixed, current_job

app = Duly()
faulthandler.register(signal.SIGUSR1)  # where a worker hangs that does not end


def note(word: str) -> str:
    """
    Append one line to the ledger in a single write, so that lines of several processes never mix.
    """
    job = current_job()
    due_ms = round(job.due_at.timestamp() * 1000)
    at_ms = time.time_ns() // 1_000_000
    parts = (word, job.topic, job.id, job.revision, job.attempt, job.token, due_ms, at_ms, os.getpid())
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, f"{' '.join(map(str, parts))}\n".encode())
    os.close(ledger)
    return job.token


async def _run(version: int, ms: float, until: str = "") -> dict:
    token = note("started")
    while until and not Path(until).exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(ms / 1000)
    note("finished")
    return {"version": version, "token": token}


@app.handler("loop", backoff=Fixed(0.05))
async def loop(version: int = 0, ms: float = 0, fail: int = 0, until: str = "") -> dict:
    if current_job().attempt <= fail:
        note("failed")
        raise RuntimeError(f"attempt {current_job().attempt} of {fail} that fail")
    return await _run(version, ms, until)


@app.handler("thread", backoff=Fixed(0.05))
def thread(version: int = 0, ms: float = 0, fail: int = 0, until: str = "") -> dict:
    if current_job().attempt <= fail:
        note("failed")
        raise RuntimeError(f"attempt {current_job().attempt} of {fail} that fail")
    token = note("started")
    while until and not Path(until).exists():
        time.sleep(0.01)
    time.sleep(ms / 1000)
    note("finished")
    return {"version": version, "token": token}


@app.handler("process", backoff=Fixed(0.05), run_in="process", concurrency=2)
def process(version: int = 0, ms: float = 0, fail: int = 0) -> dict:
    return thread(version, ms, fail)


@app.handler("deaf", ttr=0.2, max_attempts=1)
def deaf() -> None:
    note("started")
    time.sleep(600)


@app.handler("stubborn", ttr=0.2, max_attempts=1)
async def stubborn(catches: str = "cancel") -> None:
    note("started")
    caught = asyncio.CancelledError if catches == "cancel" else BaseException
    while True:
        try:
            await asyncio.sleep(600)
        except caught:
            continue


async def _exit() -> None:
    await asyncio.sleep(0.01)
    sys.exit("enough")


@app.handler("exit", max_attempts=1)
async def exit_(how: str) -> None:
    note("started")
    match how:
        case "itself":
            await _exit()
        case "task":
            await asyncio.create_task(_exit())
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(_exit())
                group.create_task(asyncio.sleep(600))
        case "gather":
            await asyncio.gather(_exit(), asyncio.sleep(0.02))
        case "callback":
            asyncio.get_running_loop().call_soon(sys.exit, "nobody awaits it")
            await asyncio.sleep(0.05)
            note("finished")


@app.handler("stop-loop", max_attempts=1)
async def stop_loop() -> None:
    note("started")
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.05)
    note("finished")


@app.handler("cancel-all")
async def cancel_all() -> None:
    note("started")
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(1)


@app.handler("freeze")
async def freeze() -> None:
    note("started")
    time.sleep(600)  # what a handler must not do


@app.handler("innocent")
async def innocent(ms: float = 0) -> dict:
    return await _run(0, ms)


@app.handler("poison")
async def poison(ms: float = 0) -> None:
    note("started")
    await asyncio.sleep(ms / 1000)
    os._exit(1)


@app.handler("thread-poison")
def thread_poison(ms: float = 0) -> None:
    note("started")
    time.sleep(ms / 1000)
    os._exit(1)
