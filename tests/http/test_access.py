"""
Who may do what: keys, scopes, topics, rates, and where the service may listen.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import httpx
import pytest
from redis.asyncio import UnixDomainSocketConnection

from duly import Duly, JobState
from duly.apikeys import FRESH_S, KeyRing, keys_of_environment
from duly.errors import StoreUnavailable, UsageError
from duly.http.access import LOOK_S, SAFE, WRONG_BURST, Buckets, caller_of
from duly.http.api import OPERATIONS, api
from duly.http.openapi import document
from duly.http.serve import check_place, listen
from duly.http.settings import ServiceSettings
from duly.job import JobKey
from duly.record.schema import migrate
from duly.store import Want
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.shards import claim_all

JOBS = "/v1/topics/mail/jobs"


@pytest.fixture
async def ring(app, client):
    return KeyRing(await app.store())


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def at_once(monkeypatch):
    """
    Keys are read for every request, instead of every few seconds.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)


async def test_without_keys_everybody_may_and_with_one_nobody_without_it(client, ring, at_once):
    assert 202 == (await client.post(JOBS, json={})).status_code
    text, _ = await ring.create("shop", ["enqueue"])
    response = await client.post(JOBS, json={})
    problem(response, 401, "unauthenticated")
    assert "Bearer" == response.headers["www-authenticate"]
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code


async def lose_keys(app):
    """
    Empty the server as far as the keys are concerned, as FLUSHALL or a wrong database does.
    """
    store = await app.store()
    await store.link.call("DEL", store.keys[0].fixed["api_keys"])


async def test_a_service_that_lost_its_keys_lets_nobody_in(client, app, ring, at_once, caplog):
    text, _ = await ring.create("shop", ["admin"])
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code
    await lose_keys(app)
    for headers in ({}, bearer(text)):
        problem(await client.post(JOBS, json={}, headers=headers), 401, "unauthenticated")
        problem(await client.get("/v1/audit", headers=headers), 401, "unauthenticated")
    assert 200 == (await client.get("/healthz")).status_code
    alarms = [each.getMessage() for each in caplog.records if each.levelname == "CRITICAL"]
    assert 1 == len(alarms), "said once a minute, not for each request"
    assert "duly keys create" in alarms[0]
    await ring.create("again", ["admin"])
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_the_last_key_is_revoked_only_by_force_and_opens_nothing(client, app, ring, at_once):
    await ring.create("shop", ["admin"])
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")
    with pytest.raises(UsageError, match="401"):
        await ring.revoke("shop")
    assert ["shop"] == [key.name for key in await ring.all()]
    await ring.revoke("shop", force=True)
    problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_a_service_that_cannot_read_its_keys_for_now_is_a_503(serving, app, at_once, monkeypatch):
    async with serving(require_keys=True) as client:
        link = (await app.store()).link
        monkeypatch.setattr(link, "patience_s", 0.05)
        await link.drop_idle()
        monkeypatch.setattr(link, "_new_connection", lambda: UnixDomainSocketConnection(path="/no/s.sock"))
        problem(await client.post(JOBS, json={}), 503, "unavailable")


async def test_a_service_that_can_never_read_its_keys_is_a_fault_and_opens_nothing(
    serving, app, at_once, caplog
):
    async with serving(require_keys=True) as client:
        store = await app.store()
        await store.link.call("SET", store.keys[0].fixed["api_keys"], "not a hash")
        response = await client.post(JOBS, json={})
        told = problem(response, 500, "fault")
    assert "retry-after" not in response.headers
    [line] = [each.getMessage() for each in caplog.records if told["reference"] in each.getMessage()]
    assert "WRONGTYPE" in line


async def test_keys_are_required_where_that_is_said(serving, caplog):
    async with serving(require_keys=True) as client:
        assert "CRITICAL" in {each.levelname for each in caplog.records}, "already at the start"
        problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_keys_are_required_where_the_setting_says_so(valkey, namespace):
    service = api(Duly(valkey.url, namespace=namespace, require_keys=True))
    async with service.router.lifespan_context(service), local(service) as client:
        problem(await client.post(JOBS, json={}), 401, "unauthenticated")


