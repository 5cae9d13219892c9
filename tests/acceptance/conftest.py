"""
Fixtures of acceptance tests: rigs that are torn down whatever happens, and how much is asked of them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.harness import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "acceptance" in item.path.parts:
            item.add_marker(pytest.mark.alone)
            if config.getoption("--long"):
                item.add_marker(pytest.mark.timeout(1_200))
            if sys.platform == "win32":
                item.add_marker(pytest.mark.skip(reason="needs POSIX signals"))


@pytest.fixture
def size(request: pytest.FixtureRequest) -> int:
    """
    How many jobs a scenario has.
    """
    return 5_000 if request.config.getoption("--long") else 500


@pytest.fixture
async def start_rig() -> AsyncIterator[Callable[..., Rig]]:
    rigs: list[Rig] = []

    async def start(*config: str, **settings: str) -> Rig:
        rigs.append(await Rig.start(*config, **settings))
        return rigs[-1]

    yield start
    for rig in rigs:
        await rig.close()
