"""
Transactions: a job is promised by the commit of its sender, together with whatever else that commits.
"""

from __future__ import annotations

import pytest

from duly import JobNotFound, JobState
from tests.contract.faces import OVER_HTTP, PLAIN, SHARDED, TWIN
from tests.contract.handlers import add
from tests.contract.kit import FAR, SOON_S, new
from tests.eventually import eventually

needs_record = pytest.mark.unsupported(
    PLAIN, TWIN, SHARDED, reason="a transaction needs a record: `Duly(url, record=…)`"
)
needs_server = pytest.mark.unsupported(
    *OVER_HTTP, reason="a service has no part in its client's transactions"
)


@needs_record
@needs_server
async def test_a_commit_is_a_promise(queue, working, transaction):
    async with transaction() as session:
        one = await queue.enqueue(add.job(1), session=session)
        [many] = await queue.enqueue_many([add.job(2)], session=session)
        await session.commit()
    async with working():
        assert (1, 2) == (await one.result(timeout=SOON_S), await many.result(timeout=SOON_S))


@needs_record
@needs_server
async def test_a_rollback_leaves_nothing(queue, transaction):
    async with transaction() as session:
        sent = await queue.enqueue("mail", id="a", delay=60, session=session)
        await session.rollback()
    with pytest.raises(JobNotFound):
        await sent.get()


@needs_record
@needs_server
async def test_before_the_commit_a_job_is_said_to_be_uncommitted(queue, transaction):
    async with transaction() as session:
        one = await queue.enqueue("mail", delay=60, session=session)
        [many] = await queue.enqueue_many([new("mail", delay=60)], session=session)
        for sent in (one, many):
            for ask in (sent.get, sent.result):
                with pytest.raises(JobNotFound, match=r"session .* has not committed it yet"):
                    await ask()
        kept = await queue.enqueue("mail", id=one.id, session=session)
        assert not kept.placed.in_session
        await session.commit()
    assert JobState.scheduled is (await one.get()).state


@needs_record
@needs_server
async def test_jobs_are_moved_and_ended_by_a_commit(queue, working, transaction):
    sent = await queue.enqueue_many([new("mail", id=name, delay=60) for name in "abc"])
    await sent[2].cancel()
    for ending in ("rollback", "commit"):
        async with transaction() as session:
            await sent[0].reschedule(due_at=FAR, session=session)
            await sent[1].cancel(session=session)
            await sent[2].requeue(session=session)
            await getattr(session, ending)()
        if ending == "rollback":
            found = await (await queue.views()).get_many([each.key for each in sent])
            assert ["scheduled", "scheduled", "cancelled"] == [job.state.name for job in found]

    async def told():
        found = await (await queue.views()).get_many([each.key for each in sent])
        assert [FAR, JobState.cancelled, JobState.ready] == [found[0].due_at, found[1].state, found[2].state]

    # Somebody has to take it from the rows to the server: every worker does.
    async with working():
        await eventually(told, SOON_S)
