"""
A process that is to die at a crash point: takes part in the way to Redis and back, step by step.

    python -m tests.record.way.victim STEP SERVER RECORD NAMESPACE
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from duly import Duly, current_job
from duly.connection import Link
from duly.ids import new_request
from duly.record.clock import Moment
from duly.record.database import Database
from duly.record.net import Net
from duly.record.outcomes import Outcomes
from duly.record.relay import Relay
from duly.record.rows import row_of
from duly.services.crew import Crew
from duly.store import Store
from tests.record.way.kit import commit, rows_of
from tests.store.kit import order

if TYPE_CHECKING:
    from duly.record.rows import JobRow

JOBS = 5


def fresh(namespace: str) -> list[JobRow]:
    return [
        row_of(namespace, order(str(at), payload=b"1", due_ms=1), new_request(), Moment(1, 1))
        for at in range(JOBS)
    ]


def generation() -> int:
    return 1


def app_of(url: str, namespace: str, ran: list[str]) -> Duly:
    app = Duly(url, namespace=namespace, concurrency=2, lease=1.0)

    @app.handler("mail")
    async def mail(number: int) -> int:
        ran.append(current_job().id)
        return number + 1

    return app


class Way:
    """
    All parts on one database and one server.
    """

    def __init__(self, server: str, record: str, namespace: str) -> None:
        self.namespace = namespace
        self.database = Database(record)
        self.link = Link(server)
        self.ran: list[str] = []
        self.app = app_of(server, namespace, self.ran)
        self.store = Store(self.link, namespace=namespace, shards=self.app.settings.shards)
        self.relay = Relay(self.database, self.store, horizon_ms=10**9, generation=generation)
        self.net = Net(self.database, self.store, generation=generation, settle_ms=0)

    async def push(self) -> None:
        rows = fresh(self.namespace)
        await commit(self.database, *rows)
        await self.relay.push(rows)
        await self.relay.settle()

    async def look(self) -> None:
        while await self.relay.look():
            pass

    async def work(self) -> None:
        """
        Work until every row has ended; jobs that lost their worker come back after a lease.
        """
        await self.app.store()
        outcomes = Outcomes(self.database, self.namespace, generation=generation)
        crew = Crew(
            self.app.make_store, self.app.handlers, self.app.hooks, self.app.settings, outcomes=outcomes
        )
        stop = asyncio.Event()
        task = asyncio.create_task(crew.run(stop))
        while not all(row.ended for row in (await rows_of(self.database)).values()):
            await self.catch()
            await asyncio.sleep(0.05)
        stop.set()
        await task

    async def catch(self) -> None:
        while await self.net.run_once():
            pass

    async def aclose(self) -> None:
        await self.database.aclose()
        await self.link.aclose()
        await self.app.aclose()


async def main(step: str, server: str, record: str, namespace: str) -> None:
    way = Way(server, record, namespace)
    await getattr(way, step)()
    await way.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
