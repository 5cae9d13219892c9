"""
Idempotency-Key: one request is done once and answered alike, whatever became of its job.
"""

from __future__ import annotations

import asyncio
import json

import httpx
import msgspec
import pytest

from duly import Duly
from duly.apikeys import KeyRing
from duly.errors import JobExists, StoreUnavailable
from duly.http import keyedbatch
from duly.http.api import api
from duly.http.keyedbatch import KeyedBatch
from duly.http.settings import ServiceSettings
from duly.idempotency import NO_KEY, Entries, KeysFull, name_of, new_entry, owner_of, write_entry
from duly.job import JobKey, JobState, Placed
from duly.record.writes import exists
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.http.test_results import run

JOBS = "/v1/topics/mail/jobs"
BATCH = f"{JOBS}:batch"
KEY = {"Idempotency-Key": "k"}
LINES = {"content-type": "application/x-ndjson"}
JSON = {"content-type": "application/json"}


async def send(client, body, status=202, **headers):
    answer = await client.post(JOBS, json=body, headers=KEY | headers)
    assert status == answer.status_code, answer.text
    return answer


@pytest.mark.parametrize("second", ["k", "l"])
@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", JOBS, "Idempotency-Key"),
        ("POST", BATCH, "Idempotency-Key"),
        ("PATCH", f"{JOBS}/a", "Idempotency-Key"),
        ("PATCH", f"{JOBS}/a", "Duly-Age"),
    ],
)
async def test_a_header_that_says_one_thing_is_refused_where_it_comes_twice(
    client, app, method, path, name, second
):
    body = [{"id": "b"}] if path == BATCH else {"delay": 60}
    answer = await client.request(method, path, json=body, headers=[(name, "k"), (name, second)])
    told = problem(answer, 422, "invalid")
    assert (name, f"{name} was sent 2 times; send it once") == (told["field"], told["detail"])
    assert [] == await stored(app)


async def stored(app):
    views = await app.views()
    return [job for state in JobState async for job in views.each(state)]


async def forget(app, key):
    """
    Take away a job that has ended, as the pruner does when its time is over.
    """
    store = await app.store()
    keys = store.keys[store._shard(key)].fixed
    for place in ("jobs", "bodies", "outcomes"):
        await store.link.call("HDEL", keys[place], key.member)
    await store.link.call("ZREM", keys["done"], key.member)


async def kept(app):
    """
    The keys of all entries.
    """
    store = await app.store()
    return [
        key
        for shard in store.keys
        for key in await store.link.call("KEYS", shard.idempotency("*").replace("{", "\\{"))
    ]


def over(service):
    transport = httpx.ASGITransport(service, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30)


def revision_in(answer):
    return int(answer.headers["etag"].strip('"').partition("-")[0])


def same(first, again):
    """
    Check that two answers are the same to a client.
    """
    told = ("location", "etag", "duly-outcome", "content-type")
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert [first.headers.get(name) for name in told] == [again.headers.get(name) for name in told]


@pytest.mark.parametrize("delay", [0, 60])
@pytest.mark.parametrize("id_", [None, "a"])
@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
async def test_a_request_that_is_sent_again_gets_the_first_answer(client, app, on_conflict, id_, delay):
    body = {"payload": {"n": 1}, "on_conflict": on_conflict, "delay": delay}
    if id_ is not None:
        body["id"] = id_
    first = await send(client, body)
    same(first, await send(client, body))
    [job] = await stored(app)
    assert revision_in(first) == job.revision, "no new revision"


async def test_a_replacement_that_is_sent_again_makes_no_new_revision(client, app):
    await client.post(JOBS, json={"id": "a", "payload": 1, "delay": 60})
    body = {"id": "a", "payload": 2, "delay": 60, "on_conflict": "replace"}
    first = await send(client, body)
    assert "replaced" == first.headers["duly-outcome"]
    others = await client.post(JOBS, json={**body, "payload": 3})
    same(first, await send(client, body))
    [job] = await stored(app)
    assert (b"3", revision_in(others)) == (job.payload, job.revision), "nor undoes what others did"


