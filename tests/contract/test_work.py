"""
Work: jobs are claimed when they are due, and run by their handlers.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import JobState
from tests.callbacks.receivers import answering, receiving
from tests.contract.faces import MARIADB, OVER_HTTP, TWIN
from tests.contract.handlers import add, block, hold, tell
from tests.contract.kit import SOON_S, reaches, refusal
from tests.eventually import eventually

not_blocking = pytest.mark.unsupported(
    TWIN, MARIADB, reason="it is asynchronous: run `duly work`, or `asyncio.run(app.work())`"
)
not_served = pytest.mark.unsupported(
    *OVER_HTTP, reason="it needs the queue's own server; workers of any language use the service's own calls"
)


async def test_a_job_runs_when_it_is_due_and_not_before(queue, working):
    async with working():
        sent = await queue.enqueue(tell.job(), delay=0.3)
        told = await sent.result(timeout=SOON_S)
        job = await sent.get()
    assert told["due_ms"] == sent.placed.due_ms
    assert job.due_ms <= job.started_ms


async def test_what_was_sent_before_the_worker_came_is_run(queue, working):
    sent = [await queue.enqueue(add.job(number), delay=0.05 * (number % 2)) for number in range(6)]
    async with working():
        assert list(range(6)) == [await each.result(timeout=SOON_S) for each in sent]


async def test_each_job_runs_once(queue, working):
    sent = await queue.enqueue_many([add.job(number) for number in range(80)])
    async with working():
        await asyncio.gather(*(each.result(timeout=SOON_S) for each in sent))
    found = await (await queue.views()).get_many([each.key for each in sent])
    assert [(JobState.succeeded, 1)] * 80 == [(job.state, job.attempts) for job in found]


async def test_a_handler_that_blocks_runs_in_a_thread(queue, working):
    async with working():
        assert "ADA" == await (await queue.enqueue(block.job("ada"))).result(timeout=SOON_S)


async def test_the_context_travels_with_the_job(queue, working):
    sent = await queue.enqueue(tell.job(), context={"tenant": "acme"})
    async with working():
        assert {"tenant": "acme"} == (await sent.result(timeout=SOON_S))["context"]


@not_blocking
@not_served
@pytest.mark.parametrize(
    "wrong", [{"concurrency": "x"}, {"concurrency": 0}, {"stop": True}, {"topics": "add"}], ids=repr
)
async def test_work_that_makes_no_sense_is_refused_in_a_sentence(queue, wrong):
    sentence = await refusal(queue.work(**wrong))
    assert next(iter(wrong)) in sentence


async def test_a_topic_without_a_handler_waits(queue, working):
    nobody = await queue.enqueue("nobody.takes")
    async with working():
        await (await queue.enqueue(add.job(1))).result(timeout=SOON_S)
        assert JobState.ready is (await nobody.get()).state


async def test_jobs_run_beside_each_other(queue, working, flag):
    sent = [await queue.enqueue(hold.job(str(flag))) for _ in range(5)]
    async with working():
        for each in sent:
            await reaches(each, JobState.running)
        flag.touch()
        assert ["held"] * 5 == [await each.result(timeout=SOON_S) for each in sent]


async def test_a_job_that_its_worker_gave_back_runs_with_the_next(queue, working, flag):
    sent = await queue.enqueue(hold.job(str(flag)))
    async with working():
        await reaches(sent, JobState.running)
    # Drained: it was not done in time.
    assert JobState.ready is (await sent.get()).state
    flag.touch()
    async with working():
        assert "held" == await sent.result(timeout=SOON_S)
    assert 1 == (await sent.get()).attempts


@not_blocking
@not_served
async def test_an_app_runs_its_own_jobs(queue):
    sent = await queue.enqueue(add.job(1))
    await until_ended(queue.work, sent)
    assert 1 == await sent.result(timeout=SOON_S)


@not_blocking
@not_served
async def test_an_app_delivers_its_own_callbacks(queue):
    async with receiving(answering()) as receiver:
        sent = await queue.enqueue("mail", callback=receiver.url())
        await until_ended(queue.deliver, sent)
    assert JobState.succeeded is (await sent.get()).state


async def until_ended(run, sent):
    """
    Run a worker of the app's own until a job has ended.
    """
    stop = asyncio.Event()
    working = asyncio.create_task(run(stop=stop))

    async def over():
        return working.done() or (await sent.get()).state.ended

    await eventually(over, SOON_S)
    stop.set()
    await working
