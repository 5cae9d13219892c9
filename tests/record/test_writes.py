"""
What changes rows: the rules of the scripts of the same names, on every database.
"""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import delete

from duly.errors import Conflict, JobExists, JobNotFound
from duly.ids import new_request
from duly.job import JobKey, JobState, Lane, Order
from duly.record.clock import Moment
from duly.record.database import sync_engine
from duly.record.rows import AT_ONCE_MS, JobRow, order_of, row_of
from duly.record.stored import find
from duly.record.tables import jobs
from duly.record.writes import Seen, Wanted, accept, cancel, requeue, reschedule

NOW = Moment(1_000, 1_001)
LATER = Moment(5_000, 5_000)
A, B = JobKey("mail", "a"), JobKey("mail", "b")


def wanted(key=A, payload=b"1", **options):
    return Wanted(Order(key, payload, **options), new_request())


class Rows:
    """
    The verbs, each in a transaction of its own.
    """

    def __init__(self, database):
        self._database = database

    async def accept(self, *orders, now=NOW):
        return await self._database.write(lambda connection: accept(connection, "n", orders, now))

    async def cancel(self, *keys, now=NOW, request=None, **more):
        asked = request or new_request()
        return await self._database.write(
            lambda connection: cancel(connection, "n", keys, asked, now, **more)
        )

    async def reschedule(self, order, now=NOW, **more):
        asked = new_request()
        return await self._database.write(
            lambda connection: reschedule(connection, "n", order, asked, now, **more)
        )

    async def requeue(self, *keys, now=NOW, **more):
        asked = new_request()
        return await self._database.write(
            lambda connection: requeue(connection, "n", keys, asked, now, **more)
        )

    async def get(self, key=A) -> JobRow | None:
        return (await self._database.read(lambda connection: find(connection, "n", [key]))).get(key)


@pytest.fixture
def rows(database):
    return Rows(database)


async def test_a_row_holds_all_that_was_ordered(rows):
    order = Order(
        JobKey("Mail", "a~:@=+-."),
        b"\x00\xff'\"\\%s" * 40_000,
        due_ms=3_000,
        lane=Lane.low,
        expires_ms=253_402_300_799_999,
        ttr_ms=4_294_967_294,
        retain_s=0,
        max_crashes=255,
        envelope=b"\x01\x02",
    )
    [written] = await rows.accept(Wanted(order, b"\x00abc\xff'"))
    row = await rows.get(order.key)
    assert order == order_of(row)
    assert b"\x00abc\xff'" == row.request
    assert written.row == row
    # Ids differ by case, as they do everywhere else.
    assert await rows.get(JobKey("mail", order.key.id)) is None


@pytest.mark.parametrize(
    ("options", "due_ms", "state"),
    [
        ({}, 1_000, JobState.ready),
        ({"delay_ms": 0}, 1_000, JobState.ready),
        ({"delay_ms": 1}, 1_002, JobState.scheduled),  # counted from the later edge: never early
        ({"due_ms": 1_500}, 1_500, JobState.scheduled),
        ({"due_ms": 3}, 1_000, JobState.ready),  # what is past is due now
    ],
)
def test_due_is_what_the_script_would_say(options, due_ms, state):
    row = row_of("n", Order(A, b"", **options), b"123456", NOW)
    assert (due_ms, due_ms) == (row.due_ms, row.relay_ms)


async def test_an_id_that_is_taken_is_kept_replaced_or_refused(rows):
    [first] = await rows.accept(wanted())
    kept, replaced, raised = [
        (await rows.accept(wanted(payload=b"2", on_conflict=word), now=LATER))[0]
        for word in ("keep", "replace", "raise")
    ]
    assert ("created", "kept", "replaced") == (first.answer.word, kept.answer.word, replaced.answer.word)
    assert first.answer.revision == kept.answer.revision < replaced.answer.revision
    assert kept.row is None  # there is nothing that Redis would have to hear of
    assert isinstance(raised.answer, JobExists)
    row = await rows.get()
    assert (b"2", 1_000, 5_000) == (row.payload, row.accepted_ms, row.changed_ms)


