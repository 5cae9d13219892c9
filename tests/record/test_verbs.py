"""
Verbs answer with a record as without one: of jobs that are there already, that ended or wait far ahead.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duly import JobExists, JobState
from tests.eventually import eventually
from tests.record.working import working

FAR = (datetime.now(UTC) + timedelta(days=30)).replace(microsecond=0)


async def test_a_job_that_is_there_already_is_told_as_it_stands(app):
    async with working(app):
        await app.enqueue("mail", id="a")
        await eventually(lambda: len(app.running) == 1)
        assert JobState.running is (await app.enqueue("mail", id="a")).placed.state
        [again] = await app.enqueue_many([app.handlers.get("mail").job().options(id="a")])
        assert ("kept", JobState.running) == (again.placed.word, again.placed.state)
        with pytest.raises(JobExists, match="mail/a exists already, running"):
            await app.enqueue("mail", id="a", on_conflict="raise")
        app.goes_on.set()


@pytest.mark.parametrize(("verb", "reason"), [("cancel", "cancelled"), ("purge", "purged")])
async def test_a_job_that_ended_beyond_the_horizon_is_still_known_in_full(app, verb, reason):
    sent = await app.enqueue(
        "mail", {"to": "ann"}, id="a", due_at=FAR, priority="high", context={"tenant": "acme"}, ttr=9
    )
    await (sent.cancel() if verb == "cancel" else app.purge("mail"))
    views = await app.views()
    for job in (await sent.get(), *[job async for job in views.each(JobState.cancelled)]):
        assert (JobState.cancelled, b'{"to":"ann"}', "high", 9_000, {"tenant": "acme"}) == (
            *(job.state, job.payload, job.priority, job.ttr_ms, job.envelope.context),
        )
        assert b'{"type":"%s"}' % reason.encode() == job.outcome.replace(b" ", b"")
        assert FAR == job.due_at


async def test_what_waits_beyond_the_horizon_is_counted(app):
    for id_ in "ab":
        await app.enqueue("mail", id=id_, due_at=FAR + timedelta(seconds=ord(id_)))
    await app.enqueue("sms", id="near", delay=30)
    await app.enqueue("sms", id="far", due_at=FAR)
    await (await app.enqueue("mail", id="ended", due_at=FAR)).cancel()
    views = await app.views()
    stats = await views.stats()
    assert {"mail": 2, "sms": 2} == {about.topic: about.counts["scheduled"] for about in stats.topics}
    near = await app.job("sms", "near").get()
    assert near.due_ms == stats.next_due_ms
    await app.job("sms", "near").cancel()
    far_ms = (await app.job("sms", "far").get()).due_ms
    assert far_ms == (await views.stats()).next_due_ms
    assert [0, 2, 1] == await views.due_counts([0, far_ms, far_ms + 98_000, far_ms + 99_000])
    assert [0] == await views.due_counts([0, near.due_ms + 1])
