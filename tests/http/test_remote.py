"""
Producers over HTTP: the same calls, answers and errors as on the queue's own server.

What is promised for both is tested with both; the rest is what can only happen on the way to a service.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from starlette.responses import JSONResponse

from duly import (
    Conflict,
    Duly,
    Exponential,
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    JobState,
    OutcomeUnknown,
    QueueFull,
    ServerUnsuitable,
    StoreUnavailable,
    UsageError,
)
from duly.apikeys import KeyRing
from duly.bulk import IN_FLIGHT
from duly.errors import DulyError
from duly.group import MAX_JOBS
from duly.http.api import OPERATIONS, api
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.serve import listen, server_of
from duly.http.service import make_service
from duly.http.settings import ServiceSettings
from duly.newjob import new_job
from duly.records import read
from duly.remote.link import RemoteLink
from duly.remote.waiting import PACE_S
from duly.store import Want
from tests import certificates
from tests.eventually import eventually
from tests.http.service import Served
from tests.http.wire import host, wire_to

FAR = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


@pytest.fixture(params=["redis", "http"])
def kind(request):
    return request.param


@pytest.fixture
async def producer(kind, request, app, url):
    """
    An app that sends: straight to the server, or through the service.
    """
    settings = {"namespace": app.settings.namespace} if kind == "redis" else {}
    async with Duly(app.settings.url if kind == "redis" else url, **settings) as producer:
        yield with_handlers(producer)


@pytest.fixture
async def remote(url):
    async with Duly(url) as remote:
        yield with_handlers(remote)


def with_handlers(app):
    @app.handler("add", max_attempts=1)
    async def add(left: int, right: int = 0) -> dict[str, int]:
        return {"sum": left + right}

    @app.handler("fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("boom")

    app.add, app.fail = add, fail
    return app


@asynccontextmanager
async def working(app):
    """
    A worker on the same queue, as in another process.
    """
    worker = with_handlers(Duly(app.settings.url, namespace=app.settings.namespace, drain_grace=0.2))
    stop = asyncio.Event()
    async with worker:
        running = asyncio.create_task(worker.work(stop=stop))
        try:
            yield worker
        finally:
            stop.set()
            await running


# -- both -----------------------------------------------------------------------------------------------


async def test_a_job_is_sent_and_its_result_comes_back(producer, app):
    sent = await producer.enqueue(producer.add.job(2, right=3))
    assert (True, "add", "created", JobState.ready) == (
        sent.created,
        sent.topic,
        sent.placed.word,
        sent.placed.state,
    )
    async with working(app):
        assert {"sum": 5} == await sent.result(timeout=30)
        named = await producer.enqueue("add", {"left": 1})
        assert {"sum": 1} == await named.result(timeout=30)
    job = await sent.get()
    assert (JobState.succeeded, 1, b'{"sum":5}') == (job.state, job.attempts, job.outcome)
    assert job.due_at <= job.started_at <= job.finished_at


async def test_every_option_arrives(producer, app):
    due = datetime(2060, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    sent = await producer.enqueue(
        "mail",
        [1, {"ä": "\n\u2028"}],
        id="a:b@c=d+e~f",
        due_at=due,
        expires=FAR,
        priority="high",
        ttr=timedelta(milliseconds=1234),
        max_attempts=7,
        backoff=Exponential(base=1, cap=9, factor=3, jitter=0.5),
        context={"tenant": "acme"},
        retain=60,
    )
    assert due == sent.due_at
    job = await app.job("mail", "a:b@c=d+e~f").get()
    assert (due, "high", 1234) == (job.due_at, job.priority, job.ttr_ms)
    assert (7, {"tenant": "acme"}) == (job.envelope.max_attempts, job.envelope.context)
    assert {"kind": "exponential", "base": 1, "cap": 9, "factor": 3.0, "jitter": 0.5} == job.envelope.backoff
    assert int(FAR.timestamp()) * 1000 + 999 == job.expires_ms
    assert '[1,{"ä":"\\n\u2028"}]'.encode() == job.payload
    seen = await producer.job("mail", sent.id).get()
    for name in ("topic", "id", "state", "revision", "priority", "due_ms", "ttr_ms", "expires_ms", "payload"):
        assert getattr(job, name) == getattr(seen, name), name
    assert job.envelope.context == seen.envelope.context


async def test_a_delay_counts_by_the_servers_clock_and_is_exact(producer, app):
    before = await (await app.views()).now_ms()
    sent = await producer.enqueue("mail", delay=timedelta(days=400, milliseconds=1))
    after = await (await app.views()).now_ms()
    job = await sent.get()
    # The server's part of a millisecond is rounded up.
    assert before + 400 * 86_400_000 + 1 <= job.due_ms <= after + 400 * 86_400_000 + 2
    assert (JobState.scheduled, job.due_at) == (sent.placed.state, sent.due_at)


async def test_the_same_id_is_kept_replaced_or_refused(producer):
    first = await producer.enqueue("mail", 1, id="a", delay=60)
    kept = await producer.enqueue("mail", 2, id="a", delay=90)
    assert (False, "kept", first.placed.revision) == (kept.created, kept.placed.word, kept.placed.revision)
    assert first.due_at == kept.due_at
    replaced = await producer.enqueue("mail", 3, id="a", delay=90, on_conflict="replace")
    assert (True, "replaced") == (replaced.created, replaced.placed.word)
    assert first.placed.revision < replaced.placed.revision
    assert b"3" == (await replaced.get()).payload
    with pytest.raises(JobExists, match="mail/a"):
        await producer.enqueue("mail", 4, id="a", on_conflict="raise")
    new = await producer.enqueue("mail", 4, id="b", delay=60, on_conflict="replace")
    assert "created" == new.placed.word


@pytest.mark.parametrize(
    "options",
    [
        {"delay": -1},
        {"delay": 1, "due_at": FAR},
        {"id": "a/b"},
        {"priority": "urgent"},
        {"due_at": FAR.replace(tzinfo=None)},
        {"context": {"x": "y" * 9000}},
        {"max_attempts": 0},
    ],
)
async def test_what_is_wrong_is_said_before_it_is_sent(producer, app, options):
    with pytest.raises(UsageError):
        await producer.enqueue("mail", None, **options)
    assert [] == (await (await app.views()).stats()).topics


async def test_a_topic_at_its_limit_takes_no_more(producer, app):
    await app.limit("mail", 1)
    await producer.enqueue("mail", id="a")
    with pytest.raises(QueueFull):
        await producer.enqueue("mail", id="b")
    assert "kept" == (await producer.enqueue("mail", id="a")).placed.word
    [full] = await producer.enqueue_many([new_job("mail", None, producer.settings.limits)])
    assert isinstance(full, QueueFull)


async def test_many_jobs_have_an_outcome_each_and_wrong_ones_stop_nobody(producer, app):
    def job(topic, payload=None, **options):
        return new_job(topic, payload, producer.settings.limits).options(**options)

    await producer.enqueue("mail", id="there", delay=60)
    outcomes = await producer.enqueue_many(
        iter(
            [
                job("mail", 1, id="a", due_at=FAR),
                job("sms", 2, id="a", delay=60),
                job("mail", 3, delay=-1),
                job("mail", 4, id="there"),
                job("mail", 5, id="there", on_conflict="raise"),
                job("mail", 6, id="there", on_conflict="replace", delay=60),
                job("mail", {"text": "\n"}, id="a"),
                job("mail"),
            ]
        )
    )
    words = [
        type(each).__name__ if isinstance(each, DulyError) else (each.topic, each.placed.word)
        for each in outcomes
    ]
    assert [
        ("mail", "created"),
        ("sms", "created"),
        "UsageError",
        ("mail", "kept"),
        "JobExists",
        ("mail", "replaced"),
        ("mail", "kept"),
        ("mail", "created"),
    ] == words
    assert FAR == outcomes[0].due_at
    # Also of those that were there, and of those that count from the server's now.
    there = (await app.job("mail", "there").get()).due_at
    assert (outcomes[0].due_at, there) == (outcomes[6].due_at, outcomes[5].due_at)
    assert (await app.job("sms", "a").get()).due_at == outcomes[1].due_at
    assert JobState.scheduled == outcomes[1].placed.state
    assert b"6" == (await app.job("mail", "there").get()).payload
    assert [] == await producer.enqueue_many([])


async def test_many_jobs_leave_in_slices_while_they_are_made(producer, app):
    """
    None is made long before it is sent: those that wait fit into the slices under way.
    """
    count = 2 * (IN_FLIGHT + 2) * MAX_JOBS
    ahead = 0
    views = await app.views()

    def made():
        for number in range(count):
            nonlocal ahead
            ahead += 1
            yield new_job("mail", number, producer.settings.limits).options(id=str(number), due_at=FAR)

    sending = asyncio.create_task(producer.enqueue_many(made()))
    most = 0
    while not sending.done():
        known = {each.topic: each.counts["scheduled"] for each in (await views.stats()).topics}
        most = max(most, ahead - known.get("mail", 0))
        await asyncio.sleep(0)
    handles = await sending
    assert [str(number) for number in range(count)] == [handle.id for handle in handles]
    assert all(handle.created for handle in handles)
    assert most < count


async def test_a_job_is_moved_and_run_again(producer, app):
    sent = await producer.enqueue("mail", id="a", delay=60)
    moved = await sent.reschedule(delay=90, revision=sent.placed.revision)
    assert ("rescheduled", JobState.scheduled) == (moved.word, moved.state)
    assert sent.placed.due_ms < moved.due_ms
    with pytest.raises(Conflict):
        await sent.reschedule(delay=1, revision=sent.placed.revision)
    moved = await sent.reschedule(due_at=FAR)
    assert int(FAR.timestamp()) * 1000 + 999 == moved.due_ms
    with pytest.raises(Conflict):
        await sent.requeue()
    assert JobState.cancelled is await sent.cancel()
    assert JobState.cancelled is await sent.cancel()
    with pytest.raises(Conflict):
        await sent.reschedule(delay=1)
    again = await sent.requeue()
    assert ("requeued", JobState.ready) == (again.word, again.state)


async def test_cancelling_what_has_ended_says_how_it_ended(producer, app):
    sent = await producer.enqueue("mail", id="a")
    store = await app.store()
    [lease] = (await store.claim(0, [Want("mail", 1, 60_000)], worker="w", number=1)).leases
    await store.ack(lease)
    assert JobState.succeeded is await sent.cancel()


async def test_a_far_future_job_is_changed_where_it_waits(producer, app):
    store = await app.store()
    await store.link.call("HSET", store.keys[0].fixed["meta"], "horizon", "table")
    far, when = producer.job("mail", "far"), datetime(2050, 1, 1, tzinfo=UTC)
    placed = await far.reschedule(due_at=when)
    assert ("accepted", when.timestamp() * 1000) == (placed.word, placed.due_ms)
    assert "accepted" == await far.cancel()


async def test_a_job_that_is_not_there_is_not_found(producer):
    absent = producer.job("mail", "absent")
    for call in (
        absent.get,
        absent.cancel,
        absent.requeue,
        lambda: absent.reschedule(delay=1),
        lambda: absent.result(timeout=30),
    ):
        with pytest.raises(JobNotFound):
            await call()
    assert [None] == await (await producer.views()).get_many([absent.key])


async def test_a_result_that_will_not_come_is_an_error(producer, app):
    failed = await producer.enqueue(producer.fail.job())
    cancelled = await producer.enqueue("add", {"left": 1}, delay=60)
    await cancelled.cancel()
    async with working(app):
        with pytest.raises(JobFailed, match="boom"):
            await failed.result(timeout=30)
    with pytest.raises(JobCancelled):
        await cancelled.result(timeout=30)


async def test_a_wait_ends_in_time_and_says_so(producer):
    sent = await producer.enqueue("nobody.takes", delay=60)
    with pytest.raises(TimeoutError, match=r"nobody\.takes"):
        await sent.result(timeout=0.1)


async def test_jobs_of_a_topic_are_listed_and_purged(producer):
    for number in range(5):
        await producer.enqueue("mail", number, id=str(number), delay=60 + number)
    await producer.enqueue("mail", id="now")
    await producer.enqueue("other", id="now")
    views = await producer.views()
    assert ["0", "1", "2", "3", "4"] == [job.id async for job in views.each(JobState.scheduled, "mail")]
    page = await views.page(JobState.scheduled, "mail", limit=2)
    assert ["0", "1"] == [job.id for job in page.jobs]
    page = await views.page(JobState.scheduled, "mail", limit=2, cursor=page.cursor)
    assert ["2", "3"] == [job.id for job in page.jobs]
    assert ["now"] == [job.id for job in await views.peek("mail")]
    with pytest.raises(UsageError, match="cursor"):
        await views.page(JobState.scheduled, "mail", cursor="nonsense")
    assert 6 == await producer.purge("mail")
    assert [] == [job async for job in views.each(JobState.scheduled, "mail")]
    assert JobState.ready is (await producer.job("other", "now").get()).state


async def test_middleware_and_context_go_along(producer, app):
    @producer.around_enqueue
    async def mark(job, call_next):
        return await call_next(job.options(context={"by": "mark"}))

    handles = [await producer.enqueue("mail"), *await producer.enqueue_many([producer.add.job(1)])]
    for handle in handles:
        assert {"by": "mark"} == (await app.job(*handle.key).get()).envelope.context


def test_the_blocking_twin_does_the_same(valkey, namespace):
    queue = Duly(valkey.url, namespace=namespace)
    with Served(queue) as served, Duly(served.url).sync as twin:
        sent = twin.enqueue("mail", {"n": 1}, id="a", delay=60)
        assert (True, "scheduled") == (sent.created, sent.get().state.name)
        many = twin.enqueue_many([new_job("mail", None, queue.settings.limits).options(delay=60)])
        assert many[0].created
        sent.reschedule(delay=90)
        assert ["a"] == [job.id for job in twin.views().each(JobState.scheduled, "mail") if job.id == "a"]
        assert JobState.cancelled is sent.cancel()
        assert "requeued" == sent.requeue().word
        with pytest.raises(TimeoutError):
            sent.result(timeout=0.05)


# -- only over HTTP -------------------------------------------------------------------------------------


async def test_what_needs_the_server_says_so(remote):
    views = await remote.views()
    for call in (
        remote.work,
        remote.store,
        views.stats,
        views.newest,
        lambda: views.workers(0),
    ):
        with pytest.raises(UsageError, match="redis://"):
            await call()
    with pytest.raises(UsageError, match="redis://"):
        remote.make_store()
    with pytest.raises(UsageError, match="say which"):
        await views.page(JobState.ready)


async def test_the_time_is_the_services(remote):
    assert abs(await (await remote.views()).now_ms() - datetime.now(UTC).timestamp() * 1000) < 60_000


async def test_topics_are_listed_where_the_service_can(app):
    async def list_(service, request):
        return JSONResponse({"topics": [{"topic": "mail", "ready": 1}, {"topic": "sms"}]})

    operation = Operation(
        name="list",
        method="GET",
        path="/v1/topics",
        about="",
        run=list_,
        scope="read",
        answers={200: Answer("topics")},
    )
    without = [each for each in OPERATIONS if each.path != operation.path]
    async with serving(make_service(app, without)) as url, Duly(url) as unable:
        with pytest.raises(UsageError, match="redis://"):
            await (await unable.views()).topics()
    async with serving(make_service(app, [*without, operation])) as url, Duly(url) as able:
        assert ["mail", "sms"] == await (await able.views()).topics()


@pytest.mark.parametrize("verb", ["pause", "resume", "limit"])
async def test_topics_are_steered_where_the_service_can_and_else_it_is_said_what_to_use(app, verb):
    arguments = ("mail", 5) if verb == "limit" else ("mail",)
    asked = []

    async def steer(service, request):
        asked.append((request.path_params["topic"], await request.body()))
        return JSONResponse({})

    operation = Operation(
        name="steer",
        method="PUT" if verb == "limit" else "POST",
        path=f"/v1/topics/{{topic}}/{verb}",
        about="",
        run=steer,
        scope="admin",
        parameters=(TOPIC,),
        answers={200: Answer("done")},
    )
    without = [each for each in OPERATIONS if each.path != operation.path]
    async with serving(make_service(app, without)) as url, Duly(url) as unable:
        with pytest.raises(UsageError, match=f"duly topics {'set' if verb == 'limit' else verb}"):
            await getattr(unable, verb)(*arguments)
    async with serving(make_service(app, [*without, operation])) as url, Duly(url) as able:
        await getattr(able, verb)(*arguments)
    assert [("mail", b'{"limit":5}' if verb == "limit" else b"")] == asked


@asynccontextmanager
async def serving(application, port=0):
    """
    An application behind a port of its own, in this loop.
    """
    place = listen("127.0.0.1", port)
    server = server_of(application, 1)
    running = asyncio.create_task(server.serve([place]))
    while not server.started:
        await asyncio.sleep(0.01)
        assert not running.done(), running.result()
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running


async def test_how_many_crashes_a_job_may_have_and_where_it_is_delivered_travel_with_it(producer, app):
    url = "https://example.com/hook"
    await producer.enqueue("mail", id="a", max_crashes=7)
    await producer.enqueue_many([producer.add.job(1).options(id="b", callback=url, max_crashes=8)])
    store = await app.store()
    kept = [await store.link.call("HGET", store.keys[0].fixed["jobs"], key) for key in ("mail/a", "add/b")]
    assert [7, 8] == [read(record).max_crashes for record in kept]
    assert url == (await app.job("add", "b").get()).envelope.callback


async def test_what_the_service_finds_too_large_is_refused(app):
    async with serving(api(app, ServiceSettings(body_limit=1000))) as url, Duly(url) as remote:
        with pytest.raises(UsageError, match="1000 bytes"):
            await remote.enqueue("mail", "x" * 2000)
        [small, large] = await remote.enqueue_many(
            [new_job("mail", text, remote.settings.limits) for text in ("x", "x" * 2000)]
        )
        assert small.created
        assert isinstance(large, UsageError)


@pytest.fixture
async def wire(url):
    async with wire_to(httpx.URL(url).port) as wire:
        yield wire


@pytest.fixture
async def over(wire):
    """
    A producer at the other end of a wire that may lose answers.
    """
    async with Duly(wire.url) as remote:
        wire.seen.clear()
        yield with_handlers(remote)


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
    with pytest.raises(StoreUnavailable):
        await over.job("mail", "a").get()
    assert 4 < len(wire.seen)


async def test_a_service_that_is_away_and_comes_back_is_waited_for(app):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
def service_process(valkey, namespace, tmp_path):
    """
    ``duly serve`` as a process, on the same port each time.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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


