"""
The workplace: what the service carries to hand out jobs, and the loops that do so for the queue.

Where only workers over HTTP work, nobody else would wake what is due or take back what was lost.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from duly.http.bells import Bells
from duly.http.handing import Claims
from duly.http.roster import Roster
from duly.services.duties import Duties
from duly.services.outlook import Outlook
from duly.services.service import Pulse, run_forever
from duly.services.worker import worker_name

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.services.service import Service
    from duly.store import Store

log = logging.getLogger("duly.http")


class Workplace:
    """
    Claims, the roster of who makes them, and the duties beside them.
    """

    def __init__(self, app: Duly, store: Store) -> None:
        name = worker_name()
        outlooks = [Outlook() for _ in range(store.shards)]
        self.pulse = Pulse()  #: of the loops
        self.failure: BaseException | None = None  #: what ended a loop that must not end
        self.roster = Roster(store)
        # Over connections of its own: what blocks must not take those of requests.
        self._bells = Bells(app.make_store())
        self.claims = Claims(app, store, self._bells, self.roster, outlooks, name)
        self._store = app.make_store()
        duties = Duties(self._store, outlooks, app.settings, name=name)
        self._services: list[tuple[str, Service]] = [("roster", self.roster), *duties.services()]
        self._loops: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """
        Start the loops.
        """

        def ended(loop: asyncio.Task[None]) -> None:
            if not loop.cancelled() and self.failure is None:
                self.failure = loop.exception() or RuntimeError("a loop of the service ended by itself")
                log.critical("the service does not work any more", exc_info=self.failure)

        for name, service in self._services:
            loop = asyncio.create_task(run_forever(service, self.pulse, name))
            loop.add_done_callback(ended)
            self._loops.append(loop)

    def end_polls(self) -> None:
        """
        Answer everybody who waits for work: the service is about to end.
        """
        if not self.claims.ending.done():
            self.claims.ending.set_result(None)

    async def aclose(self) -> None:
        """
        End the loops, and what is under way.
        """
        self.end_polls()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._bells.aclose()
        await self.claims.aclose()
        await self._store.link.aclose()
