"""
The function libraries on a server: each release of duly has its own, and those that nobody uses are removed.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from duly.errors import ServerUnsuitable, StoreUnavailable
from duly.scripts import LIBRARY_PREFIX, library

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.libraries")

#: zset  library -> when a worker named it last, in milliseconds
#: Functions belong to the server, not to a namespace.
NAMED = "duly:libraries"
KEPT_MS = 24 * 3_600_000
LOOK_S = 3_600.0


class Libraries:
    """
    Says that this release is in use, and removes libraries that no worker has named for a day.

    A producer of a removed release that comes back loads its own again.
    """

    def __init__(self, store: Store, *, every_s: float) -> None:
        self.every_s = every_s
        self._store = store
        self._looked_s = float("-inf")

    async def run_once(self) -> int:
        """
        Look once an hour; how many were removed.
        """
        if time.monotonic() - self._looked_s < LOOK_S:
            return 0
        self._looked_s = time.monotonic()
        try:
            return await self.look()
        except (StoreUnavailable, ServerUnsuitable) as error:
            # A user who may not manage functions works all the same.
            log.info("cannot look after the function libraries: %s", error)
            return 0

    async def look(self) -> int:
        """
        Name this release's library, and remove those that were not named for a day; how many.
        """
        call = self._store.link.call
        seconds, _ = await call("TIME")
        now_ms = int(seconds) * 1000
        await call("ZADD", NAMED, now_ms, library().name)
        removed = 0
        for about in await call("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*"):
            name = about[about.index(b"library_name") + 1].decode()
            # One that nobody has named yet has a day from now on.
            await call("ZADD", NAMED, "NX", now_ms, name)
            # A server that is emptied meanwhile knows none.
            named_ms = int(float(await call("ZSCORE", NAMED, name) or now_ms))
            if name != library().name and named_ms < now_ms - KEPT_MS:
                await call("FUNCTION", "DELETE", name)
                await call("ZREM", NAMED, name)
                log.info("removed the functions of a release that no worker has used for a day: %s", name)
                removed += 1
        return removed
