"""
Reconcile: what differs is found, mended, and not found a second time.
"""

from __future__ import annotations

import pytest

from duly.job import JobKey, JobState, Lease, Order
from duly.record.reconcile import STEP, Reconciler
from duly.record.rows import AT_ONCE_MS
from duly.record.rules import Difference
from duly.record.sight import adopted
from duly.views import Views
from tests.eventually import eventually
from tests.record.kit import HOUR_MS, REVISION, both, change_row, hydrate, now_ms, read_rows, row, write_rows
from tests.shards import fixed_of
from tests.store.kit import claim


@pytest.fixture
def reconcile(database, queue):
    async def reconcile(*, apply: bool = True):
        return await Reconciler(database, queue, apply=apply, generation=1).run()

    return reconcile


def key(id_: str) -> JobKey:
    return JobKey("mail", id_)


async def test_what_agrees_is_left_alone(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a"), row(queue.namespace, "b", payload=b"x" * 5_000))
    before = await read_rows(database)
    report = await reconcile()
    assert (2, 2) == (report.rows, report.jobs)
    assert not report.found
    assert before == await read_rows(database)


async def test_a_dry_run_finds_and_changes_nothing(database, queue, reconcile):
    await write_rows(database, row(queue.namespace, "a"))
    before = await read_rows(database)
    report = await reconcile(apply=False)
    assert {Difference.missing: 1} == report.found
    assert {Difference.missing: ["mail/a"]} == report.examples
    assert not report.repaired
    assert before == await read_rows(database)


async def test_what_is_missing_is_left_to_the_relay(database, queue, reconcile):
    await write_rows(database, row(queue.namespace, "a"))
    assert {Difference.missing: 1} == (await reconcile()).repaired
    rows = await read_rows(database)
    assert rows["a"].due_ms - AT_ONCE_MS == rows["a"].relay_ms
    again = await reconcile()
    assert (0, 1) == (sum(again.found.values()), again.on_its_way)


async def test_a_job_whose_stored_form_is_damaged_is_missing_and_comes_back(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a"), row(queue.namespace, "b"))
    await queue.link.call("HSET", fixed_of(queue, "mail", "a")["jobs"], "mail/a", b"12345")
    assert {Difference.missing: 1} == (await reconcile()).repaired
    await hydrate(queue, (await read_rows(database))["a"]._asdict())
    [job] = await Views(queue).get_many([key("a")])
    assert (JobState.scheduled, 1) == (job and job.state, sum(await queue.quarantine_sizes()))


async def test_what_has_ended_is_not_run_again(database, queue, reconcile):
    ended = row(queue.namespace, "a", due_ms=now_ms() - 1)
    await both(database, queue, ended)
    await change_row(database, "a", state=JobState.succeeded, ended_ms=now_ms())
    assert {Difference.finished: 1} == (await reconcile()).repaired
    assert [] == await claim(queue)
    assert not (await reconcile()).found


async def test_the_record_wins_over_another_time(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a"))
    await change_row(database, "a", due_ms=now_ms() + 2 * HOUR_MS)
    assert {Difference.due: 1} == (await reconcile()).repaired
    mended = (await read_rows(database))["a"]
    assert REVISION < mended.revision
    assert mended.due_ms - AT_ONCE_MS == mended.relay_ms
    await hydrate(queue, mended._asdict())
    await change_row(database, "a", relay_ms=None)
    assert not (await reconcile()).found
    [job] = await Views(queue).get_many([key("a")])
    assert job is not None
    assert mended.due_ms == job.due_ms


@pytest.mark.parametrize(
    "change",
    [
        {"payload": b"other"},
        {"envelope": b'{"max_attempts":9}'},
        {"ttr_ms": 7_000},
        {"lane": 1},
        {"retain_s": 5},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_the_record_wins_over_another_payload_or_other_options(database, queue, reconcile, change):
    await both(database, queue, row(queue.namespace, "a"))
    await change_row(database, "a", **change)
    assert {Difference.payload: 1} == (await reconcile()).repaired


async def test_an_end_that_was_not_recorded_is(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a", due_ms=now_ms() - 5))
    [lease] = await claim(queue)
    await queue.ack(lease, b'"done"', lateness_ms=5)
    assert {Difference.unrecorded: 1} == (await reconcile()).repaired
    ended = (await read_rows(database))["a"]
    assert (JobState.succeeded, b'"done"', 5, 1) == (
        ended.state,
        ended.outcome,
        ended.lateness_ms,
        ended.attempts,
    )
    assert ended.ended_ms
    assert not (await reconcile()).found


async def test_what_nobody_promised_is_adopted_as_it_is(database, queue, reconcile):
    order = Order(
        key("a"),
        b"x" * 3_000,
        due_ms=now_ms() + HOUR_MS,
        ttr_ms=9_000,
        retain_s=7,
        envelope=b'{"max_attempts":2}',
    )
    placed = await queue.enqueue(order)
    assert {Difference.orphan: 1} == (await reconcile()).repaired
    mine = (await read_rows(database))["a"]
    assert (placed.revision, order.payload, order.envelope) == (mine.revision, mine.payload, mine.envelope)
    assert (order.due_ms, 9_000, 7) == (mine.due_ms, mine.ttr_ms, mine.retain_s)
    assert mine.relay_ms is None
    assert not (await reconcile()).found


async def test_what_is_adopted_is_so_at_one_moment(queue, after):
    payload = b"x" * 5_000
    placed = await queue.enqueue(Order(key("a"), payload, delay_ms=1, retain_s=0))

    async def claimed() -> Lease:
        leases = await claim(queue)
        assert leases, "not due yet"
        return leases[0]

    async def run() -> None:
        await queue.ack(await eventually(claimed))

    after(queue.link, "call", run)
    [found] = await adopted(queue, [key("a")], 1, now_ms())
    assert (JobState.scheduled, placed.due_ms, payload) == (
        found["state"],
        found["due_ms"],
        found["payload"],
    )


async def test_what_was_changed_without_the_record_is_adopted(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a"))
    newer = row(queue.namespace, "a", revision=REVISION + 5, payload=b"newer")
    await hydrate(queue, newer)
    assert {Difference.ahead: 1} == (await reconcile()).repaired
    assert b"newer" == (await read_rows(database))["a"].payload
    assert not (await reconcile()).found


async def test_a_retry_keeps_its_own_time(database, queue, reconcile):
    await both(database, queue, row(queue.namespace, "a", due_ms=now_ms() - 1))
    [lease] = await claim(queue)
    await queue.retry(lease, HOUR_MS)
    assert not (await reconcile()).found


async def test_more_than_a_step_of_each_side_is_seen(database, queue, reconcile):
    rows = [row(queue.namespace, f"{number:05}") for number in range(STEP + 20)]
    await both(database, queue, *rows)
    await write_rows(database, row(queue.namespace, "missing"))
    for number in range(10):
        await queue.enqueue(Order(key(f"orphan{number}"), b"{}", due_ms=now_ms() + HOUR_MS))
    report = await reconcile()
    assert {Difference.missing: 1, Difference.orphan: 10} == report.repaired
    assert STEP + 21 == report.rows
    # A scan of a table that grows or shrinks may meet a job twice, and misses none.
    assert STEP + 30 <= report.jobs
