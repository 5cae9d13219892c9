"""
Callbacks: jobs that are delivered to a URL instead of run by a worker.
"""

from __future__ import annotations

import json

import pytest

from duly import JobState, UsageError
from tests.callbacks.receivers import answering, receiving
from tests.contract.handlers import add, tell
from tests.contract.kit import SOON_S, reaches, stats_of

URL = "https://example.com/hook"


async def test_a_topic_shows_where_its_jobs_go(queue):
    await queue.callback("mail", URL)
    assert URL == (await stats_of(queue, "mail")).callback
    await queue.enqueue("mail", delay=60)
    await queue.callback("mail", None)
    assert (await stats_of(queue, "mail")).callback is None


async def test_jobs_of_a_topic_are_delivered(queue, delivering):
    async with receiving(answering(body=b'{"sent":true}', content_type="application/json")) as receiver:
        await queue.callback("mail", receiver.url())
        sent = [await queue.enqueue("mail", {"number": number}, id=str(number)) for number in range(4)]
        async with delivering():
            assert [{"sent": True}] * 4 == [await each.result(timeout=SOON_S) for each in sent]
    told = [json.loads(request.body) for request in receiver.requests]
    assert [f"mail/{number}" for number in range(4)] == sorted(each["subject"] for each in told)
    assert [{"number": number} for number in range(4)] == sorted(
        (each["data"] for each in told), key=lambda data: data["number"]
    )


async def test_a_job_may_name_its_own_url(queue, delivering):
    async with receiving(answering()) as receiver:
        sent = await queue.enqueue("mail", {"to": "ada"}, callback=receiver.url())
        async with delivering():
            await reaches(sent, JobState.succeeded)
    assert [{"to": "ada"}] == [json.loads(request.body)["data"] for request in receiver.requests]


async def test_a_worker_leaves_the_jobs_of_such_a_topic_alone(queue, working):
    await queue.callback("add", URL)
    sent = [await queue.enqueue(add.job(number)) for number in range(4)]
    async with working():
        for _ in range(4):
            await (await queue.enqueue(tell.job())).result(timeout=SOON_S)
        assert [JobState.ready] * 4 == [(await each.get()).state for each in sent]
        await queue.callback("add", None)
        assert list(range(4)) == [await each.result(timeout=SOON_S) for each in sent]


async def test_a_url_that_callbacks_may_not_have_is_refused(queue):
    for wrong in ("ftp://example.com", "example.com", "https://", ""):
        with pytest.raises(UsageError):
            await queue.callback("mail", wrong)
    with pytest.raises(UsageError):
        await queue.callback("no topic", URL)
