"""
Views: the other questions that are asked of a queue.
"""

from __future__ import annotations

import time

import pytest

from duly import UsageError
from tests.contract.awaited import in_thread
from tests.contract.faces import OVER_HTTP
from tests.contract.kit import new

not_served = pytest.mark.unsupported(
    *OVER_HTTP, reason="`duly top` and the metrics ask this, where the queue's own server can be reached"
)


async def test_the_servers_time_is_told(queue):
    now_ms = await (await queue.views()).now_ms()
    assert abs(time.time() * 1000 - now_ms) < 60_000


@not_served
async def test_jobs_are_counted_by_when_they_are_due(queue):
    views = await queue.views()
    await queue.enqueue_many([new("mail", n, delay=600) for n in range(5)])
    await queue.enqueue_many([new("sms", n, delay=1800) for n in range(4)])
    now_ms = await views.now_ms()
    bounds = [now_ms + minutes * 60_000 for minutes in (5, 15, 25, 35)]
    assert [5, 0, 4] == (await views.due_counts(bounds))[:3]


@not_served
async def test_the_oldest_ready_job_is_known(queue):
    views = await queue.views()
    assert await views.waiting_since("mail") is None
    first = await queue.enqueue("mail")
    await queue.enqueue("mail")
    assert first.placed.due_ms == await views.waiting_since("mail")


async def test_a_question_that_cannot_be_asked_is_refused_in_a_sentence(queue):
    views = await queue.views()
    for bounds in ([], None, "", "12", [5], [1, "2"], [1, 1], [2, 1], [False, True], [0, 10**30], {1, 2}, 7):
        with pytest.raises(UsageError, match=r"^bounds=.* must be two or more times in whole milliseconds"):
            await views.due_counts(bounds)
    for topic in ([], "x y", "", 0, None):
        with pytest.raises(UsageError, match=r"^invalid topic"):
            await views.waiting_since(topic)
    for key in ("mail/a", None, 5, ("mail", "a")):
        with pytest.raises(UsageError, match="names no job"):
            await in_thread(views.shard_of, key)


@not_served
async def test_a_job_is_on_one_of_the_shards(queue):
    sent, views = await queue.enqueue("mail"), await queue.views()
    assert await in_thread(views.shard_of, sent.key) in range(len(await views.newest()))


@not_served
async def test_replies_that_were_dropped_are_counted(queue, beside):
    views, store = await queue.views(), await beside.store()
    assert 0 == await views.replies_dropped()
    for keys in store.keys:
        await store.link.call("HINCRBY", keys.fixed["meta"], "replies_dropped", 3)
    assert 3 * store.shards == await views.replies_dropped()


async def test_what_is_no_job_and_no_time_is_refused_in_a_sentence(queue):
    views = await queue.views()
    newest = await views.newest()
    with pytest.raises(UsageError, match="a job is needed"):
        await in_thread(views.changed, None, newest)
    with pytest.raises(UsageError, match="must be milliseconds"):
        await views.workers("x")
