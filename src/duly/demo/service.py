"""
The queue over HTTP, as one more process of the scene.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.extras import installed
from duly.supervise.child import Child, Program, duly_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGES = ("httpx", "httptools", "starlette", "uvicorn")
START_S = 60.0
_SERVING = re.compile(r"serving on (http://\S+)")


def available() -> bool:
    """
    Whether what it needs is installed; the demonstration goes on without.
    """
    return installed(*PACKAGES)


class Service:
    """
    ``duly serve`` on a free port of this machine.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []  #: one, once it was started
        self._words: deque[str] = deque(maxlen=8)
        self._url: str | None = None

    async def start(self, env: Mapping[str, str], folder: Path) -> None:
        """
        Start it; `url` says when it is up.
        """
        program = Program("http", duly_command("serve", "--port", "0"), env, folder)
        self.children.append(await Child.start(program, self._hear))

    def _hear(self, line: str) -> None:
        self._words.append(line)
        found = _SERVING.search(line)
        if found:
            self._url = found[1]

    async def url(self) -> str:
        """
        Where it is, once it is there.

        Raises:
            DulyError: It did not come up.
        """
        deadline = time.monotonic() + START_S
        while self._url is None:
            if any(child.code is not None for child in self.children) or time.monotonic() > deadline:
                raise DulyError(f"the HTTP service did not start: {' / '.join(self._words) or 'no word why'}")
            await asyncio.sleep(0.02)
        return self._url