def local(service, *, address="127.0.0.1", **headers):
    transport = httpx.ASGITransport(service, client=(address, 1234))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@pytest.mark.parametrize(
    ("address", "header", "status"),
    [
        ("127.0.0.1", None, 202),
        ("::1", None, 202),
        ("::ffff:127.0.0.1", None, 202),
        ("192.0.2.1", None, 401),
        ("::ffff:192.0.2.1", None, 401),
        ("", None, 401),
        ("127.0.0.1", "X-Forwarded-For", 401),
        ("127.0.0.1", "Forwarded", 401),
        ("127.0.0.1", "X-Real-IP", 401),
    ],
)
async def test_only_this_machine_is_served_without_keys_whoever_listens(app, address, header, status):
    service = api(app)
    headers = {header: "192.0.2.1"} if header else {}
    async with (
        service.router.lifespan_context(service),
        local(service, address=address, **headers) as client,
    ):
        assert status == (await client.post(JOBS, json={})).status_code


@pytest.mark.parametrize("brought", ["stored", "environment"])
async def test_a_record_remembers_that_there_was_a_key(
    valkey, namespace, tmp_path, monkeypatch, at_once, brought
):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)

    def recorded():
        return Duly(valkey.url, namespace=namespace, record=url)

    if brought == "environment":
        monkeypatch.setenv("DULY_API_KEYS", "ci:0123456789abcdef:admin")
    app = recorded()
    service = api(app)
    async with service.router.lifespan_context(service), local(service) as client:
        if brought == "stored":
            ring = await app.key_ring()
            await ring.create("shop", ["admin"])
            problem(await client.post(JOBS, json={}), 401, "unauthenticated")
            await ring.revoke("shop", force=True)
        problem(await client.post(JOBS, json={}), 401, "unauthenticated")
    monkeypatch.delenv("DULY_API_KEYS", raising=False)
    service = api(recorded())
    async with service.router.lifespan_context(service), local(service) as client:
        problem(await client.post(JOBS, json={}), 401, "unauthenticated")


@pytest.mark.parametrize("gone", ["lost", "revoked"])
async def test_a_key_that_came_and_went_unseen_is_remembered_by_the_record(
    valkey, namespace, tmp_path, at_once, gone
):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    service = api(Duly(valkey.url, namespace=namespace, record=url))
    async with service.router.lifespan_context(service), local(service) as client:
        assert 202 == (await client.post(JOBS, json={})).status_code
        async with Duly(valkey.url, namespace=namespace, record=url) as other:
            ring = await other.key_ring()
            await ring.create("shop", ["admin"])
            await (lose_keys(other) if gone == "lost" else ring.revoke("shop", force=True))
        problem(await client.post(JOBS, json={}), 401, "unauthenticated")


async def test_requests_that_come_together_read_the_keys_once(client, app, ring):
    store = await app.store()
    await store.link.call("CONFIG", "RESETSTAT")
    assert [False] * 50 == await asyncio.gather(*(ring.any() for _ in range(50)))
    stats = (await store.link.call("INFO", "commandstats")).decode()
    assert "cmdstat_hgetall:calls=1," in stats


# -- web pages ----------------------------------------------------------------------------------------------


HOSTS = [
    ("localhost", 200),
    ("LOCALHOST:8420", 200),
    ("127.0.0.1:8420", 200),
    ("[::1]:8420", 200),
    ("rebound.example:8420", 421),
    ("localhost.rebound.example", 421),
    ("127.0.0.1.rebound.example", 421),
    ("192.0.2.1", 421),
    ("[::1", 421),
    ("", 421),
]


async def test_without_keys_the_service_answers_to_names_of_this_machine_only(client):
    for host, status in HOSTS:
        response = await client.get(JOBS, headers={"Host": host})
        assert status == response.status_code, host
        if status == 421:
            assert "duly keys create" in problem(response, 421, "misdirected")["detail"]


OPEN = ["/healthz", "/readyz", "/openapi.json"]


