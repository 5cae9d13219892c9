"""
Fixtures of tests of commands: a folder, a server, terminals, and the processes that a test started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.live.running import Running
from tests.live.terminal import Terminal, duly, environment
from tests.servers import Server, binary
from tests.spark.conftest import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "cli" in item.path.parts and sys.platform == "win32":
            item.add_marker(pytest.mark.skip(reason="needs POSIX signals"))


@pytest.fixture
def here() -> Iterator[Path]:
    """
    An empty folder with a short path: the embedded server's socket may be below it.
    """
    with tempfile.TemporaryDirectory(prefix="duly-cli-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def spark_is_here() -> None:
    """
    Skip where there is no Spark; in CI there must be one.
    """
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """
    A server for this test alone, which may be killed.
    """
    server = Server(binary("valkey")).start()
    yield server
    server.stop()


@pytest.fixture
def run(here: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """
    Run a command to its end, in the folder.
    """

    def run(*words: str, within_s: float = 90, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            duly(*words), cwd=here, env=environment(**env), capture_output=True, text=True, timeout=within_s
        )

    return run


@pytest.fixture
def terminal(here: Path) -> Iterator[Callable[..., Terminal]]:
    """
    Run a command on a terminal, in the folder.
    """
    opened: list[Terminal] = []

    def open_(*words: str, **options: object) -> Terminal:
        opened.append(Terminal(duly(*words), cwd=here, **options))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def shop(here: Path) -> Path:
    """
    The folder with an app in it, `shop:app`.
    """
    shutil.copy(Path(__file__).with_name("shop.py"), here)
    return here


@pytest.fixture
def start(here: Path) -> Iterator[Callable[..., Running]]:
    """
    Start a command in the folder; it is ended with the test.
    """
    started: list[Running] = []

    def start(*words: str, **env: str) -> Running:
        started.append(Running(here, words, env))
        return started[-1]

    yield start
    for each in started:
        each.close()
