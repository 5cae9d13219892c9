"""
One producer in the environment of its system: python -m bench.peers.agent SYSTEM VERB.

It connects, says that it is ready, waits for a line of JSON that says how much to send, sends it, and tells
in a line of JSON how long that took.  `systems/bullmq.mjs` does the same in Node.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bench.peers.contract import BEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.peers.contract import Producer

DAY_MS = 86_400_000
WARM_UP = 10  #: connections are opened and scripts are loaded before the clock starts
PROBE = 100  #: jobs for an estimate of how long scheduling takes


async def call(verb: Callable[..., Any], *args: Any) -> None:
    """
    Call a plain or an async function.
    """
    answer = verb(*args)
    if inspect.isawaitable(answer):
        await answer


async def single(producer: Producer) -> dict[str, float]:
    """
    Send one job after another.
    """
    for n in range(WARM_UP):
        await call(producer.enqueue, -1 - n)
    count = await ready()
    began = time.perf_counter()
    if inspect.iscoroutinefunction(producer.enqueue):
        for n in range(count):
            await producer.enqueue(n)
    else:
        for n in range(count):
            producer.enqueue(n)
    return {"took_s": time.perf_counter() - began}


async def bulk(producer: Producer) -> dict[str, float]:
    """
    Send many jobs at once.
    """
    await call(producer.enqueue_many, [-1 - n for n in range(WARM_UP)])
    count = await ready()
    began = time.perf_counter()
    await call(producer.enqueue_many, range(count))
    return {"took_s": time.perf_counter() - began}


async def preload(producer: Producer) -> dict[str, float]:
    """
    Send many jobs at once, and none besides.
    """
    count = await ready()
    await call(producer.enqueue_many, range(count))
    return {}


async def wait(producer: Producer) -> dict[str, float]:
    """
    Send jobs that wait until tomorrow.
    """
    count = await ready()
    due_ms = int(time.time() * 1000) + DAY_MS
    await call(producer.schedule, [(n, due_ms + n) for n in range(count)])
    return {}


async def schedule(producer: Producer) -> dict[str, float]:
    """
    Send jobs that fall due at *offsets_ms* after a time by which all of them are sent.
    """
    offsets_ms = await ready()
    began = time.perf_counter()
    tomorrow_ms = int(time.time() * 1000) + DAY_MS
    await call(producer.schedule, [(-1 - n, tomorrow_ms) for n in range(PROBE)])
    each_s = (time.perf_counter() - began) / PROBE
    start_ms = int(time.time() * 1000 + 2_000 + 1_500 * each_s * len(offsets_ms))
    await call(producer.schedule, [(n, start_ms + offset) for n, offset in enumerate(offsets_ms)])
    return {"start_ms": start_ms, "spare_ms": start_ms - time.time() * 1000}


VERBS = {"single": single, "bulk": bulk, "preload": preload, "wait": wait, "schedule": schedule}


async def ready() -> Any:
    """
    Let the driver look at the server before the clock starts, and hear how much to send.
    """
    tell({"ready": True})
    size = sys.stdin.readline()
    if not size:
        raise SystemExit("the driver is gone")
    return json.loads(size)


def tell(answer: object) -> None:
    print(json.dumps(answer), file=_out, flush=True)


def describe(system: Any) -> dict[str, Any]:
    """
    What the driver has to know of the system, and its readers.
    """
    versions = {name: importlib.metadata.version(name) for name in system.ABOUT.packages}
    return asdict(system.ABOUT) | {"versions": versions, "commands": asdict(system.commands())}


async def main(system: Any, verb: str) -> None:
    producer = system.Producer()
    async with producer:
        tell(await VERBS[verb](producer))


def runner() -> asyncio.Runner:
    """
    The event loop of the profile: uvloop is the best setting of every system that runs on asyncio.
    """
    if not BEST:
        return asyncio.Runner()
    try:
        import uvloop  # noqa: PLC0415  # where the system's environment has it
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


if __name__ == "__main__":
    # A library that prints must not be taken for an answer.
    _out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _name, _verb = sys.argv[1:]
    _system = importlib.import_module(f"bench.peers.systems.{_name}")
    if _verb == "describe":
        tell(describe(_system))
    else:
        with runner() as _runner:
            _runner.run(main(_system, _verb))
