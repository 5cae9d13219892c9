"""
Claims whose answers never come, also after replays: what they took is given back, and nothing is counted.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.connection import Link
from duly.errors import OutcomeUnknown, StoreUnavailable
from duly.job import JobState
from tests.store.kit import claim, crash, enqueue, ids, key


class SilentLink(Link):
    """
    A link over which no claim is answered while it is told so.
    """

    silent = ""  #: "after" the claim was carried out, or "before"
    sent: list[tuple]  #: the script calls that were not answered

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent = []

    async def run(self, name, keys, args, *, again=None):
        if name != "claim" or not self.silent:
            return await super().run(name, keys, args, again=again)
        self.sent.append((name, keys, args))
        if self.silent == "after":
            await super().run(name, keys, args)
        raise OutcomeUnknown("no reply")


@pytest.fixture
async def link(server):
    link = SilentLink(server.url)
    yield link
    await link.aclose()


async def lose(store, link, when="after", **options):
    link.silent = when
    with pytest.raises(OutcomeUnknown):
        await claim(store, **options)
    link.silent = ""


@pytest.mark.parametrize("limit", [2, 3])
async def test_what_an_unanswered_claim_took_goes_back_before_the_worker_takes_more(store, link, look, limit):
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_)
    await lose(store, link, limit=limit)
    leases = await claim(store, limit=3)
    assert {"a", "b", "c"} == set(ids(leases))
    assert {(1, 0)} == {(lease.attempt, lease.crashes) for lease in leases}
    running = {member: job.token for member, job in look().jobs.items() if job.state is JobState.running}
    assert running == {lease.key.member: lease.token for lease in leases}


async def test_a_worker_that_can_take_nothing_gives_it_back_too(store, link, look):
    await enqueue(store, "a")
    await lose(store, link)
    assert ["mail/a"] == list(look().leases)
    await store.give_back_unanswered("w2")
    assert ["mail/a"] == list(look().leases), "it is another's"
    assert (True, False) == (store.has_unanswered("w1"), store.has_unanswered("w2"))
    await store.give_back_unanswered("w1")
    assert not store.has_unanswered("w1")
    assert (JobState.ready, {}) == (look().jobs["mail/a"].state, look().leases)
    assert [("a", 1, 0)] == [
        (lease.key.id, lease.attempt, lease.crashes) for lease in await claim(store, worker="w2")
    ]


async def test_it_is_asked_for_until_it_is_answered(store, link, look):
    await enqueue(store, "a")
    await lose(store, link)
    await lose(store, link, "before")
    link.silent = "before"
    with pytest.raises(OutcomeUnknown):
        await store.give_back_unanswered("w1")
    link.silent = ""
    await store.give_back_unanswered("w1")
    assert (JobState.ready, {}) == (look().jobs["mail/a"].state, look().leases)
    assert (3, 1) == (len(link.sent), len({args[1] for _, _, args in link.sent})), "one nonce for all"


async def test_a_claim_that_was_given_up_is_asked_for_too(store, link, look):
    await enqueue(store, "a")
    run, carried_out = Link.run, asyncio.Event()

    async def hang(self, name, keys, args, *, again=None):
        await run(self, name, keys, args, again=again)
        carried_out.set()
        await asyncio.Event().wait()

    link.run = hang.__get__(link)
    asking = asyncio.create_task(claim(store))
    await carried_out.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    link.run = run.__get__(link)
    assert ["a"] == ids(await claim(store))
    assert 1 == len(look().leases)


async def test_asking_for_a_claim_that_was_never_carried_out_takes_nothing(store, link, look):
    await enqueue(store, "a")
    await lose(store, link, "before")
    before = look()
    await store.give_back_unanswered("w1")
    assert before.jobs == look().jobs


async def test_what_could_not_be_given_back_is_given_back_later(store, link, look, monkeypatch):
    await enqueue(store, "a")
    await lose(store, link)

    async def fail(lease):
        raise OutcomeUnknown("no reply")

    with monkeypatch.context() as patched:
        patched.setattr(store, "release", fail)
        with pytest.raises(OutcomeUnknown):
            await claim(store)
    assert ["mail/a"] == list(look().leases)
    await store.give_back_unanswered("w1")
    assert {} == look().leases


async def test_a_refused_claim_took_nothing_and_is_not_asked_for(store, link, monkeypatch):
    async def refuse(*_, **__):
        raise StoreUnavailable("busy")

    with monkeypatch.context() as patched:
        patched.setattr(link, "run", refuse)
        with pytest.raises(StoreUnavailable):
            await claim(store)
        await store.give_back_unanswered("w1")


@pytest.mark.parametrize("when", ["after", "before"])
async def test_a_claim_that_arrives_after_its_worker_went_on_takes_nothing(store, link, look, when):
    await enqueue(store, "a")
    await lose(store, link, when)
    await store.give_back_unanswered("w1")
    leases = await claim(store, limit=1)
    await enqueue(store, "b")
    before = look()
    # Its first sending was under way all the time.
    await Link.run(link, *link.sent[0])
    assert (["a"], before) == (ids(leases), look())


async def test_a_claim_that_arrives_after_its_own_repeat_took_nothing_takes_nothing(store, link, look):
    await lose(store, link, "before")
    await store.give_back_unanswered("w1")
    await enqueue(store, "a")
    await Link.run(link, *link.sent[0])
    assert JobState.ready == look().jobs["mail/a"].state


async def test_leases_that_are_brought_by_a_repeat_begin_then(store, link, clock, look):
    await enqueue(store, "a", payload=b"1" * 3000)
    run, lost = Link.run, asyncio.Event()

    async def replay(self, name, keys, args, *, again=None):
        if name == "claim" and not lost.is_set():
            await run(self, name, keys, args)
            lost.set()
            clock.advance(s=10)
            again[0] = clock()
            return await run(self, name, keys, again)
        return await run(self, name, keys, args, again=again)

    link.run = replay.__get__(link)
    begun_ms = clock()
    [lease] = await claim(store)
    assert (begun_ms + 10_000, begun_ms + 25_000) == (lease.claimed_ms, lease.expires_ms)
    assert {"mail/a": lease.expires_ms} == look().leases
    assert b"1" * 3000 == lease.payload


async def test_a_late_claim_does_not_move_the_start_of_a_run_that_goes_on(store, link, clock, look):
    await enqueue(store, "a")
    link.silent = ""
    sent = []
    run = Link.run

    async def note(self, name, keys, args, *, again=None):
        sent.append((name, keys, args))
        return await run(self, name, keys, args, again=again)

    link.run = note.__get__(link)
    await claim(store)
    await enqueue(store, "b")
    before = look()
    clock.advance(s=5)
    [(name, keys, args), *_] = sent
    await run(link, name, keys, [clock(), *args[1:]])
    assert before == look()


async def test_claims_that_nobody_asks_for_again_are_forgotten(store, link, monkeypatch):
    times = [0.0]
    monkeypatch.setattr("duly.store.claims.monotonic", lambda: times[0])
    for number in range(5):
        times[0] = 100.0 * number
        await lose(store, link, "before", worker=f"w{number}")
    assert {("w4", 0)} == store._unanswered.keys()


async def test_what_was_taken_and_has_crashed_meanwhile_is_not_given_back(store, link, clock, look):
    await enqueue(store, "a")
    await lose(store, link)
    await crash(store, clock, "other")
    before = look()
    await store.give_back_unanswered("w1")
    assert before == look()
    assert JobState.ready == look().jobs[key("a").member].state