async def test_a_refusal_is_the_first_answer_too(client, app):
    await client.post(JOBS, json={"id": "a", "delay": 60})
    body = {"id": "a", "payload": 2, "on_conflict": "raise"}
    first = await send(client, body, 409)
    await client.delete(f"{JOBS}/a")
    same(first, await send(client, body, 409))


@pytest.mark.parametrize("wait", [{}, {"Prefer": "wait=30"}])
async def test_a_job_that_was_not_kept_is_answered_for_when_it_is_gone(client, app, wait):
    body = {"payload": 1, "retain": 0}
    first = await send(client, body)
    await run(app)
    [job] = await stored(app)
    await forget(app, job.key)
    same(first, await send(client, body, **wait))
    assert [] == await stored(app), "it does not run twice"


async def test_a_job_that_was_met_and_is_gone_is_told_by_what_is_known_of_it(client, app):
    await client.post(JOBS, json={"id": "a", "payload": "secret of another"})
    first = await send(client, {"id": "a", "payload": 1})
    assert ("kept", "secret of another") == (first.headers["duly-outcome"], first.json()["payload"])
    await run(app)
    [job] = await stored(app)
    await forget(app, job.key)
    again = await send(client, {"id": "a", "payload": 1})
    assert ("kept", first.headers["etag"]) == (again.headers["duly-outcome"], again.headers["etag"])
    assert ("a", "ready") == (again.json()["id"], again.json()["state"])
    assert "payload" not in again.json()


@pytest.mark.parametrize("id_", [None, "a"])
async def test_another_request_under_the_key_is_refused_before_anybody_waits(client, app, id_):
    body = {"payload": 1, "delay": 60} | ({} if id_ is None else {"id": id_})
    await send(client, body)
    async with asyncio.timeout(20):
        other = await send(client, {**body, "payload": 2}, 422, Prefer="wait=50")
    assert "Idempotency-Key" == problem(other, 422, "key-reused")["field"]
    assert 1 == len(await stored(app))


async def test_what_is_wrong_with_a_request_is_said_before_the_key_stands_for_it(client, app):
    await send(client, {"callback": "https://example.com/", "priority": "high"}, 422)
    await send(client, {"payload": 1})


async def test_the_key_takes_no_room_in_the_context(client, app):
    context = {"a": "x" * (app.settings.limits.context - 8)}
    assert app.settings.limits.context == len(json.dumps(context, separators=(",", ":")))
    told = await send(client, {"context": context})
    assert context == told.json()["context"]
    [job] = await stored(app)
    assert context == job.envelope.context


async def test_twins_that_are_under_way_at_once_get_one_answer(client, app):
    body = {"payload": 1, "on_conflict": "replace"}
    answers = await asyncio.gather(*(send(client, body) for _ in range(20)))
    for again in answers[1:]:
        same(answers[0], again)
    assert 1 == len(await stored(app))


async def test_callers_and_topics_do_not_meet_each_others_keys(serving, app):
    ring = KeyRing(await app.store())
    tokens = [(await ring.create(name, ["enqueue", "read"]))[0] for name in ("acme", "umbrella")]
    async with serving() as client:
        answers = [
            await client.post(
                f"/v1/topics/{topic}/jobs",
                json={"payload": token},
                headers=KEY | {"Authorization": f"Bearer {token}"},
            )
            for token in tokens
            for topic in ("mail", "sms")
        ]
    assert [202] * 4 == [answer.status_code for answer in answers]
    assert 4 == len({answer.headers["location"] for answer in answers})


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
@pytest.mark.parametrize("where", ["before the job", "after the job"])
async def test_what_a_crash_left_half_done_is_completed_by_the_repeat(
    client, app, monkeypatch, where, on_conflict
):
    body = {"id": "a", "payload": 1, "delay": 60, "on_conflict": on_conflict}

    async def crash(*_, **__):
        raise StoreUnavailable("here")

    with monkeypatch.context() as patch:
        if where == "before the job":
            patch.setattr(app, "enqueue", crash)
            await send(client, body, 503)
        else:
            patch.setattr(Entries, "answer", crash)
            await send(client, body)
    problem(await send(client, {**body, "payload": 2}, 422), 422, "key-reused")
    again = await send(client, body)
    assert "created" == again.headers["duly-outcome"]
    same(again, await send(client, body))
    [job] = await stored(app)
    assert b"1" == job.payload


