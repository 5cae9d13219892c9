"""
Workers over HTTP: claim, wait, and every way to end a run; a token that is not the newest ends nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest

from duly import Duly, Fixed
from duly.apikeys import KeyRing
from duly.defaults import DEFAULTS
from duly.errors import StoreUnavailable
from duly.http.api import api
from duly.http.roster import Roster
from duly.http.serve import listen, server_of
from duly.http.settings import ServiceSettings
from duly.http.tokens import read_token, token_of
from duly.ids import new_request
from duly.job import JobKey, JobState, Order
from duly.options import TOLD
from duly.store import CLAIM_BYTES, Promise, Want
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.lostclaims import lose_a_claim
from tests.shards import claim_all, ids_on, on_all, promote_all, recover_all

CLAIM = "/v1/topics/mail/claim"
FOREVER = 50  # seconds that no test waits for, if all is well


async def claim(client, status=200, path=CLAIM, **body):
    response = await client.post(path, json={"worker": "w", **body})
    assert status == response.status_code, response.text
    return response.json()["jobs"]


async def end(client, job, verb, status=200, **body):
    response = await client.post(f"/v1/leases/{job['token']}/{verb}", json=body)
    assert status == response.status_code, response.text
    return response.json()


async def state(app, id_, topic="mail"):
    return (await app.job(topic, id_).get()).state


async def state_is(app, id_, expected):
    assert expected == await state(app, id_)


# -- claim ------------------------------------------------------------------------------------------------


async def test_a_claim_brings_what_a_worker_needs(client, app):
    await app.enqueue("mail", {"to": "ada"}, id="a", ttr=30, max_attempts=7, context={"tenant": "acme"})
    before = datetime.now(UTC)
    [job] = await claim(client)
    assert ("mail", "a", {"to": "ada"}, {"tenant": "acme"}) == (
        job["topic"],
        job["id"],
        job["payload"],
        job["context"],
    )
    assert (1, 7, 0, 30) == (job["attempt"], job["max_attempts"], job["crashes"], job["ttr"])
    until = datetime.fromisoformat(job["lease_until"]) - before
    assert timedelta(seconds=20) < until < timedelta(seconds=40), "no longer than its time to run"
    assert JobState.running == await state(app, "a")
    assert "w" == (await app.job("mail", "a").get()).worker


#: What a claim tells by the same name and otherwise: how long this run may take, by the handler if need be.
OTHERWISE = {"ttr", "lateness_ms"}


@pytest.mark.parametrize("retried", [False, True])
async def test_a_claim_tells_of_a_job_what_the_job_tells_itself(client, app, retried):
    every = {"ttr": 30, "expires": datetime(2036, 1, 1, tzinfo=UTC), "backoff": Fixed(5), "retain": 90}
    await app.enqueue("mail", 1, id="plain")
    await app.enqueue("mail", 2, id="moved", delay=3600, priority="high")
    await app.job("mail", "moved").reschedule(delay=0)
    more = {"max_attempts": 7, "context": {"tenant": "acme"}, "reply_to": "inbox"}
    await app.enqueue("mail", 3, id="full", **every, **more)
    if retried:
        for job in await claim(client, limit=3, wait=FOREVER):
            await end(client, job, "retry", delay=0)
    jobs = []
    while len(jobs) < 3:
        jobs += await claim(client, limit=3, wait=FOREVER)
    for job in jobs:
        document = (await client.get(f"/v1/topics/mail/jobs/{job['id']}")).json()
        same = (job.keys() & document.keys()) - OTHERWISE
        assert {name: document[name] for name in same} == {name: job[name] for name in same}
        assert not {option.name for option in TOLD} - job.keys()
        assert {"created_at", "updated_at", "scheduled_for"} <= same


async def test_a_lease_lasts_a_minute_or_as_long_as_was_asked_for(client, app):
    for id_, lease, least, most in (
        ("a", {}, 45, 75),
        ("b", {"lease": 120}, 100, 140),
        ("c", {"lease": "2m", "wait": "1s"}, 100, 140),
    ):
        await app.enqueue("mail", id=id_)
        before = datetime.now(UTC)
        [job] = await claim(client, **lease)
        until = datetime.fromisoformat(job["lease_until"])
        assert timedelta(seconds=least) < until - before < timedelta(seconds=most)
        stored = (await client.get(f"/v1/topics/mail/jobs/{id_}")).json()["lease_until"]
        assert job["lease_until"] == stored


async def test_what_is_not_ready_or_of_another_topic_is_not_claimed(client, app):
    await app.enqueue("mail", id="later", delay=60)
    await app.enqueue("sms", id="other")
    assert [] == await claim(client)


async def test_many_at_once_up_to_the_limit(client, app):
    for number in range(5):
        await app.enqueue("mail", id=str(number))
    assert 3 == len(await claim(client, limit=3))
    assert 2 == len(await claim(client, limit=100))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "worker"),
        ({"worker": ""}, "worker"),
        ({"worker": "a b"}, "worker"),
        ({"worker": "a\n"}, "worker"),
        ({"worker": "w", "limit": 0}, "limit"),
        ({"worker": "w", "limit": 201}, "limit"),
        ({"worker": "w", "limit": 1.5}, "limit"),
        ({"worker": "w", "wait": "soon"}, "wait"),
        ({"worker": "w", "wait": -1}, "wait"),
        ({"worker": "w", "lease": 0.5}, "lease"),
        ({"worker": "w", "lease": 86401}, "lease"),
        ({"worker": "w", "lease": "500ms"}, "lease"),
        ({"worker": "w", "lease": "2d"}, "lease"),
        ({"worker": "w", "lease": "soon"}, "lease"),
        ({"worker": "w", "leese": 1}, "leese"),
    ],
)
async def test_a_claim_that_is_wrong_says_where(client, app, body, field):
    await app.enqueue("mail", id="a")
    told = problem(await client.post(CLAIM, json=body), 422, "invalid")
    assert field == told["field"]
    assert JobState.ready == await state(app, "a")


async def test_who_waits_gets_a_job_as_soon_as_it_is_sent(client, app):
    waiting = asyncio.create_task(claim(client, wait=FOREVER))
    await in_line(client)
    await app.enqueue("mail", id="a")
    [job] = await waiting
    assert "a" == job["id"]


async def test_who_waits_gets_a_job_as_soon_as_it_is_due(client, app):
    await app.enqueue("mail", id="a", delay=0.3)
    [job] = await claim(client, wait=FOREVER)
    assert "a" == job["id"]
    assert datetime.fromisoformat(job["due_at"]) <= datetime.now(UTC)


async def test_a_wait_in_vain_ends_with_no_jobs(client):
    assert [] == await claim(client, wait=0.05)


async def test_nobody_waits_longer_than_is_allowed(serving):
    async with serving(max_wait_s=0.05) as client:
        assert [] == await claim(client, wait=FOREVER)


async def test_a_hundred_wait_at_once_and_each_job_wakes_one(client, app):
    """
    More than there are connections to the server.
    """
    waiting = [asyncio.create_task(claim(client, worker=f"w{number}", wait=FOREVER)) for number in range(100)]
    await in_line(client, 100)
    for number in range(100):
        await app.enqueue("mail", id=str(number))
    claimed = [job["id"] for jobs in await asyncio.gather(*waiting) for job in jobs]
    assert sorted(map(str, range(100))) == sorted(claimed)


async def test_who_waits_costs_few_commands_however_many_wait(client, app):
    waiting = [asyncio.create_task(claim(client, wait=FOREVER)) for _ in range(50)]
    await in_line(client, 50)
    store = await app.store()
    await _looks(client, 2)
    await store.link.call("CONFIG", "RESETSTAT")
    await _looks(client, 3)
    stats = (await store.link.call("INFO", "commandstats")).decode()
    calls = dict(line.split(":calls=") for line in stats.split() if ":calls=" in line)
    # Three looks of one poll for all, and what keeps the queue going; not three looks of each poll.
    assert int(calls["cmdstat_fcall"].split(",")[0]) < 40, stats
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def _looks(client, count):
    """
    Wait until waiting polls have looked again so many times.
    """
    claims = client._transport.app.state.service.workplace.claims
    look, seen = claims._claim, []

    async def counted(*asked):
        seen.append(asked)
        return await look(*asked)

    claims._claim = counted
    await eventually(lambda: len(seen) >= count, 30)
    claims._claim = look


async def in_line(client, count=1, topic="mail"):
    """
    Wait until so many polls wait.
    """
    bells = client._transport.app.state.service.workplace._bells
    await eventually(lambda: len(bells._lines.get(topic, ())) >= count, 30)


async def test_a_paused_topic_gives_nothing_until_it_goes_on(client, app):
    await app.enqueue("mail", id="a")
    await app.pause("mail")
    assert [] == await claim(client)
    waiting = asyncio.create_task(claim(client, wait=FOREVER))
    await in_line(client)
    await app.resume("mail")
    assert ["a"] == [job["id"] for job in await waiting]


async def test_two_workers_share_what_there_is(client, app):
    for number in range(40):
        await app.enqueue("mail", id=str(number))

    async def work(name):
        done = []
        while jobs := await claim(client, worker=name, limit=3):
            for job in jobs:
                await end(client, job, "ack")
                done.append(job["id"])
        return done

    mine, others = await asyncio.gather(work("a"), work("b"))
    assert mine
    assert others
    assert sorted(map(str, range(40))) == sorted(mine + others)


async def test_shards_are_all_asked(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, shards=4)
    async with served(app) as client:
        for number in range(20):
            await app.enqueue("mail", id=str(number))
        jobs = await claim(client, limit=100)
        assert 20 == len(jobs)
        for job in jobs:
            await end(client, job, "ack")
            assert JobState.succeeded == await state(app, job["id"])
        waiting = asyncio.create_task(claim(client, wait=FOREVER))
        await in_line(client)
        await app.enqueue("mail", id="more")
        assert 1 == len(await waiting)


async def test_the_answer_to_a_claim_is_bounded_over_all_shards(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, shards=3)
    async with served(app) as client:
        store, size = await app.store(), 200_000
        ids = [id_ for shard in range(3) for id_ in ids_on(store, "mail", shard, 6)]
        for id_ in ids:
            await app.enqueue("mail", "x" * size, id=id_)
        seen: list[str] = []
        for _ in range(3):
            answer = await client.post(
                CLAIM, json={"worker": "w", "limit": 100, "request_id": str(len(seen))}
            )
            assert len(answer.content) <= CLAIM_BYTES + 2 * size
            jobs = answer.json()["jobs"]
            again = await claim(client, limit=100, request_id=str(len(seen)))
            assert {job["id"] for job in jobs} == {job["id"] for job in again}, "the same answer again"
            running = [id_ for id_ in ids if await state(app, id_) is JobState.running]
            assert {job["id"] for job in jobs} == set(running), "what is beyond is not claimed"
            seen += running
            for job in again:
                await end(client, job, "ack")
        assert len(seen) == len(set(seen)) >= 12
        rest = [job["id"] for job in await claim(client, limit=100)]
        assert sorted(set(ids) - set(seen)) == sorted(rest)


@asynccontextmanager
async def served(app):
    service = api(app)
    async with service.router.lifespan_context(service):
        transport = httpx.ASGITransport(service, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            yield client


async def test_lines_are_for_shells(client, app):
    payload = b'{"text": "a\\tb\\nc \xc3\xa9",\n\t"n": [1, 2]}'
    await client.post("/v1/topics/mail/jobs", content=b'{"id":"a","payload":' + payload + b"}", headers=JSON)
    response = await client.post(f"{CLAIM}:lines", json={"worker": "w", "limit": 5})
    assert "text/tab-separated-values; charset=utf-8" == response.headers["content-type"]
    [line] = response.text.splitlines()
    token, id_, attempt, told = line.split("\t")
    assert ("a", "1", json.loads(payload)) == (id_, attempt, json.loads(told))
    assert JobKey("mail", "a") == read_token(token).key
    assert "" == (await client.post(f"{CLAIM}:lines", json={"worker": "w"})).text


JSON = {"content-type": "application/json"}


async def test_a_job_that_cannot_be_read_is_buried_and_stops_nobody(client, app):
    store = await app.store()
    await store.enqueue(Order(JobKey("mail", "bad"), b"{not json"))
    await store.enqueue(Order(JobKey("mail", "worse"), b"1", envelope=b"{"))
    await store.enqueue(Order(JobKey("mail", "good"), b"1"))
    assert ["good"] == [job["id"] for job in await claim(client, limit=10)]
    assert await eventually(lambda: _is_dead(app, "bad"))
    counts = (await (await app.views()).stats()).topics[0].counts
    assert 2 == counts["dead"]


async def _is_dead(app, id_):
    return JobState.dead == await state(app, id_)


# -- the ends of a run ------------------------------------------------------------------------------------


async def test_ack_stores_the_result_and_how_late_it_was(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    told = await end(client, job, "ack", result={"sent": True})
    assert {"topic": "mail", "id": "a", "state": "succeeded"} == told
    found = (await client.get("/v1/topics/mail/jobs/a")).json()
    assert ({"sent": True}, job["lateness_ms"]) == (found["result"], found["lateness_ms"])


async def test_a_late_start_is_told(client, app):
    await app.enqueue("mail", id="a", due_at=datetime.now(UTC) - timedelta(hours=1))
    [job] = await claim(client)
    await end(client, job, "ack")
    assert job["lateness_ms"] == (await app.job("mail", "a").get()).lateness_ms


async def test_ack_needs_no_body(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    assert 200 == (await client.post(f"/v1/leases/{job['token']}/ack")).status_code
    assert JobState.succeeded == await state(app, "a")


async def test_retry_runs_it_again_after_the_delay_with_its_error(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    error = {"type": "smtp", "message": "421 try later"}
    assert "scheduled" == (await end(client, job, "retry", delay=0.2, error=error))["state"]
    found = (await client.get("/v1/topics/mail/jobs/a")).json()
    assert ("scheduled", error, 1) == (found["state"], found["error"], found["attempts"])
    [again] = await claim(client, wait=FOREVER)
    assert 2 == again["attempt"]


async def test_without_a_delay_the_backoff_of_the_job_counts(client, app):
    await app.enqueue("mail", id="a", backoff=Fixed(3600))
    [job] = await claim(client)
    await end(client, job, "retry")
    due = (await app.job("mail", "a").get()).due_at
    assert timedelta(minutes=50) < due - datetime.now(UTC) < timedelta(minutes=70)


async def test_without_any_the_wait_is_two_seconds(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    started = (await app.job("mail", "a").get()).started_at
    await end(client, job, "retry")
    due = (await app.job("mail", "a").get()).due_at
    assert timedelta(seconds=2) <= due - started < timedelta(seconds=60)


@pytest.mark.parametrize(("options", "attempts"), [({"max_attempts": 2}, 2), ({}, DEFAULTS.max_attempts)])
async def test_the_last_failure_makes_a_job_dead(client, app, options, attempts):
    await app.enqueue("mail", id="a", **options)
    for attempt in range(1, attempts + 1):
        [job] = await claim(client, wait=FOREVER)
        assert (attempt, attempts) == (job["attempt"], job["max_attempts"])
        last = "dead" if attempt == attempts else "scheduled"
        for _ in range(2):
            assert last == (await end(client, job, "retry", delay=0, error={"type": "x"}))["state"]
    found = (await client.get("/v1/topics/mail/jobs/a")).json()
    assert ("dead", attempts, {"type": "x", "message": ""}) == (
        found["state"],
        found["attempts"],
        found["error"],
    )


async def test_a_handler_that_is_known_here_decides_as_it_does_elsewhere(client, app):
    @app.handler("mail", max_attempts=1, ttr=20)
    async def mail() -> None:
        return None

    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    assert (1, 20) == (job["max_attempts"], job["ttr"])
    assert "dead" == (await end(client, job, "retry"))["state"]


@pytest.fixture
def terms(monkeypatch):
    """
    Give the service defaults of its own, before there is an app.
    """
    for name, value in (("MAX_ATTEMPTS", "2"), ("TTR", "90s"), ("BACKOFF", '{"kind":"fixed","delay":3600}')):
        monkeypatch.setenv(f"DULY_{name}", value)


async def test_a_worker_that_says_nothing_has_the_defaults_of_the_service(terms, client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    assert (2, 90) == (job["max_attempts"], job["ttr"])
    assert "scheduled" == (await end(client, job, "retry"))["state"]
    found = await app.job("mail", "a").get()
    assert 3590 < (found.due_at - found.updated_at).total_seconds() <= 3601


async def test_bury_ends_it_with_its_error(client, app):
    for id_, body, error in (
        (
            "a",
            {"error": {"type": "gone", "message": "no such user"}},
            {"type": "gone", "message": "no such user"},
        ),
        ("b", {}, {"type": "buried", "message": ""}),
    ):
        await app.enqueue("mail", id=id_)
        [job] = await claim(client)
        assert "dead" == (await end(client, job, "bury", **body))["state"]
        assert error == (await client.get(f"/v1/topics/mail/jobs/{id_}")).json()["error"]


async def test_release_gives_it_back_uncounted(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    assert "ready" == (await end(client, job, "release"))["state"]
    [again] = await claim(client)
    assert 1 == again["attempt"]


async def test_extend_prolongs_but_not_past_the_time_to_run(client, app):
    await app.enqueue("mail", id="a", ttr=100)
    [job] = await claim(client, lease=30)
    for lease, least, most in ((50, 35, 51), (500, 80, 100)):
        told = await end(client, job, "extend", lease=lease)
        found = (await client.get("/v1/topics/mail/jobs/a")).json()
        for until in (told["lease_until"], found["lease_until"]):
            left = datetime.fromisoformat(until) - datetime.fromisoformat(found["started_at"])
            assert timedelta(seconds=least) < left < timedelta(seconds=most + 15)
        assert told["lease_until"] <= found["lease_until"]
    limit = datetime.fromisoformat(found["started_at"]) + timedelta(seconds=100)
    assert limit == datetime.fromisoformat(found["lease_until"])


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("ack", {"result": 1}),
        ("retry", {"delay": 60, "error": {"type": "x"}}),
        ("bury", {"error": {"type": "x", "message": "y"}}),
        ("release", {}),
        ("extend", {"lease": 10}),
    ],
)
async def test_the_same_call_again_is_answered_alike(client, app, verb, body):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    first, again = await end(client, job, verb, **body), await end(client, job, verb, **body)
    assert (first["state"], first["id"]) == (again["state"], again["id"])
    if verb != "extend":
        other = "bury" if verb == "ack" else "ack"
        problem(await client.post(f"/v1/leases/{job['token']}/{other}"), 409, "lease-lost")


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
async def test_a_lease_that_was_lost_ends_nothing(client, app, verb):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    await app.job("mail", "a").cancel()
    assert (
        "stop" in problem(await client.post(f"/v1/leases/{job['token']}/{verb}"), 409, "lease-lost")["detail"]
    )
    assert JobState.cancelled == await state(app, "a")
    await app.job("mail", "a").requeue()
    [newer] = await claim(client)
    problem(await client.post(f"/v1/leases/{job['token']}/{verb}"), 409, "lease-lost")
    await end(client, newer, "ack")


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("ack", {"result": "x" * 300_000}, "result"),
        ("ack", {"resul": 1}, "resul"),
        ("retry", {"delay": -1}, "delay"),
        ("retry", {"error": "no"}, "error"),
        ("retry", {"error": {}}, "error.type"),
        ("bury", {"delay": 1}, "delay"),
        ("release", {"why": 1}, "why"),
        ("extend", {"lease": 0}, "lease"),
    ],
)
async def test_an_end_that_is_wrong_changes_nothing(client, app, verb, body, field):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    response = await client.post(f"/v1/leases/{job['token']}/{verb}", json=body)
    assert field == problem(response, 422, "invalid")["field"]
    assert JobState.running == await state(app, "a")


# -- tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "extend"])
async def test_a_token_that_is_forged_or_damaged_is_refused(client, app, verb):
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    token = job["token"]
    other = "A" if token[10] != "A" else "B"
    for damaged in (
        token[:-1],
        token[1:],
        token[:10] + other + token[11:],
        token + "AAAA",
        "x",
        "A" * 700,
    ):
        problem(await client.post(f"/v1/leases/{damaged}/{verb}"), 409, "lease-lost")
    for wrong in ("%00", "a.b", "A" * 701, "%20" + token):
        problem(await client.post(f"/v1/leases/{wrong}/{verb}"), 422, "invalid")
    lease = read_token(token).lease(1)
    for forged in (
        token_of(_but(lease, nonce=b"8 bytes!"), 0),
        token_of(_but(lease, token=lease.token + 1), 0),
        token_of(_but(lease, key=JobKey("mail", "b")), 0),
    ):
        problem(await client.post(f"/v1/leases/{forged}/{verb}"), 409, "lease-lost")
    assert JobState.running == await state(app, "a")


def _but(lease, **changes):
    return msgspec.structs.replace(lease, **changes)


async def test_a_key_bound_to_topics_is_bound_for_leases_too(client, app, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    await app.enqueue("mail", id="a")
    [job] = await claim(client)
    ring = KeyRing(await app.store())
    keys = {
        name: {"Authorization": f"Bearer {(await ring.create(name, scopes, topics))[0]}"}
        for name, scopes, topics in (
            ("mailer", ["work"], ["mail"]),
            ("texter", ["work"], ["sms"]),
            ("sender", ["enqueue"], []),
        )
    }
    ack = f"/v1/leases/{job['token']}/ack"
    for name in ("texter", "sender"):
        problem(await client.post(ack, headers=keys[name]), 403, "forbidden")
        problem(await client.post(CLAIM, json={"worker": "w"}, headers=keys[name]), 403, "forbidden")
    problem(await client.post(ack), 401, "unauthenticated")
    problem(await client.post("/v1/leases/x/ack"), 401, "unauthenticated")
    problem(await client.post("/v1/leases/x/ack", headers=keys["mailer"]), 403, "forbidden")
    assert 200 == (await client.post(ack, headers=keys["mailer"])).status_code


# -- workers ----------------------------------------------------------------------------------------------


async def workers(app):
    views = await app.views()
    return {each["worker"]: each for each in await views.workers(await views.now_ms())}


async def test_workers_are_listed_while_they_claim(client, app):
    await app.enqueue("mail", id="a")
    [job] = await claim(client, worker="perl@host-1", limit=4)
    roster = client._transport.app.state.service.workplace.roster
    found = (await workers(app))["perl@host-1"]
    assert (True, ["mail"], 4) == (found["live"], found["topics"], found["concurrency"])
    await roster.run_once()
    assert (1, 1, 0) == _figures((await workers(app))["perl@host-1"])
    await end(client, job, "ack")
    await roster.run_once()
    assert (0, 1, 1) == _figures((await workers(app))["perl@host-1"])


def _figures(worker):
    return worker["running"], worker["claimed"], worker["finished"]


async def test_a_worker_that_is_not_heard_is_not_said_to_live(client, app):
    await claim(client)
    store = await app.store()
    roster = client._transport.app.state.service.workplace.roster
    await roster.run_once()
    heard = await store.link.call("ZSCORE", store.keys[0].fixed["beats"], "w")
    await roster.run_once()
    assert heard == await store.link.call("ZSCORE", store.keys[0].fixed["beats"], "w")


# -- who goes away ----------------------------------------------------------------------------------------


async def ask(url, body):
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    data = json.dumps(body).encode()
    head = ("host: localhost", "content-type: application/json", f"content-length: {len(data)}")
    writer.write("\r\n".join((f"POST {CLAIM} HTTP/1.1", *head, "", "")).encode() + data)
    await writer.drain()
    return reader, writer


async def test_a_client_that_left_while_it_waited_takes_no_job(url, app):
    _, writer = await ask(url, {"worker": "gone", "wait": FOREVER})
    await eventually(lambda: _listed(app, "gone"), 30)
    writer.close()
    await writer.wait_closed()
    # Another that came later is served, and the first in line is not in its way.
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        waiting = asyncio.create_task(claim(client, worker="here", wait=FOREVER))
        await eventually(lambda: _listed(app, "here"), 30)
        await app.enqueue("mail", id="a")
        [job] = await waiting
        assert (1, "here") == (job["attempt"], (await app.job("mail", "a").get()).worker)
    store = await app.store()
    # Who was ever given a job is known by its last claim.
    assert [b"here"] == [name for names in await on_all(store, "claims", "HKEYS") for name in names]


async def _listed(app, name):
    return name in await workers(app)


async def hold_back(app, monkeypatch):
    """
    What the worker `gone` claims is found, and kept from it until it may go on.
    """
    store = await app.store()
    found, go_on = asyncio.Event(), asyncio.Event()
    whole = store.claim

    async def slow(*args, **options):
        claimed = await whole(*args, **options)
        if claimed.leases and options["worker"] == "gone":
            found.set()
            await go_on.wait()
        return claimed

    monkeypatch.setattr(store, "claim", slow)
    return found, go_on


async def test_a_claim_that_is_cancelled_half_way_gives_its_jobs_back(client, app, monkeypatch):
    found, go_on = await hold_back(app, monkeypatch)
    await app.enqueue("mail", id="a")
    asking = asyncio.create_task(claim(client, worker="gone"))
    await found.wait()
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    go_on.set()
    [job] = await claim(client, wait=FOREVER)
    assert ("a", 1, 0) == (job["id"], job["attempt"], job["crashes"])


async def test_a_client_that_left_before_its_answer_gives_its_jobs_back(url, app, monkeypatch):
    """
    It leaves between the look that finds a job and the answer that brings it.
    """
    found, go_on = await hold_back(app, monkeypatch)
    # Of one shard, so that one look finds both.
    ids = ids_on(app.settings, "mail", app.settings.shards - 1, 2)
    for id_ in ids:
        await app.enqueue("mail", id=id_)
    _, writer = await ask(url, {"worker": "gone", "limit": 2})
    await found.wait()
    assert JobState.running == await state(app, ids[0])
    writer.transport.abort()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        # Once this is answered, the loop has seen the other leave, too.
        await client.get("/openapi.json")
        go_on.set()
        jobs = []
        while len(jobs) < 2:
            jobs += await claim(client, worker="here", wait=FOREVER, limit=2)
        assert [(id_, 1, 0) for id_ in ids] == sorted(
            (job["id"], job["attempt"], job["crashes"]) for job in jobs
        )


@pytest.mark.parametrize("silent", [0, 3], ids=["at once", "as soon as there is an answer"])
async def test_jobs_of_a_claim_that_the_service_heard_no_answer_to_are_given_back(
    client, app, monkeypatch, silent
):
    monkeypatch.setattr("duly.http.handing.AGAIN_S", 0.01)
    await app.enqueue("mail", id="a")
    lost = lose_a_claim(monkeypatch, silent=silent)
    response = await client.post(CLAIM, json={"worker": "gone", "lease": 600})
    assert (503, True) == (response.status_code, lost.is_set())
    await eventually(lambda: state_is(app, "a", JobState.ready))
    [job] = await claim(client, worker="here", wait=FOREVER)
    assert ("a", 1, 0) == (job["id"], job["attempt"], job["crashes"])


async def test_the_same_request_again_brings_the_same_jobs_and_takes_no_more(client, app):
    for number in range(6):
        await app.enqueue("mail", id=str(number))
    first = await claim(client, limit=3, request_id="r1")
    again = await claim(client, limit=3, request_id="r1")
    assert ids(first) == ids(again)
    [topic] = (await app.stats()).topics
    assert 3 == topic.running
    # What has ended since is not brought again, and others take its place.
    for job in again:
        await end(client, job, "ack")
    third = await claim(client, limit=3, request_id="r1")
    assert 3 == len({job["id"] for job in third} - {job["id"] for job in first})


async def test_the_same_request_again_asks_the_shards_in_the_same_order(client, app):
    for shard in range(app.settings.shards):
        for id_ in ids_on(app.settings, "mail", shard, 8):
            await app.enqueue("mail", id=id_)
    for number in range(8):
        first, again = [await claim(client, request_id=f"r{number}") for _ in range(2)]
        assert ids(first) == ids(again)


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_the_same_request_again_brings_its_jobs_before_newer_ones_of_any_shard(client, app, limit):
    shards = range(app.settings.shards)
    for shard, number in itertools.product(shards, range(4)):
        topic = f"t{shard}.{number}"
        first, *others = ids_on(app.settings, topic, shard, 4)
        for of in set(shards) - {shard}:
            others += ids_on(app.settings, topic, of, 4)
        request = {"path": f"/v1/topics/{topic}/claim", "limit": limit, "request_id": topic}
        await app.enqueue(topic, id=first)
        assert [first] == ids(await claim(client, **request))
        for id_ in others:
            await app.enqueue(topic, id=id_)
        for _ in range(3):
            [job] = await claim(client, **request)
            assert first == job["id"]
        running = [id_ for id_ in [first, *others] if await state(app, id_, topic) is JobState.running]
        assert [first] == running, "a repeat leases nothing beside"
        await end(client, job, "ack")
        assert min(limit, len(others)) == len(await claim(client, **request)), "that has ended"


async def test_the_same_request_again_brings_what_it_took_from_several_shards(client, app):
    settings = app.settings
    first = [id_ for shard in range(settings.shards) for id_ in ids_on(settings, "mail", shard, 2)]
    for id_ in first:
        await app.enqueue("mail", id=id_)
    limit = len(first) + 2
    assert sorted(first) == ids(await claim(client, limit=limit, request_id="r1"))
    for number in range(9):
        await app.enqueue("mail", id=f"new{number}")
    jobs = await claim(client, limit=limit, request_id="r1")
    assert sorted(first) == ids(jobs)
    ended = jobs.pop()
    await end(client, ended, "ack")
    assert ids(jobs) == ids(await claim(client, limit=limit, request_id="r1"))


async def test_a_repeat_is_refused_while_a_shard_does_not_say_what_it_leased(client, app, monkeypatch):
    [first] = ids_on(app.settings, "mail", app.settings.shards - 1, 1)
    await app.enqueue("mail", id=first)
    assert [first] == ids(await claim(client, request_id="r1"))
    for number in range(9):
        await app.enqueue("mail", id=f"new{number}")
    store = await app.store()
    sent, asked = type(store).claim, set()

    async def is_away(self, shard, wants, **more):
        asked.add(shard)
        if shard == self.shards - 1:
            raise StoreUnavailable("away")
        return await sent(self, shard, wants, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "claim", is_away)
        response = await client.post(CLAIM, json={"worker": "w", "request_id": "r1"})
    assert 503 == response.status_code
    assert set(range(app.settings.shards)) == asked
    assert [first] == ids(await claim(client, request_id="r1"))


async def test_another_request_worker_or_topic_is_another_claim(client, app):
    for topic in ("mail", "post"):
        for number in range(4):
            await app.enqueue(topic, id=str(number))
    claims = [
        await claim(client, request_id="r1"),
        await claim(client, request_id="r2"),
        await claim(client, request_id="r1", worker="w2"),
        await claim(client, request_id="r1", path="/v1/topics/post/claim"),
    ]
    assert 4 == len({(job["topic"], job["id"]) for jobs in claims for job in jobs})


async def test_the_same_request_of_another_key_is_another_claim(client, app):
    ring, claims = KeyRing(await app.store()), []
    keys = [(await ring.create(name, ["work"]))[0] for name in ("first", "second")]

    async def are_known():
        return 401 == (await client.post(CLAIM, json={"worker": "w"})).status_code

    await eventually(are_known)
    for number in range(4):
        await app.enqueue("mail", id=str(number))
    for text in keys:
        client.headers["Authorization"] = f"Bearer {text}"
        claims += await claim(client, request_id="r1")
    assert 2 == len({job["id"] for job in claims})


async def test_a_request_that_found_nothing_may_be_sent_again(client, app):
    assert [] == await claim(client, request_id="r1")
    await app.enqueue("mail", id="a")
    [job] = await claim(client, request_id="r1")
    assert "a" == job["id"]
    asking = asyncio.create_task(claim(client, worker="w2", request_id="r1", wait=FOREVER))
    await app.enqueue("mail", id="b", delay=0.2)
    assert ["b"] == [job["id"] for job in await asking]


@pytest.mark.parametrize("id_", ["", "x" * 101, 5])
async def test_a_request_id_that_is_none_is_refused(client, id_):
    response = await client.post(CLAIM, json={"worker": "w", "request_id": id_})
    assert "request_id" == problem(response, 422, "invalid")["field"]


async def test_a_lease_that_runs_out_brings_the_job_back_though_no_other_worker_runs(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace, lease=1)
    async with served(app) as client:
        await app.enqueue("mail", id="a")
        [lost] = await claim(client, lease=1)
        [job] = await claim(client, wait=FOREVER)
        # Whether it counts as a crash depends on how long the server of the tests is up: see the recoverer.
        assert ("a", 1) == (job["id"], job["attempt"])
        problem(await client.post(f"/v1/leases/{lost['token']}/ack"), 409, "lease-lost")
        await end(client, job, "ack")


# -- after a crash ----------------------------------------------------------------------------------------


async def lose(app, count):
    """
    Jobs of a worker that died: they have crashed together, once.
    """
    store = app.make_store()
    store.lease_ms = 1
    await store.enqueue_many([Order(JobKey("mail", f"s{number:02}"), b"{}") for number in range(count)])
    assert count == len(await claim_all(store, [Want("mail", count, 60_000)], worker="dead", limit=count))
    while count:
        count -= await recover_all(store)
    await store.link.aclose()


async def to_isolate(app, *ids):
    """
    Jobs that have crashed twice.
    """
    store = await app.store()
    now_ms = time.time_ns() // 1_000_000  # not rounded up, or it is not due yet
    orders = [Order(JobKey("mail", id_), b"{}", due_ms=now_ms) for id_ in ids]
    await store.hydrate([Promise(order, 1, new_request(), crashes=2) for order in orders])


def ids(jobs):
    return sorted(job["id"] for job in jobs)


async def test_jobs_of_a_worker_that_died_are_given_out_together(client, app):
    await lose(app, 12)
    assert 12 == len(await claim(client, limit=12))


async def test_a_worker_that_holds_a_half_waits_a_moment_for_the_other_and_gets_it(client, app):
    store = await app.store()
    await lose(app, 12)
    # Another process that works: a half is left to it.
    await promote_all(store, timer="other")
    jobs = await claim(client, limit=12, wait=FOREVER)
    # On a busy machine the moment may be over before it asks.
    assert len(jobs) in {6, 12}
    while len(jobs) < 12:
        jobs += await claim(client, limit=12, wait=FOREVER)


@pytest.fixture
def isolated_first(monkeypatch):
    """
    By chance a worker that holds nothing gets an isolated job or others: here the former.
    """
    even = itertools.count(0, 2)
    nonces = (b"\1" + number.to_bytes(4) + os.urandom(3) for number in even)
    monkeypatch.setattr("duly.store.claims.new_nonce", lambda: next(nonces))


@pytest.mark.one_shard("which shard is asked first, and so which job comes first, is left to chance")
@pytest.mark.usefixtures("isolated_first")
async def test_a_job_that_crashed_twice_is_given_alone_to_a_worker_that_holds_nothing(client, app):
    await to_isolate(app, "twice")
    await app.enqueue("mail", id="fresh")
    [twice] = await claim(client, limit=5)
    assert ("twice", 2) == (twice["id"], twice["crashes"])
    # It gets nothing else, whatever there is; others do.
    assert [] == await claim(client, limit=5)
    assert ["fresh"] == ids(await claim(client, worker="other"))
    await app.enqueue("mail", id="next")
    await end(client, twice, "ack")
    assert ["next"] == ids(await claim(client, limit=5))


async def test_a_repeated_request_brings_an_isolated_job_that_its_worker_does_not_know_of(client, app):
    await to_isolate(app, "twice")
    [twice] = await claim(client, limit=5, request_id="r1")
    await app.enqueue("mail", id="fresh")
    assert ["twice"] == ids(await claim(client, limit=5, request_id="r1"))
    assert [] == await claim(client, limit=5, request_id="r2"), "it runs by itself"
    await end(client, twice, "ack")
    assert ["fresh"] == ids(await claim(client, limit=5, request_id="r2"))


async def test_a_worker_that_waits_while_it_holds_an_isolated_job_gets_more_as_soon_as_that_ends(client, app):
    await to_isolate(app, "twice")
    [twice] = await claim(client, limit=5)
    await app.enqueue("mail", id="fresh")
    waits = asyncio.create_task(claim(client, limit=5, wait=FOREVER))
    # Calls go to those that may take something.
    assert ["fresh"] == ids(await claim(client, worker="other", wait=FOREVER))
    await app.enqueue("mail", id="next")
    await end(client, twice, "extend", lease=60)
    assert not waits.done()
    await end(client, twice, "ack")
    assert ["next"] == ids(await asyncio.wait_for(waits, FOREVER / 2))


@pytest.mark.one_shard("which shard is asked first, and so which job comes first, is left to chance")
@pytest.mark.usefixtures("isolated_first")
async def test_a_worker_with_two_claims_at_once_gets_an_isolated_job_in_one_and_nothing_in_the_other(
    client, app
):
    await to_isolate(app, "twice")
    await app.enqueue("mail", id="fresh")
    both = await asyncio.gather(*(claim(client, limit=5) for _ in range(2)))
    assert [[], ["twice"]] == sorted(ids(jobs) for jobs in both)


@pytest.mark.one_shard("which shard is asked first, and so which job comes first, is left to chance")
async def test_a_worker_that_holds_jobs_is_not_given_an_isolated_one_and_makes_room_for_it(client, app):
    await app.enqueue("mail", id="before")
    [before] = await claim(client)
    await to_isolate(app, "twice")
    assert [] == await claim(client, limit=5)
    # From now on it gets nothing until it holds nothing.
    await app.enqueue("mail", id="fresh")
    waits = asyncio.create_task(claim(client, limit=5, wait=FOREVER))
    await end(client, before, "ack")
    assert ["twice"] == ids(await asyncio.wait_for(waits, FOREVER / 2))


async def test_a_worker_whose_isolated_job_ran_out_of_time_gets_others(client, app):
    await to_isolate(app, "twice")
    await claim(client, lease=1)
    await app.enqueue("mail", id="fresh")
    assert ["fresh"] == ids(await claim(client, wait=FOREVER))


async def test_a_call_that_was_not_followed_goes_to_the_next_in_line(client):
    bells = client._transport.app.state.service.workplace._bells
    first, second, third = (bells.join("mail") for _ in range(3))
    bells._ring("mail")
    bells.leave("mail", third)
    assert (True, False) == (first.done(), second.done())
    bells.leave("mail", first)
    assert (True, False) == (second.done(), third.done())


@pytest.mark.one_shard("a token is put back on the first shard, and a timer may add one on that of the job")
async def test_a_token_that_nobody_here_wants_any_more_is_left_to_others(client, app):
    store = await app.store()
    bells = client._transport.app.state.service.workplace._bells
    bells.leave("mail", bells.join("mail"))
    await app.enqueue("mail", id="a")
    await eventually(lambda: "mail" not in bells._lines, 30)
    await eventually(lambda: _one_token(store), 30)


async def _one_token(store):
    return 1 == sum([await store.link.call("LLEN", keys.wake("mail")) for keys in store.keys])


async def start(app, **settings):
    place = listen("127.0.0.1", 0)
    server = server_of(api(app, ServiceSettings(**settings)), 60)
    serving = asyncio.create_task(server.serve([place]))
    await eventually(lambda: server.started, 30)
    return place, server, serving


async def test_a_service_whose_loops_end_ends_with_them(app, monkeypatch):
    async def broken(_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Roster, "run_once", broken)
    _, server, serving = await start(app)
    await asyncio.wait_for(serving, 60)
    assert "a fault of ours" == str(server._service.workplace.failure)


async def test_a_service_that_ends_lets_nobody_wait(app):
    place, server, serving = await start(app, max_wait_s=3600)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.getsockname()[1]}", timeout=60) as client:
        waiting = asyncio.create_task(claim(client, wait=3600))
        async with Duly(app.settings.url, namespace=app.settings.namespace) as other:
            await eventually(lambda: _listed(other, "w"), 30)
        server.should_exit = True
        assert [] == await waiting
        await serving