async def test_more_may_wait_than_there_are_connections(remote, app):
    jobs = [remote.add.job(number) for number in range(100)]
    handles = await remote.enqueue_many(jobs)
    waiting = [asyncio.create_task(handle.result(timeout=60)) for handle in handles]
    await asyncio.sleep(0)
    assert (await remote.enqueue("add", {"left": 1})).created, "whoever waits keeps nobody from sending"
    async with working(app):
        assert [{"sum": number} for number in range(100)] == await asyncio.gather(*waiting)


# -- keys -----------------------------------------------------------------------------------------------


async def test_a_key_opens_what_it_is_for(url, app, monkeypatch, caplog):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring = KeyRing(await app.store())
    text, _ = await ring.create("shop", ["enqueue"])
    async with Duly(url, api_key=text) as remote:
        sent = await remote.enqueue("mail", id="a", delay=60)
        assert "kept" == (await remote.enqueue("mail", id="a")).placed.word, "without the right to read"
        assert JobState.cancelled is await sent.cancel()
        with pytest.raises(StoreUnavailable, match="has not the scope read"):
            await sent.get()
    for wrong in ("duly_x_wrong-key-in-here", None):
        async with Duly(url, api_key=wrong) as remote:
            with pytest.raises(StoreUnavailable, match="DULY_API_KEY") as caught:
                await remote.enqueue("mail")
            assert "wrong-key-in-here" not in f"{caught.value} {remote.settings!r} {caplog.text}"
    monkeypatch.setenv("DULY_API_KEY", text)
    async with Duly(url) as remote:
        assert (await remote.enqueue("mail")).created