async def test_a_key_counts_for_a_day_or_as_long_as_is_set_and_takes_little_room(serving, app):
    async with serving(idempotency_s=3600) as client:
        await send(client, {"id": "x" * 200, "payload": "y" * 100_000})
        store = await app.store()
        [key] = await kept(app)
        assert 3_500_000 < await store.link.call("PTTL", key) <= 3_600_000
        assert await store.link.call("STRLEN", key) < 1024
        await store.link.call("PEXPIRE", key, 1)
        while await store.link.call("EXISTS", key):
            await asyncio.sleep(0.01)
        await send(client, {"id": "b", "payload": "z"})


# -- batches ----------------------------------------------------------------------------------------------


def lines(*items):
    return b"\n".join(json.dumps(item).encode() for item in items)


async def send_lines(client, *items, status=202, **headers):
    answer = await client.post(BATCH, content=lines(*items), headers=KEY | LINES | headers)
    assert status == answer.status_code, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


SOME = [
    {"payload": 1, "delay": 60},
    {"id": "a", "payload": 2, "delay": 60, "on_conflict": "replace"},
    {"dely": 3},
    {"id": "b", "payload": 4, "delay": 60, "on_conflict": "raise"},
]


async def test_a_batch_that_is_sent_again_finds_its_jobs(client, app):
    first = await send_lines(client, *SOME)
    assert ["created", "created", "refused", "created"] == [each["outcome"] for each in first]
    again = await send_lines(client, *SOME)
    assert ["kept", "kept", "refused", "kept"] == [each["outcome"] for each in again]
    assert [{**each, "outcome": ""} for each in first] == [{**each, "outcome": ""} for each in again]
    assert 3 == len(await stored(app))


async def test_jobs_of_a_batch_that_are_gone_are_not_made_again(client, app):
    await send_lines(client, {"payload": 1, "retain": 0})
    await run(app)
    [job] = await stored(app)
    await forget(app, job.key)
    assert [{"line": 1, "outcome": "kept", "id": job.id}] == await send_lines(
        client, {"payload": 1, "retain": 0}
    )
    assert [] == await stored(app)


@pytest.mark.parametrize(
    "changed",
    [
        [{**SOME[0], "payload": 9}, *SOME[1:]],
        [*SOME[:3], {**SOME[3], "payload": 9}],
        [*SOME, {"payload": 5}],
        SOME[:3],
    ],
    ids=["first", "last", "one more", "one less"],
)
async def test_a_batch_with_a_changed_line_is_refused_if_nothing_of_it_was_stored(client, app, changed):
    await send_lines(client, *SOME)
    answer = await client.post(BATCH, content=lines(*changed), headers=KEY | LINES)
    assert "Idempotency-Key" == problem(answer, 422, "key-reused")["field"]
    assert [b"1", b"2", b"4"] == sorted(job.payload for job in await stored(app))


async def test_a_changed_line_is_refused_by_itself_once_others_were_stored(client, app, monkeypatch):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)
    await send_lines(client, *SOME)
    told = await send_lines(client, *SOME[:3], {**SOME[3], "payload": 9})
    assert ["kept", "kept", "refused", "refused"] == [each["outcome"] for each in told]
    assert "urn:duly:problem:key-reused" == told[3]["problem"]["type"]
    again = await send_lines(client, *SOME)
    assert "kept" == again[3]["outcome"], "what was noted of a line stays"
    assert [b"1", b"2", b"4"] == sorted(job.payload for job in await stored(app))


async def test_a_batch_that_ends_too_soon_is_told_so_in_its_last_line(client, app, monkeypatch):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)
    await send_lines(client, *SOME)
    told = await send_lines(client, *SOME[:3])
    assert ["kept", "kept", "refused", "stopped"] == [each["outcome"] for each in told]
    assert "urn:duly:problem:key-reused" == told[3]["problem"]["type"]


