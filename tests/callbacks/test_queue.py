"""
Callbacks through the whole queue: a real server, a real deliverer, real receivers.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, suppress
from functools import partial

import msgspec
import pytest

from duly import Duly, Fixed, JobFailed, JobState, UsageError
from duly.callbacks import queue, verify
from duly.callbacks.lookups import Lookups
from duly.callbacks.queue import KNOWN, NOBODY, CallbackStore, Called
from duly.newjob import new_job
from duly.record.schema import migrate
from tests.callbacks.conftest import SECRET
from tests.callbacks.receivers import answering, receiving
from tests.eventually import eventually
from tests.shards import one_id_on_each

JSON = "application/json"


@pytest.fixture
def app_for(valkey, namespace):
    def make(*receivers, **settings):
        settings.setdefault("callback_allow", ",".join(receiver.allow for receiver in receivers))
        return Duly(valkey.url, namespace=namespace, callback_secrets=SECRET, **settings)

    return make


@asynccontextmanager
async def running(work):
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_job_with_a_callback_is_delivered_and_its_answer_is_the_result(app_for):
    paid = answering(body=b'{"paid":true}', content_type=JSON)
    async with receiving(paid) as receiver, app_for(receiver) as app, running(app.deliver()):
        job = await app.enqueue("order.paid", {"order": 42}, id="o-42", callback=receiver.url())
        assert {"paid": True} == await job.result(timeout=60)
    [request] = receiver.requests
    verify(request.headers, request.body, SECRET)
    event = msgspec.json.decode(request.body)
    assert ("order.paid/o-42", {"order": 42}, f"/duly/{app.settings.namespace}") == (
        event["subject"],
        event["data"],
        event["source"],
    )


#: Answers that came with a 2xx, and what is kept of them.
ANSWERS = {
    "too deep": (b"[" * 501 + b"]" * 501, None),
    "too deep in objects": (b'{"a":' * 600 + b"1" + b"}" * 600, None),
    "too large": (b'"' + b"x" * 5_000 + b'"', None),
    "no number": (b"1e999", None),
    "invalid UTF-8": (b'"\xff"', None),
    "a lone surrogate": (b'"\\ud800"', None),
    "a huge number": (b"9" * 5_000, None),
    "a large number": (b"1" + b"0" * 30, 10**30),
    "a repeated key": (b'{"a":1,"a":2}', {"a": 2}),
}


@pytest.mark.parametrize("with_record", [False, True])
async def test_a_job_that_was_taken_with_2xx_has_succeeded_whatever_the_answer_says(
    app_for, tmp_path, caplog, with_record
):
    async def behave(request, writer):
        body, _ = ANSWERS[msgspec.json.decode(request.body)["data"]]
        await answering(body=body, content_type=JSON)(request, writer)

    settings = {"result_limit": 5_000}
    if with_record:
        settings["record"] = f"sqlite:///{tmp_path}/record.db"
        migrate(settings["record"])
    async with receiving(behave) as receiver, app_for(receiver, **settings) as app, running(app.deliver()):
        for what, (_, kept) in ANSWERS.items():
            job = await app.enqueue("order.paid", what, callback=receiver.url())
            assert kept == await job.result(timeout=60), what
            assert JobState.succeeded is (await job.get()).state
    assert len(ANSWERS) == len(receiver.requests), "each is delivered once"
    told = [
        record.getMessage() for record in caplog.records if "its answer is not kept" in record.getMessage()
    ]
    assert 7 == len(told), told


@pytest.mark.parametrize("of", ["the job", "its topic"])
async def test_callbacks_of_every_shard_are_delivered_without_a_poll(app_for, of):
    # Whoever delivers waits for minutes, unless it is told.
    lazy = {"timer_scan": 300, "block": 300, "recover_scan": 300, "stall": 1200}
    async with receiving(answering()) as receiver, app_for(receiver, **lazy) as app:
        ids = one_id_on_each(await app.store(), "mail")
        if of == "its topic":
            await app.callback("mail", receiver.url())
        options = {"callback": receiver.url()} if of == "the job" else {}
        async with running(app.deliver()):
            await (await app.enqueue("mail", {}, id="first", **options)).result(timeout=60)
            for id_ in ids:
                job = await app.enqueue("mail", {}, id=id_, **options)
                await job.result(timeout=60)


async def test_a_handler_of_the_topic_never_sees_it_and_goes_on_with_the_others(app_for):
    ran = []
    async with receiving(answering()) as receiver, app_for(receiver) as app:

        @app.handler("mail")
        async def handle(n: int) -> None:
            ran.append(n)

        called = await app.enqueue("mail", {"n": 1}, callback=receiver.url())
        plain = await app.enqueue("mail", {"n": 2})
        async with running(app.work()):
            await plain.result(timeout=60)
            assert JobState.ready is (await called.get()).state
        async with running(app.work(callbacks=True)):
            await called.result(timeout=60)
    assert [2] == ran


async def test_a_delayed_callback_is_delivered_when_it_is_due_in_a_process_that_only_delivers(app_for):
    async with receiving(answering()) as receiver, app_for(receiver) as app, running(app.deliver()):
        job = await app.enqueue("mail", callback=receiver.url(), delay=0.5)
        await job.result(timeout=60)
        assert (await job.get()).started_ms >= (await job.get()).due_ms


async def test_a_topic_with_a_callback_is_delivered_by_whatever_priority(app_for):
    async with receiving(answering()) as receiver, app_for(receiver) as app:
        first = await app.enqueue("order.paid", 1, priority="low")
        await app.callback("order.paid", receiver.url())
        async with running(app.deliver()):
            second = await app.enqueue("order.paid", 2, priority="high")
            for job in (first, second):
                await job.result(timeout=60)
            await app.callback("order.paid", None)
            third = await app.enqueue("order.paid", 3)
            own = await app.enqueue("order.paid", 4, callback=receiver.url())
            await own.result(timeout=60)
            assert JobState.ready is (await third.get()).state
    assert 3 == len(receiver.requests)


async def test_the_url_of_a_job_goes_before_that_of_its_topic(app_for):
    async with (
        receiving(answering()) as own,
        receiving(answering()) as general,
        app_for(own, general) as app,
        running(app.deliver()),
    ):
        await app.callback("mail", general.url())
        await (await app.enqueue("mail", callback=own.url())).result(timeout=60)
    assert (1, 0) == (len(own.requests), len(general.requests))


async def test_failures_are_repeated_with_the_same_id_and_the_next_attempt(app_for):
    async with (
        receiving(answering("500 Oh"), answering("503 No"), answering()) as receiver,
        app_for(receiver) as app,
        running(app.deliver()),
    ):
        job = await app.enqueue("mail", callback=receiver.url(), backoff=Fixed(0.01))
        await job.result(timeout=60)
    assert 1 == len({request.headers["webhook-id"] for request in receiver.requests})
    assert ["1", "2", "3"] == [request.headers["duly-attempt"] for request in receiver.requests]


async def test_410_makes_a_job_dead_and_so_does_the_last_attempt(app_for):
    async with (
        receiving(answering("410 Gone")) as gone,
        receiving(answering("500 Oh")) as broken,
        app_for(gone, broken) as app,
        running(app.deliver()),
    ):
        first = await app.enqueue("mail", callback=gone.url())
        second = await app.enqueue("mail", callback=broken.url(), max_attempts=2, backoff=Fixed(0.01))
        with pytest.raises(JobFailed, match="410"):
            await first.result(timeout=60)
        with pytest.raises(JobFailed, match="500"):
            await second.result(timeout=60)
    assert (1, 2) == (len(gone.requests), len(broken.requests))


async def test_a_private_address_is_never_connected_to(app_for):
    # Whoever sends it may have another setting than whoever delivers it.
    async with (
        receiving(answering()) as receiver,
        app_for() as app,
        running(app.deliver()),
        app_for(receiver) as sender,
    ):
        job = await sender.enqueue("mail", callback=receiver.url(), max_attempts=1)
        with pytest.raises(JobFailed, match="refused"):
            await job.result(timeout=60)
    assert 0 == receiver.connections


async def test_hosts_that_hang_keep_nobody_else_waiting(app_for):
    async def hang(_request, _writer):
        await asyncio.sleep(1000)

    async with (
        receiving(hang) as bad,
        receiving(answering()) as good,
        app_for(bad, good, drain_grace=0.1) as app,
    ):
        jobs = [await app.enqueue("mail", n, callback=bad.url()) for n in range(30)]
        async with running(app.deliver(concurrency=20)):
            await eventually(lambda: bad.connections == 8, 60)
            for n in range(30):
                await (await app.enqueue("mail", n, callback=good.url())).result(timeout=60)
            # Eight are under way, and the rest were put off, uncounted.
            assert 8 == bad.connections
            await eventually(lambda: _states(jobs, running=8, scheduled=22), 60)
        assert {0} == {(await job.get()).attempts for job in jobs}
    assert 30 == len(good.requests)


async def test_silent_names_cost_the_jobs_of_other_hosts_neither_time_nor_attempts(
    app_for, names, monkeypatch
):
    init = Lookups.__init__
    monkeypatch.setattr(Lookups, "__init__", lambda self: init(self, limit_s=100.0, turn_s=0.05))
    async with receiving(answering()) as receiver, app_for(callback_allow="*") as app:
        async with running(app.deliver(concurrency=64)):
            known = await app.enqueue("mail", callback=receiver.url("known.test"))
            await known.result(timeout=60)
            silent = [
                await app.enqueue("mail", callback=receiver.url(f"silent.example{n}")) for n in range(40)
            ]
            await eventually(lambda: 32 == sum(host.startswith("silent") for host in names.asked), 60)
            again = await app.enqueue("mail", callback=receiver.url("known.test"))
            await again.result(timeout=60)
            new = await app.enqueue("mail", callback=receiver.url("new.test"))
            await eventually(lambda: _states([new], scheduled=1), 60)  # it was due at once, and is put off
            await eventually(lambda: _states(silent, running=32, scheduled=8), 60)
            assert {0} == {(await job.get()).attempts for job in (new, *silent)}
            assert "new.test" not in names.asked
            names.speak.set()
            for job in (new, *silent):
                await job.result(timeout=60)
        assert {1} == {(await job.get()).attempts for job in (known, again, new, *silent)}


async def _states(jobs, **expected):
    found = [(await job.get()).state.name for job in jobs]
    assert expected == {name: found.count(name) for name in expected}


async def test_a_deliverer_that_ends_gives_back_what_it_holds(app_for):
    async def hang(_request, _writer):
        await asyncio.sleep(1000)

    async with receiving(hang, answering()) as receiver, app_for(receiver, drain_grace=0.1) as app:
        job = await app.enqueue("mail", callback=receiver.url())
        async with running(app.deliver()):
            await eventually(lambda: receiver.connections == 1, 60)
        assert (JobState.ready, 0) == ((await job.get()).state, (await job.get()).attempts)
        async with running(app.deliver()):
            await job.result(timeout=60)


@pytest.mark.one_shard("each shard has tokens of its own, and a wait takes those of one")
async def test_a_deliverer_is_woken_by_what_is_its_own_and_leaves_other_tokens_alone(app_for):
    url = "https://example.com/"
    async with app_for() as app:
        called = Called(app.settings.namespace)
        store = app.make_store(partial(CallbackStore, called))
        # Read before there is anything: what follows is known from tokens alone.
        assert not await store.wait((), 0.01)
        assert [NOBODY] == called.topics()
        called.read_s = math.inf
        await app.enqueue("plain")
        assert not await store.wait(("plain",), 0.01)
        await app.enqueue("own", callback=url)
        await app.enqueue("other", callback=url)
        assert await store.wait((), 60)
        assert ["other", "own"] == sorted(called.topics())
        assert not await store.wait((), 0.01)
        await app.callback("topic", url)
        assert await store.wait((), 60)
        await store.look(now=True)
        assert {"topic": url} == called.urls
        await app.enqueue("topic")
        assert await store.wait((), 60)
        assert not await store.wait((), 0.01)
        # The worker of the plain topic is still to be woken.
        assert await (await app.store()).wait(("plain",), 60)
        await store.link.aclose()


def test_a_process_remembers_only_so_many_topics():
    called = Called("n")
    for number in range(KNOWN + 10):
        called.hear(str(number))
    assert KNOWN == len(called.topics())
    assert str(KNOWN + 9) in called.topics()


async def test_topics_that_nobody_works_on_hide_no_callback(app_for, monkeypatch):
    # As with many more topics than a process remembers.
    monkeypatch.setattr(queue, "KNOWN", 4)
    monkeypatch.setattr(queue, "FRESH_S", 0.01)
    async with receiving(answering()) as receiver, app_for(receiver, block=0.02) as app:
        await app.enqueue_many([new_job(f"idle-{n}", n, app.settings.limits) for n in range(20)])
        jobs = [await app.enqueue(f"called-{n}", callback=receiver.url()) for n in range(8)]
        async with running(app.deliver()):
            await asyncio.gather(*(job.result(timeout=20) for job in jobs))


async def test_without_a_secret_nothing_is_delivered(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as app:
        with pytest.raises(UsageError, match="DULY_CALLBACK_SECRETS"):
            await app.deliver()


@pytest.mark.parametrize(
    "wrong",
    [
        {"callback": "ftp://example.com/"},
        {"callback": "https://user:pw@example.com/"},
        {"callback": ""},
        {"callback": 5},
        {"callback": "https://example.com/", "priority": "high"},
    ],
)
async def test_a_callback_that_is_none_is_refused_before_anything_is_sent(app_for, wrong):
    with pytest.raises(UsageError, match="callback"):
        await app_for().enqueue("mail", **wrong)


async def test_a_callback_of_a_topic_that_is_none_is_refused(app_for):
    with pytest.raises(UsageError, match="callback"):
        await app_for().callback("mail", "no url")
