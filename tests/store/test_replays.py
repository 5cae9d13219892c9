"""
Lost replies: whatever is repeated after one changes nothing more and gets the first answer.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duly.connection import Link
from duly.errors import JobNotFound, LeaseLost, OutcomeUnknown, StoreUnavailable
from duly.feed import Feed
from duly.group import MAX_JOBS
from duly.job import JobState, Lane
from duly.namespace import create
from duly.scripts import library
from duly.store import Store, Want
from duly.views import Views
from duly.waiting import Waiters
from tests.proxy import Proxy
from tests.store.kit import LossyLink, claim, enqueue, key, order

CUTS = ["before", "inside", "after"]


@pytest.fixture
async def link(server):
    link = LossyLink(server.url)
    yield link
    await link.aclose()


@pytest.fixture
async def proxy(server):
    proxy = Proxy(server.socket)
    yield proxy
    await asyncio.to_thread(proxy.close)


@pytest.fixture
async def far(proxy, store, clock):
    """
    The same namespace, over the wire that can be cut.
    """
    link = Link(proxy.url, patience_s=3)
    yield Store(link, namespace=store.namespace, now=clock)
    await link.aclose()


async def verbs(feed):
    """
    How often what happened.
    """
    _, events = await feed.read(0, None, 1000)
    return Counter(str(event.verb) for event in events)


# -- the same call again ----------------------------------------------------------------------------------


async def test_the_same_enqueue_again_gets_the_first_answer_and_makes_no_second_revision(store, link, feed):
    link.lose = True
    first = await enqueue(store, "a", delay_ms=100)
    assert ("created", 1_000_100, JobState.scheduled) == (first.word, first.due_ms, first.state)
    assert first.revision == (await Views(store).get(key("a"))).revision
    second = await enqueue(store, "a", delay_ms=200, on_conflict="replace")
    assert ("replaced", 1_000_200, JobState.scheduled) == (second.word, second.due_ms, second.state)
    assert second.revision > first.revision
    assert {"enqueued": 1, "replaced": 1} == await verbs(feed)


async def test_the_same_enqueue_again_still_says_created_when_the_job_has_moved_on(store, link, clock):
    # Of a lane of its own, so that it is one call: see the next test for what is two.
    wish = {"delay_ms": 100, "on_conflict": "raise", "lane": Lane.high}
    first = await enqueue(store, "a", **wish)
    call = link.last
    clock.advance(ms=100)
    [lease] = await claim(store)
    for state in (JobState.running, JobState.succeeded):
        link.resend = call
        again = await enqueue(store, "a", **wish)
        assert ("created", first.revision, state) == (again.word, again.revision, again.state)
        await store.ack(lease)


@pytest.mark.parametrize("on_conflict", ["keep", "raise"])
async def test_a_usual_enqueue_whose_reply_is_lost_says_created_when_the_job_has_ended(
    store, link, views, feed, on_conflict
):
    async def run_it():
        link.lose, link.between = False, None
        [lease] = await claim(store)
        await store.ack(lease)

    link.lose, link.between = True, run_it
    placed = await enqueue(store, "a", on_conflict=on_conflict)
    job = await views.get(key("a"))
    assert ("created", job.revision, JobState.succeeded) == (placed.word, placed.revision, placed.state)
    assert {"enqueued": 1, "claimed": 1, "acked": 1} == await verbs(feed)


async def test_a_batch_again_answers_for_each_job_as_before(store, link):
    await enqueue(store, "kept")
    await store.limit("small", 1)
    orders = [
        order("new"),
        order("kept"),
        order("kept2", on_conflict="raise"),
        order("x", "small"),
        order("y", "small"),
    ]
    first = await store.enqueue_many(orders)
    link.resend = link.last
    again = await store.enqueue_many(orders)
    words = [getattr(answer, "word", type(answer).__name__) for answer in first]
    assert ["created", "kept", "created", "created", "QueueFull"] == words
    assert (first[:4], type(first[4])) == (again[:4], type(again[4]))


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release"])
async def test_the_same_verb_with_the_same_token_again_is_ok_and_another_is_lost(
    store, link, feed, look, verb
):
    calls = {
        "ack": lambda lease: store.ack(lease, b"1"),
        "retry": lambda lease: store.retry(lease, 100, b"1"),
        "bury": lambda lease: store.bury(lease, b"1"),
        "release": store.release,
    }
    await enqueue(store, "a")
    [lease] = await claim(store)
    link.lose = True
    await calls[verb](lease)
    link.lose = False
    before = look()
    await calls[verb](lease)
    for other in calls.keys() - {verb}:
        with pytest.raises(LeaseLost):
            await calls[other](lease)
    assert before == look()
    assert 3 == (await verbs(feed)).total()


async def test_the_same_claim_again_brings_the_same_leases_and_takes_no_more(store, link, look):
    for id_ in ("a", "b", "c", "d"):
        await enqueue(store, id_)
    leases = await claim(store, limit=2)
    call, before = link.last, look()
    link.resend = call
    assert leases == await claim(store, limit=2)
    assert before == look()
    # What ended meanwhile is not brought again.
    await store.ack(leases[0])
    link.resend = call
    assert leases[1:] == await claim(store, limit=2)


async def test_a_claim_that_arrives_after_its_own_replay_takes_no_more(store, link, look):
    for id_ in ("a", "b", "c", "d"):
        await enqueue(store, id_)
    sent = []
    run = Link.run

    async def note(self, name, keys, args, *, again=None):
        sent.append((name, keys, args))
        return await run(self, name, keys, args, again=again)

    link.run = note.__get__(link)
    link.lose = False
    await claim(store, limit=2)
    replayed = look()
    # The first sending was under way all the time, and comes through now.
    await run(link, *sent[-1])
    assert replayed == look()


async def test_the_same_claim_number_of_another_worker_is_another_claim(store):
    await enqueue(store, "a")
    await enqueue(store, "b")
    wants = [Want("mail", 1, 60_000)]
    one = await store.claim(0, wants, worker="w1")
    two = await store.claim(0, wants, worker="w2")
    assert {"a", "b"} == {lease.key.id for lease in one.leases + two.leases}


async def test_the_same_reschedule_again_makes_one_revision(store, link, feed):
    first = await enqueue(store, "a", delay_ms=100)
    link.lose = True
    placed = await store.reschedule(key("a"), delay_ms=50, revision=first.revision)
    assert ("rescheduled", 1_000_050) == (placed.word, placed.due_ms)
    assert placed.revision == (await Views(store).get(key("a"))).revision
    assert 1 == (await verbs(feed))["rescheduled"]


async def test_the_same_requeue_again_makes_one_revision(store, link, feed):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.ack(lease)
    link.lose = True
    assert ["requeued"] == [placed.word for placed in await store.requeue([key("a")])]
    link.lose = False
    assert [1] == [lease.attempt for lease in await claim(store)]
    assert 1 == (await verbs(feed))["requeued"]


async def test_the_same_cancel_again_cancels_once(store, link, feed):
    await enqueue(store, "a")
    link.lose = True
    assert [JobState.cancelled] == await store.cancel([key("a")])
    assert 1 == (await verbs(feed))["cancelled"]


@pytest.mark.parametrize("size", [3, 5_000])
async def test_a_closed_job_that_retains_nothing_leaves_a_stub_for_a_minute(
    store, link, clock, views, look, size
):
    wish = {"retain_s": 0, "payload": b"x" * size, "lane": Lane.high}
    await enqueue(store, "a", **wish)
    enqueued = link.last
    [lease] = await claim(store)
    await store.ack(lease, b'"secret"')
    job = await views.get(key("a"))
    assert (JobState.succeeded, b"", b"") == (job.state, job.payload, job.outcome)
    clock.advance(ms=59_999)
    assert (0, False) == await store.prune(0)
    await store.ack(lease)
    link.resend = enqueued
    assert "created" == (await enqueue(store, "a", **wish)).word
    assert ["JobNotFound"] == [type(answer).__name__ for answer in await store.requeue([key("a")])]
    look()
    clock.advance(ms=1)
    assert (1, False) == await store.prune(0)
    assert {} == look().jobs
    with pytest.raises(JobNotFound):
        await store.ack(lease)


# -- over a wire that is cut ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", CUTS)
async def test_an_enqueue_makes_one_job_wherever_the_wire_is_cut(far, proxy, feed, look, where):
    await enqueue(far, "warm up")
    proxy.cut(where, library().function("add"))
    placed = await enqueue(far, "a", delay_ms=100)
    assert (1, "created", JobState.scheduled) == (proxy.made, placed.word, placed.state)
    proxy.cut(where, library().function("enqueue"))
    replaced = await enqueue(far, "a", delay_ms=200, on_conflict="replace")
    assert (2, "replaced") == (proxy.made, replaced.word)
    assert {"enqueued": 2, "replaced": 1} == await verbs(feed)
    look()


@pytest.mark.parametrize("where", CUTS)
async def test_a_group_of_enqueues_makes_one_job_each_wherever_the_wire_is_cut(far, proxy, feed, where):
    proxy.cut(where, library().function("enqueue"), times=2)
    placed = await asyncio.gather(*(enqueue(far, str(at)) for at in range(50)))
    assert (2, {"created"}) == (proxy.made, {one.word for one in placed})
    assert {"enqueued": 50} == await verbs(feed)


@pytest.mark.parametrize("where", CUTS)
async def test_a_claim_knows_every_lease_that_it_made_wherever_the_wire_is_cut(far, proxy, look, where):
    await asyncio.gather(*(enqueue(far, str(at)) for at in range(6)))
    proxy.cut(where, library().function("claim"))
    leases = await claim(far, limit=4)
    assert (1, 4) == (proxy.made, len(leases))
    running = {member: job.token for member, job in look().jobs.items() if job.state is JobState.running}
    assert running == {lease.key.member: lease.token for lease in leases}


@pytest.mark.parametrize(
    "limit",
    [
        4,
        6,
    ],
)
async def test_a_claim_whose_reply_was_lost_by_a_restart_knows_its_leases_too(far, proxy, raw, look, limit):
    await asyncio.gather(*(enqueue(far, str(at)) for at in range(6)))
    proxy.cut("after", library().function("claim"), then=lambda: raw.function_flush("SYNC"))
    leases = await claim(far, limit=limit)
    assert (1, limit) == (proxy.made, len(leases))
    assert look().leases.keys() == {lease.key.member for lease in leases}


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release"])
async def test_a_run_ends_once_wherever_the_wire_is_cut(far, proxy, feed, look, verb, where):
    await enqueue(far, "a")
    [lease] = await claim(far)
    proxy.cut(where, library().function(verb))
    match verb:
        case "ack":
            await far.ack(lease, b"1")
        case "retry":
            await far.retry(lease, 100, b"1", "Boom")
        case "bury":
            await far.bury(lease, b"1", "Bad")
        case "release":
            await far.release(lease)
    assert 1 == proxy.made
    past = {"ack": "acked", "retry": "retried", "bury": "buried", "release": "released"}
    assert {"enqueued": 1, "claimed": 1, past[verb]: 1} == await verbs(feed)
    look()


@pytest.mark.parametrize("where", CUTS)
async def test_people_get_one_outcome_wherever_the_wire_is_cut(far, proxy, feed, look, where):
    await enqueue(far, "a", delay_ms=100)
    proxy.cut(where, library().function("reschedule"))
    assert "rescheduled" == (await far.reschedule(key("a"), delay_ms=50)).word
    proxy.cut(where, library().function("cancel"))
    assert [JobState.cancelled] == await far.cancel([key("a")])
    proxy.cut(where, library().function("requeue"))
    assert ["requeued"] == [placed.word for placed in await far.requeue([key("a")])]
    assert 3 == proxy.made
    assert {"enqueued": 1, "rescheduled": 1, "cancelled": 1, "requeued": 1} == await verbs(feed)
    look()


# -- what callers are told --------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_is_unavailable_and_nothing_was_sent(tmp_path, namespace):
    link = Link(f"unix://{tmp_path}/nobody.sock", patience_s=0.05)
    with pytest.raises(StoreUnavailable, match=r"nobody\.sock.*nothing was changed"):
        await Store(link, namespace=namespace).enqueue(order("a"))


@pytest.mark.parametrize("where", CUTS)
async def test_a_reply_that_stays_lost_is_an_unknown_outcome_and_repeating_is_safe(far, proxy, feed, where):
    far.link.patience_s = 0.2
    proxy.cut(where, library().function("add"), times=1_000)
    with pytest.raises(OutcomeUnknown, match="calling again is safe"):
        await enqueue(far, "a")
    proxy.mend()
    assert ("kept" if where == "after" else "created") == (await enqueue(far, "a")).word
    assert {"enqueued": 1} == await verbs(feed)


@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("read", ["get", "page", "watch", "HGETALL", "TIME"])
async def test_a_lost_reply_of_a_read_leaves_nothing_unknown(far, proxy, where, read):
    await enqueue(far, "a", delay_ms=100)
    views, waiters = Views(far), Waiters(far)
    ask = {
        "get": lambda: views.get(key("a")),
        "page": lambda: views.page(JobState.scheduled, "mail"),
        "watch": lambda: waiters.ended(key("a")),
        "HGETALL": views.topics,
        "TIME": views.now_ms,
    }
    far.link.patience_s = 0.05
    proxy.cut(where, library().function(read) if read.islower() else read, times=1_000)
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await ask[read]()
    assert proxy.made
    await waiters.aclose()


async def test_a_replay_that_is_refused_leaves_the_outcome_unknown(far, proxy, raw, views):
    await enqueue(far, "warm up")
    proxy.cut("after", library().function("add"), then=lambda: raw.config_set("maxmemory", 1))
    try:
        with pytest.raises(OutcomeUnknown):
            await enqueue(far, "a")
    finally:
        raw.config_set("maxmemory", 0)
    assert None is not await views.get(key("a"))


async def test_every_caller_in_a_group_is_told(far, proxy):
    far.link.patience_s = 0.2
    proxy.cut("after", library().function("enqueue"), times=1_000)
    told = await asyncio.gather(
        *(enqueue(far, str(at), lane=Lane.high) for at in range(5)), return_exceptions=True
    )
    assert [OutcomeUnknown] * 5 == [type(error) for error in told]


async def test_an_ack_whose_reply_stays_lost_can_be_repeated(far, proxy, feed):
    await enqueue(far, "a")
    [lease] = await claim(far)
    far.link.patience_s = 0.2
    proxy.cut("after", library().function("ack"), times=1_000)
    with pytest.raises(OutcomeUnknown):
        await far.ack(lease)
    proxy.mend()
    await far.ack(lease)
    assert 1 == (await verbs(feed))["acked"]


async def test_a_cancelled_caller_leaves_no_reply_for_the_next(far, proxy):
    await enqueue(far, "a")
    for _ in range(20):
        waiting = asyncio.create_task(far.wait(["none"], 5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        assert b"PONG" == await far.link.call("PING")


async def test_scripts_are_loaded_again_when_many_calls_miss_them_at_once(store, raw, look):
    await asyncio.gather(*(enqueue(store, str(at)) for at in range(100)))
    raw.function_flush("SYNC")
    claims = await asyncio.gather(*(claim(store, worker=f"w{at}", limit=5) for at in range(20)))
    assert 100 == len({lease.key for leases in claims for lease in leases})
    raw.function_flush("SYNC")
    await asyncio.gather(*(store.ack(lease) for leases in claims for lease in leases))
    assert {JobState.succeeded} == {job.state for job in look().jobs.values()}


async def test_a_namespace_is_made_once_wherever_the_wire_is_cut(proxy, namespace):
    link = Link(proxy.url)
    epochs = []
    for where in CUTS:
        proxy.cut(where, library().function("create"))
        epochs.append(await create(link, f"{namespace}x", 2))
    assert 1 == len({tuple(epoch) for epoch in epochs})
    await link.aclose()


async def test_a_reader_of_events_is_not_disturbed_by_lost_replies(far, proxy):
    await enqueue(far, "a")
    proxy.cut("after", "XRANGE")
    _, events = await Feed(far).read(0, None)
    assert (1, ["enqueued"]) == (proxy.made, [event.verb for event in events])


async def test_a_bulk_enqueue_that_fails_half_way_tells_each_job_what_became_of_it(far, monkeypatch):
    sent = []
    send = far._enqueue

    async def fail_the_second(shard, batch):
        sent.append(batch)
        if len(sent) == 2:
            raise StoreUnavailable("no more")
        return await send(shard, batch)

    monkeypatch.setattr(far, "_enqueue", fail_the_second)
    answers = await far.enqueue_many([order(str(at)) for at in range(2 * MAX_JOBS + 200)])
    words = [getattr(answer, "word", type(answer).__name__) for answer in answers]
    assert ["created"] * MAX_JOBS + ["StoreUnavailable"] * MAX_JOBS + ["created"] * 200 == words


async def test_a_bulk_enqueue_of_which_nothing_was_accepted_raises(far, monkeypatch):
    async def fail(shard, batch):
        raise StoreUnavailable("not there")

    monkeypatch.setattr(far, "_enqueue", fail)
    with pytest.raises(StoreUnavailable, match="not there"):
        await far.enqueue_many([order(str(at)) for at in range(700)])