def test_a_key_in_the_open_is_warned_of(caplog):
    asyncio.run(_made("http://127.0.0.1:1", "https://queue.example"))
    assert "" == caplog.text
    asyncio.run(_made("http://queue.example"))
    assert "use https" in caplog.text
    assert "secret" not in caplog.text


async def _made(*urls):
    for url in urls:
        await RemoteLink(url, api_key="secret").aclose()


async def test_too_many_requests_wait_as_long_as_they_are_told(app):
    async with serving(api(app, ServiceSettings(rate=2, burst=1))) as url, Duly(url) as remote:
        handles = [await remote.enqueue("mail", n) for n in range(3)]
        assert all(handle.created for handle in handles)
    async with serving(api(app, ServiceSettings(rate=0.01, burst=1))) as url, Duly(url) as remote:
        await remote.enqueue("mail")
        with pytest.raises(StoreUnavailable, match=r"more than its rate.*in \d+ s"):
            await remote.enqueue("mail")


# -- somebody else at that URL --------------------------------------------------------------------------

NOT_FOUND = '404 Not Found\nContent-Type: application/problem+json\n\n{"type":"urn:duly:problem:not-found"}'


@pytest.mark.parametrize(
    "answer",
    [
        "200 OK\nContent-Type: text/html\n\n<html>",
        "404 Not Found\nContent-Type: application/json\n\n{}",
        '404 Not Found\nContent-Type: application/problem+json\n\n{"type":"about:blank"}',
        "404 Not Found\nContent-Type: application/problem+json\n\nnonsense",
        "500 Oh\n\n",
    ],
)
async def test_what_is_no_duly_service_is_told_so(answer):
    async with host(answer) as (url, _):
        with pytest.raises(ServerUnsuitable, match="no duly service"):
            await Duly(url).queue()


