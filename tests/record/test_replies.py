"""
The response queue of an app with a record: replies are told for jobs on both sides of the horizon.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from duly import Duly, JobState
from tests.record.working import working

FAR = datetime.now(UTC) + timedelta(days=30)


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def app(request, valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url, horizon="1m", shards=request.param)

    @app.handler("mail", max_attempts=1)
    async def mail(to: str) -> str:
        if to == "nobody":
            raise ValueError("there is no such person")
        return f"sent to {to}"

    app.mail = mail
    yield app
    await app.aclose()
    await asyncio.to_thread(app.sync.close)


async def send(app):
    """
    Jobs that end in every way there is, and one that waits.
    """
    await app.enqueue(app.mail.job("near"), id="near", reply_to="inbox")
    await app.enqueue(app.mail.job("nobody"), id="dead", reply_to="inbox")
    moved = await app.enqueue(app.mail.job("moved"), id="moved", due_at=FAR, reply_to="inbox")
    await moved.reschedule(delay=0.1)
    for id_, options in (("soon", {"delay": 30}), ("far", {"due_at": FAR})):
        await (await app.enqueue(app.mail.job("x"), id=id_, reply_to="inbox", **options)).cancel()
    await app.enqueue("sms", id="purged", due_at=FAR, reply_to="inbox")
    await app.purge("sms")
    await app.enqueue(app.mail.job("x"), id="waits", due_at=FAR, reply_to="inbox")


EXPECTED = {
    "near": (JobState.succeeded, "sent to near"),
    "dead": (JobState.dead, "ValueError"),
    "moved": (JobState.succeeded, "sent to moved"),
    "soon": (JobState.cancelled, "cancelled"),
    "far": (JobState.cancelled, "cancelled"),
    "purged": (JobState.cancelled, "purged"),
}


def told(reply):
    return reply.state, reply.result or reply.error["type"]


async def test_replies_come_for_jobs_within_the_horizon_and_beyond(app):
    got = {}
    async with working(app):
        await send(app)
        async for reply in app.replies("inbox", wait=60):
            assert reply.job.id not in got
            got[reply.job.id] = told(reply)
            if len(got) == len(EXPECTED):
                await reply.ack()
                break
    assert EXPECTED == got
    assert [] == [reply async for reply in app.replies("inbox", wait=0.1)]


async def test_the_blocking_twin_reads_them_as_well(app):
    def read():
        got = {}
        for reply in app.sync.replies("inbox", wait=60):
            got[reply.job.id] = told(reply)
            if len(got) == len(EXPECTED):
                return got
        return got

    async with working(app):
        await send(app)
        assert EXPECTED == await asyncio.to_thread(read)
