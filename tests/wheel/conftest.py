"""
Fixtures of tests of the built wheel: an environment for each Python that is here, and an empty folder.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.wheel.installed import Installed, install
from tests.wheel.pythons import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Where environments are: test processes that run side by side have a folder each, in one that they share.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "wheel"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", params=VERSIONS)
def installed(request: pytest.FixtureRequest, shared: Path) -> Installed:
    return install(request.param, shared)


@pytest.fixture
def here() -> Iterator[Path]:
    """
    An empty folder with a short path: the embedded server's socket may be below it.
    """
    with tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()
