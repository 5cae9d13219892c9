"""
A result is there for those who wait for it and for the time that was asked for, or it is said to be gone.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import JobCancelled, JobFailed, ResultGone
from duly.connection import Link
from duly.newjob import new_job
from duly.store import Want
from tests.eventually import eventually
from tests.services.conftest import becomes, working
from tests.shards import claim_all


def double(app):
    @app.handler("double")
    async def double(number: int) -> int | None:
        return 2 * number if number else None

    return double


@pytest.mark.parametrize("retain", [0.5, 1, 30, 59, 60, None])
async def test_a_result_is_there_whatever_short_time_it_is_kept_for(app, retain):
    job = double(app)
    async with working(app):
        sent = await app.enqueue(job.job(7), retain=retain)
        await becomes(sent, "succeeded")
        assert 14 == await sent.result(timeout=10)


@pytest.mark.parametrize("keep", [0.5, 30, 59])
async def test_the_same_holds_for_the_time_that_the_settings_say(make_app, keep):
    app = make_app(keep_succeeded=keep)
    job = double(app)
    async with working(app):
        sent = await app.enqueue(job.job(7))
        await becomes(sent, "succeeded")
        assert 14 == await sent.result(timeout=10)


@pytest.mark.parametrize("by", ["retain", "settings"])
async def test_what_was_not_kept_is_said_to_be_gone(make_app, by):
    app = make_app(keep_succeeded=0) if by == "settings" else make_app()
    job = double(app)
    async with working(app):
        sent = await app.enqueue(job.job(7), id="d-1", retain=0 if by == "retain" else None)
        await becomes(sent, "succeeded")
        with pytest.raises(ResultGone, match=r"^double/d-1 has succeeded, but .* retain=60"):
            await sent.result(timeout=10)
        assert (await sent.get()).result_gone


async def test_a_handler_that_returned_none_has_a_result_of_none(app):
    job = double(app)
    async with working(app):
        for retain in (0, 1, None):
            sent = await app.enqueue(job.job(0), retain=retain)
            await becomes(sent, "succeeded")
            assert None is await sent.result(timeout=10)


async def test_those_who_wait_have_results_that_are_not_kept(app):
    job = double(app)
    sent = [await app.enqueue(job.job(number), retain=0) for number in range(30)]
    waiting = [asyncio.create_task(each.result(timeout=60)) for each in sent]
    await marked(app, [each.key for each in sent])
    async with working(app):
        assert [None, *range(2, 60, 2)] == await asyncio.gather(*waiting)


async def marked(app, keys):
    """
    Wait until the server knows that somebody waits for each of these jobs.
    """
    store = await app.store()

    async def check():
        for key, (record, *_) in zip(keys, await store.get(keys), strict=True):
            assert record[0] & 64, key
            assert record[6] & 1, key

    await eventually(check)


async def test_a_waiter_that_missed_the_end_has_the_result_all_the_same(app, monkeypatch):
    """
    With its subscription lost, it looks again after a while, and the result waits for it.
    """
    monkeypatch.setattr("duly.waiting.FIRST_RECHECK_S", 1)

    async def deaf(self, *channels):
        await asyncio.Event().wait()
        yield b"", b""

    monkeypatch.setattr(Link, "listen", deaf)
    sent = await app.enqueue("double", 7, retain=0)
    waiting = asyncio.create_task(sent.result(timeout=30))
    await marked(app, [sent.key])
    await run(app)
    assert 14 == await waiting


async def test_a_subscription_ends_soon_after_the_last_who_waits(app, monkeypatch):
    monkeypatch.setattr("duly.waiting.LINGER_S", 0.01)

    async def subscribers() -> int:
        clients = await (await app.store()).link.call("INFO", "clients")
        return int(clients.decode().partition("pubsub_clients:")[2].split()[0])

    async def ended() -> None:
        assert before == await subscribers()

    await app.queue()
    before = await subscribers()
    for number in (7, 8):
        sent = await app.enqueue("double", number)
        waiting = asyncio.create_task(sent.result(timeout=30))
        await marked(app, [sent.key])
        await run(app)
        assert 2 * number == await waiting
        await eventually(ended)


async def test_two_who_wait_for_the_same_job_both_have_its_result(app, make_app):
    sent = await app.enqueue("double", 7, retain=0)
    other = make_app().job(*sent.key)
    first, second = (asyncio.create_task(each.result(timeout=30)) for each in (sent, other))
    await marked(app, [sent.key])
    await run(app)
    assert [14, 14] == await asyncio.gather(first, second)
    assert 14 == await app.job(*sent.key).result(timeout=10), "for the rest of the minute"


async def run(app):
    """
    Run the only job there is, as a worker in another process would.
    """
    store = await app.store()
    [lease] = await claim_all(store, [Want("double", 1, 60_000)], worker="w")
    await store.ack(lease, b"%d" % (2 * int(lease.payload)))


async def test_a_sender_that_waits_is_never_too_late(app):
    sent = await app.enqueue_awaited(new_job("double", 7, app.settings.limits).options(retain=0))
    await run(app)
    assert 14 == await sent.result(timeout=10)


async def test_one_that_will_never_come_is_an_error_as_before(make_app):
    app = make_app(keep_succeeded=0, keep_dead=0)

    @app.handler("fails", max_attempts=1)
    async def fails() -> None:
        raise ValueError("boom")

    async with working(app):
        dead = await app.enqueue(fails.job(), retain=0)
        await becomes(dead, "dead")
        with pytest.raises(JobFailed, match="boom"):
            await dead.result(timeout=10)
    cancelled = await app.enqueue(fails.job(), id="c")
    await cancelled.cancel()
    with pytest.raises(JobCancelled, match=r"^fails/c was cancelled$"):
        await cancelled.result(timeout=10)