async def test_replacing_a_job_by_itself_keeps_it(rows):
    await rows.accept(wanted(due_ms=9_000))
    [again] = await rows.accept(wanted(due_ms=9_000, on_conflict="replace"), now=LATER)
    assert "kept" == again.answer.word
    for change in (
        {"due_ms": 9_001},
        {"lane": Lane.high},
        {"ttr_ms": 1},
        {"envelope": b"x"},
        {"retain_s": 0},
    ):
        [changed] = await rows.accept(wanted(on_conflict="replace", **({"due_ms": 9_000} | change)))
        assert "replaced" == changed.answer.word, change


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
async def test_the_same_request_again_has_the_first_answer(rows, on_conflict):
    if on_conflict == "replace":
        await rows.accept(wanted(payload=b"0"))
    asked = wanted(on_conflict=on_conflict)
    [first] = await rows.accept(asked)
    [again] = await rows.accept(asked, now=LATER)
    assert first == again


async def test_replacing_an_ended_job_makes_it_open_again(rows):
    await rows.accept(wanted())
    await rows.cancel(A)
    [replaced] = await rows.accept(wanted(payload=b"2", on_conflict="replace"), now=LATER)
    row = await rows.get()
    assert "replaced" == replaced.answer.word
    assert (JobState.scheduled, None, None) == (row.state, row.outcome, row.ended_ms)


async def test_many_are_answered_each_for_itself(rows):
    await rows.accept(wanted(B))
    keys = [JobKey("mail", f"{number}") for number in range(700)]
    answers = await rows.accept(*(wanted(key) for key in keys), wanted(B), wanted(A))
    assert ["created"] * 700 + ["kept", "created"] == [each.answer.word for each in answers]


async def test_of_many_inserts_of_one_id_at_once_one_makes_the_job(rows):
    async def insert(number):
        both = [wanted(A), wanted(B)]
        # In either order: two that wait for each other must not be possible.
        answers = await rows.accept(*(both if number % 2 else reversed(both)))
        return sorted((each.answer.key, each.answer.word) for each in answers)

    told = await asyncio.gather(*(insert(number) for number in range(10)))
    for at in (0, 1):
        assert ["created"] + 9 * ["kept"] == sorted(each[at][1] for each in told)


async def test_cancelling_ends_what_has_not_ended(rows):
    [made] = await rows.accept(wanted())
    ended, missing = await rows.cancel(A, B, now=LATER)
    assert (JobState.cancelled, None) == (ended.state, missing.state)
    row = await rows.get()
    assert ended.row == row
    assert row.revision > made.row.revision
    assert (JobState.cancelled, 5_000, 5_000, b'{"type":"cancelled"}') == (
        row.state,
        row.relay_ms,
        row.ended_ms,
        row.outcome,
    )
    [again] = await rows.cancel(A)
    assert (JobState.cancelled, None) == again  # told, and nothing changed
    assert row == await rows.get()


async def test_a_cancel_whose_answer_was_lost_is_told_to_redis_all_the_same(rows):
    await rows.accept(wanted())
    [first] = await rows.cancel(A, request=b"abcdef")
    [again] = await rows.cancel(A, request=b"abcdef")
    assert first == again


async def test_rescheduling_makes_a_new_revision_that_is_relayed_at_once(rows):
    """
    Redis may have the old one, marked or not yet, and would run it.
    """
    [made] = await rows.accept(wanted(due_ms=9_000))
    moved = await rows.reschedule(Order(A, b"", delay_ms=1_000), now=LATER)
    assert ("rescheduled", 6_000) == (moved.answer.word, moved.answer.due_ms)
    row = await rows.get()
    assert row.revision == moved.answer.revision > made.answer.revision
    assert (6_000, 6_000 - AT_ONCE_MS, b"1") == (row.due_ms, row.relay_ms, row.payload)


