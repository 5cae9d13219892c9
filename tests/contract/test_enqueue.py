"""
Enqueue: promise one job, in every form.
"""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta

import pytest

from duly import JobNotFound, JobState, NewJob, UsageError
from tests.contract.handlers import Parcel, add, weigh
from tests.contract.kit import FAR, nested, new


async def test_a_job_by_name_is_ready_at_once(queue):
    sent = await queue.enqueue("mail", {"to": "ada"}, id="a")
    assert ("mail", "a", True) == (sent.topic, sent.id, sent.created)
    assert ("created", JobState.ready) == (sent.placed.word, sent.placed.state)
    job = await sent.get()
    assert (JobState.ready, {"to": "ada"}, 0) == (job.state, json.loads(job.payload), job.attempts)


async def test_a_job_of_a_handler_carries_its_arguments(queue):
    sent = await queue.enqueue(add.job(2, right=3), id="a")
    parcel = await queue.enqueue(weigh.job(Parcel("book", 700)))
    assert {"left": 2, "right": 3} == json.loads((await sent.get()).payload)
    assert {"parcel": {"name": "book", "grams": 700}} == json.loads((await parcel.get()).payload)


async def test_a_context_of_500_levels_arrives_and_one_of_more_is_refused(queue):
    sent = await queue.enqueue("mail", context={"a": nested(499)})
    assert {"a": nested(499)} == (await sent.get()).envelope.context
    with pytest.raises(UsageError, match="context is nested 501 levels deep, the limit is 500"):
        await queue.enqueue("mail", context={"a": nested(500)})


async def test_each_job_without_an_id_gets_its_own(queue):
    sent = [await queue.enqueue("mail", number, delay=60) for number in range(5)]
    assert 5 == len({each.id for each in sent})
    assert [True] * 5 == [each.created for each in sent]


async def test_a_delay_counts_from_the_servers_now(queue):
    views = await queue.views()
    before = await views.now_ms()
    sent = await queue.enqueue("mail", delay=timedelta(days=400, milliseconds=1))
    after = await views.now_ms()
    job = await sent.get()
    assert (JobState.scheduled, JobState.scheduled) == (sent.placed.state, job.state)
    assert job.due_at == sent.due_at
    # A service tells its time in whole seconds, by a line that it writes anew once a second.
    assert before - 1_000 <= job.due_ms - 400 * 86_400_000 - 1 <= after + 2_000


async def test_a_due_time_is_kept_to_the_millisecond(queue):
    for number, due in enumerate((FAR, datetime(2060, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC))):
        sent = await queue.enqueue("mail", id=str(number), due_at=due)
        assert (due, due) == (sent.due_at, (await sent.get()).due_at)


async def test_what_was_due_in_the_past_is_due_now(queue):
    sent = await queue.enqueue("mail", due_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert JobState.ready is sent.placed.state
    assert (await sent.get()).due_at > datetime(2020, 1, 1, tzinfo=UTC)


async def test_every_option_arrives(queue):
    sent = await queue.enqueue(
        "mail",
        id="a:b@c=d+e~f.g-h_i",
        due_at=FAR,
        expires=FAR + timedelta(days=1),
        priority="high",
        ttr=timedelta(milliseconds=1234),
        max_attempts=7,
        context={"tenant": "ä"},
        reply_to="answers",
    )
    job = await sent.get()
    assert ("a:b@c=d+e~f.g-h_i", FAR, "high", 1234) == (job.id, job.due_at, job.priority, job.ttr_ms)
    assert int((FAR + timedelta(days=1)).timestamp()) * 1000 + 999 == job.expires_ms
    assert (7, {"tenant": "ä"}, "answers") == (
        job.envelope.max_attempts,
        job.envelope.context,
        job.envelope.reply_to,
    )


PAYLOADS = [None, True, 0, -1.5, "ä\n\u2028\U0001f600", [], {}, [1, {"": [None]}], 2**53, "x" * 100_000]


async def test_a_payload_arrives_as_it_was_sent(queue):
    for payload in PAYLOADS:
        sent = await queue.enqueue("mail", payload, delay=60)
        assert payload == json.loads((await sent.get()).payload)


WRONG = [
    {"delay": -1},
    {"delay": 1, "due_at": FAR},
    {"due_at": FAR.replace(tzinfo=None)},
    {"id": "a/b"},
    {"id": ""},
    {"priority": "urgent"},
    {"on_conflict": "ignore"},
    {"max_attempts": 0},
    {"ttr": 0},
    {"context": {"x": "y" * 9_000}},
    {"context": nested(5_000)},
    {"id": nested(5_000)},
    {"retain": nested(5_000)},
    {"callback": "ftp://example.com"},
    {"callback": "https://10.1.2.3/hook"},
    {"reply_to": "no name"},
    {"dellay": 5},
]


async def test_wrong_options_are_refused_and_nothing_is_sent(queue):
    for options in WRONG:
        with pytest.raises(UsageError):
            await queue.enqueue("mail", **options)
    for topic, payload in (("no topic", None), ("mail", object()), ("mail", "x" * 300_000)):
        with pytest.raises(UsageError):
            await queue.enqueue(topic, payload)
    assert [] == await (await queue.views()).topics()


async def test_a_hand_made_job_is_checked_like_any_other(queue):
    for wrong in (NewJob("mail", 5), NewJob("mail", "{}"), NewJob("no topic", b"{}"), NewJob(7, b"{}")):
        with pytest.raises(UsageError):
            await queue.enqueue(wrong)
    [wrong] = await queue.enqueue_many([NewJob("mail", 5)])
    assert isinstance(wrong, UsageError)


async def test_the_same_id_in_two_topics_is_two_jobs(queue):
    mail, sms = await queue.enqueue("mail", 1, id="a"), await queue.enqueue("sms", 2, id="a")
    assert (True, True) == (mail.created, sms.created)
    assert (b"1", b"2") == ((await mail.get()).payload, (await sms.get()).payload)


async def test_of_many_who_send_the_same_id_one_makes_the_job(queue):
    sent = await asyncio.gather(*(queue.enqueue(new("mail", n, id="a", delay=60)) for n in range(20)))
    assert 1 == sum(each.created for each in sent)
    assert 1 == len({each.placed.revision for each in sent})
    [made] = [number for number, each in enumerate(sent) if each.created]
    assert str(made).encode() == (await sent[0].get()).payload


async def test_a_job_that_nobody_sent_is_not_there(queue):
    await queue.enqueue("mail", id="a", delay=60)
    with pytest.raises(JobNotFound):
        await queue.job("mail", "b").get()


async def test_topics_of_dulys_own_are_refused(queue):
    wrong = [
        lambda: queue.enqueue("duly.mail", 1),
        lambda: queue.enqueue("mail", 1, reply_to="duly.replies"),
        lambda: queue.pause("duly.mail"),
        lambda: queue.job("duly.mail", "a").cancel(),
    ]
    for call in wrong:
        with pytest.raises(UsageError, match="duly's own"):
            await call()
