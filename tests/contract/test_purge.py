"""
Purge: cancel every job of a topic that waits.
"""

from __future__ import annotations

import re

import pytest

from duly import JobState, UsageError
from tests.contract.handlers import add, hold
from tests.contract.kit import FAR, SOON_S, WRONG_CURSORS, listed, new, reaches


async def test_all_that_wait_are_cancelled_and_counted(queue):
    sent = await queue.enqueue_many(
        [
            *(new("mail", n, id=f"now-{n}") for n in range(30)),
            *(new("mail", n, id=f"later-{n}", delay=60) for n in range(30)),
            *(new("mail", n, id=f"far-{n}", due_at=FAR) for n in range(10)),
        ]
    )
    assert 70 == await queue.purge("mail")
    views = await queue.views()
    assert [] == await listed(views.each(JobState.scheduled, "mail"))
    assert [] == await listed(views.each(JobState.ready, "mail"))
    found = await views.get_many([each.key for each in sent])
    assert [JobState.cancelled] * 70 == [job.state for job in found]


async def test_more_than_a_page_of_them_is_cancelled(queue):
    await queue.enqueue_many([new("mail", n, delay=60) for n in range(1200)])
    assert 1200 == await queue.purge("mail")
    assert 0 == await queue.purge("mail")


async def test_other_topics_and_what_runs_or_has_ended_stay_as_they_are(queue, working, flag):
    done, running = await queue.enqueue(add.job(1)), await queue.enqueue(hold.job(str(flag)))
    other = await queue.enqueue("other", delay=60)
    async with working():
        await done.result(timeout=SOON_S)
        await reaches(running, JobState.running)
        await queue.enqueue("hold", {"until": str(flag)}, delay=60)
        assert (0, 1) == (await queue.purge("add"), await queue.purge("hold"))
        flag.touch()
        assert "held" == await running.result(timeout=SOON_S)
    assert (JobState.succeeded, JobState.scheduled) == ((await done.get()).state, (await other.get()).state)


async def test_a_topic_without_jobs_has_none_to_cancel(queue):
    assert 0 == await queue.purge("mail")
    with pytest.raises(UsageError):
        await queue.purge("no topic")


async def test_a_state_in_which_no_job_waits_is_refused(queue):
    # To Python 0 and True are equal to states.
    for state in (0, True, "running", JobState.running, JobState.dead, [], b"ready"):
        for call in (queue.purge("mail", state=state), queue.purge_some("mail", state)):
            with pytest.raises(UsageError, match="must be one of scheduled, ready: it purges what waits"):
                await call


async def test_the_state_may_be_given_by_its_name(queue):
    await queue.enqueue("mail", delay=60)
    assert (0, 1) == (await queue.purge("mail", state="ready"), await queue.purge("mail", state="scheduled"))


async def test_a_cursor_that_no_call_gave_is_refused(queue):
    for cursor in WRONG_CURSORS:
        with pytest.raises(UsageError, match=f"^{re.escape(repr(cursor))} is not a cursor of this list"):
            await queue.purge_some("mail", JobState.scheduled, cursor)