async def test_an_answer_in_other_words_is_no_service():
    answer = '200 OK\nContent-Type: application/json\n\n{"ok":true}'
    async with host(NOT_FOUND, answer) as (url, _), Duly(url) as remote:
        for call in (
            remote.enqueue("mail"),
            remote.job("mail", "a").get(),
            remote.enqueue_many([remote_job(remote)]),
        ):
            with pytest.raises(ServerUnsuitable):
                await call


def remote_job(remote):
    return new_job("mail", None, remote.settings.limits)


async def test_a_redirect_is_not_followed_and_the_key_stays_here():
    async with host("200 OK\nContent-Type: application/json\n\n{}") as (elsewhere, asked):
        async with host(f"307 Elsewhere\nLocation: {elsewhere}/v1\n\n") as (url, _):
            with pytest.raises(ServerUnsuitable, match="sends us to"):
                await Duly(url, api_key="secret").queue()
        assert [] == asked


@pytest.mark.parametrize(
    "status", ["502 Bad Gateway", "503 Busy\nRetry-After: 1", "429 Slow\nRetry-After: 1"]
)
async def test_a_gateway_that_fails_for_a_moment_is_waited_for(status):
    job = '{"topic":"mail","id":"a","state":"ready","revision":1}'
    answer = f"202 Accepted\nContent-Type: application/json\n\n{job}"
    async with host(NOT_FOUND, status, answer) as (url, asked), Duly(url) as remote:
        assert (await remote.enqueue("mail", id="a")).created
        assert 3 == len(asked)
        assert asked[1] == asked[2], "the same request, so the same job"


