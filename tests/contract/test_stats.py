"""
Stats: the queue at a glance.
"""

from __future__ import annotations

from duly import JobState
from tests.contract.handlers import add, fail, hold
from tests.contract.kit import SOON_S, new, reaches, stats_of
from tests.eventually import eventually


async def test_jobs_are_counted_by_topic_and_state(queue):
    await queue.enqueue_many([new("mail", n, delay=60) for n in range(7)])
    await queue.enqueue_many([new("mail", n) for n in range(5)])
    await queue.enqueue("sms")
    mail, sms = await stats_of(queue, "mail"), await stats_of(queue, "sms")
    none = dict.fromkeys(("running", "succeeded", "dead", "cancelled"), 0)
    assert {"scheduled": 7, "ready": 5, **none} == mail.counts
    assert (1, 0) == (sms.counts["ready"], sms.counts["scheduled"])
    assert [False, None, None] == [mail.paused, mail.limit, mail.callback]


async def test_running_and_ended_jobs_are_counted(queue, working, flag):
    async with working():
        running = await queue.enqueue(hold.job(str(flag)))
        good, bad = await queue.enqueue(add.job(1)), await queue.enqueue(fail.job())
        gone = await queue.enqueue(add.job(1), delay=60)
        await gone.cancel()
        await good.result(timeout=SOON_S)
        await reaches(bad, JobState.dead)
        await reaches(running, JobState.running)
        counts = {topic: (await stats_of(queue, topic)).counts for topic in ("hold", "add", "fail")}
        flag.touch()
        await running.result(timeout=SOON_S)
    assert (1, 1, 1) == (counts["hold"]["running"], counts["add"]["succeeded"], counts["fail"]["dead"])
    assert 1 == counts["add"]["cancelled"]


async def test_workers_are_listed_while_they_live(queue, working):
    await queue.enqueue(add.job(1), id="a")
    async with working():
        await queue.job("add", "a").result(timeout=SOON_S)

        async def live():
            stats = await (await queue.views()).stats()
            assert [True] == [worker["live"] for worker in stats.workers]
            assert 1 == next(each for each in stats.topics if each.topic == "add").workers

        await eventually(live, SOON_S)


async def test_a_topic_is_shown_as_paused(queue):
    await queue.enqueue("mail", delay=60)
    for verb, paused in (("pause", True), ("pause", True), ("resume", False), ("resume", False)):
        await getattr(queue, verb)("mail")
        assert paused is (await stats_of(queue, "mail")).paused


async def test_a_limit_is_shown_as_it_was_set(queue):
    for limit in (1, 7, 1_000_000):
        await queue.limit("mail", limit)
        assert limit == (await stats_of(queue, "mail")).limit
    await queue.enqueue("mail", delay=60)
    await queue.limit("mail", None)
    assert (await stats_of(queue, "mail")).limit is None


async def test_the_next_due_time_is_known(queue):
    views = await queue.views()
    assert (await views.stats()).next_due_ms is None
    later = await queue.enqueue("mail", delay=900)
    sooner = await queue.enqueue("sms", delay=600)
    assert later.placed.due_ms > sooner.placed.due_ms == (await views.stats()).next_due_ms


async def test_an_empty_queue_has_no_topics(queue):
    stats = await (await queue.views()).stats()
    assert ([], 0, 0) == (stats.topics, stats.overdue_ms, stats.quarantined)
