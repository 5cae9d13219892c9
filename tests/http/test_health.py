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
from duly.errors import StoreUnavailable
from duly.http import repeats, topics
from duly.http.api import OPERATIONS, api
from duly.job import JobState
from duly.store import Want
from tests.cli.schemas import Stats, Topic
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.servers import Server, binary
from tests.shards import claim_all, ids_on


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
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            yield client


# -- readyz -----------------------------------------------------------------------------------------------


async def test_a_probe_writes_to_every_shard_and_leaves_no_trace(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=3) as app:
        store, views = await app.store(), await app.views()

        async def contents():
            names = [name for keys in store.keys for name in await store.link.call("KEYS", f"{keys.prefix}*")]
            return {name: await store.link.call("DUMP", name) for name in names}

        canary, before = Canary(store, fresh_s=0.0), await contents()
        await store.link.call("CONFIG", "RESETSTAT")
        for _ in range(5):
            assert ("", "") == await canary.sing()
        stats = (await store.link.call("INFO", "commandstats")).decode()
        assert "cmdstat_xadd:calls=15," in stats, "one on each shard, each time"
        assert before == await contents()
        for state in JobState:
            assert [] == [job async for job in views.each(state)]
        assert [] == (await views.stats()).topics
        assert [] == [event async for event in app.events(since="start", wait=0)]


async def test_asking_often_costs_no_more_than_asking_once(client, app, service):
    store = await app.store()
    await client.get("/readyz")
    service.canary._fresh_s = 600.0
    await store.link.call("CONFIG", "RESETSTAT")
    answers = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
    assert {200} == {answer.status_code for answer in answers}
    assert "cmdstat_xadd:" not in (await store.link.call("INFO", "commandstats")).decode()


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


async def test_a_server_that_takes_no_new_job_is_not_ready(own_server, impatient):
    async with served(Duly(own_server.url)) as client:
        service = client._transport.app.state.service
        service.canary._fresh_s = 0.0
        assert await is_ready(client)
        store = await service.app.store()
        await store.link.call("CONFIG", "SET", "maxmemory", "1")
        assert "unreachable" == problem(await client.get("/readyz"), 503, "not-ready")["reason"]
        await store.link.call("CONFIG", "SET", "maxmemory", "0")
        await eventually(lambda: is_ready(client), within_s=30)


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
    first, second = ids_on(app.settings, "mail", app.settings.shards - 1, 2)
    await app.enqueue("mail", id=first)
    [listed] = (await client.get("/v1/topics")).json()["topics"]
    assert ("mail", 1, False) == (listed["topic"], listed["ready"], listed["paused"])
    paused = msgspec.json.decode((await client.post("/v1/topics/mail/pause")).content, type=Topic)
    assert paused.paused
    resumed = (await client.post("/v1/topics/mail/resume")).json()
    assert not resumed["paused"]
    limited = await client.put("/v1/topics/mail/limit", json={"limit": 1})
    assert (200, 1) == (limited.status_code, limited.json()["limit"])
    # Every shard takes a job at least.
    problem(await client.post("/v1/topics/mail/jobs", json={"id": second}), 503, "full")
    assert (await client.put("/v1/topics/mail/limit", json={"limit": None})).json()["limit"] is None
    assert 202 == (await client.post("/v1/topics/mail/jobs", json={})).status_code


async def listed(client, path, **query):
    """
    Every page of a list.
    """
    pages = [(await client.get(path, params=query)).json()]
    while cursor := pages[-1]["cursor"]:
        pages.append((await client.get(path, params=query | {"cursor": cursor})).json())
    return pages


async def test_topics_and_workers_come_in_pages_of_so_many_and_of_so_many_bytes(serving, app):
    names = [f"topic-{number}" for number in range(7)]
    store = await app.store()
    for name in names:
        await app.enqueue(name)
        await store.beat(f"worker of {name}", b'{"topics":["%b"]}' % name.encode())
    async with serving() as client:
        for path, row, told in (
            ("/v1/topics", "topic", names),
            ("/v1/workers", "worker", [f"worker of {name}" for name in names]),
        ):
            rows = path.rpartition("/")[2]
            pages = await listed(client, path, limit=3)
            assert [3, 3, 1] == [len(page[rows]) for page in pages]
            assert told == [each[row] for page in pages for each in page[rows]]
            assert [7] == [len(page[rows]) for page in await listed(client, path)]
            for cursor in ("!", "x", "_w"):
                problem(await client.get(path, params={"cursor": cursor}), 422, "invalid")
    async with serving(page_limit=300) as client:
        for path, rows in (("/v1/topics", "topics"), ("/v1/workers", "workers")):
            pages = await listed(client, path)
            assert len(pages) > 1
            assert 7 == sum(len(page[rows]) for page in pages)


