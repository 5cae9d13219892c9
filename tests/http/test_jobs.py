"""
Jobs over HTTP: each call, each answer, and nothing stored where a request is refused.
"""

from __future__ import annotations

import asyncio
import gzip
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from duly import Duly
from duly.http import cursors
from duly.http.api import api
from duly.job import JobState
from duly.options import OPTIONS
from duly.record.schema import migrate
from duly.store import Want
from tests.http.conftest import problem
from tests.shards import claim_all, ids_on, in_shard_order, on_all

JOBS = "/v1/topics/mail/jobs"


async def post(client, body=None, status=202, path=JOBS, **headers):
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    response = await client.post(path, json={} if body is None else body, headers=sent)
    assert status == response.status_code, response.text
    return response


async def stored(app):
    views = await app.views()
    return [job for state in JobState async for job in views.each(state)]


async def claim(app, topic="mail"):
    store = await app.store()
    [lease] = await claim_all(store, [Want(topic, 1, 60_000)], worker="w")
    return store, lease


# -- create -----------------------------------------------------------------------------------------------


async def test_a_job_is_accepted_and_found_where_the_answer_says(client):
    response = await post(
        client, {"payload": {"to": "ada"}, "delay": 60, "id": "a", "context": {"tenant": "acme"}}
    )
    assert f"{JOBS}/a" == response.headers["location"]
    told = response.json()
    assert ("scheduled", {"to": "ada"}, {"tenant": "acme"}) == (
        told["state"],
        told["payload"],
        told["context"],
    )
    found = await client.get(response.headers["location"])
    assert told == found.json(), "what is answered at once is what is stored"
    assert response.headers["etag"] == found.headers["etag"]
    assert "no-store" == found.headers["cache-control"]


TERMS = {
    "payload": {"to": "ada"},
    "delay": 60,
    "expires": "2036-01-31T10:00:00+01:00",
    "ttr": "1m30s",
    "max_attempts": 7,
    "max_crashes": 4,
    "backoff": {"kind": "exponential", "base": 2, "cap": "1h"},
    "context": {"tenant": "acme"},
    "retain": "1d",
    "reply_to": "inbox",
}
BODIES = {
    "nothing": {},
    "delayed": {"delay": 60},
    "everything": TERMS | {"priority": "high"},
    "everything of a callback": TERMS | {"callback": "https://example.com/hook?secret=1"},
}


def test_these_bodies_have_every_option():
    said = {name for body in BODIES.values() for name in body}
    assert {option.name for option in OPTIONS} == said - {"payload"} | {"id", "due_at", "on_conflict"}


