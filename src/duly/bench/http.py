"""
The service under load: `duly serve` as one process, and a client as another.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from duly.bench.figure import Figure
from duly.errors import DulyError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duly.bench.measures import Sizes
    from duly.bench.rig import Rig

CONNECTIONS = 32
_PLACE = re.compile(rb"serving on http://127\.0\.0\.1:(\d+)")


class Told(msgspec.Struct):
    """
    What the client found.
    """

    rate: float
    p50_ms: float = 0.0
    p99_ms: float = 0.0


async def http(rig: Rig, sizes: Sizes) -> list[Figure]:
    """
    Batches, single jobs and status reads over HTTP.
    """
    async with _service(rig) as port:
        batch = await _load(port, "batch", sizes.jobs)
        reads = await _load(port, "reads", sizes.requests)
        posts = await _load(port, "posts", sizes.requests)
    over = f"over {CONNECTIONS} connections"
    return [
        Figure("HTTP: jobs in an NDJSON batch", batch.rate, "jobs/s", 30_000, at_least=True),
        Figure(f"HTTP: POST of single jobs {over}", posts.rate, "jobs/s", 3_000, at_least=True),
        Figure("HTTP: POST, p99", posts.p99_ms, "ms", 50, at_least=False),
        Figure(f"HTTP: status reads {over}", reads.rate, "reads/s", 4_000, at_least=True),
        Figure("HTTP: status reads, p99", reads.p99_ms, "ms", 50, at_least=False),
    ]


@asynccontextmanager
async def _service(rig: Rig) -> AsyncIterator[int]:
    settings = rig.app.settings
    place = ("--url", settings.url) if settings.url else ("--data", str(settings.data))
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "duly", "serve", "--port", "0", "--namespace", settings.namespace, *place),
        env=os.environ | {"DULY_DURABILITY": settings.durability, "DULY_API_KEYS": ""},
        stderr=asyncio.subprocess.PIPE,
    )
    assert service.stderr  # asked for
    try:
        found, said = None, b""
        while not found:
            line = await service.stderr.readline()
            if not line:
                raise DulyError(
                    f"duly serve does not start: {said.decode(errors='replace').strip() or 'it said nothing'}"
                )
            said = line
            found = _PLACE.search(line)
        yield int(found[1])
    finally:
        service.send_signal(signal.SIGTERM)
        await service.communicate()


async def _load(port: int, what: str, count: int) -> Told:
    client = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "duly.bench.load",
            "127.0.0.1",
            str(port),
            what,
            str(count),
            str(CONNECTIONS),
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await client.communicate()
    if client.returncode:
        raise DulyError(f"the load client ended with {client.returncode}")
    return msgspec.json.decode(said, type=Told)
