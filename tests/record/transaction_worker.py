"""
A worker whose handler has its effect in a transaction of its job; tests kill it.

    python -m tests.record.transaction_worker SERVER RECORD NAMESPACE loop|thread
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from duly import Duly, current_job
from tests.record.effects import ADD

LEASE_S = 0.5


def app_of(server: str, record: str, namespace: str, run_in: Literal["loop", "thread"]) -> Duly:
    """
    Make an app whose jobs each add one row of effects; what they began is noted in `app.ran`.
    """
    app = Duly(server, namespace=namespace, record=record, lease=LEASE_S, concurrency=4)
    app.ran = []

    def begin() -> dict[str, object]:
        job = current_job()
        app.ran.append(job.id)
        print(job.id, flush=True)
        return {"job": job.id, "attempt": job.attempt}

    if run_in == "loop":

        @app.handler("mail", max_crashes=10)
        async def mail() -> str:
            values = begin()
            async with current_job().transaction() as session:
                await session.execute(ADD, values)
                session.set_result("sent")
            return "sent"

    else:

        @app.handler("mail", max_crashes=10, run_in="thread")
        def mail() -> str:
            values = begin()
            with current_job().transaction() as session:
                session.execute(ADD, values)
                session.set_result("sent")
            return "sent"

    return app


async def main(server: str, record: str, namespace: str, run_in: Literal["loop", "thread"]) -> None:
    async with app_of(server, record, namespace, run_in) as app:
        await app.work()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