@pytest.mark.parametrize("recorded", [False, True], ids=["queue", "record"])
@pytest.mark.parametrize("again", ["created", "kept", "replaced"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_the_answer_to_a_post_is_the_document_of_the_job(
    valkey, namespace, tmp_path, recorded, again, body
):
    url = f"sqlite:///{tmp_path}/record.db" if recorded else None
    if url:
        migrate(url)
    app = Duly(valkey.url, namespace=namespace, record=url)
    service = api(app)
    transport = httpx.ASGITransport(service)
    async with (
        service.router.lifespan_context(service),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client,
    ):
        if again != "created":
            await post(client, {"id": "a", "delay": 30})
        on_conflict = "replace" if again == "replaced" else "keep"
        response = await post(client, body | {"id": "a", "on_conflict": on_conflict})
        assert again == response.headers["duly-outcome"]
        found = await client.get(response.headers["location"])
        assert response.json() == found.json()
        assert response.headers["etag"] == found.headers["etag"]


async def test_what_replaces_a_job_is_answered_as_it_is_stored(client):
    first = (await post(client, {"id": "a", "delay": 60})).json()
    told = (await post(client, {"id": "a", "delay": 90, "on_conflict": "replace"})).json()
    assert told == (await client.get(f"{JOBS}/a")).json()
    assert first["created_at"] == told["created_at"]


async def test_what_is_answered_at_once_tells_options_as_they_are_stored(client):
    body = {
        "id": "a",
        "delay": 60,
        "ttr": "1m30s",
        "expires": "2036-01-31T10:00:00+01:00",
        "reply_to": "inbox",
    }
    told = (await post(client, body)).json()
    assert ("2036-01-31T09:00:00.000Z", 90, "inbox") == (told["expires"], told["ttr"], told["reply_to"])
    assert told == (await client.get(f"{JOBS}/a")).json()


@pytest.mark.parametrize("delay", [90, 90.0, "90", "90s", "1m30s", "PT1M30S"])
async def test_a_delay_is_seconds_or_a_duration(client, delay):
    due = datetime.fromisoformat((await post(client, {"delay": delay})).json()["due_at"])
    assert timedelta(seconds=80) < due - datetime.now(UTC) <= timedelta(seconds=91)


async def test_a_due_time_has_an_offset(client):
    told = (await post(client, {"due_at": "2036-01-31T10:00:00+01:00"})).json()
    assert "2036-01-31T09:00:00.000Z" == told["due_at"]
    document = problem(await client.post(JOBS, json={"due_at": "2036-01-31T10:00:00"}), 422, "invalid")
    assert "due_at" == document["field"]
    assert "offset" in document["detail"]


async def test_an_empty_body_is_a_job_without_a_payload(client):
    response = await client.post(JOBS)
    assert 202 == response.status_code
    assert response.json()["payload"] is None


async def test_every_option_reaches_the_job(client, app):
    body = {
        "id": "a",
        "delay": 5,
        "expires": "2036-01-01T00:00:00Z",
        "ttr": 7,
        "max_attempts": 3,
        "backoff": {"kind": "fixed", "delay": 4},
        "context": {"tenant": "acme"},
        "priority": "high",
        "retain": 100,
    }
    await post(client, body)
    job = await app.job("mail", "a").get()
    assert ("high", 7_000) == (job.priority, job.ttr_ms)
    assert datetime(2036, 1, 1, tzinfo=UTC).timestamp() * 1000 == job.expires_ms
    assert (3, {"kind": "fixed", "delay": 4}, {"tenant": "acme"}) == (
        job.envelope.max_attempts,
        job.envelope.backoff,
        job.envelope.context,
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": 1, "due_at": "2036-01-01T00:00:00Z"}, None),
        ({"dely": 1}, "dely"),
        ({"id": "a/b"}, "id"),
        ({"id": ""}, "id"),
        ({"ttr": 0}, "ttr"),
        ({"ttr": "0s"}, "ttr"),
        ({"ttr": []}, "ttr"),
        ({"due_at": "2036-02-30T00:00:00Z"}, "due_at"),
        ({"expires": "tomorrow"}, "expires"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"priority": "urgent"}, "priority"),
        ({"on_conflict": "merge"}, "on_conflict"),
        ({"backoff": {"kind": "random"}}, "backoff.kind"),
        ({"backoff": {"kind": "fixed", "delay": -1}}, "backoff.delay"),
        ({"context": []}, "context"),
        ({"context": {"long": "x" * 9000}}, "context"),
        ({"retain": -1}, "retain"),
        ([], None),
    ],
)
async def test_a_wrong_value_is_named_and_nothing_is_stored(client, app, body, field):
    document = problem(await client.post(JOBS, json=body), 422, "invalid")
    if field is not None:
        assert field == document["field"]
    assert [] == await stored(app)


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'{"payload": NaN}', b'{"payload":' + b"[" * 10_000, b'{"delay":1}x']
)
async def test_what_is_no_json_is_a_400(client, app, body):
    problem(
        await client.post(JOBS, content=body, headers={"content-type": "application/json"}), 400, "malformed"
    )
    assert [] == await stored(app)


async def test_a_compressed_body_is_a_415_that_says_so(client, app):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    response = await client.post(JOBS, content=gzip.compress(b"{}"), headers=headers)
    assert "gzip" in problem(response, 415, "unsupported")["detail"]
    assert "identity" == response.headers["accept-encoding"]
    assert [] == await stored(app)
    plain = await client.post(JOBS, content=b"{}", headers=headers | {"content-encoding": "identity"})
    assert 202 == plain.status_code


async def test_another_media_type_is_a_415(client):
    response = await client.post(JOBS, content=b"<a/>", headers={"content-type": "text/xml"})
    problem(response, 415, "unsupported")
    assert "application/json" == response.headers["accept"]


