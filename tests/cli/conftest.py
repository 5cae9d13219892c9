"""
Fixtures of CLI tests: the real `duly` against a real server, in a namespace of its own.
"""

from __future__ import annotations

import asyncio
import io
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import pytest

from duly import Duly
from duly.cli.main import main
from duly.connection import Link
from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

T = TypeVar("T")


class Answer(NamedTuple):
    """
    What a command said, and how it ended.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


@pytest.fixture
def here(valkey: Server, namespace: str, shards: int, tmp_path, monkeypatch) -> None:
    """
    An empty working directory, and an environment that names the server of the tests.
    """
    for name in list(os.environ):
        if name.startswith(("DULY_", "_DULY_")) or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", valkey.url)
    monkeypatch.setenv("DULY_NAMESPACE", namespace)
    monkeypatch.setenv("DULY_SHARDS", str(shards))


@pytest.fixture
def duly(here, monkeypatch, capsys) -> Callable[..., Answer]:
    """
    Run a command in this process.
    """

    def run(*words: str, stdin: bytes = b"") -> Answer:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(words)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def arrange(here) -> Callable[[Callable[[Duly], Awaitable[T]]], T]:
    """
    Do something with an app on the same queue.
    """

    def run(act: Callable[[Duly], Awaitable[T]]) -> T:
        async def with_app() -> T:
            async with Duly() as app:
                return await act(app)

        return asyncio.run(with_app())

    return run


@pytest.fixture
def impatient(monkeypatch) -> None:
    """
    Do not wait for a server that is not there: others wait for some seconds before they give up.
    """
    call = Link.call

    async def impatient(self: Link, *words: Any, **options: Any) -> Any:
        self.patience_s = 0.0
        return await call(self, *words, **options)

    monkeypatch.setattr(Link, "call", impatient)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """
    A server that a test may kill and start again.
    """
    server = Server(binary("valkey"), appendfsync="always").start()
    yield server
    server.stop()