@pytest.mark.parametrize("path", OPEN)
async def test_what_needs_no_key_answers_to_the_same_names(client, ring, at_once, path):
    for host, status in HOSTS:
        assert status == (await client.get(path, headers={"Host": host})).status_code, host
    await ring.create("shop", ["admin"])
    assert 401 == (await client.get(JOBS)).status_code, "the key was seen"
    assert 200 == (await client.get(path, headers={"Host": "10.0.0.7:8420"})).status_code


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize(("address", "required"), [("10.0.0.9", False), ("127.0.0.1", True)])
async def test_a_probe_may_say_the_address_of_its_pod(app, path, address, required):
    service = api(app, ServiceSettings(require_keys=required))
    async with service.router.lifespan_context(service):
        transport = httpx.ASGITransport(service, client=(address, 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://10.0.0.7:8420") as client:
            assert 200 == (await client.get(path)).status_code


async def test_a_probe_asks_no_server_whether_there_are_keys(client, monkeypatch):
    async def away(_ring):
        raise StoreUnavailable("away")

    monkeypatch.setattr(KeyRing, "any", away)
    assert 200 == (await client.get("/healthz")).status_code


async def test_a_second_host_is_refused(client):
    headers = [("Host", "localhost"), ("Host", "rebound.example")]
    problem(await client.get(JOBS, headers=headers), 421, "misdirected")


async def test_with_a_key_any_name_will_do(client, ring, at_once):
    text, _ = await ring.create("shop", ["admin"])
    headers = {"Host": "duly.example", "Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
    assert 202 == (await client.post(JOBS, json={}, headers=headers | bearer(text))).status_code


PAGES = [
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
    ({"Sec-Fetch-Site": "none"}, 202),
    ({"Sec-Fetch-Site": "same-origin"}, 202),
    ({"Origin": "http://localhost"}, 202),
    ({"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}, 202),
    ({}, 202),
]


async def test_without_keys_pages_of_other_sites_change_nothing(serving):
    async with serving(cors_origins=("https://shop.example",)) as client:
        for headers, status in PAGES:
            response = await client.post(JOBS, headers=headers)
            assert status == response.status_code, headers
            if status == 403:
                problem(response, 403, "cross-site")


async def test_no_operation_that_changes_something_is_open_to_other_sites(client):
    for operation in OPERATIONS:
        if operation.method not in SAFE:
            path = operation.path.replace("{", "").replace("}", "")
            response = await client.request(operation.method, path, headers={"Origin": "https://a.example"})
            problem(response, 403, "cross-site")


@pytest.mark.parametrize("text", ["", "x", "duly_", "duly_x_y", "duly_{id}_wrong", "\xe9"])
async def test_a_wrong_key_is_a_401(client, ring, at_once, text):
    _, key = await ring.create("shop", ["admin"])
    sent = [(b"Authorization", f"Bearer {text.replace('{id}', key.id)}".encode("latin-1"))]
    problem(await client.post(JOBS, json={}, headers=sent), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("enqueue", {"POST"}), ("read", {"GET"}), ("work", set()), ("admin", {"POST", "GET"})],
)
async def test_a_scope_allows_what_it_says(client, ring, at_once, scope, allowed):
    text, _ = await ring.create("some", [scope])
    for method in ("POST", "GET"):
        response = await client.request(method, JOBS, json={}, headers=bearer(text))
        if method in allowed:
            assert response.status_code < 300
        else:
            problem(response, 403, "forbidden")


async def test_patterns_bind_a_key_to_topics(client, ring, at_once):
    text, _ = await ring.create("mailer", ["enqueue"], ["mail.*", "sms"])
    for topic, status in (("mail.out", 202), ("sms", 202), ("mail", 403), ("smsx", 403), ("other", 403)):
        response = await client.post(f"/v1/topics/{topic}/jobs", json={}, headers=bearer(text))
        assert status == response.status_code, topic


TIMES = {"created_at", "updated_at", "scheduled_for", "due_at", "started_at", "finished_at"}
RECEIPT = {"topic", "id", "state", "revision", *TIMES}


async def test_without_the_scope_read_nothing_of_what_a_job_carries_is_told(client, app, ring, at_once):
    """
    However a key that may only enqueue names a job that is there: its payload, result and error stay unread.
    """
    texts = {scopes: (await ring.create("some", scopes))[0] for scopes in (("enqueue",), ("enqueue", "read"))}
    store = await app.store()
    await app.enqueue("mail", {"card": "4111"}, id="a", context={"tenant": "4111"})

    async def fail():
        [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w4111")
        await store.bury(lease, b'{"type":"KeyError","message":"4111"}')

    async def succeed():
        [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w4111")
        await store.ack(lease, b'"4111"')

    calls = [
        (None, "POST", JOBS, {"id": "a"}),
        (None, "POST", f"{JOBS}?wait=0.01", {"id": "a"}),
        (None, "PATCH", f"{JOBS}/a", {"delay": 0}),
        (fail, "POST", JOBS, {"id": "a"}),
        (None, "POST", f"{JOBS}?wait=1", {"id": "a"}),
        (None, "POST", f"{JOBS}/a/requeue", None),
        (succeed, "POST", f"{JOBS}?wait=1", {"id": "a"}),
        (None, "POST", f"{JOBS}/a/requeue", None),
        (None, "DELETE", f"{JOBS}/a", None),
        (None, "POST", JOBS, {"id": "new", "payload": "4111"}),
    ]
    for before, method, path, body in calls:
        if before is not None:
            await before()
        response = await client.request(method, path, json=body, headers=bearer(texts["enqueue",]))
        assert response.status_code in (200, 202), (method, path, response.text)
        assert set(response.json()) == RECEIPT, (method, path)
        assert "4111" not in response.text
        assert response.headers["etag"].startswith(f'"{response.json()["revision"]}-')
    both = await client.post(JOBS, json={"id": "new"}, headers=bearer(texts["enqueue", "read"]))
    assert "4111" == both.json()["payload"]


async def test_the_scope_read_counts_on_the_topic_of_the_job(client, ring, at_once):
    text, _ = await ring.create("some", ["enqueue", "read"], ["mail"])
    assert "payload" in (await client.post(JOBS, json={"id": "a"}, headers=bearer(text))).json()


async def test_a_client_that_may_only_enqueue_sends_cancels_and_requeues(app, url, ring, at_once):
    text, _ = await ring.create("sender", ["enqueue"])
    async with Duly(url, api_key=text) as sender:
        handle = await sender.enqueue("mail", {"a": 1}, id="a", delay=60)
        assert JobState.scheduled is handle.placed.state
        assert not (await sender.enqueue("mail", {"a": 1}, id="a")).created
        await handle.reschedule(delay=90)
        assert JobState.cancelled is await handle.cancel()
        await handle.requeue()


async def test_a_revoked_key_is_refused(client, ring, at_once):
    text, key = await ring.create("shop", ["admin"])
    await ring.create("other", ["admin"])
    assert [key.id] == [gone.id for gone in await ring.revoke("shop")]
    problem(await client.post(JOBS, json={}, headers=bearer(text)), 401, "unauthenticated")
    assert [] == await ring.revoke("shop")


async def test_a_batch_stores_nothing_more_once_its_key_is_revoked(client, app, ring, at_once):
    text, _ = await ring.create("shop", ["enqueue"])
    await ring.create("other", ["admin"])

    async def lines():
        yield b'{"id": "a"}\n'
        await eventually(lambda: exists(app, "a"))
        await ring.revoke("shop")
        yield b'{"id": "b"}\n'

    headers = {"content-type": "application/x-ndjson", **bearer(text)}
    response = await client.post(f"{JOBS}:batch", content=lines(), headers=headers)
    created, stopped = (json.loads(line) for line in response.text.splitlines())
    assert ("created", "stopped", 1) == (created["outcome"], stopped["outcome"], stopped["stored"])
    assert "urn:duly:problem:unauthenticated" == stopped["problem"]["type"]
    assert not await exists(app, "b")


async def exists(app, id_):
    return await (await app.views()).get(JobKey("mail", id_)) is not None


async def test_who_waits_is_told_nothing_once_its_key_is_revoked(client, app, ring, at_once):
    text, _ = await ring.create("shop", ["admin"])
    await ring.create("other", ["admin"])
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    looks = asyncio.create_task(client.get(f"{JOBS}/a?wait=60", headers=bearer(text)))
    waiters = await app.waiters()
    await eventually(lambda: {} != waiters._waiting)
    await ring.revoke("shop")
    await app.job("mail", "a").cancel()
    problem(await looks, 401, "unauthenticated")


async def look(client, **sent):
    return await client.get(f"{JOBS}/a?wait=60", **sent)


async def fetch(client, **sent):
    return await client.get(f"{JOBS}/a/result", headers=sent["headers"] | {"Prefer": "wait=60"})


async def send(client, **sent):
    return await client.post(f"{JOBS}?wait=60", json={"id": "b", "delay": 60}, **sent)


async def take(client, **sent):
    return await client.post("/v1/replies/inbox/take", json={"wait": 60}, **sent)


async def claim(client, **sent):
    return await client.post("/v1/topics/none/claim", json={"worker": "w", "wait": 60}, **sent)


async def claim_lines(client, **sent):
    return await client.post("/v1/topics/none/claim:lines", json={"worker": "w", "wait": 60}, **sent)


WAITS = [look, fetch, send, take, claim, claim_lines]


async def is_waiting(app, wait):
    if wait in (claim, claim_lines):
        views = await app.views()
        return bool(await views.workers(0))
    return {} != (await app.waiters())._waiting


@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_ends_when_its_key_is_revoked(client, app, ring, at_once, wait):
    text, _ = await ring.create("shop", ["admin"])
    await ring.create("other", ["admin"])
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    waits = asyncio.create_task(wait(client, headers=bearer(text)))
    await eventually(lambda: is_waiting(app, wait))
    await ring.revoke("shop")
    async with asyncio.timeout(20):
        problem(await waits, 401, "unauthenticated")


@pytest.mark.parametrize("wait", [look, claim])
async def test_a_key_that_is_known_to_be_revoked_ends_a_wait_that_begins_then(client, app, ring, wait):
    """
    Another request has had the keys read between the look at the gate and the wait.
    """
    text, _ = await ring.create("shop", ["admin"])
    await ring.create("other", ["admin"])
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    service = client._transport.app.state.service
    await service.keys.all()
    check = service.access.check

    async def check_and_read(*args, **options):
        key = await check(*args, **options)
        await ring.revoke("shop")
        await service.keys.all()
        return key

    service.access.check = check_and_read
    assert FRESH_S > 1
    async with asyncio.timeout(FRESH_S - 1):
        problem(await wait(client, headers=bearer(text)), 401, "unauthenticated")


async def test_many_who_wait_read_the_keys_no_more_often_than_one(client, app, ring, monkeypatch):
    text, _ = await ring.create("shop", ["admin"])
    await client._transport.app.state.service.keys.all()
    reads, read = [], KeyRing._read

    async def counted(self):
        reads.append(time.monotonic())
        await read(self)

    monkeypatch.setattr(KeyRing, "_read", counted)
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.5)
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    waits = [asyncio.create_task(wait(client, headers=bearer(text))) for wait in (look, take) * 20]
    await eventually(lambda: len(reads) >= 4)
    gaps = [later - first for first, later in itertools.pairwise(reads)]
    assert min(gaps) >= 0.5, gaps
    assert not any(wait.done() for wait in waits)
    await ring.revoke("shop", force=True)
    assert {401} == {answer.status_code for answer in await asyncio.gather(*waits)}


async def test_a_wait_goes_on_while_its_key_cannot_be_looked_up(client, app, ring, at_once, monkeypatch):
    text, _ = await ring.create("shop", ["admin"])
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    waits = asyncio.create_task(look(client, headers=bearer(text)))
    await eventually(lambda: is_waiting(app, look))
    asked = []

    async def away(self):
        asked.append(time.monotonic())
        raise StoreUnavailable("away")

    monkeypatch.setattr(KeyRing, "_read", away)
    await eventually(lambda: len(asked) >= 3)
    assert asked[2] - asked[0] >= LOOK_S, "not on and on"
    await app.job("mail", "a").cancel()
    assert 200 == (await waits).status_code


async def test_a_claim_that_waits_gets_no_job_once_its_key_is_revoked(client, app, ring, at_once):
    text, _ = await ring.create("shop", ["work"])
    await ring.create("other", ["admin"])
    claim = {"worker": "w", "wait": 60}
    asks = asyncio.create_task(client.post("/v1/topics/mail/claim", json=claim, headers=bearer(text)))
    views = await app.views()

    async def is_known():
        return bool(await views.workers(0))

    await eventually(is_known)
    await ring.revoke("shop")
    await app.enqueue("mail", {"to": "ada"}, id="a")
    problem(await asks, 401, "unauthenticated")
    await eventually(lambda: state_is(app, "a", JobState.ready))
    assert 0 == (await app.job("mail", "a").get()).attempts, "it is given back uncounted"


async def state_is(app, id_, state):
    return state is (await app.job("mail", id_).get()).state


async def test_wrong_keys_of_a_neighbour_end_no_request_that_was_let_in(client, app, ring, at_once):
    text, _ = await ring.create("shop", ["admin"])
    await app.enqueue("mail", None, id="a", delay=60)
    looks = asyncio.create_task(client.get(f"{JOBS}/a?wait=60", headers=bearer(text)))
    waiters = await app.waiters()
    await eventually(lambda: {} != waiters._waiting)
    for _ in range(WRONG_BURST + 1):
        refused = await client.get(JOBS, headers=bearer("wrong"))
    problem(refused, 429, "too-many-requests")
    await app.job("mail", "a").cancel()
    assert 200 == (await looks).status_code


async def test_only_a_hash_is_stored(ring, app):
    text, key = await ring.create("shop", ["admin"])
    store = await app.store()
    stored = await store.link.call("HGETALL", store.keys[0].fixed["api_keys"])
    assert text.split("_", 2)[2].encode() not in b"".join(stored)
    assert [key] == await ring.all()


async def test_keys_are_not_read_for_every_request(client, app, monkeypatch):
    assert FRESH_S > 1
    # However long the twenty take.
    monkeypatch.setattr("duly.apikeys.FRESH_S", 3600.0)
    await client.post(JOBS, json={})
    store = await app.store()
    await store.link.call("CONFIG", "RESETSTAT")
    for _ in range(20):
        await client.post(JOBS, json={})
    stats = (await store.link.call("INFO", "commandstats")).decode()
    assert "cmdstat_hgetall:" not in stats


async def test_the_environment_brings_keys(client, app, at_once):
    environ = {"DULY_API_KEYS": "ci:0123456789abcdef:enqueue+read:mail.*, ops:fedcba9876543210:admin"}
    ring = KeyRing(await app.store(), environ)
    assert ["ci", "ops"] == [key.name for key in await ring.all()]
    found = await ring.find("0123456789abcdef")
    assert found.allows("read", "mail.x")
    assert not found.allows("read", "other")
    assert not found.allows("work", "mail.x")
    assert await ring.find("0123456789abcdeF") is None
    assert [] == await ring.revoke("ci"), "it would come back"


@pytest.mark.parametrize(
    "text",
    [
        "ci",
        "ci:short:read",
        "ci:0123456789abcdef:write",
        "c i:0123456789abcdef:read",
        "a:0123456789abcdef:read:/x",
    ],
)
def test_a_wrong_key_in_the_environment_is_a_sentence(text):
    with pytest.raises(UsageError) as caught:
        keys_of_environment({"DULY_API_KEYS": text})
    assert "0123456789abcdef" not in str(caught.value), "no secret in a message"


async def test_a_caller_has_a_rate(serving):
    async with serving(rate=0.001, burst=2) as client:
        answers = [await client.post(JOBS, json={}) for _ in range(3)]
        assert [202, 202, 429] == [answer.status_code for answer in answers]
        problem(answers[-1], 429, "too-many-requests")
        assert int(answers[-1].headers["retry-after"]) > 0


async def test_an_address_may_send_only_some_wrong_keys(client, ring, at_once, monkeypatch):
    text, _ = await ring.create("shop", ["admin"])
    service = client._transport.app.state.service
    service.access._wrong._here = Buckets(0.001, 3)
    answers = [await client.post(JOBS, json={}, headers=bearer(f"duly_x_{n}")) for n in range(4)]
    assert [401, 401, 401, 429] == [answer.status_code for answer in answers]
    assert int(answers[-1].headers["retry-after"]) > 0

    async def looked_up(_text):
        raise AssertionError

    monkeypatch.setattr(service.keys, "find", looked_up)
    problem(await client.post(JOBS, json={}, headers=bearer(text)), 429, "too-many-requests")


async def test_an_address_may_send_only_some_requests_without_a_key(client, ring, at_once, monkeypatch):
    text, _ = await ring.create("shop", ["admin"])
    service = client._transport.app.state.service
    service.access._keyless = Buckets(0.001, 3)
    answers = [await client.post(JOBS, json={}) for _ in range(3)]
    assert [401, 401, 401] == [answer.status_code for answer in answers]

    async def looked_up():
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(service.keys, "any", looked_up)
        response = await client.post(JOBS, json={})
    problem(response, 429, "too-many-requests")
    assert int(response.headers["retry-after"]) > 0
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code, "a key is let in"
    assert 200 == (await client.get("/healthz")).status_code


async def test_what_is_refused_counts_for_the_rate(serving, app, at_once):
    async with serving(rate=0.001, burst=2) as client:
        for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "https://evil.example"}, 403)):
            service = client._transport.app.state.service
            service.access._buckets = Buckets(0.001, 2)
            answers = [await client.post(JOBS, json={}, headers=headers) for _ in range(3)]
            assert [status, status, 429] == [answer.status_code for answer in answers]
            assert 202 == (await client.post(JOBS, json={})).status_code, "no page uses up what others may do"
        text, _ = await KeyRing(await app.store()).create("shop", ["read"])
        answers = [await client.post(JOBS, json={}, headers=bearer(text)) for _ in range(3)]
        assert [403, 403, 429] == [answer.status_code for answer in answers]
        service.access._buckets = Buckets(0.001, 2)
        assert [401, 401, 429] == [(await client.post(JOBS, json={})).status_code for _ in range(3)]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8:0:0:ffff:ffff:ffff:ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "testclient", False),
    ],
)
def test_an_ipv6_address_is_counted_with_its_network(one, other, same):
    assert same == (caller_of(one) == caller_of(other))