async def test_a_body_over_the_limit_is_a_413_also_without_a_length(serving, app):
    async def drip():
        for _ in range(20):
            yield b" " * 100

    async with serving(body_limit=1000) as client:
        headers = {"content-type": "application/json"}
        problem(await client.post(JOBS, content=b" " * 1001, headers=headers), 413, "too-large")
        problem(await client.post(JOBS, content=drip(), headers=headers), 413, "too-large")
        assert [] == await stored(app)


async def test_waits_of_a_backoff_are_durations_like_any_other(client, app):
    for number, backoff in enumerate(
        [
            {"kind": "fixed", "delay": "1m30s"},
            {"kind": "exponential", "base": "2s", "cap": "PT5M"},
            {"kind": "intervals", "delays": [10, "1m", "1h"]},
        ]
    ):
        response = await client.post(JOBS, json={"id": str(number), "backoff": backoff})
        assert 202 == response.status_code, response.text
    kept = [(await app.job("mail", str(number)).get()).envelope.backoff for number in range(3)]
    delays = [kept[0]["delay"], (kept[1]["base"], kept[1]["cap"]), kept[2]["delays"]]
    assert [90, (2, 300), [10, 60, 3600]] == delays
    wrong = await client.post(JOBS, json={"backoff": {"kind": "fixed", "delay": "soon"}})
    assert "1h30m" in problem(wrong, 422, "invalid")["detail"]


async def test_how_long_to_wait_is_a_duration_like_any_other(client):
    await client.post(JOBS, json={"id": "a", "delay": 3000})
    for wait in ("0.01", "10ms", "PT0.01S", "1e-2"):
        assert 200 == (await client.get(f"{JOBS}/a?wait={wait}")).status_code
    told = problem(await client.get(f"{JOBS}/a?wait=soon"), 422, "invalid")
    assert "wait='soon' is no duration; write 500ms, 15s, 1h30m, 14d, PT1H30M or seconds" == told["detail"]


async def test_a_wrong_text_is_told_how_to_write_it(client):
    def detail(field, value):
        return client.post(JOBS, json={field: value})

    assert "PT1H30M" in problem(await detail("delay", "P1Y"), 422, "invalid")["detail"]
    assert "more than zero" in problem(await detail("ttr", "0s"), 422, "invalid")["detail"]
    assert "A-Z a-z" in problem(await detail("id", "a b"), 422, "invalid")["detail"]


async def test_a_payload_over_the_limit_is_told(client):
    assert (
        "payload"
        == problem(await client.post(JOBS, json={"payload": "x" * 300_000}), 422, "invalid")["field"]
    )


async def test_the_same_id_is_the_same_job(client):
    first = await post(client, {"id": "a", "payload": 1, "delay": 60})
    again = await post(client, {"id": "a", "payload": 2, "delay": 60})
    assert first.headers["etag"] == again.headers["etag"]
    assert 1 == again.json()["payload"]
    problem(await client.post(JOBS, json={"id": "a", "on_conflict": "raise"}), 409, "exists")
    replaced = await post(client, {"id": "a", "payload": 3, "delay": 60, "on_conflict": "replace"})
    assert first.headers["etag"] != replaced.headers["etag"]
    assert 3 == replaced.json()["payload"]


async def test_an_idempotency_key_makes_one_job_of_one_request(client, app):
    answers = [await post(client, {"payload": 1, "delay": 60}, Idempotency_Key="k 1") for _ in range(2)]
    assert 1 == len({answer.headers["location"] for answer in answers})
    document = problem(
        await client.post(JOBS, json={"payload": 2, "delay": 60}, headers={"Idempotency-Key": "k 1"}),
        422,
        "key-reused",
    )
    assert "Idempotency-Key" == document["field"]
    assert 1 == len(await stored(app))
    await post(client, {"payload": 1, "delay": 60}, Idempotency_Key="k 2")
    assert 2 == len(await stored(app))


@pytest.mark.parametrize("key", ["", "x" * 256, "\xe9"])
async def test_what_is_no_key_is_refused(client, key):
    response = await client.post(JOBS, json={}, headers=[(b"Idempotency-Key", key.encode("latin-1"))])
    problem(response, 422, "invalid")


