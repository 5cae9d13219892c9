"""
Idempotency keys with a record: the entry is committed with the job, and outlives the memory of the queue.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest
from sqlalchemy import func, select, update

from duly import Duly
from duly.errors import RecordUnavailable
from duly.http.api import api
from duly.http.settings import ServiceSettings
from duly.idempotency import NO_KEY, KeysFull, name_of
from duly.record import record as record_module
from duly.record.idempotency import ANSWER_BYTES, ROW_BYTES, Expiry, KeptEntries
from duly.record.idempotency import LINES as RECORD_LINES
from duly.record.tables import idempotency, jobs
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.servers import Server, binary

JOBS = "/v1/topics/mail/jobs"
KEY = {"Idempotency-Key": "k"}
BODY = {"payload": 1, "delay": 3600}


@pytest.fixture
def app(valkey, namespace, migrated_url):
    return Duly(valkey.url, namespace=namespace, record=migrated_url)


@asynccontextmanager
async def serving(app):
    service = api(app, ServiceSettings())
    async with service.router.lifespan_context(service):
        transport = httpx.ASGITransport(service, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=30) as client:
            yield client


async def send(client, body, status=202):
    answer = await client.post(JOBS, json=body, headers=KEY)
    assert status == answer.status_code, answer.text
    return answer


async def rows(app, table):
    count = select(func.count()).select_from(table)
    return await (await app.promises()).database.read(lambda connection: connection.scalar(count))


async def test_a_request_that_is_sent_again_gets_its_first_answer(app):
    async with serving(app) as client:
        for number, on_conflict in enumerate(("keep", "replace", "raise"), 1):
            body = {**BODY, "id": on_conflict, "on_conflict": on_conflict}
            headers = {"Idempotency-Key": on_conflict}
            first, again = [await client.post(JOBS, json=body, headers=headers) for _ in range(2)]
            assert (first.content, first.headers["etag"]) == (again.content, again.headers["etag"])
            assert ("created", "created") == (first.headers["duly-outcome"], again.headers["duly-outcome"])
            other = await client.post(JOBS, json={**body, "payload": 2}, headers=headers)
            problem(other, 422, "key-reused")
            assert (number, number) == (await rows(app, jobs), await rows(app, idempotency))


async def test_a_refusal_is_kept_and_want_of_room_is_not(app):
    async with serving(app) as client:
        await client.post(JOBS, json={"id": "a", "delay": 3600})
        body = {**BODY, "id": "a", "on_conflict": "raise"}
        assert (await send(client, body, 409)).content == (await send(client, body, 409)).content
        await app.limit("mail", 1)
        full = {"Idempotency-Key": "full"}
        assert 503 == (await client.post(JOBS, json=BODY, headers=full)).status_code
        await app.limit("mail", None)
        changed = await client.post(JOBS, json={**BODY, "payload": 2}, headers=full)
        problem(changed, 422, "key-reused")
        assert 202 == (await client.post(JOBS, json=BODY, headers=full)).status_code


async def test_twins_that_are_under_way_at_once_make_one_job(app):
    async with serving(app) as client:
        answers = await asyncio.gather(*(send(client, BODY) for _ in range(10)))
        assert 1 == len({(answer.content, answer.headers["etag"]) for answer in answers})
        assert 1 == await rows(app, jobs)


async def test_entry_and_job_are_committed_together_or_not_at_all(app, monkeypatch):
    async with serving(app) as client:
        with monkeypatch.context() as patch:

            def crash(place):
                raise RecordUnavailable(place)

            patch.setattr(record_module, "crash_point", crash)
            await send(client, BODY, 503)
        assert (0, 0) == (await rows(app, jobs), await rows(app, idempotency))
        await send(client, {**BODY, "payload": 2})


async def test_a_queue_that_lost_its_memory_has_not_lost_its_keys(app):
    async with serving(app) as client:
        first = await send(client, BODY)
        store = await app.store()
        for shard in store.keys:
            for key in await store.link.call("KEYS", shard.idempotency("*").replace("{", "\\{")):
                await store.link.call("DEL", key)
        assert first.content == (await send(client, BODY)).content
        problem(await send(client, {**BODY, "payload": 2}, 422), 422, "key-reused")


async def test_an_entry_goes_when_its_time_is_over(app):
    async with serving(app) as client:
        await send(client, BODY)
        record = await app.record()

        async def outlive():
            past = update(idempotency).values(until_ms=1)
            await record.database.write(lambda connection: connection.execute(past))

        await outlive()
        await send(client, {**BODY, "payload": 2})
        assert (2, 1) == (await rows(app, jobs), await rows(app, idempotency))
        await outlive()
        expiry = Expiry(record.database, app.settings.namespace, record.clock)
        await expiry.run_once()
        assert 0 == await rows(app, idempotency)


# -- batches ----------------------------------------------------------------------------------------------

BATCH = f"{JOBS}:batch"
LINES = {"content-type": "application/x-ndjson"}
LINES_KEY = {"Idempotency-Key": "lines"}


async def send_lines(client, *items, status=202, key=LINES_KEY):
    body = b"\n".join(json.dumps(item).encode() for item in items)
    answer = await client.post(BATCH, content=body, headers=key | LINES)
    assert status == answer.status_code, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def outcomes(told):
    return [each["outcome"] for each in told]


SOME = [{**BODY, "payload": n} for n in range(2 * RECORD_LINES + 3)]


async def test_a_batch_that_is_sent_again_finds_its_jobs(app):
    async with serving(app) as client:
        first, again = [await send_lines(client, *SOME) for _ in range(2)]
        assert ({"created"}, {"kept"}) == (set(outcomes(first)), set(outcomes(again)))
        assert [each["id"] for each in first] == [each["id"] for each in again]
        assert len(SOME) == await rows(app, jobs)
        assert 3 == await rows(app, idempotency)
        for changed in (SOME[:-1], [*SOME, BODY], [*SOME[:-1], {**BODY, "payload": "other"}]):
            problem_line = await send_lines(client, *changed, status=422)
            assert "urn:duly:problem:key-reused" == problem_line[0]["type"]
        assert {"kept"} == set(outcomes(await send_lines(client, *SOME)))
        assert len(SOME) == await rows(app, jobs)


async def test_a_changed_line_is_refused_by_itself_once_others_were_stored(app, monkeypatch):
    monkeypatch.setattr("duly.http.batch.SLICE", 100)
    async with serving(app) as client:
        await send_lines(client, *SOME)
        told = outcomes(await send_lines(client, *SOME[:-1], {**BODY, "payload": "other"}))
        assert (["refused"], {"kept"}) == (told[-1:], set(told[:-1]))
        assert {"kept"} == set(outcomes(await send_lines(client, *SOME)))


async def test_what_others_did_since_a_batch_that_was_not_noted_stays(app, monkeypatch):
    batch = [{**BODY, "id": "a", "on_conflict": "replace"}]
    async with serving(app) as client:
        with monkeypatch.context() as patch:

            async def crash(*_):
                raise RecordUnavailable("here")

            patch.setattr(KeptEntries, "stored", crash)
            assert ["created"] == outcomes(await send_lines(client, *batch))
        theirs = {**BODY, "id": "a", "payload": 2, "on_conflict": "replace"}
        assert 202 == (await client.post(JOBS, json=theirs)).status_code
        assert ["kept"] == outcomes(await send_lines(client, *batch))
        assert b"2" == (await app.job("mail", "a").get()).payload


async def test_different_batches_at_once_under_one_key_are_told_apart(app):
    async with serving(app) as client:
        sent = [
            client.post(BATCH, content=json.dumps({**BODY, "payload": n}), headers=KEY | LINES)
            for n in range(6)
        ]
        answers = await asyncio.gather(*sent)
        assert [202] + [422] * 5 == sorted(answer.status_code for answer in answers)
        assert 1 == await rows(app, jobs)


async def test_a_key_stands_for_a_job_or_for_a_batch(app):
    async with serving(app) as client:
        await send(client, BODY)
        for some in (SOME[:1], SOME):
            await send_lines(client, *some, status=422, key=KEY)
        await send(client, BODY)
        await send_lines(client, *SOME)
        answer = await client.post(JOBS, json=BODY, headers=LINES_KEY)
        assert "Idempotency-Key" == problem(answer, 422, "key-reused")["field"]
        assert {"kept"} == set(outcomes(await send_lines(client, *SOME)))
        assert 1 + len(SOME) == await rows(app, jobs)


async def test_a_job_and_a_batch_at_once_under_one_key_are_told_apart(app):
    async with serving(app) as client:
        for number in range(10):
            key = {"Idempotency-Key": f"both {number}"}
            answers = await asyncio.gather(
                client.post(JOBS, json=BODY, headers=key),
                client.post(BATCH, content=json.dumps(BODY), headers=key | LINES),
            )
            assert [202, 422] == sorted(answer.status_code for answer in answers)
        assert 10 == await rows(app, jobs)


async def test_lines_that_were_wrong_may_be_corrected_under_the_key(app):
    wrong, at = {"dely": 1}, [0, RECORD_LINES - 1, RECORD_LINES, len(SOME) - 1]
    async with serving(app) as client:
        first = outcomes(
            await send_lines(client, *(wrong if n in at else each for n, each in enumerate(SOME)))
        )
        assert at == [n for n, outcome in enumerate(first) if outcome == "refused"]
        told = outcomes(await send_lines(client, *SOME))
        assert at == [n for n, outcome in enumerate(told) if outcome == "created"]
        assert {"kept"} == set(outcomes(await send_lines(client, *SOME)))
        await send_lines(client, wrong, *SOME[1:], status=422)
        assert len(SOME) == await rows(app, jobs)


async def test_entries_of_all_kinds_together_are_bounded(valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url, idempotency_bytes=2 * 2_200)
    async with serving(app) as client:
        await send_lines(client, *SOME[: RECORD_LINES + 1])
        await send(client, BODY)
        full = await client.post(JOBS, json=BODY, headers={"Idempotency-Key": "other"})
        problem(full, 503, "keys-full")
        assert 86_400 - 60 < int(full.headers["retry-after"]) <= 86_400
        await send(client, BODY)
        again = await send_lines(client, *SOME[: RECORD_LINES + 1])
        assert {"kept"} == set(outcomes(again)), "what was noted takes no more room"


async def test_no_caller_takes_the_room_of_the_others(app):
    async with serving(app):
        entries = (await app.promises()).entries(keep_ms=60_000, most=101 * (ROW_BYTES + ANSWER_BYTES))

        async def fill(caller):
            for number in range(1_000):
                try:
                    await entries.reserve(name_of(caller, str(number)), bytes(16))
                except KeysFull:
                    return number
            raise AssertionError("there is no bound")

        assert [50, 25, 13, 6] == [await fill(caller) for caller in "abcd"]
        taken, fills = await entries.used(["a", "z"])
        assert (94 * (ROW_BYTES + ANSWER_BYTES), {"a": 1.0, "z": 0.0}) == (taken, fills)


async def test_rows_that_others_wrote_are_counted_for_their_callers(app):
    async with serving(app) as client:
        await send(client, BODY)
        await send_lines(client, *SOME[: RECORD_LINES + 1])
        size = func.sum(func.length(idempotency.c.about) + ROW_BYTES)
        record = await app.promises()
        whole = await record.database.read(lambda connection: connection.scalar(select(size)))
        counted = KeptEntries(record.database, record.store, record.clock, keep_ms=1, most=2 * int(whole))
        assert (whole, {NO_KEY: 1.0, "other": 0.0}) == await counted.used([NO_KEY, "other"])


async def taken_by(app):
    """
    Return the bytes that are counted, once as they are known here, and once by the rows.
    """
    record = await app.promises()
    known = record.entries(keep_ms=app.settings.idempotency_ms, most=app.settings.idempotency_bytes)
    counted = KeptEntries(record.database, record.store, record.clock, keep_ms=1, most=1)
    return [(await entries.used([])).bytes for entries in (known, counted)]


async def test_what_is_sent_again_takes_no_room(app):
    async with serving(app) as client:
        await send(client, BODY)
        await send_lines(client, *SOME)
        known, counted = await taken_by(app)
        assert abs(known - counted) < 2 * ANSWER_BYTES, "an answer takes what is usual, and not to the byte"
        for _ in range(3):
            await send(client, BODY)
            await send_lines(client, *SOME)
        assert [known, counted] == await taken_by(app)


async def test_what_is_refused_takes_no_room(app):
    async with serving(app) as client:
        await send(client, BODY)
        await send_lines(client, *SOME[:10])
        taken = await taken_by(app)
        for _ in range(3):
            await send(client, {**BODY, "payload": 2}, 422)
            await send_lines(client, *SOME[5:], status=422)
            await send_lines(client, *SOME, status=422, key=KEY)
        assert taken == await taken_by(app)


async def test_what_fails_takes_no_room(app, monkeypatch):
    async with serving(app) as client:
        await send(client, BODY)
        await send_lines(client, *SOME[:10])
        taken = await taken_by(app)
        with monkeypatch.context() as patch:

            def crash(*_, **__):
                raise RecordUnavailable("here")

            patch.setattr(record_module, "crash_point", crash)
            patch.setattr("duly.record.idempotency._locked", crash)
            for number in range(3):
                other = {"Idempotency-Key": f"other {number}"}
                assert 503 == (await client.post(JOBS, json=BODY, headers=other)).status_code
                await send_lines(client, *SOME, status=503, key=other)
        assert taken == await taken_by(app)


async def test_a_key_that_is_reserved_again_before_its_job_is_there_takes_room_once(app):
    async with serving(app):
        most = 3 * (ROW_BYTES + ANSWER_BYTES)
        entries = (await app.promises()).entries(keep_ms=60_000, most=most)
        for _ in range(10):
            await entries.reserve(name_of("a", "1"), bytes(16))
        with pytest.raises(KeysFull):
            await entries.reserve(name_of("a", "2"), bytes(16))
        entries.give_up(name_of("a", "1"))
        entries.give_up(name_of("a", "1"))
        await entries.reserve(name_of("a", "2"), bytes(16))
        with pytest.raises(KeysFull):
            await entries.reserve(name_of("a", "3"), bytes(16))


async def test_there_is_room_once_the_time_of_the_first_is_over(valkey, namespace, migrated_url):
    app = Duly(
        valkey.url, namespace=namespace, record=migrated_url, idempotency_bytes=2 * 600, idempotency="2s"
    )
    async with serving(app) as client:

        async def sent(number):
            key = {"Idempotency-Key": str(number)}
            return (await client.post(JOBS, json=BODY, headers=key)).status_code

        assert (202, 503) == (await sent(1), await sent(2))

        async def there_is_room():
            assert 202 == await sent(2)

        await eventually(there_is_room, 20.0)
        assert 503 == await sent(3)


async def test_a_batch_is_taken_and_known_again_while_the_queue_is_away_or_has_lost_all(
    namespace, migrated_url
):
    server = Server(binary("valkey")).start()
    try:
        app = Duly(server.url, namespace=namespace, record=migrated_url, socket_timeout="200ms")
        async with serving(app) as client:
            first = await send_lines(client, *SOME[:10])
            server.kill()
            again = await send_lines(client, *SOME[:10])
            assert [each["id"] for each in first] == [each["id"] for each in again]
            other = b"\n".join(json.dumps(each).encode() for each in SOME[:5])
            away = await client.post(BATCH, content=other, headers={"Idempotency-Key": "away"} | LINES)
            assert (202, 15) == (away.status_code, await rows(app, jobs))
            server.start()
            assert {"kept"} == set(outcomes(await send_lines(client, *SOME[:10])))
            assert 15 == await rows(app, jobs)
    finally:
        server.stop()
