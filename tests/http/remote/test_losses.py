"""
Answers that are lost, and services that are away or killed: no job is lost, and none doubled.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from duly import Duly, JobCancelled, JobState, OutcomeUnknown, StoreUnavailable
from duly.http.api import api
from duly.newjob import new_job
from duly.remote.link import RemoteLink
from duly.remote.waiting import PACE_S
from tests.eventually import eventually
from tests.http.remote.kit import serving
from tests.ports import held_port


async def test_a_lost_answer_makes_no_second_job(over, wire, app):
    wire.lose = 1
    sent = await over.enqueue("mail", 1)
    assert (True, "created") == (sent.created, sent.placed.word)
    wire.lose = 1
    named = await over.enqueue("mail", 1, id="a")
    assert named.created
    assert "kept" == (await over.enqueue("mail", 1, id="a")).placed.word
    wire.lose = 1
    many = await over.enqueue_many([new_job("mail", n, over.settings.limits) for n in range(600)])
    assert all(handle.created for handle in many)
    assert 0 == wire.lose
    stats = await (await app.views()).stats()
    assert 602 == sum(stats.topics[0].counts.values())


async def test_whose_job_it_is_after_a_lost_answer_is_not_guessed(over, wire, app):
    wire.lose = 1
    with pytest.raises(OutcomeUnknown, match="look at the job"):
        await over.enqueue("mail", 1, id="a", on_conflict="raise")
    assert b"1" == (await app.job("mail", "a").get()).payload
    wire.lose = 1
    jobs = [over.add.job(1).options(id="a", on_conflict="raise")]
    with pytest.raises(OutcomeUnknown):
        await over.enqueue_many(jobs)
    sent = await over.enqueue("mail", id="b", delay=60)
    wire.lose, wire.matching = 1, b"PATCH"
    with pytest.raises(OutcomeUnknown, match="may have rescheduled"):
        await sent.reschedule(delay=90, revision=sent.placed.revision)


async def test_a_call_that_may_be_repeated_is(over, wire):
    sent = await over.enqueue("mail", id="a", delay=60)
    for call in (sent.get, lambda: sent.reschedule(delay=90), sent.cancel):
        wire.lose = 1
        await call()
        assert 0 == wire.lose


async def test_a_result_is_waited_for_at_the_service(over, wire, app):
    sent = await over.enqueue("mail", id="a", delay=600)
    wire.seen.clear()
    waiting = asyncio.create_task(sent.result(timeout=60))
    await eventually(lambda: wire.seen)
    # Long enough for a second question, if the first were not still open.
    await asyncio.wait([waiting], timeout=2 * PACE_S)
    await app.job("mail", "a").cancel()
    with pytest.raises(JobCancelled):
        await waiting
    assert 1 == len(wire.seen)


async def test_a_requeue_is_not_sent_again_once_it_may_have_run(over, wire):
    sent = await over.enqueue("mail", id="a", delay=60)
    await sent.cancel()
    wire.seen.clear()
    wire.lose = 1
    with pytest.raises(OutcomeUnknown, match="before you requeue it again"):
        await sent.requeue()
    assert 1 == len(wire.seen)
    assert JobState.ready is (await sent.get()).state


async def test_patience_ends(over, wire, monkeypatch):
    (await over.queue()).link.patience_s = 0.3
    wire.lose = 10_000
    with pytest.raises(OutcomeUnknown, match="id='") as caught:
        await over.enqueue("mail")
    assert wire.url in str(caught.value)
    # Each is sent again at least once, however long the first takes.
    assert 2 <= len(wire.seen)
    wire.seen.clear()
    with pytest.raises(StoreUnavailable):
        await over.job("mail", "a").get()
    assert 2 <= len(wire.seen)


@pytest.fixture
def port():
    with held_port() as port:
        yield port


async def test_a_service_that_is_away_and_comes_back_is_waited_for(app, port):
    remote = Duly(f"http://127.0.0.1:{port}")
    link = RemoteLink(remote.settings.url, patience_s=0.2)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await link.look()
    await link.aclose()
    early = asyncio.create_task(remote.enqueue("mail", id="early"))
    async with serving(api(app), port):
        assert (await early).created
    sending = asyncio.create_task(remote.enqueue("mail", id="late"))
    async with serving(api(app), port):
        assert (await sending).created
        await remote.aclose()


@pytest.fixture
def service_process(valkey, namespace, tmp_path, port):
    """
    ``duly serve`` as a process, on the same port each time.
    """
    started = []

    def start():
        words = ["serve", "--url", valkey.url, "--namespace", namespace, "--port", str(port)]
        started.append(subprocess.Popen([sys.executable, "-m", "duly", *words], cwd=tmp_path))
        return started[-1]

    yield f"http://127.0.0.1:{port}", start
    for process in started:
        process.kill()
        process.wait()


async def test_a_killed_service_costs_no_job_and_doubles_none(service_process, app):
    url, start = service_process
    process = start()
    remote = Duly(url)
    await wait_for(remote)
    link = (await remote.queue()).link
    link.patience_s = 60
    count = 200
    gate = asyncio.Semaphore(8)

    async def send(number):
        nonlocal process
        async with gate:
            if number == count // 2:
                process.kill()
                process.wait()
                process = start()
            return await remote.enqueue("mail", number, id=str(number), delay=600)

    handles = await asyncio.gather(*(send(number) for number in range(count)))
    waiting = asyncio.create_task(handles[0].result(timeout=60))
    more = await remote.enqueue_many([new_job("mail", None, remote.settings.limits) for _ in range(300)])
    assert {True} == {handle.created for handle in [*handles, *more]}
    async with app:
        stats = await (await app.views()).stats()
        assert count + 300 == sum(stats.topics[0].counts.values())
        process.kill()
        process.wait()
        process = start()
        await app.job("mail", "0").cancel()
        with pytest.raises(JobCancelled):
            await waiting
    await remote.aclose()


async def wait_for(remote):
    deadline = asyncio.get_running_loop().time() + 60
    while True:
        try:
            return await remote.queue()
        except StoreUnavailable:
            assert asyncio.get_running_loop().time() < deadline