async def test_a_client_may_wait_for_the_end(client, app):
    async def work():
        while not await stored(app):
            await asyncio.sleep(0.01)
        store, lease = await claim(app)
        await store.ack(lease, b'{"sent":true}')

    working = asyncio.create_task(work())
    response = await post(client, {"payload": 1}, 200, Prefer="wait=20")
    await working
    assert ("succeeded", {"sent": True}) == tuple(response.json()[name] for name in ("state", "result"))


async def test_waiting_ends_in_time_and_says_when_to_ask_again(client):
    response = await post(client, {"payload": 1, "delay": 3000}, 202, Prefer="respond-async, wait=0.05")
    assert "scheduled" == response.json()["state"]
    assert 2900 <= int(response.headers["retry-after"]) <= 3001


async def test_a_full_topic_is_a_503(client, app):
    await app.limit("mail", 1)
    # Each shard takes its share, and one at least.
    first, second = ids_on(await app.store(), "mail", 0, 2)
    await post(client, {"id": first, "delay": 60})
    response = await client.post(JOBS, json={"id": second, "delay": 60})
    problem(response, 503, "full")
    assert response.headers["retry-after"]


async def test_a_server_that_is_away_is_a_503_that_names_no_server(client, app, monkeypatch):
    store = await app.store()
    monkeypatch.setattr(store.link, "patience_s", 0.05)

    def elsewhere():
        from redis.asyncio import UnixDomainSocketConnection

        return UnixDomainSocketConnection(path="/nowhere/s.sock", protocol=2)

    await store.link.drop_idle()
    monkeypatch.setattr(store.link, "_new_connection", elsewhere)
    response = await client.post(JOBS, json={})
    assert "nowhere" not in problem(response, 503, "unavailable")["detail"]
    assert response.headers["retry-after"]


# -- look -------------------------------------------------------------------------------------------------


async def test_a_job_that_is_not_there_is_a_404_everywhere(client):
    for method, path in [
        ("GET", "/a"),
        ("GET", "/a?wait=1"),
        ("GET", "/a/result"),
        ("DELETE", "/a"),
        ("POST", "/a/requeue"),
    ]:
        problem(await client.request(method, JOBS + path), 404, "job-not-found")
    problem(await client.patch(JOBS + "/a", json={"delay": 1}), 404, "job-not-found")


@pytest.mark.parametrize("wait", ["-1", "soon", "nan", "inf"])
async def test_a_wait_is_a_number(client, wait):
    await post(client, {"id": "a"})
    assert "wait" == problem(await client.get(f"{JOBS}/a?wait={wait}"), 422, "invalid")["field"]


async def test_the_result_has_a_status_for_every_end(client, app):
    for id_ in ("done", "dead", "cancelled", "waiting"):
        await post(client, {"id": id_, "delay": 60 if id_ == "waiting" else 0})
    await app.job("mail", "cancelled").cancel()
    store = await app.store()
    for lease in await claim_all(store, [Want("mail", 10, 60_000)], worker="w"):
        if lease.key.id == "done":
            await store.ack(lease, b"[1, 2]")
        else:
            await store.bury(lease, b'{"type":"Broken","message":"it is"}')
    done = await client.get(f"{JOBS}/done/result")
    assert (200, [1, 2]) == (done.status_code, done.json())
    assert {"type": "Broken", "message": "it is"} == problem(
        await client.get(f"{JOBS}/dead/result"), 424, "dead"
    )["error"]
    problem(await client.get(f"{JOBS}/cancelled/result"), 410, "cancelled")
    waiting = await client.get(f"{JOBS}/waiting/result")
    assert "scheduled" == problem(waiting, 409, "unfinished")["state"]
    assert waiting.headers["retry-after"]


# -- move -------------------------------------------------------------------------------------------------


async def test_a_job_is_rescheduled_once_for_each_etag(client):
    etag = (await post(client, {"id": "a", "delay": 60})).headers["etag"]
    moved = await client.patch(f"{JOBS}/a", json={"delay": "PT2H"}, headers={"If-Match": etag})
    assert 200 == moved.status_code
    due = datetime.fromisoformat(moved.json()["due_at"])
    assert timedelta(minutes=110) < due - datetime.now(UTC) <= timedelta(hours=2, seconds=1)
    late = await client.patch(f"{JOBS}/a", json={"delay": 1}, headers={"If-Match": etag})
    problem(late, 412, "outdated")
    assert moved.headers["etag"] == late.headers["etag"]
    problem(
        await client.patch(f"{JOBS}/a", json={"delay": 1}, headers={"If-Match": 'W/"x"'}), 412, "outdated"
    )
    assert 200 == (await client.patch(f"{JOBS}/a", json={"delay": 1}, headers={"If-Match": "*"})).status_code


