"""
Answers that are lost, and services that are away or killed: no job is lost, and none doubled.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest

from duly import Duly, JobCancelled, JobExists, JobState, OutcomeUnknown, StoreUnavailable
from duly.http.api import api
from duly.http.batch import LOST
from duly.job import JobKey
from duly.newjob import new_job
from duly.record.schema import migrate
from duly.remote.link import COPIES, RemoteLink
from duly.remote.waiting import PACE_S
from duly.views import Views
from tests.eventually import eventually
from tests.http.remote.kit import serving
from tests.http.wire import wire_to
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


async def test_of_each_job_of_many_it_is_told_whether_its_answer_was_lost_behind_the_service(
    remote, app, monkeypatch
):
    send = app.enqueue_many

    async def lose_some(jobs):
        jobs = list(jobs)
        if jobs[0].payload == b"0":
            first, _, *rest = await send(jobs)
            return [first, OutcomeUnknown("lost"), *rest]
        raise StoreUnavailable("away")

    monkeypatch.setattr(app, "enqueue_many", lose_some)
    monkeypatch.setattr("duly.http.batch.SLICE", 3)
    jobs = [new_job("mail", n, remote.settings.limits).options(id=f"{n}") for n in range(4)]
    first, lost, third, stopped = await remote.enqueue_many(jobs)
    assert (True, True) == (first.created, third.created)
    assert (OutcomeUnknown, f"mail/1: {LOST}") == (type(lost), str(lost))
    assert isinstance(stopped, StoreUnavailable)


SENDERS = ["one", "many"]


async def send(over, how, payload, **options):
    """
    Send a job that is called "a", by itself or among others.
    """
    if how == "one":
        return await over.enqueue("mail", payload, id="a", **options)
    job = new_job("mail", payload, over.settings.limits)
    [sent, other] = await over.enqueue_many([job.options(id="a", **options), job.options(id="b")])
    assert other.created
    if isinstance(sent, Exception):
        raise sent
    return sent


@pytest.mark.parametrize("how", SENDERS)
@pytest.mark.parametrize("delay", [None, 60])
@pytest.mark.parametrize("there", [False, True])
async def test_a_replacement_whose_answer_was_lost_makes_one_revision(over, wire, app, how, delay, there):
    if there:
        await app.enqueue("mail", 0, id="a", delay=5)
    first = []

    async def meanwhile():
        first.append((await app.job("mail", "a").get()).revision)

    wire.lose, wire.matching, wire.meanwhile = 1, b'"payload":1', meanwhile
    sent = await send(over, how, 1, delay=delay, on_conflict="replace")
    job = await app.job("mail", "a").get()
    assert (True, first[0], b"1") == (sent.created, sent.placed.revision, job.payload)
    assert first == [job.revision]


@pytest.mark.parametrize("how", SENDERS)
async def test_a_replacement_whose_answer_was_lost_undoes_nothing_of_others(over, wire, app, how):
    theirs = []

    async def meanwhile():
        theirs.append(await app.enqueue("mail", 2, id="a", delay=90, on_conflict="replace"))

    wire.lose, wire.matching, wire.meanwhile = 1, b'"payload":1', meanwhile
    sent = await send(over, how, 1, delay=60, on_conflict="replace")
    job = await app.job("mail", "a").get()
    assert (b"2", theirs[0].placed.revision) == (job.payload, job.revision)
    assert sent.created
    if how == "one":
        assert sent.placed.revision < job.revision, "it is told of its own"


@pytest.mark.parametrize("how", SENDERS)
async def test_a_job_that_ran_before_its_answer_was_lost_does_not_run_again(over, wire, app, how):
    async def meanwhile():
        assert (await app.job("mail", "a").get()).state is JobState.ready
        await app.job("mail", "a").cancel()

    wire.lose, wire.matching, wire.meanwhile = 1, b'"payload":1', meanwhile
    await send(over, how, 1, on_conflict="replace")
    assert JobState.cancelled is (await app.job("mail", "a").get()).state


@pytest.mark.parametrize("how", SENDERS)
async def test_whose_job_it_is_after_a_lost_answer_is_known(over, wire, app, how):
    wire.lose, wire.matching = 1, b'"payload":1'
    sent = await send(over, how, 1, on_conflict="raise")
    assert (True, 0) == (sent.created, wire.lose)
    wire.lose = 1
    with pytest.raises(JobExists):
        await send(over, how, 1, on_conflict="raise")
    assert 0 == wire.lose


async def test_a_call_that_keeps_what_is_there_costs_no_key(over, wire):
    await over.enqueue("mail", 1, id="a")
    await over.enqueue_many([new_job("mail", 2, over.settings.limits)])
    assert [] == [each for each in wire.seen if b"idempotency-key" in each.lower()]
    await over.enqueue("mail", 1, id="a", on_conflict="replace")
    assert 1 == sum(b"idempotency-key" in each.lower() for each in wire.seen)


async def test_a_change_at_a_revision_whose_answer_was_lost_is_told_of(over, wire):
    sent = await over.enqueue("mail", id="b", delay=60)
    wire.lose, wire.matching = 1, b"PATCH"
    placed = await sent.reschedule(delay=90, revision=sent.placed.revision)
    assert (await sent.get()).revision == placed.revision


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


@pytest.fixture(params=[1, 3])
async def sharded(request, valkey, namespace, served):
    """
    A service of a queue of one or of three shards, a wire to it, a producer A at its end, and B beside it.
    """
    async with (
        Duly(valkey.url, namespace=namespace, shards=request.param) as beside,
        served(beside) as (url, _),
        wire_to(httpx.URL(url).port) as wire,
        Duly(wire.url) as over,
    ):
        await over.queue()
        wire.seen.clear()
        yield wire, over, beside


async def sent_twice(wire, method, meanwhile, call):
    """
    Call once, so that the answer is lost and others change something before it is sent again.
    """
    wire.lose, wire.matching, wire.meanwhile = 1, method, meanwhile
    answer = await call
    tries = [each for each in wire.seen if method in each]
    assert (0, 2, 1) == (wire.lose, len(tries), len(set(keys_of(tries))))
    return answer


JOBS = [f"job-{number}" for number in range(12)]  # on every shard there are some
LATER = [f"later-{number}" for number in range(12)]  # likewise
HOWS = ["alone", "together"]


@pytest.mark.parametrize("how", HOWS)
async def test_a_cancel_whose_answer_was_lost_leaves_the_job_that_others_made_since(sharded, how):
    wire, over, beside = sharded
    names = JOBS if how == "together" else JOBS[:1]
    keys = [JobKey("mail", name) for name in names]
    for name in names:
        await beside.enqueue("mail", 1, id=name, delay=60)

    async def meanwhile():
        for name in names:
            assert JobState.cancelled is (await beside.job("mail", name).get()).state
            await beside.enqueue("mail", 2, id=name, delay=90, on_conflict="replace")

    method = b"jobs:cancel" if how == "together" else b"DELETE"
    states = await sent_twice(wire, method, meanwhile, (await over.queue()).cancel(keys))
    assert [JobState.cancelled] * len(names) == states
    jobs = [await beside.job("mail", name).get() for name in names]
    assert [(JobState.scheduled, b"2")] * len(names) == [(job.state, job.payload) for job in jobs]


async def test_a_cancel_whose_answer_was_lost_is_told_of_also_when_the_job_is_gone(sharded):
    wire, over, beside = sharded
    sent = await beside.enqueue("mail", id="a", delay=60)

    async def meanwhile():
        await (await beside.store()).delete([sent.key])

    assert JobState.cancelled is await sent_twice(wire, b"DELETE", meanwhile, over.job("mail", "a").cancel())


@pytest.mark.parametrize("conditional", [False, True])
async def test_a_reschedule_whose_answer_was_lost_leaves_what_others_made_of_the_job(sharded, conditional):
    wire, over, beside = sharded
    sent = await beside.enqueue("mail", id="a", delay=60)
    found = []

    async def meanwhile():
        found.append(await beside.job("mail", "a").get())
        found.append(await beside.job("mail", "a").reschedule(delay=600))

    revision = sent.placed.revision if conditional else None
    call = over.job("mail", "a").reschedule(delay=300, revision=revision)
    placed = await sent_twice(wire, b"PATCH", meanwhile, call)
    first, theirs = found
    told = (placed.word, placed.revision, placed.due_ms, placed.state)
    assert ("rescheduled", first.revision, first.due_ms, JobState.scheduled) == told
    job = await beside.job("mail", "a").get()
    assert (theirs.revision, theirs.due_ms) == (job.revision, job.due_ms)


@pytest.mark.parametrize("how", HOWS)
async def test_a_requeue_whose_answer_was_lost_leaves_what_others_cancelled_since(sharded, how):
    wire, over, beside = sharded
    names = JOBS if how == "together" else JOBS[:1]
    keys = [JobKey("mail", name) for name in names]
    for name in names:
        await (await beside.enqueue("mail", id=name, delay=60)).cancel()
    first = []

    async def meanwhile():
        for name in names:
            first.append(await beside.job("mail", name).get())
            await beside.job("mail", name).cancel()

    placed = await sent_twice(wire, b"requeue", meanwhile, (await over.queue()).requeue(keys))
    assert [(each.revision, JobState.ready) for each in first] == [
        (each.revision, each.state) for each in placed
    ]
    jobs = [await beside.job("mail", name).get() for name in names]
    assert {JobState.cancelled} == {job.state for job in jobs}


async def test_a_topic_is_not_steered_twice_where_an_answer_was_lost(sharded):
    wire, over, beside = sharded

    async def about():
        await beside.enqueue("mail", id="a", delay=60)
        [topic] = (await (await beside.views()).stats()).topics
        return topic

    await sent_twice(wire, b"/pause", lambda: beside.resume("mail"), over.pause("mail"))
    assert not (await about()).paused
    await sent_twice(wire, b"/resume", lambda: beside.pause("mail"), over.resume("mail"))
    assert (await about()).paused
    await sent_twice(wire, b"/limit", lambda: beside.limit("mail", 60), over.limit("mail", 30))
    assert 60 == (await about()).limit
    theirs, ours = "https://a.example/theirs", "https://a.example/ours"
    await sent_twice(wire, b"/callback", lambda: beside.callback("mail", theirs), over.callback("mail", ours))
    assert theirs == (await about()).callback


async def purged(beside):
    """
    What a purge that others send more jobs behind has left.
    """
    jobs = [await beside.job("mail", name).get() for name in (*JOBS, *LATER)]
    return {job.key.id for job in jobs if job.state is JobState.cancelled}


async def send_all(app, names, **options):
    await app.enqueue_many(
        [new_job("mail", 1, app.settings.limits).options(id=name, **options) for name in names]
    )


@pytest.mark.parametrize("state", [JobState.scheduled, JobState.ready])
async def test_a_purge_whose_answer_was_lost_leaves_jobs_that_others_sent_since(sharded, state):
    wire, over, beside = sharded
    options = {"delay": 60} if state is JobState.scheduled else {}
    await send_all(beside, JOBS, **options)

    async def meanwhile():
        assert {JobState.cancelled} == {(await beside.job("mail", name).get()).state for name in JOBS}
        await send_all(beside, LATER, **options)
        await beside.enqueue("mail", id=JOBS[0], on_conflict="replace", **options)
        await beside.job("mail", JOBS[1]).requeue()

    call = over.purge("mail", state=state)
    assert len(JOBS) == await sent_twice(wire, b"/purge", meanwhile, call)
    assert set(JOBS[2:]) == await purged(beside)


@pytest.fixture
async def recorded(valkey, namespace, tmp_path, served):
    """
    The same with a record.
    """
    record = f"sqlite:///{tmp_path}/record.db"
    migrate(record)
    async with (
        Duly(valkey.url, namespace=namespace, record=record) as beside,
        served(beside) as (url, _),
        wire_to(httpx.URL(url).port) as wire,
        Duly(wire.url) as over,
    ):
        (await over.queue()).link.patience_s = 2.0
        wire.seen.clear()
        yield wire, over, beside


@pytest.mark.parametrize("state", [JobState.scheduled, JobState.ready])
async def test_with_a_record_a_purge_whose_answer_was_lost_leaves_what_others_sent_since(recorded, state):
    wire, over, beside = recorded
    options = {"delay": 60} if state is JobState.scheduled else {}
    await send_all(beside, JOBS, **options)

    async def meanwhile():
        assert {JobState.cancelled} == {(await beside.job("mail", name).get()).state for name in JOBS}
        await send_all(beside, LATER, **options)

    call = over.purge("mail", state=state)
    assert len(JOBS) == await sent_twice(wire, b"/purge", meanwhile, call)
    assert set(JOBS) == await purged(beside)


STEERED = {
    "cancel": (b"DELETE", lambda job: job.cancel(), lambda job: job.requeue()),
    "reschedule": (b"PATCH", lambda job: job.reschedule(delay=300), lambda job: job.reschedule(delay=600)),
    "requeue": (b"requeue", lambda job: job.requeue(), lambda job: job.cancel()),
}


@pytest.mark.parametrize("verb", STEERED)
async def test_with_a_record_a_change_whose_answer_was_lost_is_known_by_its_row(recorded, verb):
    wire, over, beside = recorded
    method, ours, _ = STEERED[verb]
    job = await beside.enqueue("mail", id="a", delay=60)
    if verb == "requeue":
        await job.cancel()
    found = []

    async def meanwhile():
        found.append(await job.get())

    await sent_twice(wire, method, meanwhile, ours(over.job("mail", "a")))
    again = await job.get()
    assert (found[0].revision, found[0].due_ms, found[0].state) == (again.revision, again.due_ms, again.state)


@pytest.mark.parametrize("verb", STEERED)
async def test_with_a_record_a_repeat_leaves_what_others_changed_and_is_not_guessed(recorded, verb):
    wire, over, beside = recorded
    method, ours, theirs = STEERED[verb]
    job = await beside.enqueue("mail", id="a", delay=60)
    if verb == "requeue":
        await job.cancel()
    found = []

    async def meanwhile():
        await theirs(job)
        found.append(await job.get())

    wire.lose, wire.matching, wire.meanwhile = 1, method, meanwhile
    with pytest.raises(OutcomeUnknown):
        await ours(over.job("mail", "a"))
    assert 2 <= len(sent(wire, method))
    again = await job.get()
    assert (found[0].revision, found[0].due_ms, found[0].state) == (again.revision, again.due_ms, again.state)
    [row] = await (await beside.views()).get_many([job.key])
    stored = await Views(await beside.store()).get(job.key)
    assert (row.state, row.due_ms) == (stored.state, stored.due_ms)


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


# -- answers that are held: no reset tells that they do not come ------------------------------------------


def sent(wire, matching: bytes) -> list[bytes]:
    return [each for each in wire.seen if matching in each]


def keys_of(requests) -> list[bytes]:
    return [
        line
        for each in requests
        for line in each.lower().split(b"\r\n")
        if line.startswith(b"idempotency-key")
    ]


@pytest.mark.parametrize("how", SENDERS)
async def test_a_held_answer_is_told_from_a_silent_service_by_a_new_connection(over, wire, app, how):
    link = (await over.queue()).link
    assert link.try_s * 5 <= link.patience_s
    wire.hold, wire.matching = 1, b'"payload":1'
    began_s = asyncio.get_running_loop().time()
    told = await send(over, how, 1, delay=60, on_conflict="replace")
    assert asyncio.get_running_loop().time() - began_s < link.patience_s
    first, again = keys_of(sent(wire, b'"payload":1'))
    assert first == again
    assert (True, 0) == (told.created, wire.hold)
    assert told.placed.revision == (await app.job("mail", "a").get()).revision


async def test_calls_over_connections_that_fell_silent_go_over_new_ones(over, wire):
    link = (await over.queue()).link
    await asyncio.gather(*(over.enqueue("mail", number) for number in range(8)))
    wire.silence()
    began_s = asyncio.get_running_loop().time()
    handles = await asyncio.gather(*(over.enqueue("mail", number) for number in range(24)))
    await over.enqueue("mail", 1)
    assert asyncio.get_running_loop().time() - began_s < link.patience_s
    assert all(handle.created for handle in handles)
    # One asked for all; on a busy machine others ask later, for what is slow on the new connections.
    assert len(sent(wire, b"GET /healthz")) <= 1 + COPIES


async def test_a_service_that_is_silent_to_all_is_waited_for_on_the_same_connection(over, wire, app):
    wire.flows.clear()
    sending = asyncio.create_task(over.enqueue("mail", 1))
    await eventually(lambda: sent(wire, b"GET /healthz") != [])
    wire.flows.set()
    assert (await sending).created
    assert 1 == len(sent(wire, b'"payload":1'))


async def test_a_requeue_whose_answer_is_held_is_sent_again_and_done_once(over, wire, app):
    job = await over.enqueue("mail", id="a", delay=60)
    await job.cancel()
    wire.hold, wire.matching = 1, b"requeue"
    placed = await job.requeue()
    tries = sent(wire, b"requeue")
    assert (2, 1) == (len(tries), len(set(keys_of(tries))))
    assert (JobState.ready, placed.revision) == ((found := await job.get()).state, found.revision)


async def test_held_answers_end_with_the_patience(over, wire):
    link = (await over.queue()).link
    link.patience_s = link.timeout_s = 0.5
    wire.hold, wire.matching = 10_000, b"POST"
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(OutcomeUnknown, match="no answer in time"):
        await over.enqueue("mail", 1)
    # A call of 0.5 s took 6.5 s when one try could last longer than the patience.
    assert asyncio.get_running_loop().time() - began_s < 3
    assert 2 <= len(sent(wire, b"POST")) <= COPIES
    assert 1 == len(set(sent(wire, b"POST")))


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
async def bereft(app, url, monkeypatch):
    """
    A producer of a service whose queue is away, and which says so after a while.
    """
    await app.enqueue("mail", id="a", delay=60)
    async with Duly(url, socket_timeout=1.0) as remote:
        await remote.queue()

        async def away(*_, **__):
            await asyncio.sleep(0.5)
            raise StoreUnavailable("away")

        monkeypatch.setattr((await app.store()).link, "call", away)
        yield remote
        monkeypatch.undo()


READS = {
    "get": lambda remote, _: remote.job("mail", "a").get(),
    "stats": lambda remote, _: remote.stats(),
    "topics": lambda _, views: views.topics(),
    "page": lambda _, views: views.page(JobState.scheduled, "mail"),
    "peek": lambda _, views: views.peek("mail"),
    "audit": lambda remote, _: remote.audit(),
}


@pytest.mark.parametrize("name", READS)
async def test_what_only_reads_has_no_unknown_outcome(bereft, name):
    # Long before the service has given up on its queue, its client asks over a second connection.
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await READS[name](bereft, await bereft.views())


async def test_what_changes_something_has_an_unknown_outcome_while_the_queue_is_away(bereft):
    with pytest.raises(OutcomeUnknown):
        await bereft.job("mail", "a").cancel()


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