async def test_a_retry_comes_no_sooner_than_it_was_asked_for():
    full = '409 Conflict\nContent-Type: application/problem+json\n\n{"type":"urn:duly:problem:exists"}'
    loop = asyncio.get_running_loop()
    for status, error in (("429 Slow", JobExists), ("503 Busy", OutcomeUnknown)):
        answers = (NOT_FOUND, f"{status}\nRetry-After: 1\n\n", full)
        async with host(*answers) as (url, asked), Duly(url) as remote:
            began = loop.time()
            # What was refused has not run; what a gateway lost may have.
            with pytest.raises(error):
                await remote.enqueue("mail", id="a", on_conflict="raise")
            assert (3, True) == (len(asked), loop.time() - began >= 1)


async def test_a_certificate_that_is_not_trusted_is_refused_at_once(tmp_path, monkeypatch):
    certificates.make(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "s.crt", tmp_path / "s.key")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    async with host(NOT_FOUND, tls=tls) as (url, asked):
        with pytest.raises(StoreUnavailable, match="SSL_CERT_FILE"):
            await Duly(url).queue()
        assert [] == asked
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
        async with Duly(url):
            assert 1 == len(asked)


async def test_nobody_at_all_is_told_so_in_time():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening
        link = RemoteLink(f"http://127.0.0.1:{taken.getsockname()[1]}", patience_s=0.1)
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            await link.look()
        await link.aclose()