async def test_wrong_keys_are_bounded_for_a_whole_network(app, ring, client, at_once):
    await ring.create("shop", ["admin"])
    service = client._transport.app
    service.state.service.access._wrong._here = Buckets(0.001, 3)
    statuses = []
    for number in range(4):
        async with local(service, address=f"2001:db8::{number}", **bearer("duly_x_0")) as sender:
            statuses.append((await sender.post(JOBS, json={})).status_code)
    assert [401, 401, 401, 429] == statuses


@pytest.fixture
async def telling(app, ring, client, monkeypatch):
    """
    A service that requires keys: send a wrong one from an address, and see what the store was told.
    """
    await ring.create("shop", ["admin"])
    told: list[dict[str, int]] = []
    store = type(await app.store())
    refuse = store.refuse

    async def noted(self, wrong, **more):
        told.append(dict(wrong))
        return await refuse(self, wrong, **more)

    monkeypatch.setattr(store, "refuse", noted)

    async def guess(address="192.0.2.1", service=client._transport.app):
        async with local(service, address=address, **bearer("duly_x_0")) as sender:
            return (await sender.post(JOBS, json={})).status_code

    return guess, told


async def test_an_attack_makes_no_load_on_the_store(client, telling, at_once, monkeypatch):
    monkeypatch.setattr("duly.http.access.TELL_S", 0.2)
    access = client._transport.app.state.service.access
    monkeypatch.setattr(access._wrong._here, "_rate", 0.001)  # however slow this machine is
    guess, told = telling
    began_s = time.monotonic()
    for number in range(1200):
        assert 401 == await guess(f"10.0.{number // 250}.{number % 250}")

    async def is_quiet():
        assert access._wrong._telling is None

    # As long as many others wait to be told of, no more addresses are.
    await eventually(is_quiet)
    assert [401] * WRONG_BURST + [429] * 30 == [await guess() for _ in range(WRONG_BURST + 30)]

    async def is_told():
        assert WRONG_BURST == sum(each.get("192.0.2.1", 0) for each in told)

    await eventually(is_told)
    assert len(told) <= (time.monotonic() - began_s) / 0.2 + 2
    assert max(map(len, told)) <= 500


