"""
Outcomes that the server refuses, however often they are sent: each is given up, and no other waits for it.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from duly.backoff import Fixed
from duly.connection import CallRefused, Link
from duly.errors import StoreUnavailable
from duly.job import JobState
from duly.namespace import create
from duly.store import Finish, Store, refused
from tests.eventually import eventually
from tests.services.conftest import becomes, working
from tests.store.kit import claim, enqueue, ids

LIMIT = 1024 * 1024  #: of a result, and of what the servers of these tests take in one argument
HUGE = LIMIT - len('""')  #: as text the longest result, and with what travels in front of it too long


@pytest.fixture
async def narrow(own_server, make_app):
    """
    An app whose server takes no longer argument than a result may be.
    """
    app = make_app(own_server.url, result_limit=LIMIT, lease=3, recover_scan=0.1)
    store = await app.store()
    await store.link.call("CONFIG", "SET", "proto-max-bulk-len", "1mb")
    return app


def given_up(caplog):
    return [line.getMessage() for line in caplog.records if line.levelno == logging.CRITICAL]


async def widen(app):
    """
    Let the server take what it refused.
    """
    await (await app.store()).link.call("CONFIG", "SET", "proto-max-bulk-len", "512mb")


async def test_a_result_that_the_server_refuses_keeps_no_other_waiting_and_is_given_up(narrow, caplog):
    app = narrow
    gate, runs = asyncio.Event(), []

    @app.handler("mail")
    async def mail(number: int) -> str:
        runs.append(number)
        await gate.wait()
        return "x" * (HUGE if number == 3 else 10)

    jobs = [await app.enqueue(mail.job(number)) for number in range(8)]
    async with working(app):
        await eventually(lambda: len(runs) == 8)
        gate.set()
        for number in {*range(8)} - {3}:
            await becomes(jobs[number], "succeeded")
        await eventually(lambda: bool(given_up(caplog)))
        [line] = given_up(caplog)
        assert f"refuses the outcome of {jobs[3].key}" in line
        await widen(app)
        # Its lease runs out, as if its worker had died, and it runs again.
        await becomes(jobs[3], "succeeded", within_s=30)
    assert [3] * 2 == [number for number in runs if number == 3]


@pytest.mark.parametrize("outcome", ["ack", "retry", "bury"])
async def test_with_somebody_to_tell_of_outcomes_it_is_the_same(narrow, caplog, monkeypatch, outcome):
    app = narrow
    monkeypatch.setattr("duly.failure.MESSAGE_CHARS", HUGE)
    gate, runs, told = asyncio.Event(), [], []

    @app.on_success
    @app.on_failure
    async def tell(job, *_):
        told.append(job.id)

    @app.handler("mail", max_attempts=1 if outcome == "bury" else 2, backoff=Fixed(60))
    async def mail(number: int) -> str:
        runs.append(number)
        await gate.wait()
        text = "x" * (HUGE if number == 3 else 10)
        if outcome != "ack":
            raise RuntimeError(text)
        return text

    jobs = [await app.enqueue(mail.job(number)) for number in range(8)]
    states = {"ack": "succeeded", "retry": "scheduled", "bury": "dead"}
    async with working(app):
        await eventually(lambda: len(runs) == 8)
        gate.set()
        for number in {*range(8)} - {3}:
            await becomes(jobs[number], states[outcome])
        await eventually(lambda: bool(given_up(caplog)))
        assert sorted(job.id for job in jobs if job is not jobs[3]) == sorted(told)
        await widen(app)
        await becomes(jobs[3], states[outcome], within_s=30)


@pytest.mark.parametrize("is_told", [False, True], ids=["among others", "with somebody to tell of it"])
async def test_an_outcome_is_not_given_up_while_the_server_is_away(
    own_server, make_app, caplog, monkeypatch, is_told
):
    monkeypatch.setattr("duly.services.saving.TRIES", 1)
    app = make_app(own_server.url)
    (await app.store()).link.patience_s = 60
    gate, told = asyncio.Event(), []
    if is_told:
        app.on_success(lambda job, *_: told.append(job.id))

    @app.handler("mail")
    async def mail() -> str:
        await gate.wait()
        return "kept"

    async with working(app):
        job = await app.enqueue(mail.job())
        await becomes(job, "running")
        own_server.kill()
        gate.set()
        await eventually(lambda: any("not stored yet" in line for line in caplog.messages), 20)
        own_server.start()
        assert "kept" == await job.result(timeout=30)
        await eventually(lambda: [job.id] * is_told == told)
    assert [] == given_up(caplog)


# -- the store --------------------------------------------------------------------------------------------


@pytest.fixture
async def refusing(store):
    """
    Three leases, and a server that refuses to end the second: another program has overwritten a key that its
    reply is made of.
    """
    for id_ in ("one", "bad", "two"):
        payload = b"x" * (5_000 if id_ == "bad" else 5)
        await enqueue(store, id_, payload=payload, envelope=b'{"reply_to":"me"}', ttr_ms=60_000)
    leases = await claim(store)
    bodies = store.keys[0].fixed["bodies"]
    await store.link.call("RENAME", bodies, f"{bodies}:aside")
    await store.link.call("SET", bodies, "no hash")
    return leases


@pytest.mark.one_shard("a call that is refused is that of one shard")
async def test_of_a_batch_only_what_is_refused_is(store, views, refusing):
    words = await store.finish("ack", 0, [Finish(lease, 0, (b"1",)) for lease in refusing])
    assert (["one", "bad", "two"], b"ok", CallRefused, b"ok") == (
        *(ids(refusing), words[0], type(words[1]), words[2]),
    )
    ends = await asyncio.gather(*(store.ack(lease, b"1") for lease in refusing), return_exceptions=True)
    assert [None, CallRefused, None] == [end and type(end) for end in ends]
    bodies = store.keys[0].fixed["bodies"]
    await store.link.call("RENAME", f"{bodies}:aside", bodies)
    for lease in refusing:
        await store.ack(lease, b"1")
        assert JobState.succeeded is (await views.get(lease.key)).state


@pytest.mark.one_shard("a call that is refused is that of one shard")
async def test_a_batch_of_spark_gives_up_what_is_refused(store, refusing, caplog):
    pytest.importorskip("pyspark")
    from duly.spark.work.saving import Saver

    stored, lost = await Saver(store).save({"ack": [Finish(lease, 0, (b"1",)) for lease in refusing]})
    assert (2, ["bad"]) == (stored, [finish.lease.key.id for finish in lost])
    assert 1 == len(given_up(caplog))


async def test_what_says_how_the_server_is_and_not_what_it_was_sent_is_no_refusal(own_server, shards):
    link = Link(own_server.url)
    await create(link, "n", shards)
    store = Store(link, namespace="n", shards=shards)
    await enqueue(store, "a")
    [lease] = await claim(store)
    await link.call("CONFIG", "SET", "min-replicas-to-write", 1)
    with pytest.raises(StoreUnavailable, match="NOREPLICAS") as caught:
        await store.ack(lease)
    assert not refused(caught.value)
    await link.call("CONFIG", "SET", "min-replicas-to-write", 0)
    await store.ack(lease)
    await link.aclose()


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_loops_go_on_while_a_shard_is_refused_for_good(own_server, make_app, caplog, which):
    app = make_app(own_server.url)
    store = await app.store()

    @app.handler("mail")
    async def mail() -> str:
        return "sent"

    link = Link(own_server.url)
    key = store.keys[which % store.shards].fixed["leases"]
    async with working(app):
        assert "sent" == await (await app.enqueue(mail.job())).result(timeout=30)
        await link.call("SET", key, "no sorted set")
        await eventually(
            lambda: any("WRONGTYPE" in line and "trying again" in line for line in caplog.messages)
        )
        await link.call("DEL", key)
        jobs = [await app.enqueue(mail.job()) for _ in range(8)]
        assert ["sent"] * 8 == [await job.result(timeout=30) for job in jobs]
    await link.aclose()