@pytest.mark.parametrize("where", ["before the jobs", "after the jobs"])
async def test_a_batch_that_a_crash_left_half_done_is_completed_by_the_repeat(
    client, app, monkeypatch, where
):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)

    async def crash(*_, **__):
        raise StoreUnavailable("here")

    with monkeypatch.context() as patch:
        if where == "before the jobs":
            patch.setattr(app, "enqueue_many", crash)
            problem(await client.post(BATCH, content=lines(*SOME), headers=KEY | LINES), 503, "unavailable")
        else:
            patch.setattr(Entries, "stored", crash)
            told = await send_lines(client, *SOME)
            assert ["created", "created", "refused", "created"] == [each["outcome"] for each in told]
    problem(
        await client.post(BATCH, content=lines({"payload": 9}, *SOME[1:]), headers=KEY | LINES),
        422,
        "key-reused",
    )
    told = await send_lines(client, *SOME)
    assert ["created", "created", "refused", "created"] == [each["outcome"] for each in told]
    assert 3 == len(await stored(app))


@pytest.mark.parametrize("media", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("a bug")])
async def test_jobs_that_were_stored_are_told_and_counted_where_that_cannot_be_noted(
    client, app, monkeypatch, media, error
):
    monkeypatch.setattr("duly.http.batch.SLICE", 2)
    bodies = [{"payload": n, "delay": 60} for n in range(5)]
    content = json.dumps(bodies) if media == "application/json" else lines(*bodies)
    headers = KEY | {"content-type": media}
    note, marked = Entries.lines, []

    async def fail(*_):
        marked.append("a slice")
        raise error

    async def fail_in_the_end(*args):
        if len(marked) == 2:
            raise StoreUnavailable("away")
        return await note(*args)

    with monkeypatch.context() as patch:
        patch.setattr(Entries, "stored", fail)
        patch.setattr(Entries, "lines", fail_in_the_end)
        answer = await client.post(BATCH, content=content, headers=headers)
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert [*["created"] * 4, "stopped"] == [each["outcome"] for each in told]
    assert (5, 4, 0) == (told[4]["line"], told[4]["stored"], told[4]["unknown"])
    assert 4 == len(await stored(app))
    answer = await client.post(BATCH, content=content, headers=headers)
    again = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["id"] for each in told[:4]] == [each["id"] for each in again[:4]]
    assert 5 == len(await stored(app))


async def test_a_line_that_found_no_room_is_stored_by_the_repeat(client, app):
    await app.limit("mail", 3)
    bodies = [{"payload": n, "delay": 60} for n in range(12)]
    first = await send_lines(client, *bodies)
    refused = [each["line"] for each in first if each["outcome"] == "refused"]
    assert refused
    await app.limit("mail", None)
    again = await send_lines(client, *bodies)
    assert refused == [each["line"] for each in again if each["outcome"] == "created"]
    assert 12 == len(await stored(app))


async def test_twins_of_a_batch_make_one_of_each_job(client, app):
    bodies = [{"payload": n, "delay": 60} for n in range(50)]
    answers = await asyncio.gather(*(send_lines(client, *bodies) for _ in range(5)))
    assert 1 == len({tuple(each["id"] for each in told) for told in answers})
    assert 50 == len(await stored(app))


async def test_a_batch_under_a_key_has_a_bound(client, app, monkeypatch):
    monkeypatch.setattr(keyedbatch, "MAX_LINES", 2)
    told = await send_lines(client, *({"payload": n} for n in range(4)))
    assert ["created", "created", "refused", "refused"] == [each["outcome"] for each in told]
    assert ["kept", "kept", "refused", "refused"] == [
        each["outcome"] for each in await send_lines(client, *({"payload": n} for n in range(4)))
    ]


@pytest.mark.parametrize("count", [1, 2, 60])
async def test_the_key_of_one_job_is_refused_to_a_batch(client, app, count):
    first = await send(client, {"payload": 1, "delay": 60})
    answer = await client.post(BATCH, content=lines(*[{"payload": 1}] * count), headers=KEY | LINES)
    assert "Idempotency-Key" == problem(answer, 422, "key-reused")["field"]
    again = await send(client, {"payload": 1, "delay": 60})
    assert first.content == again.content
    assert 1 == len(await stored(app))