async def test_what_another_process_counted_holds_here(app, telling, at_once):
    guess, told = telling
    store = await app.store()
    await store.refuse({"192.0.2.1": WRONG_BURST + 100}, each_ms=1000, burst=WRONG_BURST)
    assert 401 == await guess(), "nobody has told yet"

    async def refused():
        assert 429 == await guess()

    await eventually(refused)
    assert 401 == await guess("192.0.2.2")
    assert len(told) <= 3


async def test_without_the_store_each_process_counts_for_itself(client, telling, at_once, monkeypatch):
    access = client._transport.app.state.service.access
    monkeypatch.setattr(access._wrong._here, "_rate", 0.001)  # however slow this machine is
    guess, told = telling

    async def away(_store, wrong, **_more):
        told.append(wrong)
        raise StoreUnavailable("away")

    monkeypatch.setattr("duly.store.Store.refuse", away)
    assert [401] * WRONG_BURST + [429] == [await guess() for _ in range(WRONG_BURST + 1)]
    assert told


async def test_browsers_are_let_in_only_where_allowed(serving):
    asked = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    async with serving() as client:
        assert "access-control-allow-origin" not in (await client.options(JOBS, headers=asked)).headers
    async with serving(cors_origins=("https://shop.example",)) as client:
        allowed = await client.options(JOBS, headers=asked)
        assert "https://shop.example" == allowed.headers["access-control-allow-origin"]
        other = await client.options(JOBS, headers=asked | {"Origin": "https://else.example"})
        assert "access-control-allow-origin" not in other.headers
        detail = "pages of https://else.example may not send this; not allowed: origin"
        assert detail == problem(other, 403, "cross-site")["detail"]
        header = await client.options(JOBS, headers=asked | {"Access-Control-Request-Headers": "x-else"})
        assert problem(header, 403, "cross-site")["detail"].endswith("not allowed: headers")
        assert "https://shop.example" == header.headers["access-control-allow-origin"]


