"""
What is committed comes to Redis: straight after the commit, by a hint, or by a regular look.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest
from sqlalchemy import event

from duly.connection import Link
from duly.errors import RecordUnavailable, StoreUnavailable
from duly.job import JobState
from duly.namespace import create
from duly.record import absence, marks
from duly.record.database import Database
from duly.record.dialects import notify
from duly.record.relay import Relay
from duly.record.schema import migrate
from duly.store import Store
from tests.databases import MariaDB, PostgreSQL
from tests.eventually import eventually
from tests.record.way.kit import HORIZON_MS, NOW, change, commit, key, promised, rows_of
from tests.shards import on_all
from tests.store.kit import claim


@pytest.fixture
def relay(database, store):
    return Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1)


async def push_in_haste(relay, rows):
    """
    Push to a server that is known to be away.
    """
    with pytest.MonkeyPatch.context() as haste:
        haste.setattr(absence, "ANSWERS_WITHIN_S", 0.2)
        return await relay.push(rows)


async def test_committed_rows_within_the_horizon_come_to_redis_and_are_marked(
    relay, database, store, views, namespace
):
    soon = [promised(f"s{at}", NOW + at, namespace=namespace) for at in range(3)]
    later = promised("later", NOW + HORIZON_MS, namespace=namespace)
    await commit(database, *soon, later)
    assert 3 == await relay.look()
    assert 0 == await relay.look()
    rows = await rows_of(database)
    for row in soon:
        job = await views.get(row.key)
        assert (row.revision, row.due_ms) == (job.revision, job.due_ms)
        marked = rows[row.id]
        assert (row.revision, 1, None) == (marked.hydrated, marked.generation, marked.relay_ms)
    assert None is await views.get(later.key)
    assert (0, 0, later.due_ms) == (rows["later"].hydrated, rows["later"].generation, rows["later"].relay_ms)


async def test_what_was_far_ahead_comes_when_its_time_is_near(relay, database, views, clock, namespace):
    await commit(database, promised("a", NOW + HORIZON_MS, namespace=namespace))
    assert 0 == await relay.look()
    clock.advance(ms=1)
    assert 1 == await relay.look()
    assert JobState.scheduled is (await views.get(key("a"))).state


async def test_rows_of_other_namespaces_are_not_ours(relay, database, store, views):
    await commit(database, promised("a", namespace="another"))
    assert 0 == await relay.look()
    assert None is await views.get(key("a"))


async def test_a_changed_row_takes_the_place_of_what_redis_has(relay, database, store, views, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    await relay.look()
    [lease] = await claim(store)
    later = await change(database, row, due_ms=NOW + 5_000, payload=b"2")
    assert 1 == await relay.look()
    job = await views.get(key("a"))
    assert (later.revision, JobState.scheduled, b"2") == (job.revision, job.state, job.payload)
    assert [False] == await store.extend(lease.shard, [lease])


async def test_a_cancelled_row_ends_its_job_and_whoever_comes_late_does_not_bring_it_back(
    relay, database, store, views, namespace
):
    row, never = promised("a", namespace=namespace), promised("never", namespace=namespace)
    await commit(database, row, never)
    await relay.push([row])
    for each in (row, never):
        await change(database, each, state=JobState.cancelled.value)
    assert 2 == await relay.look()
    # A relay that had read the open rows before they were cancelled.
    await relay.push([row, never])
    assert [JobState.cancelled] * 2 == [(await views.get(key(id_))).state for id_ in ("a", "never")]
    assert [] == await claim(store)


async def test_a_row_that_says_finished_is_forgotten_by_redis(
    relay, database, store, views, namespace, monkeypatch
):
    # Marked in between, on a machine that stands still, the row would not be looked at.
    monkeypatch.setattr(marks, "LINGER_S", 3_600)
    row = promised("a", namespace=namespace)
    await relay.push([row])
    await commit(database, row._replace(state=JobState.succeeded.value))
    assert 1 == await relay.look()
    assert None is await views.get(key("a"))
    assert None is (await rows_of(database))["a"].relay_ms


async def test_counters_of_the_row_go_with_it(relay, database, store, namespace):
    await commit(database, promised("a", namespace=namespace, attempts=2))
    await relay.look()
    [lease] = await claim(store)
    assert 3 == lease.attempt


# -- straight after a commit --------------------------------------------------------------------------------


async def test_pushed_rows_are_in_redis_when_the_call_returns_and_marked_soon_after(
    relay, database, views, namespace, monkeypatch
):
    monkeypatch.setattr(marks, "LINGER_S", 3_600)
    rows = [promised(str(at), namespace=namespace) for at in range(700)]
    far = promised("far", NOW + HORIZON_MS, namespace=namespace)
    await commit(database, *rows, far)
    writes = []
    event.listen(database.engine.sync_engine, "commit", lambda _: writes.append(1))
    for at in range(0, 700, 70):
        assert await relay.push(rows[at : at + 70])
    assert await relay.push([far])
    assert None is not await views.get(key("699"))
    assert None is await views.get(key("far"))
    await relay.settle()
    assert 2 == len(writes), "ten calls, marked in groups"
    stored = await rows_of(database)
    assert {None} == {row.relay_ms for row in stored.values() if row.id != "far"}
    assert far.relay_ms == stored["far"].relay_ms


async def test_a_row_that_changed_meanwhile_is_not_marked(relay, database, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    later = await change(database, row, due_ms=NOW + 1)
    await relay.push([row])
    await relay.settle()
    stored = (await rows_of(database))["a"]
    assert (later.relay_ms, 0) == (stored.relay_ms, stored.hydrated)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_redis_away_fails_no_push_and_the_look_follows_up(
    database, own_server, namespace, shards, clock
):
    link = Link(own_server.url)
    await create(link, namespace, shards, clock="test")
    store = Store(link, namespace=namespace, shards=shards, now=clock)
    relay = Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1)
    rows = [promised(id_, namespace=namespace) for id_ in ("a", "b")]
    await commit(database, *rows)
    own_server.kill()
    assert not await push_in_haste(relay, rows[:1])
    # The second is not kept waiting for what did not answer the first.
    began_s = time.monotonic()
    assert not await relay.push(rows[1:])
    assert time.monotonic() - began_s < 0.5
    own_server.start()
    await store.approve("record", 1)
    assert 2 == await relay.look()
    assert {row.revision for row in rows} == {lease.revision for lease in await claim(store)}
    assert await relay.push([promised("c", namespace=namespace)])
    await relay.settle()
    await link.aclose()


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
async def test_a_look_that_redis_does_not_answer_leaves_the_rows_to_the_next(
    database, own_server, namespace, shards, clock
):
    link = Link(own_server.url)
    await create(link, namespace, shards, clock="test")
    store = Store(link, namespace=namespace, shards=shards, now=clock)
    relay = Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1)
    await commit(database, promised("a", namespace=namespace))
    own_server.kill()
    with pytest.raises(StoreUnavailable):
        await relay.look()
    own_server.start()
    await store.approve("record", 1)
    assert 1 == await relay.look()
    await link.aclose()


async def test_nothing_is_brought_to_a_redis_that_nobody_has_found_sound(database, store, views, namespace):
    sound: list[int] = []
    relay = Relay(
        database, store, horizon_ms=HORIZON_MS, generation=lambda: sound[0] if sound else None, scan_s=0.01
    )
    row = promised("a", namespace=namespace)
    await commit(database, row)
    assert not await relay.push([row])
    assert 0 == await relay.run_once()
    assert None is await views.get(key("a"))
    sound.append(7)
    await store.approve("record", 7)
    assert 1 == await relay.run_once()
    assert 7 == (await rows_of(database))["a"].generation


async def test_a_redis_that_lost_something_takes_no_rows_that_were_read_before(
    database, store, views, namespace
):
    """
    A relay that was held up meanwhile may have rows in hand that have ended since.
    """
    generations = [1]

    async def agree() -> None:
        await store.approve("record", 2)
        generations[0] = 2

    relay = Relay(
        database, store, horizon_ms=HORIZON_MS, generation=lambda: generations[0], agree=agree, scan_s=0.01
    )
    row = promised("a", namespace=namespace)
    await commit(database, row)
    for lose in (
        lambda: store.approve("record", 2),
        lambda: on_all(store, "meta", "HDEL", "record", "generation"),
    ):
        for bring in (lambda: relay.push([row]), relay.look):
            generations[0] = 1
            await lose()
            with suppress(StoreUnavailable):
                assert not await bring()
            assert None is await views.get(key("a"))
            assert [2] == generations
    assert 1 == await relay.look()
    assert 2 == (await rows_of(database))["a"].generation


async def test_what_is_cancelled_is_brought_also_to_a_redis_in_doubt(relay, database, store, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    await relay.look()
    await store.approve("record", 2)
    assert await relay.push([await change(database, row, state=JobState.cancelled, hydrated=row.revision)])
    await relay.settle()
    assert [] == await claim(store)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_a_change_is_brought_although_redis_was_just_away(
    database, own_server, namespace, shards, clock
):
    link = Link(own_server.url)
    await create(link, namespace, shards, clock="test")
    store = Store(link, namespace=namespace, shards=shards, now=clock)
    await store.approve("record", 1)
    relay = Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1)
    rows = [promised(id_, namespace=namespace) for id_ in ("a", "b")]
    await commit(database, *rows)
    await relay.push(rows[:1])
    await relay.settle()
    own_server.kill()
    assert not await push_in_haste(relay, rows[1:])
    own_server.start()
    cancelled = await change(database, rows[0], state=JobState.cancelled, hydrated=rows[0].revision)

    async def brought() -> None:
        assert await relay.push([cancelled])

    # Until somebody looks whether the server is back, it is not asked.
    await eventually(brought)
    await relay.settle()
    await store.approve("record", 1)
    assert [] == await claim(store)
    await link.aclose()


# -- the loop -----------------------------------------------------------------------------------------------


async def test_any_number_of_relays_at_once_bring_every_row_once(database, store, feed, namespace):
    rows = [promised(str(at), NOW + at, namespace=namespace) for at in range(900)]
    await commit(database, *rows)
    relays = [
        Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1, scan_s=0.05) for _ in range(3)
    ]
    stop = asyncio.Event()
    tasks = [asyncio.create_task(each.run(stop)) for each in relays]

    async def done() -> None:
        assert {None} == {row.relay_ms for row in (await rows_of(database)).values()}

    await eventually(done, 60)
    stop.set()
    await asyncio.gather(*tasks)
    events = [each for shard in range(store.shards) for each in (await feed.read(shard, None, 10_000))[1]]
    assert sorted(row.id for row in rows) == sorted(each.id for each in events if each.verb == "hydrated")


async def test_a_hint_ends_the_wait_between_two_looks(database, store, views, namespace):
    relay = Relay(database, store, horizon_ms=10**9, generation=lambda: 1, scan_s=3_600)
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(stop))
    await eventually(lambda: not relay._hinted.is_set(), 20)
    await commit(database, promised("a", namespace=namespace))
    relay.hint()

    async def there() -> None:
        assert await views.get(key("a"))

    await eventually(there, 60)
    stop.set()
    await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
async def test_postgresql_tells_relays_of_what_other_processes_commit(
    database, migrated_url, store, views, namespace
):
    relay = Relay(database, store, horizon_ms=10**9, generation=lambda: 1, scan_s=3_600)
    stop = asyncio.Event()
    task = asyncio.create_task(relay.run(stop))
    other = Database(migrated_url)

    # Until it listens nobody is told: rows are committed until one comes through.
    async def there() -> None:
        row = promised(f"a{time.monotonic_ns()}", namespace=namespace)
        await commit(other, row)
        await other.write(lambda connection: notify(connection, "another"))
        await other.write(lambda connection: notify(connection, namespace))

        async def here() -> None:
            assert await views.get(row.key)

        await eventually(here, 2)

    await eventually(there, 60)
    await other.aclose()
    stop.set()
    await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("kind", [PostgreSQL, MariaDB])
async def test_a_relay_goes_on_when_the_database_is_back(kind, store, views, namespace):
    server = kind()
    try:
        url = server.start().fresh()
        await asyncio.to_thread(migrate, url)
        database = Database(url)
        relay = Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1, scan_s=0.05)
        stop = asyncio.Event()
        task = asyncio.create_task(relay.run(stop))
        assert 0 == await relay.look()
        server.kill()
        with pytest.raises(RecordUnavailable):
            await relay.look()
        server.start()
        row = promised("a", namespace=namespace)
        await commit(database, row)

        async def there() -> None:
            assert await views.get(row.key)

        await eventually(there, 60)
        stop.set()
        await asyncio.wait_for(task, 60)
        await database.aclose()
    finally:
        server.stop()