async def test_a_service_that_says_nothing_is_not_waited_for_for_ever():
    async with host() as (url, _):
        link = RemoteLink(url, patience_s=0.0, timeout_s=0.2)
        with pytest.raises(StoreUnavailable, match="no answer in time"):
            await link.look()
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            await link.call("POST", "/v1", body=b"{}")
        await link.aclose()


async def test_a_prefix_in_the_url_stays(wire, app):
    async with host(NOT_FOUND) as (url, asked):
        async with Duly(f"{url}/queues/first/"):
            pass
        assert asked[0].startswith(b"GET /queues/first/v1 ")


def test_a_missing_client_is_a_sentence(tmp_path):
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import asyncio; from duly import Duly, UsageError\n"
        "try: asyncio.run(Duly('http://127.0.0.1:1').enqueue('mail'))\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ("", True) == (done.stderr, "pip install 'duly[client]'" in done.stdout), done


@pytest.mark.parametrize(
    "url", ["http://", "https://user:pw@queue.example", "https://queue.example?a=b", "http://queue.example:x"]
)
def test_a_url_that_is_no_service_is_refused_without_showing_it(url):
    with pytest.raises(UsageError, match="HTTP service") as caught:
        Duly(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "with space", "ü", "line\n"])
def test_a_key_that_is_none_is_refused_without_showing_it(key):
    with pytest.raises(UsageError, match="api_key must") as caught:
        Duly("https://queue.example", api_key=key)
    assert not key or key not in str(caught.value)