async def test_pages_that_are_allowed_may_send_and_read_every_header_that_is_described(serving):
    described = document(OPERATIONS)["paths"]
    calls = [call for path in described.values() for name, call in path.items() if name != "parameters"]
    sent = {each["name"] for call in calls for each in call.get("parameters", ()) if each["in"] == "header"}
    told = {name for call in calls for each in call["responses"].values() for name in each.get("headers", ())}
    assert {"Duly-Age", "Idempotency-Key", "If-Match"} < sent
    assert {"ETag", "Location"} < told
    origin = {"Origin": "https://shop.example"}
    async with serving(cors_origins=("https://shop.example",)) as client:
        for name in sorted(sent | {"Authorization", "Content-Type"}):
            asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": name.lower()}
            assert 200 == (await client.options(JOBS, headers=origin | asked)).status_code, name
        shown = (await client.get("/healthz", headers=origin)).headers["access-control-expose-headers"]
    assert set() == told - set(shown.split(", "))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "queue.example"])
async def test_others_are_served_only_with_keys(ring, host):
    with pytest.raises(UsageError, match="duly keys create"):
        await check_place(host, ring)
    await ring.create("shop", ["admin"])
    await check_place(host, ring)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
async def test_this_machine_is_served_without(ring, host):
    await check_place(host, ring)


def test_a_port_that_is_taken_is_a_sentence():
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])
