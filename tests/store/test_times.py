"""
When a job was accepted, due first and changed last: by its revision, and by parts where that is another.
"""

from __future__ import annotations

import pytest

from duly.job import JobState
from tests.store.kit import claim, enqueue, key

NOW = 1_000_000  #: where the clock begins


@pytest.fixture
def times(views):
    """
    When a job was accepted, due first and changed last, counted from the beginning.
    """

    async def times(id_="a"):
        job = await views.get(key(id_))
        assert job is not None
        assert job.due_ms >= job.scheduled_ms
        return job.created_ms - NOW, job.scheduled_ms - NOW, job.updated_ms - NOW

    return times


async def test_a_job_has_the_times_of_its_sender_through_its_life(store, clock, times):
    assert NOW == clock.now_ms
    await enqueue(store, "a", delay_ms=50)
    assert (0, 50, 0) == await times()
    clock.advance(ms=60)
    await store.promote(0)
    assert (0, 50, 60) == await times()
    clock.advance(ms=10)
    [lease] = await claim(store)
    assert (0, 50, 70) == await times()
    clock.advance(ms=10)
    await store.progress(lease, b"1")
    assert (0, 50, 70) == await times(), "progress is no change"
    await store.retry(lease, 100, b"{}", "Boom")
    assert (0, 50, 80) == await times()
    clock.advance(ms=100)
    [lease] = await claim(store)
    clock.advance(ms=5)
    await store.retry(lease, 100, counted=False)
    assert (0, 50, 185) == await times(), "a snooze leaves it, too"
    clock.advance(ms=100)
    [lease] = await claim(store)
    clock.advance(ms=5)
    await store.release(lease)
    assert (0, 50, 290) == await times()
    await claim(store)
    clock.advance(s=40)
    await store.recover(0)
    assert (0, 50, 40_290) == await times()
    [lease] = await claim(store)
    clock.advance(ms=1)
    await store.bury(lease, b"{}")
    assert (0, 50, 40_291) == await times()


@pytest.mark.parametrize("options", [{}, {"ttr_ms": 5_000, "envelope": b'{"max_attempts":7}'}])
async def test_a_revision_keeps_when_the_id_was_accepted(store, clock, times, views, options):
    await enqueue(store, "a", delay_ms=50, **options)
    clock.advance(ms=10)
    await store.reschedule(key("a"), delay_ms=100)
    assert (0, 110, 10) == await times()
    clock.advance(ms=10)
    await enqueue(store, "a", delay_ms=30, on_conflict="replace", **options)
    assert (0, 50, 20) == await times()
    clock.advance(ms=30)
    [lease] = await claim(store)
    await store.retry(lease, 0)
    [lease] = await claim(store)
    await store.ack(lease)
    clock.advance(ms=50)
    await store.requeue([key("a")])
    assert (0, 100, 100) == await times(), "it is due anew"
    job = await views.get(key("a"))
    assert (options.get("ttr_ms", 0), 7 if options else None) == (job.ttr_ms, job.envelope.max_attempts)


async def test_what_replaces_a_rescheduled_job_with_the_same_changes_nothing(store, clock):
    await enqueue(store, "a", due_ms=NOW + 50)
    rescheduled = await store.reschedule(key("a"), due_ms=NOW + 100)
    placed = await enqueue(store, "a", due_ms=NOW + 100, on_conflict="replace")
    assert ("kept", rescheduled.revision) == (placed.word, placed.revision)


async def test_a_job_that_was_sent_and_is_due_says_no_more_than_its_answer_could(store, clock, views):
    for number in range(600):  # more than a millisecond has numbers for
        placed = await enqueue(store, str(number))
    job = await views.get(placed.key)
    assert JobState.ready is job.state
    assert placed.revision // 1_000 == job.created_ms == job.updated_ms
