"""
On conflict: keep, replace or refuse the second job of an id.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import JobExists, JobState, UsageError
from tests.contract.handlers import add, hold
from tests.contract.kit import SOON_S, new, reaches
from tests.eventually import eventually


async def test_the_job_that_is_there_is_kept(queue):
    first = await queue.enqueue("mail", 1, id="a", delay=60)
    kept = await queue.enqueue("mail", 2, id="a", delay=90)
    assert (False, "kept", JobState.scheduled) == (kept.created, kept.placed.word, kept.placed.state)
    assert (first.placed.revision, first.due_at) == (kept.placed.revision, kept.due_at)
    assert b"1" == (await kept.get()).payload


async def test_a_job_that_has_ended_is_kept_too(queue, working):
    first = await queue.enqueue(add.job(1), id="a")
    async with working():
        assert 1 == await first.result(timeout=SOON_S)

        again = await queue.enqueue(add.job(2), id="a")
        assert ("kept", first.placed.revision) == (again.placed.word, again.placed.revision)
        assert JobState.succeeded is again.placed.state
        assert 1 == await first.result(timeout=SOON_S)


async def test_a_waiting_job_is_replaced(queue):
    first = await queue.enqueue("mail", 1, id="a", delay=60, context={"by": 1})
    second = await queue.enqueue("mail", 2, id="a", delay=90, on_conflict="replace")
    assert (True, "replaced") == (second.created, second.placed.word)
    assert first.placed.revision < second.placed.revision
    job = await first.get()
    assert (b"2", second.due_at, None) == (job.payload, job.due_at, job.envelope.context)


async def test_where_there_is_none_a_replacement_is_new(queue):
    assert "created" == (await queue.enqueue("mail", id="a", on_conflict="replace")).placed.word
    assert "created" == (await queue.enqueue("mail", id="b", on_conflict="raise")).placed.word


async def test_a_replaced_job_that_had_ended_runs_anew(queue, working):
    async with working():
        assert 1 == await (await queue.enqueue(add.job(1), id="a")).result(timeout=SOON_S)
        again = await queue.enqueue(add.job(2), id="a", on_conflict="replace")
        assert "replaced" == again.placed.word
        assert 2 == await again.result(timeout=SOON_S)
    assert 1 == (await again.get()).attempts


async def test_a_running_job_is_stopped_and_its_replacement_runs(queue, working, flag, tmp_path):
    told = tmp_path / "told"
    first = await queue.enqueue(hold.job(str(flag), str(told)), id="a")
    async with working():
        await reaches(first, JobState.running)
        flag.with_name("other").touch()
        again = await queue.enqueue(hold.job(str(flag.with_name("other"))), id="a", on_conflict="replace")
        assert "replaced" == again.placed.word
        assert "held" == await again.result(timeout=SOON_S)
        await eventually(told.exists, SOON_S)


async def test_who_asks_to_be_told_is_refused(queue, working):
    await queue.enqueue("mail", 1, id="a", delay=60)
    with pytest.raises(JobExists, match="mail/a"):
        await queue.enqueue("mail", 2, id="a", on_conflict="raise")
    assert b"1" == (await queue.job("mail", "a").get()).payload
    async with working():
        await (await queue.enqueue(add.job(1), id="b")).result(timeout=SOON_S)
        with pytest.raises(JobExists, match="add/b"):
            await queue.enqueue(add.job(1), id="b", on_conflict="raise")


async def test_of_many_replacements_at_once_the_last_one_stands(queue):
    jobs = [new("mail", number, id="a", delay=60, on_conflict="replace") for number in range(10)]
    sent = await asyncio.gather(*map(queue.enqueue, jobs))
    last = max(sent, key=lambda each: each.placed.revision)
    assert 10 == len({each.placed.revision for each in sent})
    job = await last.get()
    assert (last.placed.revision, str(sent.index(last)).encode()) == (job.revision, job.payload)


async def test_a_word_that_is_none_of_these_is_refused(queue):
    for wrong in ("ignore", None, [], {}, 1):
        with pytest.raises(UsageError, match="must be keep, replace or raise"):
            await queue.enqueue("mail", on_conflict=wrong)
