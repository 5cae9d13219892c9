"""
The service in a thread of its own, behind a real port, for clients that are not asynchronous.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from duly.http.api import api
from duly.http.serve import listen, server_of

if TYPE_CHECKING:
    from typing import Self

    from duly import Duly
    from duly.http.settings import ServiceSettings


class Served:
    """
    An app, served while the block runs.
    """

    def __init__(self, app: Duly, settings: ServiceSettings | None = None) -> None:
        self._place = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._place.getsockname()[1]}"
        self._server = server_of(api(app, settings), 1)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._place])))

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline, "the service does not start"
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._place.close()
