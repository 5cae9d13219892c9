"""
What no worker could tell the record is told by the events of Redis, and Redis keeps jobs until then.
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from sqlalchemy import select

from duly.events import Offset
from duly.job import JobState
from duly.record.generations import first_generation, next_generation
from duly.record.net import Net
from duly.record.outcomes import write_runs
from duly.record.places import Place, move
from duly.record.relay import Relay
from duly.record.runs import EndedRun
from duly.record.tables import jobs
from duly.store import Keeping
from tests.record.way.kit import HORIZON_MS, NOW, change, commit, key, position_of, promised, rows_of, runs_of
from tests.shards import ids_on, on_all, one_id_on_each, promote_all, recover_all, shard_of
from tests.store.kit import claim


@pytest.fixture
def net(database, store):
    return Net(database, store, generation=lambda: 1, settle_ms=0)


@pytest.fixture
def bring(database, store, namespace):
    """
    Rows that are committed and in Redis.
    """
    relay = Relay(database, store, horizon_ms=HORIZON_MS, generation=lambda: 1)

    async def bring(*ids: str, due_ms: int = NOW, **columns):
        rows = [promised(id_, due_ms, namespace=namespace, **columns) for id_ in ids]
        await commit(database, *rows)
        await relay.push(rows)
        await relay.settle()
        return rows

    return bring


async def test_endings_that_no_worker_wrote_get_into_the_rows(net, database, store, bring, clock):
    await bring("acked", "buried", "open")
    leases = {lease.key.id: lease for lease in await claim(store)}
    clock.advance(ms=5)
    await store.ack(leases["acked"], b'"done"', lateness_ms=7)
    await store.bury(leases["buried"], b'{"type":"Boom"}', "Boom")
    assert 0 < await net.run_once()
    rows = await rows_of(database)
    assert (JobState.succeeded, b'"done"', 1, NOW, NOW + 5, 7) == (
        rows["acked"].state,
        bytes(rows["acked"].outcome),
        rows["acked"].attempts,
        rows["acked"].started_ms,
        rows["acked"].ended_ms,
        rows["acked"].lateness_ms,
    )
    assert (JobState.dead, b'{"type":"Boom"}') == (rows["buried"].state, bytes(rows["buried"].outcome))
    assert JobState.scheduled == rows["open"].state
    runs = {run.id: run for run in await runs_of(database)}
    assert {
        "acked": (leases["acked"].token, "acked", 1),
        "buried": (leases["buried"].token, "buried", 1),
    } == {id_: (run.token, run.word, run.attempt) for id_, run in runs.items()}


async def test_a_result_that_the_queue_need_not_keep_gets_into_its_row(net, database, store, bring):
    """
    Its worker was killed between the end of the job and the row.
    """
    await bring("a", retain_s=0)
    [lease] = await claim(store)
    await store.ack(lease, b'"done"')
    await net.run_once()
    row = (await rows_of(database))["a"]
    assert (JobState.succeeded, b'"done"') == (row.state, bytes(row.outcome))


async def test_endings_by_scripts_get_into_the_rows(net, database, store, bring, clock):
    await bring("cancelled", due_ms=NOW + 1_000)
    await bring("expired", due_ms=NOW + 2_000, expires_ms=NOW + 2_500)
    await bring("crashed", max_crashes=1)
    tokens = [lease.token for lease in await claim(store)]
    await store.cancel([key("cancelled")])
    clock.advance(s=60)
    await recover_all(store)
    await promote_all(store)
    # Once beside others, once more to be sure, and once isolated: whatever it says, that is what it takes.
    for _ in range(2):
        tokens += [lease.token for lease in await claim(store)]
        clock.advance(s=60)
        await recover_all(store)
    await net.run_once()
    rows = await rows_of(database)
    assert {
        "cancelled": (JobState.cancelled, b'{"type":"cancelled"}', 0, 0),
        "expired": (JobState.cancelled, b'{"type":"expired"}', 0, 0),
    } == {
        id_: (row.state, bytes(row.outcome), row.attempts, row.crashes)
        for id_, row in rows.items()
        if id_ != "crashed"
    }
    assert (JobState.dead, 0, 3) == (rows["crashed"].state, rows["crashed"].attempts, rows["crashed"].crashes)
    assert [(token, "recovered", 1) for token in tokens] == sorted(
        (run.token, run.word, run.attempt) for run in await runs_of(database)
    )


async def test_only_the_run_that_a_cancellation_ended_is_told_as_cancelled(net, database, store, bring):
    await bring("running", "waiting")
    leases = {lease.key.id: lease for lease in await claim(store)}
    await store.retry(leases["waiting"], 1_000)
    await store.cancel([key("running"), key("waiting")])
    await net.run_once()
    assert {5} == {row.state for row in (await rows_of(database)).values()}
    assert [("running", leases["running"].token, "cancelled", 1)] == [
        (run.id, run.token, run.word, run.attempt) for run in await runs_of(database)
    ]


async def test_runs_of_open_jobs_are_counted_and_crashed_ones_told(net, database, store, bring, clock):
    await bring("a")
    [lease] = await claim(store)
    await store.retry(lease, 0, b"{}", "Boom", lateness_ms=3)
    crashed = []
    for _ in range(2):
        crashed += [(lease.token, clock()) for lease in await claim(store)]
        clock.advance(s=60)
        await recover_all(store)
        await promote_all(store)
        clock.advance(s=60)
        await promote_all(store)
    await net.run_once()
    row = (await rows_of(database))["a"]
    assert (JobState.scheduled, 1, 2) == (row.state, row.attempts, row.crashes)
    # The worker that failed tells of its run itself; those that crashed cannot.
    runs = sorted(await runs_of(database), key=lambda run: run.token)
    assert [(token, "recovered", 2, start, start + 60_000, None) for token, start in crashed] == [
        (run.token, run.word, run.attempt, run.started_ms, run.ended_ms, run.lateness_ms) for run in runs
    ]
    assert [True, True] == [len(run.worker) == 16 for run in runs]


async def test_what_a_worker_wrote_or_a_later_revision_says_stays(net, database, store, bring, namespace):
    written, changed = await bring("written", "changed")
    for lease in await claim(store):
        await store.ack(lease, b'"redis"')
    token = 5
    run = EndedRun(
        written.key, written.revision, token, "acked", JobState.succeeded, 1, 1, 0, "w", 1, 2, 3, b'"worker"'
    )
    await database.write(lambda connection: write_runs(connection, namespace, [(run, 1)]))
    await change(database, changed, due_ms=NOW + 9)
    await net.run_once()
    rows = await rows_of(database)
    assert b'"worker"' == bytes(rows["written"].outcome)
    assert (JobState.scheduled, None) == (rows["changed"].state, rows["changed"].outcome)


async def test_the_position_moves_with_what_is_written_and_redis_is_told(
    net, database, store, feed, bring, clock
):
    everywhere = range(store.shards)
    assert 0 == await net.run_once()
    for shard in everywhere:
        assert None is await position_of(database, shard)
        assert {"record": 0} == await feed.consumers(shard), "nothing is trimmed before it was looked at"
    await bring(*one_id_on_each(store, "mail"))
    clock.advance(s=3)
    for lease in await claim(store):
        await store.ack(lease)
    seen = await net.run_once()
    assert seen == sum([(await feed.last(shard)).counter for shard in everywhere])
    for shard in everywhere:
        last = await feed.last(shard)
        position = await position_of(database, shard)
        assert (tuple(last), NOW + 3_000) == (
            (position.epoch, position.counter, position.nonce),
            position.at_ms,
        )
        assert last == await feed.committed("record", shard)
    assert [str(NOW + 3_000).encode()] * store.shards == await on_all(store, "meta", "HGET", "recorded_ms")
    assert 0 == await net.run_once()


async def test_ended_jobs_stay_in_redis_until_the_record_has_them(net, database, store, views, bring, clock):
    store.keeping = Keeping(done_ms=60_000)
    shard = store.shards - 1
    first, second = ids_on(store, "mail", shard, 2)
    await bring(first)
    await net.run_once()
    clock.advance(s=1)
    [lease] = await claim(store)
    await store.ack(lease, b"1")
    clock.advance(s=3_600)
    assert (0, False) == await store.prune(shard)
    await bring(second)
    await net.run_once()
    assert b"1" == bytes((await rows_of(database))[first].outcome)
    assert (1, False) == await store.prune(shard)


async def test_workers_have_a_moment_to_write_for_themselves(database, store, bring, clock):
    net = Net(database, store, generation=lambda: 1, settle_ms=2_000)
    await bring("a")
    [lease] = await claim(store)
    await store.ack(lease)
    assert 0 == await net.run_once()
    clock.advance(ms=2_000)
    assert 0 < await net.run_once()
    assert JobState.succeeded == (await rows_of(database))["a"].state


async def test_who_does_not_know_of_a_later_generation_leaves_the_events_to_others(
    database, store, net, bring, namespace
):
    """
    The rows would refuse what it tells, and the place would move past it all the same.
    """
    await bring("a")
    [lease] = await claim(store)
    await store.ack(lease, b"1")
    was = await database.write(
        lambda connection: first_generation(connection, namespace, lives=["s"], now_ms=1)
    )
    raised = partial(next_generation, namespace=namespace, was=was, lives=["t"], now_ms=2, lost={0: "lost"})
    await database.write(raised)
    assert 0 == await net.run_once()
    assert None is await position_of(database, shard_of(store, "mail", "a"))
    later = Net(database, store, generation=lambda: 2, settle_ms=0)
    assert await later.run_once()
    assert JobState.succeeded == (await rows_of(database))["a"].state


async def test_many_nets_at_once_come_to_the_same(database, store, feed, bring):
    await bring(*(str(at) for at in range(120)))
    leases = await claim(store, limit=120)
    for lease in leases:
        await store.ack(lease, b"1")
    nets = [Net(database, store, generation=lambda: 1, settle_ms=0) for _ in range(4)]
    while any(await asyncio.gather(*(net.run_once() for net in nets))):
        pass
    assert {JobState.succeeded.value} == {row.state for row in (await rows_of(database)).values()}
    assert len(leases) == len(await runs_of(database))
    for shard in range(store.shards):
        assert (await feed.last(shard)).counter == (await position_of(database, shard)).counter


@pytest.mark.parametrize("begun", [False, True], ids=["at the beginning", "on the way"])
async def test_redis_hears_of_no_place_that_the_record_is_not_at(
    database, store, feed, bring, clock, monkeypatch, caplog, begun
):
    """
    It would trim events that the record has to read once more.
    """
    slow, quick = (Net(database, store, generation=lambda: 1, settle_ms=ms) for ms in (0, 2_000))
    shard = store.shards - 1
    first, second, third = ids_on(store, "mail", shard, 3)
    if begun:
        await bring(first)
        await slow.run_once()
    await bring(second)
    clock.advance(ms=2_000)
    await bring(third)
    catch = slow._catch

    async def catch_late(*args):
        # It has read less, and writes first, unless it finds the place locked.
        await quick.run_once()
        return await catch(*args)

    monkeypatch.setattr(slow, "_catch", catch_late)
    await slow.run_once()
    assert (await position_of(database, shard)).counter == (await feed.committed("record", shard)).counter
    await feed.trim(shard)
    while await slow.run_once():
        pass
    assert (await feed.last(shard)).counter == (await position_of(database, shard)).counter
    assert "are lost" not in caplog.text


async def test_a_redis_that_is_behind_the_record_is_left_alone(
    net, database, store, bring, namespace, caplog
):
    await bring("a")
    await net.run_once()
    shard = shard_of(store, "mail", "a")
    before = await position_of(database, shard)
    place = Place(Offset(before.epoch, before.counter, before.nonce), before.at_ms)
    ahead = Place(Offset(before.epoch, before.counter + 50, "00" * 8), NOW + 50)
    await database.write(lambda connection: move(connection, namespace, shard, place, ahead))
    assert 0 == await net.run_once()
    assert 0 == await net.run_once()
    assert before.counter + 50 == (await position_of(database, shard)).counter
    assert 1 == caplog.text.count("rolled back")


async def test_behind_a_gap_it_goes_on_with_what_is_left(net, database, store, feed, bring, link, caplog):
    shard = store.shards - 1
    first, *others = ids_on(store, "mail", shard, 3)
    await bring(first)
    await net.run_once()
    await bring(*others)
    for lease in await claim(store):
        await store.ack(lease)
    last = await feed.last(shard)
    await link.call("XTRIM", store.keys[shard].fixed["events"], "MINID", f"{last.counter}-0")
    await net.run_once()
    assert "are lost: trimmed" in caplog.text
    assert last.counter == (await position_of(database, shard)).counter
    assert 1 <= sum(row.state == JobState.succeeded for row in (await rows_of(database)).values())


@pytest.mark.parametrize("migrated_url", ["postgresql", "mariadb"], indirect=True)
async def test_a_locked_row_stops_nobody_and_its_ending_is_not_passed_by(
    database, store, net, bring, namespace, clock
):
    first, second, third = ids_on(store, "mail", 0, 3)
    await bring(first, second, third)
    for lease in sorted(await claim(store), key=lambda lease: [first, second, third].index(lease.key.id)):
        await store.ack(lease, b"1")
    clock.advance(ms=2_000)
    async with database.engine.connect() as user:
        await user.execute(select(jobs.c.id).where(jobs.c.id == second).with_for_update())
        while await net.run_once():
            pass
        rows = await rows_of(database)
        assert [JobState.succeeded, JobState.scheduled, JobState.succeeded] == [
            rows[id_].state for id_ in (first, second, third)
        ]
        before = await position_of(database, 0)
        await user.rollback()
    while await net.run_once():
        pass
    assert {JobState.succeeded} == {row.state for row in (await rows_of(database)).values()}
    assert before is None or before.counter < (await position_of(database, 0)).counter