@pytest.mark.parametrize(
    "body", [{}, {"delay": 1, "due_at": "2036-01-01T00:00:00Z"}, {"delay": None}, {"when": 1}]
)
async def test_a_reschedule_says_one_time(client, body):
    await post(client, {"id": "a", "delay": 60})
    problem(await client.patch(f"{JOBS}/a", json=body), 422, "invalid")


async def test_a_running_job_cannot_be_rescheduled_but_cancelled(client, app):
    await post(client, {"id": "a"})
    await claim(app)
    problem(await client.patch(f"{JOBS}/a", json={"delay": 1}), 409, "conflict")
    cancelled = await client.delete(f"{JOBS}/a")
    assert (200, "cancelled") == (cancelled.status_code, cancelled.json()["state"])
    assert 200 == (await client.delete(f"{JOBS}/a")).status_code, "once more is the same"


async def test_an_ended_job_is_not_cancelled_but_run_again(client, app):
    await post(client, {"id": "a"})
    store, lease = await claim(app)
    problem(await client.post(f"{JOBS}/a/requeue"), 409, "conflict")
    await store.ack(lease)
    assert "succeeded" == problem(await client.delete(f"{JOBS}/a"), 409, "conflict")["state"]
    again = await client.post(f"{JOBS}/a/requeue")
    assert (202, "ready") == (again.status_code, again.json()["state"])


# -- list -------------------------------------------------------------------------------------------------


async def everything(client, query=""):
    found, cursor = [], ""
    for _ in range(100):
        page = (await client.get(f"{JOBS}?{query}" + (f"&cursor={cursor}" if cursor else ""))).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            return found
    raise AssertionError("the list has no end")


async def test_a_list_goes_through_every_state_page_by_page(client, app):
    for number in range(5):
        await post(client, {"id": f"s{number}", "delay": 60 + number})
        await post(client, {"id": f"r{number}"})
    await app.job("mail", "s0").cancel()
    assert {f"{kind}{number}" for kind in "sr" for number in range(5)} == set(
        await everything(client, "limit=2")
    )
    scheduled = in_shard_order(await app.store(), "mail", [f"s{number}" for number in range(1, 5)])
    assert scheduled == await everything(client, "state=scheduled&limit=3")
    assert ["s0"] == await everything(client, "state=cancelled")
    assert [] == await everything(client, "state=dead")


async def test_a_page_ends_when_its_jobs_are_large_together_and_the_next_goes_on(served, app):
    sizes = {f"{number}": 30_000 if number % 7 == 0 else 1_000 for number in range(1, 41)}
    for id_, size in sizes.items():
        await app.enqueue("mail", "x" * size, id=id_, delay=60)
    async with served(page_limit=10_000) as (url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        seen, cursor = [], ""
        while cursor is not None:
            params = {"state": "scheduled", "limit": "1000"} | ({"cursor": cursor} if cursor else {})
            response = await client.get(JOBS, params=params)
            page = response.json()
            ids = [job["id"] for job in page["jobs"]]
            # One alone may be larger.
            assert len(response.content) < 11_000 or 1 == len(ids)
            seen += ids
            cursor = page["cursor"]
        assert sorted(sizes) == sorted(seen)
        async with Duly(url) as remote:
            views = await remote.views()
            assert sorted(sizes) == sorted([job.id async for job in views.each(JobState.scheduled, "mail")])


async def test_a_basic_view_leaves_payload_and_result_out(client, app):
    await app.enqueue("mail", {"to": "ada"}, id="a", delay=60)
    full = (await client.get(JOBS, params={"state": "scheduled"})).json()
    basic = (await client.get(JOBS, params={"state": "scheduled", "view": "basic", "places": "true"})).json()
    while not full["jobs"]:  # each shard is listed by itself
        params = {"state": "scheduled", "cursor": full["cursor"]}
        full = (await client.get(JOBS, params=params)).json()
        basic = (await client.get(JOBS, params=params | {"view": "basic"})).json()
    [job], [short] = full["jobs"], basic["jobs"]
    assert {"to": "ada"} == job.pop("payload")
    assert job.pop("result") is None
    assert job == short


async def test_a_cursor_is_of_one_list_and_refused_by_others(client, app):
    lists = ["/v1/jobs", JOBS, "/v1/topics/news/jobs"]
    for topic in ("mail", "news"):
        for number in range(3):
            await app.enqueue(topic, id=f"{number}", delay=60)
    for given in lists:
        found, params = [], {"limit": "1", "places": "true"}
        while page := (await client.get(given, params=params)).json():
            found += page.get("places", [])
            if page["cursor"] is None:
                break
            found.append(page["cursor"])
            params["cursor"] = page["cursor"]
        assert len(found) >= 6
        for cursor in found:
            for other in set(lists) - {given}:
                answer = await client.get(other, params={"cursor": cursor})
                assert "cursor" == problem(answer, 422, "invalid")["field"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("limit=1001", "limit"),
        ("state=lost", "state"),
        ("view=short", "view"),
        ("cursor=x", "cursor"),
        ("cursor=", "cursor"),
        (f"cursor={cursors.write(JobState.scheduled, '0:x y')}", "cursor"),
        (f"state=dead&cursor={cursors.write(JobState.ready, '')}", "cursor"),
    ],
)
async def test_a_list_says_what_it_does_not_understand(client, query, field):
    assert field == problem(await client.get(f"{JOBS}?{query}"), 422, "invalid")["field"]


