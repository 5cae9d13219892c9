"""
What is said of a topic by several at once: one of them wins on all shards, whatever happens on the way.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from duly.connection import Link
from duly.errors import OutcomeUnknown, StoreUnavailable
from duly.ids import Repeatable
from duly.namespace import create
from duly.services.agreement import Agreement
from duly.store import Store
from tests.store.kit import claim, enqueue

SHARDS = 4
URL, OTHER = "http://127.0.0.1:9/mine", "http://127.0.0.1:9/theirs"

#: What two callers say of one topic, and what of it a topic shows.
PAIRS = {
    "pause": (lambda store: store.pause("mail"), lambda store: store.resume("mail"), "paused", True, False),
    "limit": (
        lambda store: store.limit("mail", 160),
        lambda store: store.limit("mail", 320),
        "limit",
        160,
        320,
    ),
    "lift": (
        lambda store: store.limit("mail", 160),
        lambda store: store.limit("mail", None),
        "limit",
        160,
        None,
    ),
    "callback": (
        lambda store: store.set_callback("mail", URL),
        lambda store: store.set_callback("mail", OTHER),
        "callback",
        URL,
        OTHER,
    ),
    "no callback": (
        lambda store: store.set_callback("mail", URL),
        lambda store: store.set_callback("mail", None),
        "callback",
        URL,
        None,
    ),
}
FIELDS = ("paused", "limit", "asked", "callback")


class Turns(Link):
    """
    A link whose script calls of one kind wait until they are let through, one by one.
    """

    scripts = frozenset({"pause", "resume", "limit", "set_callback"})
    gate: asyncio.Semaphore | None = None
    answered: asyncio.Semaphore
    lose = False  #: the reply to each, which is sent again

    async def run(self, name, keys, args, *, again=None, tries=None):
        if name not in self.scripts or self.gate is None:
            return await super().run(name, keys, args, again=again, tries=tries)
        await self.gate.acquire()
        answer = await super().run(name, keys, args, again=again, tries=tries)
        if self.lose:
            if tries is not None:
                tries.maybe_ran = True
            answer = await super().run(name, keys, again or args)
        self.answered.release()
        return answer


@pytest.fixture
def shards():
    return SHARDS


@pytest.fixture
async def callers(server, store):
    """
    Two clients whose calls are let through one by one.
    """
    links = [Turns(server.url), Turns(server.url)]
    yield [Store(link, namespace=store.namespace, shards=SHARDS, now=store._now) for link in links]
    for link in links:
        await link.aclose()


@pytest.fixture(params=PAIRS)
def pair(request):
    return PAIRS[request.param]


async def held(store):
    """
    What each shard holds of the topic, apart from times and numbers.
    """
    found = []
    for keys in store.keys:
        values = await store.link.call("HMGET", keys.fixed["topics"], *(f"mail:{name}" for name in FIELDS))
        found.append((values[0] is not None, values[1] is not None, *values[2:]))
    return found


async def shown(views, what):
    [topic] = (await views.stats()).topics
    return getattr(topic, what)


async def take_turns(callers, pair, order):
    """
    Have both say theirs, a call to one shard at a time, in an order.
    """
    tasks = []
    for caller, act in zip(callers, pair[:2], strict=True):
        caller.link.gate, caller.link.answered = asyncio.Semaphore(0), asyncio.Semaphore(0)
        tasks.append(asyncio.create_task(act(caller)))
    for who in order:
        callers[who].link.gate.release()
        await callers[who].link.answered.acquire()
    await asyncio.gather(*tasks)


#: Who has begun first, and every way in which the calls to the other shards may pass each other.
ORDERS = sorted(set(itertools.permutations((0,) * SHARDS + (1,) * SHARDS)))
SOME = ORDERS[:: max(1, len(ORDERS) // 12)]


@pytest.mark.parametrize("order", SOME)
async def test_of_two_who_speak_at_once_one_wins_on_all_shards(callers, store, views, pair, order):
    await enqueue(store, "a", delay_ms=9_000)
    await take_turns(callers, pair, order)
    assert 1 == len(set(await held(store)))
    assert await shown(views, pair[2]) in pair[3:]


async def test_the_one_who_has_reached_the_first_shard_later_wins(callers, store, views, pair):
    await enqueue(store, "a", delay_ms=9_000)
    for last, order in ((1, (0, 1, 1, 1, 1, 0, 0, 0)), (0, (1, 0, 0, 0, 0, 1, 1, 1))):
        await take_turns(callers, pair, order)
        assert pair[3 + last] == await shown(views, pair[2])
        assert 1 == len(set(await held(store)))


async def test_a_lost_reply_with_others_in_between_leaves_what_they_said(callers, store, views, pair):
    await enqueue(store, "a", delay_ms=9_000)
    callers[0].link.lose = True
    for at in range(1, SHARDS):
        await take_turns(callers, pair, [0] * at + [1] * SHARDS + [0] * (SHARDS - at))
        assert (pair[4], 1) == (await shown(views, pair[2]), len(set(await held(store))))


async def test_a_repeat_of_another_process_leaves_what_others_said_since(store, views, pair):
    await enqueue(store, "a", delay_ms=9_000)
    call = Repeatable(b"some call")
    await pair[0](store.repeatable(call))
    await pair[1](store)
    before = await held(store)
    await pair[0](store.repeatable(Repeatable(call.digest, 1_000)))
    assert (before, pair[4]) == (await held(store), await shown(views, pair[2]))


async def die_behind(store, shard, act):
    """
    Say something, and die before *shard* hears of it.
    """
    bring = store._bring

    async def stop(at, *given):
        if at == shard:
            raise asyncio.CancelledError
        await bring(at, *given)

    store._bring = stop
    with pytest.raises(asyncio.CancelledError):
        await act(store)
    del store._bring


@pytest.mark.parametrize("shard", range(1, SHARDS))
async def test_what_a_caller_said_who_died_on_the_way_is_shown_and_comes_to_all(store, views, pair, shard):
    await enqueue(store, "a", delay_ms=9_000)
    for act, value in ((pair[1], pair[4]), (pair[0], pair[3]), (pair[1], pair[4])):
        await die_behind(store, shard, act)
        assert value == await shown(views, pair[2])
        await Agreement(store, every_s=1).run_once()
        assert (value, 1) == (await shown(views, pair[2]), len(set(await held(store))))
        assert 0 == await store.catch_up()


async def test_a_limit_that_has_not_reached_all_shards_is_the_one_that_the_record_knows(store):
    await store.limit("mail", 160)
    await die_behind(store, 2, lambda store: store.limit("mail", 320))
    assert 320 == (await store.backlogs(["mail"]))["mail"].limit
    await die_behind(store, 2, lambda store: store.limit("mail", None))
    assert {} == await store.backlogs(["mail"])


async def test_a_change_that_comes_to_the_last_shard_later_is_told_once(store, feed):
    async def verbs():
        shards = [(await feed.read(shard, None))[1] for shard in range(SHARDS)]
        return [event.verb for events in shards for event in events]

    await die_behind(store, SHARDS - 1, lambda store: store.pause("mail"))
    assert [] == await verbs()
    for _ in range(2):
        await store.catch_up()
        assert ["paused"] == await verbs()


async def test_a_shard_that_has_lost_its_memory_is_told_again(store, views, raw, pair):
    await enqueue(store, "a", delay_ms=9_000)
    await pair[0](store)
    for shard in range(SHARDS):
        kept = raw.hgetall(store.keys[shard].fixed["meta"])
        raw.delete(store.keys[shard].fixed["topics"], store.keys[shard].fixed["requests"])
        raw.hset(store.keys[shard].fixed["meta"], mapping=dict(zip(kept[::2], kept[1::2], strict=True)))
        await store.catch_up()
        assert (pair[3], 1) == (await shown(views, pair[2]), len(set(await held(store))))


async def test_what_an_older_release_left_half_done_ends_with_the_next_change(store, views, raw, pair):
    old = {"paused": 5, "limit": 7, "callback": OTHER}[pair[2]]
    for shard in (1, 3):
        raw.hset(store.keys[shard].fixed["topics"], f"mail:{pair[2]}", old)
    await enqueue(store, "a", delay_ms=9_000)
    for act, value in ((pair[1], pair[4]), (pair[0], pair[3])):
        await act(store)
        assert (value, 1) == (await shown(views, pair[2]), len(set(await held(store))))


async def test_a_pause_that_cannot_reach_a_shard_is_an_unknown_outcome(store, monkeypatch):
    async def refuse(*_):
        raise StoreUnavailable("not there")

    monkeypatch.setattr(store, "_bring", refuse)
    with pytest.raises(OutcomeUnknown, match="has reached 1 of 4 shards"):
        await store.pause("mail")


async def test_a_clock_that_was_set_back_stops_no_change(store, views, clock):
    await enqueue(store, "a")
    await store.pause("mail")
    back = Store(store.link, namespace=store.namespace, shards=SHARDS, now=lambda: clock() - 3_600_000)
    await back.resume("mail")
    assert ["a"] == [lease.key.id for lease in await claim(store)]
    await back.pause("mail")
    assert await shown(views, "paused")


@pytest.mark.alone
async def test_many_who_speak_at_once_leave_one_answer(server, namespace):
    links = [Link(server.url) for _ in range(4)]
    stores = [Store(link, namespace=f"{namespace}live", shards=16) for link in links]
    await create(links[0], f"{namespace}live", 16)
    try:
        for _ in range(10):
            acts = [*(pair[0] for pair in PAIRS.values()), *(pair[1] for pair in PAIRS.values())]
            await asyncio.gather(*(act(stores[at % 4]) for at, act in enumerate(acts)))
            assert 1 == len(set(await held(stores[0])))
    finally:
        for link in links:
            await link.aclose()