@pytest.mark.parametrize("count", [0, 1, 2, 60])
async def test_the_key_of_a_batch_is_refused_to_one_job(client, app, count):
    bodies = [{"payload": 1, "delay": 60}] * count
    await send_lines(client, *bodies)
    answer = await client.post(JOBS, json={"payload": 1, "delay": 60}, headers=KEY)
    assert "Idempotency-Key" == problem(answer, 422, "key-reused")["field"]
    assert ["kept"] * count == [each["outcome"] for each in await send_lines(client, *bodies)]
    assert count == len(await stored(app))


@pytest.mark.parametrize(
    "wrong",
    [{"dely": 3}, {"payload": "x" * 2_000_000}, {"delay": "soon"}, {"id": "a", "ttr": -1}],
    ids=["unknown", "too large", "no delay", "no ttr"],
)
async def test_a_line_that_was_wrong_may_be_corrected_under_the_key(client, app, wrong):
    right, other = {"payload": "right", "delay": 60}, {"payload": "other", "delay": 60}
    told = await send_lines(client, wrong, other)
    assert ["refused", "created"] == [each["outcome"] for each in told]
    again = await send_lines(client, right, other)
    assert ["created", "kept"] == [each["outcome"] for each in again]
    assert told[1]["id"] == again[1]["id"]
    assert ["kept", "kept"] == [each["outcome"] for each in await send_lines(client, right, other)]
    for changed in ({"payload": "third"}, wrong):
        answer = await client.post(BATCH, content=lines(changed, other), headers=KEY | LINES)
        problem(answer, 422, "key-reused")
    assert [b'"other"', b'"right"'] == sorted(job.payload for job in await stored(app))


async def test_a_corrected_line_counts_for_nothing_in_a_batch_that_is_refused(client, app):
    right, other = {"payload": "right", "delay": 60}, {"payload": "other", "delay": 60}
    await send_lines(client, {"dely": 3}, other)
    answer = await client.post(BATCH, content=lines(right, {"payload": "changed"}), headers=KEY | LINES)
    problem(answer, 422, "key-reused")
    assert 1 == len(await stored(app))
    told = await send_lines(client, {"payload": "better", "delay": 60}, other)
    assert ["created", "kept"] == [each["outcome"] for each in told]


def test_an_entry_is_bounded():
    key = JobKey("t" * 100, "i" * 200)
    placed = Placed(key, "replaced", 2**63 - 1, 2**53, JobState.cancelled)
    entry = msgspec.structs.replace(new_entry(bytes(16)), id="i" * 200)
    for answer in (placed, exists(key, JobState.succeeded), JobExists("x" * 10_000)):
        assert len(write_entry(entry.with_answer(answer))) < 1024 - 200, "with a name and its time"


@pytest.mark.parametrize("key", [KEY, KEY | LINES])
async def test_all_entries_together_are_bounded(valkey, namespace, key):
    bound = 16 * 400
    queue = Duly(valkey.url, namespace=namespace, shards=2, idempotency_bytes=bound)
    service = api(queue, ServiceSettings())
    place = BATCH if "content-type" in key else JOBS
    async with service.router.lifespan_context(service), over(service) as client:

        async def post(number):
            named = key | {"Idempotency-Key": str(number)}
            return await client.post(place, content=b'{"delay": 60}', headers=JSON | named)

        answers = [await post(number) for number in range(20)]
        told = [answer.status_code for answer in answers]
        assert 2 <= told.count(202) <= 16
        assert {202, 503} == set(told)
        refused = answers[told.index(503)]
        told_why = problem(refused, 503, "keys-full")
        assert "No room to keep another request under a key" == told_why["title"]
        assert f"{bound} bytes (the setting idempotency_bytes)" in told_why["detail"]
        assert 86_400 - 60 < int(refused.headers["retry-after"]) <= 86_400 + 864
        assert told.count(202) == len(await stored(queue)), "what is refused is not stored"
        assert 202 == (await post(told.index(202))).status_code, "what is known is answered"
        store = await queue.store()
        for shard in store.keys:
            for counted in (
                shard.fixed["idempotency_bytes"],
                shard.idempotency_share(owner_of(NO_KEY)),
            ):
                for span in await store.link.call("HKEYS", counted):
                    size = await store.link.call("HGET", counted, span)
                    await store.link.call("HDEL", counted, span)
                    await store.link.call("HSET", counted, 600_000, size)
        assert 202 == (await post(told.index(503))).status_code, "entries whose time is over count no more"


