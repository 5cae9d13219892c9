"""
Whether the service lives, is ready, and what it tells of itself and of the queue.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import httpx
import msgspec
import pytest

from duly import Duly
from duly.apikeys import KeyRing
from duly.canary import Canary
from duly.connection import Link
from duly.http.api import OPERATIONS, api
from duly.job import JobState
from duly.views import CANARY
from tests.cli.schemas import Stats, Topic
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.servers import Server, binary


@pytest.fixture
def service(client):
    """
    What the operations work with.
    """
    return client._transport.app.state.service


@pytest.fixture
def own_server():
    server = Server(binary("valkey")).start()
    yield server
    server.stop()


@pytest.fixture
def impatient(monkeypatch):
    """
    Do not wait for a server that is not there.
    """
    call = Link.call

    async def impatient(self, *words, **options):
        self.patience_s = 0.0
        return await call(self, *words, **options)

    monkeypatch.setattr(Link, "call", impatient)


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


# -- healthz ----------------------------------------------------------------------------------------------


async def test_a_service_whose_loops_come_round_is_healthy(client):
    response = await client.get("/healthz")
    assert (200, "ok") == (response.status_code, response.json()["status"])
    assert {"event loop", "events"} <= set(response.json()["loops"])


async def test_a_loop_that_hangs_is_told(client, service):
    class Hangs:
        every_s = 0.0

        async def run_once(self):
            await asyncio.Event().wait()

    service.duties.start("hangs", Hangs())
    await asyncio.sleep(0)
    assert 200 == (await client.get("/healthz")).status_code
    service.duties.pulse._beats["hangs"] -= 2 * service.app.settings.stall_ms / 1000
    document = problem(await client.get("/healthz"), 503, "stuck")
    assert ["hangs"] == list(document["stuck"])


async def test_a_loop_that_ended_is_told(client, service):
    class Fails:
        every_s = 0.0

        async def run_once(self):
            raise ZeroDivisionError("with a secret")

    service.duties.start("fails", Fails())
    await eventually(lambda: bool(service.duties.stuck(60)))
    document = problem(await client.get("/healthz"), 503, "stuck")
    assert {"fails": "ended with ZeroDivisionError"} == document["stuck"]


async def test_an_event_loop_that_was_blocked_is_told(client, service):
    service.duties.pulse._beats["event loop"] -= 2 * service.app.settings.stall_ms / 1000
    assert ["event loop"] == list(problem(await client.get("/healthz"), 503, "stuck")["stuck"])
    await eventually(lambda: not service.duties.stuck(60))
    assert 200 == (await client.get("/healthz")).status_code


async def test_a_server_that_is_away_is_no_reason_to_restart(own_server, impatient):
    async with served(Duly(own_server.url)) as client:
        assert 200 == (await client.get("/readyz")).status_code
        own_server.kill()
        assert 200 == (await client.get("/healthz")).status_code
        service = client._transport.app.state.service
        service.canary._fresh_s = 0.0
        document = problem(await client.get("/readyz"), 503, "not-ready")
        assert "unreachable" == document["reason"]
        assert own_server.url not in document["detail"]
        own_server.start()
        await eventually(lambda: is_ready(client), within_s=30)


async def is_ready(client):
    return (await client.get("/readyz")).status_code == 200


@asynccontextmanager
async def served(app):
    """
    A service on another server than that of all tests.
    """
    service = api(app)
    async with service.router.lifespan_context(service):
        transport = httpx.ASGITransport(service, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://duly", timeout=30) as client:
            yield client


# -- readyz -----------------------------------------------------------------------------------------------


async def test_a_canary_goes_through_every_shard_and_leaves_no_trace(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=3) as app:
        store, views = await app.store(), await app.views()
        canary = Canary(store, fresh_s=0.0)
        revisions = set()
        for _ in range(5):
            assert ("", "") == await canary.sing()
            revisions.update([job.revision async for job in views.each(JobState.succeeded, CANARY)])
        assert len(revisions) >= 5, "it is another one each time"
        left = [job async for job in views.each(JobState.succeeded, CANARY)]
        assert {0, 1, 2} == {views.shard_of(job.key) for job in left}
        assert 3 == len(left), "one on each shard, however often it is asked"
        for state in (JobState.scheduled, JobState.ready, JobState.running, JobState.dead):
            assert [] == [job async for job in views.each(state)]
        assert [] == (await views.stats()).topics, "it is not among the topics of users"
        for keys in store.keys:
            assert [] == await store.link.call("HGETALL", keys.fixed["claims"])
        # Their time is over: whoever asks next forgets them.
        other = Canary(store, fresh_s=0.0)
        for job in left:
            done = store.keys[views.shard_of(job.key)].fixed["done"]
            await store.link.call("ZADD", done, "XX", 1, job.key.member)
        assert ("", "") == await other.sing()
        assert [None] * 3 == await views.get_many([job.key for job in left]), "and it prunes"


async def test_asking_often_costs_no_more_than_asking_once(client, app):
    store = await app.store()
    await client.get("/readyz")
    meta = store.keys[0].fixed["meta"]
    before = await store.link.call("HGET", meta, "events")
    service = client._transport.app.state.service
    service.canary._fresh_s = 600.0
    answers = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
    assert {200} == {answer.status_code for answer in answers}
    assert before == await store.link.call("HGET", meta, "events"), "no further canary was sent"


async def test_probes_need_no_key_and_have_no_rate(serving, app):
    async with serving(rate=0.001, burst=1) as client:
        await KeyRing(await app.store()).create("some", ["admin"])
        for _ in range(3):
            assert 200 == (await client.get("/healthz")).status_code
            assert 200 == (await client.get("/readyz")).status_code


async def test_two_services_do_not_take_each_other_for_broken(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as app:
        canaries = [Canary(await app.store(), fresh_s=0.0) for _ in range(4)]
        for _ in range(10):
            assert [("", "")] * 4 == await asyncio.gather(*(canary.sing() for canary in canaries))


async def test_a_queue_that_gives_no_jobs_is_not_ready(client, app, service):
    await app.pause(CANARY)
    assert "not-claimed" == problem(await client.get("/readyz"), 503, "not-ready")["reason"]
    await app.resume(CANARY)
    service.canary._fresh_s = 0.0
    assert 200 == (await client.get("/readyz")).status_code


async def test_a_server_that_does_not_answer_in_time_is_not_ready(own_server):
    async with served(Duly(own_server.url)) as client:
        service = client._transport.app.state.service
        service.canary._limit_s = 0.2
        own_server.process.send_signal(signal.SIGSTOP)
        try:
            document = problem(await client.get("/readyz"), 503, "not-ready")
        finally:
            own_server.process.send_signal(signal.SIGCONT)
        assert "slow" == document["reason"]


async def test_a_service_that_drains_is_not_ready(client, service):
    service.drain()
    assert "draining" == problem(await client.get("/readyz"), 503, "not-ready")["reason"]


# -- stats and topics -------------------------------------------------------------------------------------


async def test_stats_are_what_the_command_prints(client, app):
    await app.enqueue("mail", id="a")
    await app.enqueue("mail", id="b", delay=60)
    response = await client.get("/v1/stats")
    told = msgspec.json.decode(response.content, type=Stats)
    assert (app.settings.namespace, 1, 1) == (told.namespace, told.totals.ready, told.totals.scheduled)
    assert ["mail"] == [topic.topic for topic in told.topics]
    assert told.server.memory_bytes > 0


async def test_topics_are_listed_paused_resumed_and_limited(client, app):
    await app.enqueue("mail", id="a")
    [listed] = (await client.get("/v1/topics")).json()["topics"]
    assert ("mail", 1, False) == (listed["topic"], listed["ready"], listed["paused"])
    paused = msgspec.json.decode((await client.post("/v1/topics/mail/pause")).content, type=Topic)
    assert paused.paused
    resumed = (await client.post("/v1/topics/mail/resume")).json()
    assert not resumed["paused"]
    limited = await client.put("/v1/topics/mail/limit", json={"limit": 1})
    assert (200, 1) == (limited.status_code, limited.json()["limit"])
    problem(await client.post("/v1/topics/mail/jobs", json={}), 503, "full")
    assert (await client.put("/v1/topics/mail/limit", json={"limit": None})).json()["limit"] is None
    assert 202 == (await client.post("/v1/topics/mail/jobs", json={})).status_code


async def test_a_topic_nobody_has_used_can_be_paused(client, app):
    assert (await client.post("/v1/topics/later/pause")).json()["paused"]
    assert 0 == (await client.post("/v1/topics/later/resume")).json()["ready"]


@pytest.mark.parametrize(
    "body", [{"limit": 0}, {"limit": -1}, {"limit": 1.5}, {"limit": "1"}, {}, {"max": 1}]
)
async def test_a_wrong_limit_is_a_422(client, body):
    problem(await client.put("/v1/topics/mail/limit", json=body), 422, "invalid")


async def test_a_key_with_topics_sees_those_and_steers_those(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring = KeyRing(await app.store())
    text, _ = await ring.create("mail-admin", ["admin"], ["mail*"])
    reader, _ = await ring.create("reader", ["read"])
    for topic in ("mail", "sms"):
        await app.enqueue(topic)
    listed = await client.get("/v1/topics", headers=bearer(text))
    assert ["mail"] == [each["topic"] for each in listed.json()["topics"]]
    assert 200 == (await client.post("/v1/topics/mail/pause", headers=bearer(text))).status_code
    problem(await client.post("/v1/topics/sms/pause", headers=bearer(text)), 403, "forbidden")
    problem(await client.post("/v1/topics/mail/pause", headers=bearer(reader)), 403, "forbidden")
    # What tells of every topic is for keys that see every topic.
    for path in ("/v1/stats", "/metrics"):
        problem(await client.get(path, headers=bearer(text)), 403, "forbidden")
        assert 200 == (await client.get(path, headers=bearer(reader))).status_code


# -- metrics ----------------------------------------------------------------------------------------------


def samples(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


async def test_metrics_tell_of_the_queue_and_of_requests(client, app):
    await client.post("/v1/topics/mail/jobs", json={"id": "secret-id"})
    await client.get("/v1/topics/mail/jobs/secret-id")
    await client.get("/v1/topics/mail/jobs/not-there")
    await client.get("/nowhere/else")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = samples(response.text)
    assert "1.0" == found['duly_queue_jobs{state="ready",topic="mail"}']
    assert "1.0" == found['duly_verbs_total{topic="mail",verb="enqueued"}']
    assert "1.0" == found['duly_http_requests_total{operation="createJob",status="202"}']
    assert "1.0" == found['duly_http_requests_total{operation="getJob",status="200"}']
    assert "1.0" == found['duly_http_requests_total{operation="getJob",status="404"}']
    assert "1.0" == found['duly_http_requests_total{operation="none",status="404"}']
    assert "2.0" == found['duly_http_request_seconds_count{operation="getJob"}']


async def test_no_label_holds_an_id_or_a_path(client):
    for path in ("/v1/topics/mail/jobs/secret-id", "/secret/path", "/v1/topics/mail/jobs/secret-id/result"):
        await client.get(path)
    await client.request("BREW", "/healthz")
    text = (await client.get("/metrics")).text
    assert "secret" not in text
    assert "BREW" not in text
    names = {operation.name for operation in OPERATIONS} | {"none"}
    told = {line.split('operation="')[1].split('"')[0] for line in text.splitlines() if "operation=" in line}
    assert told <= names


async def test_a_batch_counts_each_job(client):
    await client.post("/v1/topics/mail/jobs:batch", json=[{}, {}, {}])
    assert (
        "3.0"
        == samples((await client.get("/metrics")).text)['duly_verbs_total{topic="mail",verb="enqueued"}']
    )


def test_without_the_extra_it_serves_all_the_same_and_says_what_is_missing(valkey, namespace):
    code = f"""
import asyncio, sys
sys.modules["prometheus_client"] = None
import httpx
from duly import Duly
from duly.http.api import api

async def main():
    service = api(Duly({valkey.url!r}, namespace={namespace!r}))
    async with service.router.lifespan_context(service):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service), base_url="http://d") as client:
            print((await client.post("/v1/topics/mail/jobs", json={{}})).status_code)
            answer = await client.get("/metrics")
            print(answer.status_code, answer.json()["detail"])

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "202\n501 metrics need prometheus-client" in ran.stdout, ran.stderr