async def test_what_waits_beyond_the_horizon_is_relayed_when_its_new_time_is_near(rows):
    await rows.accept(wanted(due_ms=9_000))
    await rows.reschedule(Order(A, b"", due_ms=8_500), now=Moment(5_000, 5_000, far_ms=8_000))
    row = await rows.get()
    assert (8_500, 8_500) == (row.due_ms, row.relay_ms)


async def test_rescheduling_minds_revision_and_state(rows):
    [made] = await rows.accept(wanted())
    later = Order(A, b"", due_ms=7_000)
    assert isinstance((await rows.reschedule(later, revision=made.answer.revision + 1)).answer, Conflict)
    moved = await rows.reschedule(later, revision=made.answer.revision)
    assert "rescheduled" == moved.answer.word
    await rows.cancel(A)
    assert isinstance((await rows.reschedule(later)).answer, Conflict)
    assert isinstance((await rows.reschedule(Order(B, b"", due_ms=7_000))).answer, JobNotFound)


async def test_requeueing_runs_what_has_ended_with_its_counters_at_0(rows):
    await rows.accept(wanted(expires_ms=1_200), wanted(B))
    await rows.cancel(A)
    back, open_, missing = await rows.requeue(A, B, JobKey("mail", "c"), now=LATER)
    assert ("requeued", JobState.ready, 5_000) == (back.answer.word, back.answer.state, back.answer.due_ms)
    row = await rows.get()
    assert (JobState.scheduled, 5_000, 0, None) == (row.state, row.relay_ms, row.expires_ms, row.ended_ms)
    assert (Conflict, JobNotFound) == (type(open_.answer), type(missing.answer))


async def test_what_redis_knows_earlier_than_the_row_counts(rows):
    [made] = await rows.accept(wanted())
    revision, later = made.answer.revision, Order(A, b"", due_ms=7_000)
    running = {A: Seen(revision, JobState.running)}
    assert isinstance((await rows.reschedule(later, seen=running)).answer, Conflict)
    succeeded = {A: Seen(revision, JobState.succeeded)}
    assert isinstance((await rows.reschedule(later, seen=succeeded)).answer, Conflict)
    # The outcome is on its way to the row, which a cancel must not write over.
    assert [(JobState.succeeded, None)] == await rows.cancel(A, seen=succeeded)
    [back] = await rows.requeue(A, seen=succeeded)
    assert "requeued" == back.answer.word
    # What Redis says of an earlier revision says nothing of this one.
    [ended] = await rows.cancel(A, seen=succeeded)
    assert JobState.cancelled is ended.state


async def test_revisions_of_a_job_grow_also_within_a_microsecond(rows):
    [made] = await rows.accept(wanted())
    moved = [await rows.reschedule(Order(A, b"", due_ms=due_ms)) for due_ms in (2_000, 3_000)]
    [ended] = await rows.cancel(A)
    revisions = [written.row.revision for written in (made, *moved, ended)]
    assert [1_000_000, 1_000_001, 1_000_002, 1_000_003] == revisions


@pytest.mark.parametrize(
    "migrated_url", ["postgresql"], indirect=True
)  # others keep what an insert met locked
async def test_a_row_that_retention_takes_away_meanwhile_is_new(rows, migrated_url, monkeypatch):
    await rows.accept(wanted(A), wanted(B))
    engine = sync_engine(migrated_url)

    def taken_away(connection, *words, **options):
        with engine.begin() as other:
            other.execute(delete(jobs).where(jobs.c.id == "a"))
        monkeypatch.undo()
        return find(connection, *words, **options)

    monkeypatch.setattr("duly.record.stored.find", taken_away)
    answers = await rows.accept(wanted(A, b"2"), wanted(B, b"2"), now=LATER)
    engine.dispose()
    assert ["created", "kept"] == [each.answer.word for each in answers]
    assert b"2" == (await rows.get(A)).payload
    assert answers[0].row == await rows.get(A)
