"""
List: the jobs of a topic in one state, page by page.
"""

from __future__ import annotations

import re

import pytest

from duly import JobState, UsageError
from tests.contract.handlers import add, fail
from tests.contract.kit import FAR, SOON_S, WRONG_CURSORS, listed, new, reaches


async def test_every_scheduled_job_is_listed_once(queue):
    await queue.enqueue_many([new("mail", n, id=str(n), delay=600 + n) for n in range(20)])
    await queue.enqueue_many([new("mail", n, id=f"far-{n}", due_at=FAR) for n in range(5)])
    await queue.enqueue("other", id="x", delay=60)
    await queue.enqueue("mail", id="now")
    found = await listed((await queue.views()).each(JobState.scheduled, "mail"))
    assert sorted([*map(str, range(20)), *(f"far-{n}" for n in range(5))]) == sorted(job.id for job in found)


async def test_pages_go_on_where_the_last_one_ended(queue):
    await queue.enqueue_many([new("mail", n, id=str(n), delay=600 + n) for n in range(11)])
    views = await queue.views()
    seen, cursor = [], None
    for _ in range(30):
        page = await views.page(JobState.scheduled, "mail", cursor=cursor, limit=3)
        assert len(page.jobs) <= 3
        seen += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    assert None is cursor
    assert sorted(map(str, range(11))) == sorted(seen)


async def test_a_cursor_that_no_page_gave_is_refused(queue):
    views = await queue.views()
    await queue.enqueue("mail")
    for state in JobState:
        for cursor in WRONG_CURSORS:
            with pytest.raises(UsageError, match=f"^{re.escape(repr(cursor))} is not a cursor of this list"):
                await views.page(state, "mail", cursor=cursor)


@pytest.mark.parametrize(
    "wrong",
    [{"state": "waiting"}, {"state": None}, {"topic": "a b"}, {"topic": 1}, {"limit": "5"}, {"limit": None}],
    ids=repr,
)
async def test_what_cannot_be_listed_is_refused_in_a_sentence(queue, wrong):
    views = await queue.views()
    asked = {"state": JobState.scheduled, "topic": "mail", "limit": 10} | wrong
    with pytest.raises(UsageError, match=next(iter(wrong))):
        await views.page(asked["state"], asked["topic"], limit=asked["limit"])


async def test_a_state_may_be_given_by_its_name(queue):
    await queue.enqueue("mail", id="a", delay=600)
    found = await listed((await queue.views()).each("scheduled", "mail"))
    assert ["a"] == [job.id for job in found]


async def test_ready_jobs_are_peeked_at_without_being_claimed(queue):
    await queue.enqueue_many([new("mail", n, id=str(n)) for n in range(6)])
    await queue.enqueue("mail", id="later", delay=60)
    views = await queue.views()
    assert sorted("012345") == sorted(job.id for job in await views.peek("mail"))
    assert 2 == len(await views.peek("mail", 2))
    assert sorted("012345") == sorted(job.id for job in await listed(views.each(JobState.ready, "mail")))


async def test_what_cannot_be_peeked_at_is_refused(queue):
    views = await queue.views()
    for limit in ("x", None, 1.5, True, []):
        with pytest.raises(UsageError, match=r"limit=.* must be a whole number"):
            await views.peek("mail", limit)
    for topic in ("x y", "", 0, None, []):
        with pytest.raises(UsageError, match="invalid topic"):
            await views.peek(topic, 0)


async def test_ended_jobs_are_listed_by_how_they_ended(queue, working):
    async with working():
        good = await queue.enqueue(add.job(1), id="good")
        bad = await queue.enqueue(fail.job(), id="bad")
        gone = await queue.enqueue(add.job(1), id="gone", delay=60)
        await gone.cancel()
        await good.result(timeout=SOON_S)
        await reaches(bad, JobState.dead)
    views = await queue.views()
    assert ["good"] == [job.id for job in await listed(views.each(JobState.succeeded, "add"))]
    assert ["gone"] == [job.id for job in await listed(views.each(JobState.cancelled, "add"))]
    assert ["bad"] == [job.id for job in await listed(views.each(JobState.dead, "fail"))]
    assert [] == await listed(views.each(JobState.running, "add"))


async def test_jobs_of_all_topics_are_listed_together(queue):
    for topic in ("mail", "sms"):
        await queue.enqueue(topic, id="a", delay=60)
    found = await listed((await queue.views()).each(JobState.scheduled))
    assert ["mail", "sms"] == sorted(job.topic for job in found)


async def test_every_topic_that_has_jobs_is_named(queue):
    for topic in ("mail", "sms", "a.b-c_d"):
        await queue.enqueue(topic, delay=60)
    assert ["a.b-c_d", "mail", "sms"] == sorted(await (await queue.views()).topics())
