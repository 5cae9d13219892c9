"""
A process that is to die at a crash point of an app with a record.

    python -m tests.record.stopped STEP SERVER RECORD NAMESPACE
"""

from __future__ import annotations

import asyncio
import sys

from duly import Duly
from duly.connection import Link
from duly.record.database import Database
from duly.record.reconcile import Reconciler
from duly.settings import Settings
from duly.store import Store

IDS = [str(number) for number in range(5)]


async def enqueue(app: Duly) -> None:
    """
    Send some jobs at once.
    """
    await asyncio.gather(*(app.enqueue("mail", {"to": id_}, id=id_) for id_ in IDS))


async def agree(app: Duly) -> None:
    """
    Compare the queue with the record, as whoever opens it does.
    """
    await app.record()


async def reconcile(server: str, record: str, namespace: str) -> None:
    """
    Compare everything and mend it.
    """
    database, link = Database(record), Link(server)
    store = Store(link, namespace=namespace, shards=Settings.load().shards)
    await Reconciler(database, store, apply=True, generation=1).run()
    await link.aclose()
    await database.aclose()


async def main(step: str, server: str, record: str, namespace: str) -> None:
    if step == "reconcile":
        await reconcile(server, record, namespace)
        return
    app = Duly(server, namespace=namespace, record=record)
    await {"enqueue": enqueue, "agree": agree}[step](app)
    await app.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
