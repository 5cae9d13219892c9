"""
A queue that is away: it is waited for once, by nobody for long, and used again as soon as it is back.
"""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial

import pytest

from duly import Duly
from duly.connection import CallRefused, Link
from duly.errors import Conflict, StoreUnavailable
from duly.job import JobKey, JobState
from duly.record import absence as absences
from duly.record.absence import Absence, StillAway
from duly.record.schema import migrate
from duly.store import Store
from duly.views import Views
from tests.eventually import eventually
from tests.servers import Server, binary
from tests.store.kit import claim

WITHIN_S = 0.4
SILENT, KILLED = "silent", "killed"


@pytest.fixture
def own_server():
    server = Server(binary("valkey")).start()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


@pytest.fixture(params=[SILENT, KILLED])
def leave(request, own_server):
    """
    Let the server go away.
    """

    def leave():
        if request.param == SILENT:
            own_server.process.send_signal(signal.SIGSTOP)
        else:
            own_server.kill()

    return leave


@pytest.fixture
def come_back(request, own_server):
    """
    Let it come back.
    """

    def come_back():
        if own_server.process.poll() is None:
            own_server.process.send_signal(signal.SIGCONT)
        else:
            own_server.start()

    return come_back


@pytest.fixture
def soon(monkeypatch):
    """
    Give up on a silent server soon.
    """
    monkeypatch.setattr(absences, "ANSWERS_WITHIN_S", WITHIN_S)


@pytest.fixture
async def store(own_server, namespace):
    link = Link(own_server.url)
    yield Store(link, namespace=namespace)
    await link.aclose()


@pytest.fixture
async def absence(store, soon):
    absence = Absence(store)
    yield absence
    await absence.aclose()


@pytest.fixture
def asked(absence, monkeypatch):
    """
    The commands that were sent.
    """
    link, sent = absence._store.link, []
    call = link.call

    async def noting(*words, **options):
        sent.append(words[0])
        return await call(*words, **options)

    monkeypatch.setattr(link, "call", noting)
    return sent


async def is_used(absence):
    """
    Whether the server is asked, and answers.
    """
    try:
        return b"PONG" == await absence.ask(partial(absence._store.link.call, "PING"))
    except StoreUnavailable:
        return False


async def looked(absence):
    """
    Wait until nobody looks any more.
    """
    await eventually(lambda: not absence._looks())


async def test_a_server_that_is_away_is_asked_by_one_caller_and_waited_for_once(absence, asked, leave):
    assert await is_used(absence)
    leave()
    began_s = time.monotonic()
    assert not await is_used(absence)
    for _ in range(3):
        assert [False] * 20 == await asyncio.gather(*(is_used(absence) for _ in range(20)))
    assert time.monotonic() - began_s < 2 * WITHIN_S
    assert ["PING", "PING", "EXISTS"] == asked


async def test_a_server_that_is_back_is_used_before_anybody_does_without(absence, leave, come_back):
    absence._store.link.patience_s = WITHIN_S
    leave()
    assert not await is_used(absence)
    await looked(absence)
    come_back()
    assert await is_used(absence)


async def test_a_server_that_comes_back_is_used_within_half_a_second(absence, leave, come_back):
    leave()
    assert not await is_used(absence)
    assert not await is_used(absence)
    come_back()
    await eventually(partial(is_used, absence), within_s=1)


async def test_those_who_look_whether_it_is_back_wait_together_and_not_for_long(absence, asked, leave):
    absence._store.link.patience_s = WITHIN_S
    leave()
    assert not await is_used(absence)
    await looked(absence)
    asked.clear()
    began_s = time.monotonic()
    assert [False] * 20 == await asyncio.gather(*(is_used(absence) for _ in range(20)))
    assert time.monotonic() - began_s < 2 * WITHIN_S
    assert ["EXISTS"] == asked


async def test_a_slow_answer_of_a_server_that_answers_others_is_waited_for(absence):
    async def slowly():
        await asyncio.sleep(2 * WITHIN_S)
        return "slow"

    assert "slow" == await absence.ask(slowly)
    assert await is_used(absence)


async def test_an_answer_that_never_comes_is_not_waited_for_for_ever(absence, monkeypatch):
    monkeypatch.setattr(absences, "SLOW_S", WITHIN_S)
    with pytest.raises(StoreUnavailable, match="silence"):
        await absence.ask(asyncio.Event().wait)
    # It answers others.
    await eventually(partial(is_used, absence), within_s=1)


async def test_a_server_that_refuses_one_question_is_asked_the_next(absence):
    async def refused():
        raise CallRefused("no")

    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="no") as caught:
            await absence.ask(refused)
        assert not isinstance(caught.value, StillAway)
        assert await is_used(absence)


# -- calls of an app --------------------------------------------------------------------------------------


@pytest.fixture
async def app(own_server, namespace, tmp_path, soon):
    record = f"sqlite:///{tmp_path}/record.db"
    migrate(record)
    async with Duly(own_server.url, namespace=namespace, record=record, shards=1) as app:
        await app.record()
        yield app


CALLS = {
    "cancel": lambda app: app.job("mail", "a").cancel(),
    "reschedule": lambda app: app.job("mail", "a").reschedule(delay=60),
    "requeue": lambda app: app.job("mail", "ended").requeue(),
    "get": lambda app: app.job("mail", "a").get(),
    "enqueue": lambda app: app.enqueue("mail", id="new", delay=60),
    "replace": lambda app: app.enqueue("mail", id="a", delay=60, on_conflict="replace"),
}


@pytest.mark.parametrize("verb", CALLS)
async def test_all_that_a_call_asks_of_an_absent_queue_is_waited_for_once(app, leave, verb):
    await app.enqueue("mail", id="a", delay=600)
    await (await app.enqueue("mail", id="ended", delay=600)).cancel()
    # What is known of its clock is too old.
    (await app.record()).clock._ahead_us = None
    leave()
    began_s = time.monotonic()
    await CALLS[verb](app)
    assert time.monotonic() - began_s < 1.8 * WITHIN_S
    began_s = time.monotonic()
    for _ in range(5):
        await app.job("mail", "a").reschedule(delay=60) if verb != "cancel" else await CALLS[verb](app)
    assert time.monotonic() - began_s < WITHIN_S / 2


@pytest.mark.parametrize("leave", [SILENT], indirect=True)
async def test_a_job_that_runs_is_not_rescheduled_once_the_queue_is_back(app, leave, come_back):
    record = await app.record()
    job = await app.enqueue("mail", id="a")
    await app.enqueue("mail", id="b", delay=600)
    record.store.link.patience_s = WITHIN_S
    leave()
    assert JobState.cancelled is await app.job("mail", "b").cancel()
    await looked(record.absence)
    come_back()
    [lease] = await claim(record.store)
    assert JobKey("mail", "a") == lease.key
    with pytest.raises(Conflict, match="is running"):
        await job.reschedule(delay=600)
    assert JobState.running is (await Views(record.store).get(lease.key)).state