async def test_what_is_not_there_is_a_problem_too(client):
    problem(await client.get("/v1/nothing"), 404, "not-found")
    response = await client.put(JOBS)
    problem(response, 405, "method-not-allowed")
    assert {"GET", "HEAD", "POST"} == set(response.headers["allow"].replace(" ", "").split(","))
    problem(await client.get("/v1/topics/a%20b/jobs"), 422, "invalid")


async def test_the_answer_says_what_sending_did(client):
    sent = [{"id": "a", "delay": 60}, {"id": "a"}, {"id": "a", "delay": 90, "on_conflict": "replace"}]
    responses = [await client.post(JOBS, json=body) for body in sent]
    assert ["created", "kept", "replaced"] == [response.headers["duly-outcome"] for response in responses]
    waited = await client.post(f"{JOBS}?wait=0.01", json={"id": "a"})
    assert "kept" == waited.headers["duly-outcome"]


async def test_how_many_crashes_a_job_may_have_is_bounded(client):
    assert 202 == (await client.post(JOBS, json={"max_crashes": 255})).status_code
    for wrong in (0, 256):
        refused = await client.post(JOBS, json={"max_crashes": wrong})
        assert "max_crashes" == problem(refused, 422, "invalid")["field"]


async def test_a_job_that_may_wait_in_a_table_of_far_future_jobs_is_changed_there(client, app):
    store = await app.store()
    await on_all(store, "meta", "HSET", "horizon", "table")
    answer = await client.patch(f"{JOBS}/far", json={"due_at": "2050-01-01T00:00:00Z"})
    assert 202 == answer.status_code
    told = {"topic": "mail", "id": "far", "outcome": "accepted"}
    assert told | {"due_at": "2050-01-01T00:00:00.000Z"} == answer.json()
    answer = await client.delete(f"{JOBS}/far")
    assert (202, told | {"due_at": None}) == (answer.status_code, answer.json())
    assert 404 == (await client.get(f"{JOBS}/far")).status_code
    assert 404 == (await client.post(f"{JOBS}/far/requeue")).status_code


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/topics/duly.canary/jobs", {}),
        ("/v1/topics/duly.canary/jobs:batch", [{}]),
        ("/v1/topics/duly.canary/claim", {"worker": "w"}),
        ("/v1/topics/duly.canary/pause", None),
        ("/v1/topics/mail/jobs", {"reply_to": "duly.canary"}),
        ("/v1/events/token", {"topics": ["duly.canary"]}),
    ],
)
async def test_names_of_dulys_own_are_refused(client, app, path, body):
    response = await client.post(path, json=body)
    assert "duly's own" in problem(response, 422, "invalid")["detail"]
    assert [] == await stored(app)
