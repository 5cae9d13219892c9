"""
A process that serves, works and delivers for the face whose parts are apart.

``python -m tests.contract.host URL SHARDS`` is told by lines on its standard input: ``open serve NAMESPACE``
is answered with the URL of a service, ``open work`` and ``open deliver`` with a word once they have begun,
and ``close`` ends each of them.  The end of its input ends the process.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly import Duly
from duly.callbacks.signature import new_secret
from duly.http.api import api
from tests.contract.handlers import declare
from tests.http.remote.kit import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

SECRET = new_secret()  #: to sign callbacks with: those who receive them here do not look at it
ROOT = Path(__file__).parents[2]  #: where `tests` is found


@asynccontextmanager
async def work(app: Duly) -> AsyncIterator[str]:
    """
    Run the jobs of an app while the block runs.
    """
    async with _until_told(app.work):
        yield "works"


@asynccontextmanager
async def deliver(app: Duly) -> AsyncIterator[str]:
    """
    Deliver the callbacks of an app while the block runs.
    """
    async with _until_told(app.deliver):
        yield "delivers"


@asynccontextmanager
async def _until_told(run: Callable[..., Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(run(stop=stop))
    try:
        yield
    finally:
        stop.set()
        await running


@asynccontextmanager
async def serve(app: Duly) -> AsyncIterator[str]:
    """
    Serve an app while the block runs.
    """
    async with serving(api(app)) as url:
        yield url


def app_of(url: str, namespace: str, **settings: object) -> Duly:
    """
    An app of the contract: its handlers, callbacks to this machine, and little patience when it ends.
    """
    return declare(
        Duly(
            url,
            namespace=namespace,
            drain_grace=0.2,
            callback_secrets=SECRET,
            callback_allow="127.0.0.1",
            **settings,
        )
    )


KINDS = {"serve": serve, "work": work, "deliver": deliver}


async def main(url: str, shards: str) -> None:
    """
    Follow what is said on standard input.
    """
    opened: dict[tuple[str, str], AsyncExitStack] = {}
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, kind, namespace = line.split()
        if verb == "open":
            stack = opened[kind, namespace] = AsyncExitStack()
            app = await stack.enter_async_context(app_of(url, namespace, shards=int(shards)))
            answer = await stack.enter_async_context(KINDS[kind](app))
        else:
            await opened.pop((kind, namespace)).aclose()
            answer = "closed"
        print(answer, flush=True)


class Host:
    """
    Such a process, as the tests see it.
    """

    def __init__(self, url: str, shards: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.contract.host", url, str(shards)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._asking = threading.Lock()

    @asynccontextmanager
    async def open(self, kind: str, namespace: str) -> AsyncIterator[str]:
        """
        Have it serve, work or deliver in a namespace while the block runs.
        """
        answer = await asyncio.to_thread(self._ask, f"open {kind} {namespace}")
        try:
            yield answer
        finally:
            await asyncio.to_thread(self._ask, f"close {kind} {namespace}")

    def _ask(self, line: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        with self._asking:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline().strip()
        assert answer, f"the process ended with {self._process.wait()}; what it said is above"
        return answer

    def stop(self) -> None:
        """
        Let it end, and wait for that.
        """
        self._process.communicate(timeout=30)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