async def test_stats_show_some_topics_and_say_how_many_there_are_besides(serving, app, monkeypatch):
    for number in range(7):
        await app.enqueue(f"topic-{number}")
    async with serving(page_limit=600) as client:
        told = (await client.get("/v1/stats")).json()
    assert 0 < len(told["topics"]) < 7
    assert (7, 7) == (len(told["topics"]) + told["more_topics"], told["totals"]["ready"])
    monkeypatch.setattr("duly.http.stats.MAX_PAGE", 2)
    async with serving() as client:
        told = (await client.get("/v1/stats")).json()
    assert (2, 5, 7) == (len(told["topics"]), told["more_topics"], told["totals"]["ready"])


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
    for path in ("/metrics", "/v1/quarantine", "/v1/audit"):
        refused = problem(await client.get(path, headers=bearer(text)), 403, "forbidden")
        assert "is bound to topics (mail*)" in refused["detail"], "and not that it lacks the scope"
    assert 200 == (await client.get("/metrics", headers=bearer(reader))).status_code


async def test_a_key_with_topics_is_told_of_a_worker_what_concerns_those(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring, store = KeyRing(await app.store()), await app.store()
    bound, _ = await ring.create("mail-reader", ["read"], ["mail*"])
    reader, _ = await ring.create("reader", ["read"])
    counts = {"concurrency": 4, "running": 2, "claimed": 11, "finished": 9, "fenced": 1}
    workers = {"both": ["mail", "secret"], "mine": ["mail", "mail.out"], "others": ["secret"]}
    for name, takes in workers.items():
        about = {"host": "a", "pid": 1, "topics": takes, **counts, "later": "of a later release"}
        await store.beat(name, msgspec.json.encode(about))
    await app.enqueue("mail")
    [_] = await claim_all(store, [Want("mail", 1, 60_000)], worker="both")

    async def told(text):
        return (await client.get("/v1/workers", headers=bearer(text))).json()["workers"]

    every = {worker["worker"]: worker for worker in await told(reader)}
    own = {worker["worker"]: worker for worker in await told(bound)}
    assert ["both", "mine", "others"] == sorted(every)
    assert ["both", "mine"] == sorted(own)
    assert {"worker", "host", "pid", "topics", "concurrency", "silent_ms", "live"} == set(own["both"])
    assert ["mail"] == own["both"]["topics"]
    assert every["mine"] | {"silent_ms": 0} == own["mine"] | {"silent_ms": 0}
    figures = (await client.get("/v1/stats", headers=bearer(bound))).json()["workers"]
    assert {"live": 2, "silent": 0, "running": 1, "slots": 8} == figures, "what runs, of its topics"
    assert 6 == (await client.get("/v1/stats", headers=bearer(reader))).json()["workers"]["running"]


async def test_a_key_with_topics_is_told_the_figures_of_those(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring = KeyRing(await app.store())
    text, _ = await ring.create("mail-reader", ["read"], ["mail*"])
    reader, _ = await ring.create("reader", ["read"])
    writer, _ = await ring.create("writer", ["enqueue"], ["mail*"])
    await app.enqueue("mail", delay=120)
    await app.enqueue("sms", delay=60)
    await app.enqueue("sms")
    every = (await client.get("/v1/stats", headers=bearer(reader))).json()
    assert ["mail", "sms"] == [topic["topic"] for topic in every["topics"]]
    assert every["server"]["memory_bytes"] > 0
    own = (await client.get("/v1/stats", headers=bearer(text))).json()
    assert ["mail"] == [topic["topic"] for topic in own["topics"]]
    assert (1, 0) == (own["totals"]["scheduled"], own["totals"]["ready"])
    assert every["next_due_at"] < own["next_due_at"], "of its topics"
    assert (None, None, []) == (own["server"], own["events"], own["runs"])
    assert {"workers": [], "cursor": None} == (await client.get("/v1/workers", headers=bearer(text))).json()
    topics, cursor = [], ""
    while cursor is not None:
        query = f"state=scheduled&cursor={cursor}" if cursor else "state=scheduled"
        page = (await client.get(f"/v1/jobs?{query}", headers=bearer(text))).json()
        topics += [job["topic"] for job in page["jobs"]]
        cursor = page["cursor"]
    assert ["mail"] == topics
    refused = problem(await client.get("/v1/stats", headers=bearer(writer)), 403, "forbidden")
    assert "has not the scope read" in refused["detail"]


async def test_a_topic_has_a_callback_and_none_again(client, app):
    url = "https://example.com/hook?key=s3cret"
    told = await client.put("/v1/topics/mail/callback", json={"url": url})
    assert (200, url) == (told.status_code, told.json()["callback"])
    assert url == (await client.get("/v1/topics/mail")).json()["callback"]
    [topic] = (await (await app.views()).stats()).topics
    assert ("mail", url) == (topic.topic, topic.callback)
    assert (await client.delete("/v1/topics/mail/callback")).json()["callback"] is None
    assert (await client.delete("/v1/topics/mail/callback")).json()["callback"] is None, "none is none"
    records = (await client.get("/v1/audit")).json()["records"]
    assert ["callback"] * 3 == [record["action"] for record in records]
    assert "s3cret" not in str(records)
    for wrong in ({"url": "ftp://example.com"}, {"url": ""}, {}, {"url": None}):
        problem(await client.put("/v1/topics/mail/callback", json=wrong), 422, "invalid")


async def test_a_purge_is_some_calls_and_not_one_for_each_job(client, app, monkeypatch):
    monkeypatch.setattr("duly.http.topics.PURGED_AT_ONCE", 1)
    monkeypatch.setattr("duly.app.topics.PAGE", 3)
    for number in range(7):
        await app.enqueue("mail", id=f"s{number}", delay=60)
        await app.enqueue("mail", id=f"r{number}")
    await app.enqueue("sms", id="other")
    done, counts, cursor = False, [], None
    while not done:
        body = {"state": "scheduled"} | ({"cursor": cursor} if cursor else {})
        told = (await client.post("/v1/topics/mail/purge", json=body)).json()
        counts.append(told["purged"])
        cursor = told["cursor"]
        done = cursor is None
    assert (7, True) == (sum(counts), len(counts) > 2), counts
    monkeypatch.setattr("duly.http.topics.PURGED_AT_ONCE", 100)
    assert {"topic": "mail", "purged": 7, "cursor": None} == (
        await client.post("/v1/topics/mail/purge")
    ).json()
    assert "ready" == (await client.get("/v1/topics/sms/jobs/other")).json()["state"]
    problem(await client.post("/v1/topics/mail/purge", json={"state": "dead"}), 422, "invalid")
    problem(await client.post("/v1/topics/mail/purge", json={"cursor": "nonsense"}), 422, "invalid")
    told = problem(await client.post("/v1/topics/mail/purge", json={"cursor": "x y"}), 422, "invalid")
    assert "cursor: write the one that the call before gave" == told["detail"]


async def test_a_purge_that_was_cut_off_goes_on_under_its_key_but_not_to_later_jobs(client, app, monkeypatch):
    once, page = {"Idempotency-Key": "purge 1"}, topics.purge_page
    monkeypatch.setattr("duly.app.topics.PAGE", 2)
    pages = []

    async def cut_off(*wanted):
        if pages:
            raise StoreUnavailable("away")
        pages.append(await page(*wanted))
        return pages[0]

    for number in range(5):
        await app.enqueue("mail", id=f"old{number}", delay=60)
    with monkeypatch.context() as patch:
        patch.setattr(topics, "purge_page", cut_off)
        problem(await client.post("/v1/topics/mail/purge", headers=once), 503, "outcome-unknown")
    for number in range(5):
        await app.enqueue("mail", id=f"new{number}", delay=60)
    [(began, _)] = pages
    again = once | {"Duly-Age": "10"}
    for _ in range(2):
        told = (await client.post("/v1/topics/mail/purge", headers=again)).json()
        assert {"topic": "mail", "purged": 5 - began, "cursor": None} == told
    assert 5 == (await client.get("/v1/topics/mail")).json()["scheduled"]
    # Another body is another request.
    told = await client.post("/v1/topics/mail/purge", json={"state": "scheduled"}, headers=once)
    assert 5 == told.json()["purged"]


async def test_a_purge_that_comes_again_after_hours_is_refused(client, app):
    await app.enqueue("mail", id="a", delay=60)
    late = {"Idempotency-Key": "purge 1", "Duly-Age": str(repeats.KEEP_MS)}
    problem(await client.post("/v1/topics/mail/purge", headers=late), 503, "outcome-unknown")
    assert 1 == (await client.get("/v1/topics/mail")).json()["scheduled"]


async def test_many_jobs_are_cancelled_and_requeued_in_one_call(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    await app.enqueue("mail", id="a")
    await app.enqueue("sms", id="a", delay=60)
    names = [{"topic": "mail", "id": "a"}, {"topic": "sms", "id": "a"}, {"topic": "mail", "id": "absent"}]
    told = (await client.post("/v1/jobs:cancel", json={"jobs": names})).json()["jobs"]
    assert ["cancelled", "cancelled", "refused"] == [each["outcome"] for each in told]
    assert told[2]["problem"]["type"].endswith("job-not-found")
    told = (await client.post("/v1/jobs:requeue", json={"jobs": [*names, names[0]]})).json()["jobs"]
    assert ["requeued", "requeued", "refused", "requeued"] == [each["outcome"] for each in told]
    again = (await client.post("/v1/jobs:requeue", json={"jobs": names[:1]})).json()["jobs"]
    assert again[0]["problem"]["type"].endswith("conflict")
    text, _ = await KeyRing(await app.store()).create("mailer", ["enqueue"], ["mail"])
    told = await client.post("/v1/jobs:cancel", json={"jobs": names}, headers=bearer(text))
    assert ["cancelled", "refused", "refused"] == [each["outcome"] for each in told.json()["jobs"]]
    assert told.json()["jobs"][1]["problem"]["type"].endswith("forbidden")
    assert "ready" == (await app.job("sms", "a").get()).state.name
    too_many = {"jobs": names[:1] * 1001}
    problem(await client.post("/v1/jobs:cancel", json=too_many, headers=bearer(text)), 422, "invalid")


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
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            print((await client.post("/v1/topics/mail/jobs", json={{}})).status_code)
            answer = await client.get("/metrics")
            print(answer.status_code, answer.json()["detail"])

asyncio.run(main())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "202\n501 metrics need prometheus-client" in ran.stdout, ran.stderr