async def taken(store, name):
    """
    What an entry takes by the server's account, and what it counts as.
    """
    [shard] = store.keys
    entry = shard.idempotency(name)
    size = await store.link.call("MEMORY", "USAGE", entry)
    # Beside that, a place in the table of what expires, and in both tables up to three slots of an index.
    return size + 24 + 2 * 3 * 8, (await store.noted(0, [])).all


@pytest.mark.parametrize("kind", ["valkey", "redis_7"])
@pytest.mark.parametrize("size", [1, 30, 70, 110, 150, 200])
async def test_an_entry_counts_as_what_it_takes(request, namespace, kind, size):
    server = request.getfixturevalue(kind)
    async with Duly(server.url, namespace=namespace, shards=1) as app:
        entries = Entries(await app.store(), keep_ms=60_000, most=10**6)
        name = name_of("k", "jobs", "mail", "a")
        entry = await entries.reserve(name, bytes(16))
        key = JobKey("t" * (size // 2 + 1), "i" * size)
        await entries.answer(name, entry.with_answer(Placed(key, "created", 2**52, 2**42, JobState.ready)))
        takes, counted = await taken(await app.store(), name)
        assert takes <= counted <= 1.4 * takes


@pytest.mark.parametrize("lines", [10, 1_000, 100_000])
async def test_a_batch_counts_as_what_its_lines_take(valkey, namespace, lines):
    async with Duly(valkey.url, namespace=namespace, shards=1) as app:
        entries = Entries(await app.store(), keep_ms=60_000, most=10**8)
        name = name_of("k", "batch", "mail", "a")
        for first in range(0, lines, 2_000):
            await entries.lines(name, first, [bytes(8)] * min(2_000, lines))
        takes, counted = await taken(await app.store(), name)
        assert takes <= counted <= 2 * takes


async def fill(entries, caller, most=10**6):
    """
    Reserve keys of a caller until there is no room; how many there were.
    """
    for number in range(most):
        try:
            await entries.reserve(name_of(caller, str(number)), bytes(16))
        except KeysFull:
            return number
    return most


async def test_no_caller_takes_the_room_of_the_others(valkey, namespace):
    """
    One alone has half of the room, and whoever comes has as much as is left then.
    """
    async with Duly(valkey.url, namespace=namespace, shards=1) as app:
        probe = Entries(await app.store(), keep_ms=60_000, most=10**6)
        await probe.reserve(name_of("z"), bytes(16))
        each = (await probe.used([])).bytes
        entries = Entries(await app.store(), keep_ms=60_000, most=101 * each)
        assert 50 == await fill(entries, "a")
        assert {"a": 1.0, "b": 0.0} == (await entries.used(["a", "b"])).fills
        assert [25, 12, 6] == [await fill(entries, caller) for caller in "bcd"]
        await entries.reserve(name_of("a", "7"), bytes(16))
        assert 94 * each == (await entries.used([])).bytes


async def test_the_share_of_a_caller_is_free_again_when_its_time_is_over(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=1) as app:
        store = await app.store()
        entries = Entries(store, keep_ms=100, most=4_000)
        assert 0 < await fill(entries, "a", 100)
        with pytest.raises(KeysFull) as refused:
            await entries.reserve(name_of("a", "more"), bytes(16))
        assert 0 < refused.value.wait_s <= 1.1, "spans are a second at least"

        async def free():
            try:
                await entries.reserve(name_of("a", "more"), bytes(16))
            except KeysFull as error:
                raise AssertionError from error

        await eventually(free)
        [shard] = store.keys
        assert 0 < await store.link.call("PTTL", shard.idempotency_share(owner_of("a"))) <= 1_100


async def test_nothing_is_kept_of_an_entry_whose_time_is_over(client, app):
    entries = Entries(await app.store(), keep_ms=1, most=10**6)
    entry = await entries.reserve("a", bytes(16))
    await entries.lines("b", 0, [bytes(8)])

    async def expired():
        assert [] == await kept(app)

    await eventually(expired)
    await entries.answer("a", entry)
    await entries.stored("b", 0, [bytes(8)])
    assert [] == await kept(app), "nor is it there without a lifetime"


async def test_what_is_noted_first_is_what_stands(client, app):
    """
    Two requests under one key that come at once: one of them is another one.
    """
    bodies = [[{"payload": who, "delay": 60}, {"payload": -who, "delay": 60}] for who in range(1, 9)]
    sent = [client.post(BATCH, content=lines(*each), headers=KEY | LINES) for each in bodies]
    answers = await asyncio.gather(*sent)
    assert [202] + [422] * 7 == sorted(answer.status_code for answer in answers)
    assert 2 == len(await stored(app))


@pytest.mark.parametrize("on_conflict", ["keep", "replace"])
async def test_the_rest_of_a_request_undoes_nothing_that_others_did(client, app, monkeypatch, on_conflict):
    """
    The service died before it kept the answer, and others changed the job before the repeat.
    """
    one = {"id": "a", "payload": 1, "delay": 60, "on_conflict": on_conflict}
    many, batch = {**one, "id": "b"}, {"Idempotency-Key": "batch"}

    async def crash(*_, **__):
        raise StoreUnavailable("here")

    with monkeypatch.context() as patch:
        patch.setattr(Entries, "answer", crash)
        await send(client, one)
        patch.setattr(Entries, "stored", crash)
        await client.post(BATCH, content=lines(many, {"payload": 0}), headers=KEY | LINES | batch)
    for id_ in ("a", "b"):
        await client.post(JOBS, json={"id": id_, "payload": 2, "delay": 90, "on_conflict": "replace"})
    again = await send(client, one)
    assert ("kept", 2) == (again.headers["duly-outcome"], again.json()["payload"])
    same(again, await send(client, one))
    assert "kept" == (await send_lines(client, many, {"payload": 0}, **batch))[0]["outcome"]
    assert {"a": b"2", "b": b"2"} == {job.id: job.payload for job in await stored(app) if job.id in "ab"}


async def test_what_others_did_before_a_repeat_began_anew_is_replaced(client, app, monkeypatch):
    """
    The service died before it sent the job: what was there by then is older than the request.
    """
    await client.post(JOBS, json={"id": "a", "payload": 0, "delay": 60})
    body = {"id": "a", "payload": 1, "delay": 60, "on_conflict": "replace"}

    async def crash(*_, **__):
        raise StoreUnavailable("here")

    with monkeypatch.context() as patch:
        patch.setattr(app, "enqueue", crash)
        await send(client, body, 503)
    assert "replaced" == (await send(client, body)).headers["duly-outcome"]
    assert [b"1"] == [job.payload for job in await stored(app)]


async def test_jobs_of_a_batch_follow_from_its_key(client, app):
    """
    A server that has lost the keys, but not the jobs, makes none a second time.
    """
    first = await send_lines(client, *SOME)
    store = await app.store()
    for key in await kept(app):
        await store.link.call("DEL", key)
    again = await send_lines(client, *SOME)
    assert [each.get("id") for each in first] == [each.get("id") for each in again]
    assert 3 == len(await stored(app))
    other = await client.post(BATCH, content=lines(*SOME), headers={"Idempotency-Key": "other"} | LINES)
    assert json.loads(other.text.splitlines()[0])["id"] != first[0]["id"]


async def test_a_repeat_that_was_refused_leaves_no_trace(client, app, monkeypatch):
    """
    The first request was cut off, so more of its lines may come.
    """
    bodies = [{"payload": n, "delay": 60} for n in range(4)]
    monkeypatch.setattr("duly.http.keyedbatch.KeyedBatch.end", lambda _: asyncio.sleep(0))
    plain = KeyedBatch.known
    with monkeypatch.context() as patch:
        patch.setattr(KeyedBatch, "known", lambda batch, held, *, last: plain(batch, held, last=False))
        await send_lines(client, *bodies[:2])
    refused = await client.post(BATCH, content=lines({"payload": 9}, *bodies), headers=KEY | LINES)
    problem(refused, 422, "key-reused")
    assert ["kept", "kept", "created", "created"] == [
        each["outcome"] for each in await send_lines(client, *bodies)
    ]
