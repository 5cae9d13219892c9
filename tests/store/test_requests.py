"""
A call whose reply was lost is sent again, and never undoes what others did in between.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import asynccontextmanager

import pytest

from duly.apikeys import KeyRing
from duly.connection import Link, Tries
from duly.errors import Conflict, OutcomeUnknown
from duly.ids import Repeatable
from duly.job import JobState
from duly.namespace import create
from duly.store import Store
from duly.store.calls import FRESH_S, Heard
from tests.servers import Server, binary
from tests.store.kit import claim, enqueue, key, order


class Replaying(Link):
    """
    A link that loses the reply of a script call, lets others act, and sends it again.
    """

    script = ""
    meanwhile = None
    first = None
    late: tuple | None = None

    async def run(self, name, keys, args, *, again=None, tries=None):
        if name != self.script:
            return await super().run(name, keys, args, again=again, tries=tries)
        self.script = ""
        self.late = (name, keys, again or args)
        self.first = await super().run(name, keys, args, again=again, tries=tries)
        tries = tries or Tries()
        tries.maybe_ran = True
        await self.meanwhile()
        return await super().run(*self.late)

    async def arrive_late(self):
        return await super().run(*self.late)


@pytest.fixture
async def mine(server, store):
    """
    The store of somebody whose replies are lost, in the namespace of `store`, which is that of others.
    """
    link = Replaying(server.url)
    yield Store(link, namespace=store.namespace, shards=store.shards, now=store._now)
    await link.aclose()


def lose(mine, script, meanwhile) -> None:
    mine.link.script, mine.link.meanwhile = script, meanwhile


async def test_a_repeated_replace_leaves_what_others_put_there_since(mine, store):
    await enqueue(store, "a", payload=b"1", delay_ms=9_000)

    async def others() -> None:
        await enqueue(store, "a", payload=b"theirs", delay_ms=5_000, on_conflict="replace")

    lose(mine, "enqueue", others)
    placed = await mine.enqueue(order("a", payload=b"mine", delay_ms=1_000, on_conflict="replace"))
    assert "replaced" == placed.word
    [about] = await store.get([key("a")])
    assert about[0].endswith(b"theirs")
    await mine.link.arrive_late()
    [again] = await store.get([key("a")])
    assert about == again


async def test_a_repeated_replace_that_made_the_job_leaves_what_others_put_there_since(mine, store):
    async def others() -> None:
        await enqueue(store, "a", payload=b"theirs", delay_ms=5_000, on_conflict="replace")

    lose(mine, "enqueue", others)
    placed = await mine.enqueue(order("a", payload=b"mine", delay_ms=1_000, on_conflict="replace"))
    assert "created" == placed.word
    [about] = await store.get([key("a")])
    assert about[0].endswith(b"theirs")
    await mine.link.arrive_late()
    assert [about] == await store.get([key("a")])


@pytest.mark.parametrize("verb", ["replace", "cancel", "reschedule"])
async def test_a_repeated_enqueue_leaves_what_others_made_of_the_job_since(mine, store, verb):
    async def others() -> None:
        match verb:
            case "replace":
                await enqueue(store, "a", payload=b"theirs", delay_ms=5_000, on_conflict="replace")
            case "cancel":
                await store.cancel([key("a")])
            case "reschedule":
                await store.reschedule(key("a"), delay_ms=5_000)
        mine.theirs = await store.get([key("a")])

    lose(mine, "add", others)
    placed = await mine.enqueue(order("a", payload=b"mine", delay_ms=1_000))
    assert ("created" if verb == "cancel" else "kept") == placed.word
    assert mine.theirs == await store.get([key("a")])
    await mine.link.arrive_late()
    assert mine.theirs == await store.get([key("a")])


async def test_a_repeated_reschedule_leaves_the_time_that_others_chose_since(mine, store):
    await enqueue(store, "a", delay_ms=9_000)

    async def others() -> None:
        await store.reschedule(key("a"), delay_ms=5_000)

    lose(mine, "reschedule", others)
    placed = await mine.reschedule(key("a"), delay_ms=1_000)
    assert 1_001_000 == placed.due_ms
    [about] = await store.get([key("a")])
    assert 1_005_000 == float(about[4])


async def test_a_repeated_cancel_leaves_the_new_job_of_others(mine, store):
    await enqueue(store, "a")

    async def others() -> None:
        await enqueue(store, "a", payload=b"theirs", on_conflict="replace")

    lose(mine, "cancel", others)
    assert [JobState.cancelled] == await mine.cancel([key("a")])
    assert ["a"] == [lease.key.id for lease in await claim(store)]


async def test_a_repeated_requeue_leaves_what_others_cancelled_since(mine, store):
    await enqueue(store, "a")
    await store.cancel([key("a")])

    async def others() -> None:
        await store.cancel([key("a")])

    lose(mine, "requeue", others)
    [placed] = await mine.requeue([key("a")])
    assert "requeued" == placed.word
    assert [] == await claim(store)


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_repeated_pause_or_resume_leaves_what_others_decided_since(mine, store, verb):
    await enqueue(store, "a")
    other = "resume" if verb == "pause" else "pause"
    await getattr(store, other)("mail")

    async def others() -> None:
        await getattr(store, other)("mail")

    lose(mine, verb, others)
    await getattr(mine, verb)("mail")
    assert (verb == "pause") == bool(await claim(store))


@pytest.mark.parametrize("minutes", [4, 11])
async def test_a_call_that_arrives_minutes_late_changes_only_what_nobody_has_changed(
    mine, store, clock, minutes
):
    await enqueue(store, "a", delay_ms=3_600_000)
    await enqueue(store, "b", delay_ms=3_600_000)

    async def others() -> None:
        await store.reschedule(key("a"), delay_ms=7_200_000)

    lose(mine, "reschedule", others)
    await mine.reschedule(key("a"), delay_ms=1_800_000)
    [before] = await store.get([key("a")])
    # Others go on: what is remembered begins anew every five minutes.
    for _ in range(minutes):
        clock.advance(s=60)
        await store.reschedule(key("b"), delay_ms=3_600_000)
    word = (await mine.link.arrive_late())[0]
    assert word.startswith(b"ok" if minutes == 4 else b"unknown")
    assert [before] == await store.get([key("a")])


async def test_a_late_call_is_made_if_nobody_has_changed_the_job(mine, store, clock):
    await enqueue(store, "a", delay_ms=3_600_000)
    await enqueue(store, "b", delay_ms=3_600_000)
    await mine._sent(0)

    async def nobody() -> None:
        for _ in range(11):
            clock.advance(s=60)
            await store.reschedule(key("b"), delay_ms=3_600_000)

    # As if the first sending had never arrived: its time is of before, and nothing remembers it.
    sent = await mine._sent(0)
    await nobody()
    mine._sent = lambda _: _given(sent)
    placed = await mine.reschedule(key("a"), delay_ms=60_000)
    assert "rescheduled" == placed.word
    await store.reschedule(key("a"), delay_ms=120_000)
    with pytest.raises(OutcomeUnknown):
        await mine.reschedule(key("a"), delay_ms=60_000)
    with pytest.raises(OutcomeUnknown):
        await mine.cancel([key("a")])
    with pytest.raises(OutcomeUnknown):
        await mine.enqueue(order("a", payload=b"mine", on_conflict="replace"))


async def _given(sent):
    return sent


async def test_what_is_remembered_is_bounded_in_number_time_and_bytes(store, clock, raw):
    await enqueue(store, "a", delay_ms=3_600_000)
    fixed = store.keys[0].fixed
    await store.reschedule(key("a"), delay_ms=3_600_000)
    for _ in range(3):
        await store.link.call(
            "HSET", fixed["requests"], *(part for number in range(5_000) for part in (f"{number}", "x"))
        )
        await store.reschedule(key("a"), delay_ms=3_600_000)
        assert 1 == await store.link.call("HLEN", fixed["requests"])
        assert await store.link.call("HLEN", fixed["old_requests"]) <= 5_001
    await store.link.call("HSET", fixed["meta"], "requests_bytes", 4 * 1024 * 1024)
    await store.reschedule(key("a"), delay_ms=3_600_000)
    assert 1 == await store.link.call("HLEN", fixed["requests"])
    clock.advance(s=301)
    await store.reschedule(key("a"), delay_ms=3_600_000)
    assert 1 == await store.link.call("HLEN", fixed["requests"])


async def test_a_plain_enqueue_leaves_nothing_to_remember(store):
    await enqueue(store, "a")
    await enqueue(store, "a")
    await store.enqueue_many([order(str(number)) for number in range(300)])
    fixed = store.keys[0].fixed
    assert 0 == await store.link.call("EXISTS", fixed["requests"], fixed["old_requests"])


async def test_cancel_and_requeue_may_insist_on_a_revision(store):
    first = await enqueue(store, "a")
    second = await enqueue(store, "a", payload=b"2", on_conflict="replace")
    with pytest.raises(Conflict):
        await store.cancel([key("a")], revision=first.revision)
    assert [JobState.cancelled] == await store.cancel([key("a")], revision=second.revision)
    [refused] = await store.requeue([key("a")], revision=first.revision)
    assert isinstance(refused, Conflict)
    [placed] = await store.requeue([key("a")], revision=second.revision)
    assert "requeued" == placed.word


# -- every verb -------------------------------------------------------------------------------------------

URL, OTHER = "http://127.0.0.1:9/mine", "http://127.0.0.1:9/theirs"


async def replace(store, *, delay_ms=1_000, payload=b"mine"):
    wish = order("a", payload=payload, delay_ms=delay_ms, on_conflict="replace")
    assert "replaced" == (await store.enqueue(wish)).word


async def reschedule(store):
    assert "rescheduled" == (await store.reschedule(key("a"), delay_ms=1_000)).word


async def cancel(store):
    assert [JobState.cancelled] == await store.cancel([key("a")])


async def requeue(store):
    [placed] = await store.requeue([key("a")])
    if isinstance(placed, Exception):
        raise placed
    assert "requeued" == placed.word


async def requeue_twice(store):
    await cancel(store)
    await requeue(store)
    await cancel(store)


#: What each verb needs before it, itself, and what others do behind it.
VERBS = {
    "replace": (None, replace, lambda store: replace(store, delay_ms=5_000, payload=b"theirs")),
    "reschedule": (None, reschedule, lambda store: store.reschedule(key("a"), delay_ms=5_000)),
    "cancel": (None, cancel, lambda store: replace(store, delay_ms=5_000, payload=b"theirs")),
    "requeue": (cancel, requeue, requeue_twice),
    "pause": (None, lambda store: store.pause("mail"), lambda store: store.resume("mail")),
    "resume": (
        lambda store: store.pause("mail"),
        lambda store: store.resume("mail"),
        lambda store: store.pause("mail"),
    ),
    "limit": (None, lambda store: store.limit("mail", 10), lambda store: store.limit("mail", 20)),
    "lift": (
        lambda store: store.limit("mail", 10),
        lambda store: store.limit("mail", None),
        lambda store: store.limit("mail", 20),
    ),
    "callback": (
        None,
        lambda store: store.set_callback("mail", URL),
        lambda store: store.set_callback("mail", OTHER),
    ),
    "no callback": (
        lambda store: store.set_callback("mail", URL),
        lambda store: store.set_callback("mail", None),
        lambda store: store.set_callback("mail", OTHER),
    ),
}
#: Those that a shard can tell to be late by the job itself; what is said of a topic has no such sign.
ON_JOBS = {"replace", "reschedule", "cancel", "requeue"}
SCRIPTS = {"replace": "enqueue", "lift": "limit", "callback": "set_callback", "no callback": "set_callback"}


@pytest.fixture(params=VERBS)
async def verb(request, store):
    """
    One of all verbs, with what it needs before it.
    """
    await enqueue(store, "a", delay_ms=3_600_000)
    if (first := VERBS[request.param][0]) is not None:
        await first(store)
    return request.param


async def state_of(store) -> list:
    """
    What the shards hold, and how many events they have written.
    """
    found = []
    for keys in store.keys:
        found += [await store.link.call("HGETALL", keys.fixed[name]) for name in ("jobs", "topics")]
        found += [
            await store.link.call("XLEN", keys.fixed["events"]),
            await store.link.call("LLEN", keys.fixed["callbacks"]),
            await store.link.call("ZRANGE", keys.due("mail"), 0, -1, "WITHSCORES"),
        ]
    return found


async def rotate(store, clock=None) -> None:
    """
    Have others steer until every shard has forgotten the calls that it knows now.
    """
    for _ in range(3):
        if clock is None:
            for keys in store.keys:
                await store.link.call("HSET", keys.fixed["meta"], "requests_began", 0)
        else:
            clock.advance(s=301)
        for shard in range(store.shards):
            await store._set_of("another", "limit", shard, version="", share="", asked="")


class Overtaken(Link):
    """
    A link whose calls arrive behind their own repeats.
    """

    originals = ()

    async def run(self, name, keys, args, *, again=None, tries=None):
        if tries is None:
            return await super().run(name, keys, args, again=again)
        tries.maybe_ran = True
        self.originals = (*self.originals, (name, keys, args))
        return await super().run(name, keys, again or args)

    async def arrive(self):
        for original in self.originals:
            await super().run(*original)


@pytest.mark.parametrize("forgotten", [False, True])
@pytest.mark.several_shards
async def test_a_call_that_arrives_behind_its_own_repeat_leaves_what_others_did_since(
    server, store, clock, verb, forgotten
):
    _, act, others = VERBS[verb]
    link = Overtaken(server.url)
    try:
        await act(Store(link, namespace=store.namespace, shards=store.shards, now=store._now))
        assert link.originals
        await others(store)
        if forgotten:
            await rotate(store, clock)
        before = await state_of(store)
        await link.arrive()
        assert before == await state_of(store)
    finally:
        await link.aclose()


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_key_that_arrives_behind_its_own_repeat_does_not_come_back_once_revoked(
    server, store, clock, forgotten
):
    link = Overtaken(server.url)
    try:
        mine = KeyRing(Store(link, namespace=store.namespace, shards=store.shards, now=store._now), {})
        theirs = KeyRing(store, {})
        text, made = await mine.create("shop", ["read"])
        assert made == await theirs.find(text)
        assert [made] == await theirs.revoke("shop", force=True)
        if forgotten:
            await rotate(store, clock)
        assert link.originals
        await link.arrive()
        assert [] == await theirs.all()
    finally:
        await link.aclose()


async def test_a_repeated_call_of_any_verb_leaves_what_others_did_since(mine, store, verb):
    _, act, others = VERBS[verb]
    theirs = []

    async def meanwhile() -> None:
        await others(store)
        theirs.append(await state_of(store))

    lose(mine, SCRIPTS.get(verb, verb), meanwhile)
    await act(mine)
    assert theirs == [await state_of(store)]


async def test_a_call_whose_reply_was_lost_and_that_is_forgotten_stays_unknown(mine, store, clock, verb):
    _, act, others = VERBS[verb]
    theirs = []

    async def meanwhile() -> None:
        await others(store)
        await rotate(store, clock)
        theirs.append(await state_of(store))

    lose(mine, SCRIPTS.get(verb, verb), meanwhile)
    with pytest.raises(OutcomeUnknown):
        await act(mine)
    assert theirs == [await state_of(store)], "it was not made again"


class Undelivered(Replaying):
    """
    A link whose script call does not arrive when it is first sent: others act, and it is sent again.
    """

    async def run(self, name, keys, args, *, again=None, tries=None):
        if name != self.script:
            return await super().run(name, keys, args, again=again, tries=tries)
        self.script = ""
        (tries or Tries()).maybe_ran = True
        await self.meanwhile()
        return await super().run(name, keys, again or args)


@asynccontextmanager
async def restartable(namespace, clock, kind=Replaying):
    """
    A server that forgets nothing when it is killed, a store of others on it, and one whose replies are lost.
    """
    server = Server(binary("valkey"), appendfsync="always").start()
    links = [Link(server.url), kind(server.url)]
    try:
        await create(links[0], namespace, 1, clock="test")
        yield server, *(Store(link, namespace=namespace, now=clock) for link in links)
    finally:
        for link in links:
            await link.aclose()
        server.stop()


async def prepare(store, verb) -> None:
    await enqueue(store, "a", delay_ms=3_600_000)
    if (first := VERBS[verb][0]) is not None:
        await first(store)


@pytest.mark.parametrize("verb", VERBS)
async def test_what_is_remembered_survives_a_restart_of_the_server(namespace, clock, verb):
    _, act, others = VERBS[verb]
    async with restartable(namespace, clock) as (server, store, mine):
        await prepare(store, verb)
        theirs = []

        async def meanwhile() -> None:
            await others(store)
            server.kill()
            server.start()
            theirs.append(await state_of(store))

        lose(mine, SCRIPTS.get(verb, verb), meanwhile)
        # It is answered as it was first.
        await act(mine)
        assert theirs == [await state_of(store)]


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize("verb", VERBS)
async def test_what_a_restarted_server_has_forgotten_is_done_only_where_nobody_changed_the_job(
    namespace, clock, verb, changed
):
    _, act, others = VERBS[verb]
    async with restartable(namespace, clock, Undelivered) as (server, store, mine):
        await prepare(store, verb)
        theirs = []

        async def meanwhile() -> None:
            if changed:
                await others(store)
            await rotate(store, clock)
            server.kill()
            server.start()
            theirs.append(await state_of(store))

        lose(mine, SCRIPTS.get(verb, verb), meanwhile)
        if not changed and verb in ON_JOBS:
            await act(mine)
            assert theirs != [await state_of(store)]
        else:
            with pytest.raises(OutcomeUnknown):
                await act(mine)
            assert theirs == [await state_of(store)]


@pytest.mark.parametrize("verb", VERBS)
async def test_what_was_done_and_a_restarted_server_has_forgotten_is_not_done_again(namespace, clock, verb):
    _, act, others = VERBS[verb]
    async with restartable(namespace, clock) as (server, store, mine):
        await prepare(store, verb)
        theirs = []

        async def meanwhile() -> None:
            await others(store)
            await rotate(store, clock)
            server.kill()
            server.start()
            # Not even what it was told before is there any more.
            fixed = store.keys[0].fixed
            await store.link.call("DEL", fixed["requests"], fixed["old_requests"])
            theirs.append(await state_of(store))

        lose(mine, SCRIPTS.get(verb, verb), meanwhile)
        with pytest.raises(OutcomeUnknown):
            await act(mine)
        assert theirs == [await state_of(store)]


@asynccontextmanager
async def of_server_time(server, namespace, shards):
    """
    Two clients of a namespace on the clock of its server.
    """
    links = [Link(server.url), Link(server.url)]
    try:
        stores = [Store(link, namespace=f"{namespace}-served", shards=shards) for link in links]
        await stores[0].create()
        yield stores
    finally:
        for link in links:
            await link.aclose()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.several_shards
async def test_a_client_whose_machine_slept_asks_for_the_time_and_goes_on(server, namespace, shards, verb):
    async with of_server_time(server, namespace, shards) as (mine, others):
        await enqueue(others, "a", delay_ms=3_600_000)
        before, act, _ = VERBS[verb]
        if before is not None:
            await before(others)
        for shard in range(shards):
            heard = await mine._ask(shard)
            # The monotonic clock stood still for an hour.
            mine._heard[shard] = heard._replace(server_ms=heard.server_ms - 3_600_000, seen=0)
        await rotate(others)
        await act(mine)
        now_ms = await _now_ms(others)
        touched = [heard for heard in mine._heard.values() if abs(now_ms - heard.now_ms()) < 60_000]
        # What is said of a topic is remembered by the first shard; the others need not know the time.
        assert 1 == len(touched)
        await act_again(act, mine)


async def act_again(act, store) -> None:
    """
    Make a call once more, which must not ask for the time.
    """
    ask, store._ask = store._ask, None
    try:
        # The same job for the same millisecond would be kept as it is.
        await (replace(store, payload=b"again") if act is replace else act(store))
    except Conflict:
        assert act is requeue
    finally:
        store._ask = ask


async def _now_ms(store) -> int:
    seconds, micros = await store.link.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.several_shards
async def test_a_clock_that_steps_stops_nobody_from_steering(server, store, clock, verb, hours):
    _, act, others = VERBS[verb]
    link = Link(server.url)
    try:
        mine = Store(link, namespace=store.namespace, shards=store.shards, now=lambda: clock() + at_ms)
        at_ms = 0
        for shard in range(store.shards):
            await mine._ask(shard)
        await rotate(store, clock)
        at_ms = hours * 3_600_000
        await act(mine)
        # Those who have not heard of the step go on as well, and undo it.
        await rotate(mine)
        await others(store)
    finally:
        await link.aclose()


async def test_the_time_of_a_shard_is_asked_for_again_when_it_is_old(server, namespace):
    async with of_server_time(server, namespace, 1) as (mine, _):
        mine._heard[0] = Heard(1, time.monotonic() - FRESH_S - 1, 7)
        now_ms = await _now_ms(mine)
        assert now_ms <= (await mine._sent(0))["sent_ms"] < now_ms + 60_000
        heard = mine._heard[0]
        await mine._sent(0)
        assert heard is mine._heard[0]


async def test_a_clock_that_was_set_back_does_not_forget_what_it_remembers(store, clock):
    await store.pause("mail")
    remembered = await store.link.call("HKEYS", store.keys[0].fixed["requests"])
    back = Store(store.link, namespace=store.namespace, shards=store.shards, now=lambda: clock() - 3_600_000)
    for _ in range(5):
        await back.pause("other")
    fixed = store.keys[0].fixed
    assert remembered == await store.link.call("HKEYS", fixed["old_requests"])
    assert 5 == await store.link.call("HLEN", fixed["requests"])


async def test_a_repeat_from_another_process_is_answered_as_first_and_unknown_once_forgotten(store, clock):
    call = Repeatable(b"some call")
    await enqueue(store, "a", delay_ms=9_000)
    assert [JobState.cancelled] == await store.repeatable(call).cancel([key("a")])
    await replace(store)
    repeat = dataclasses.replace(call, age_ms=1_000)
    assert [JobState.cancelled] == await store.repeatable(repeat).cancel([key("a")])
    theirs = await store.get([key("a")])
    await rotate(store, clock)
    await rotate(store, clock)
    with pytest.raises(OutcomeUnknown):
        await store.repeatable(dataclasses.replace(call, age_ms=3_600_000)).cancel([key("a")])
    assert theirs == await store.get([key("a")])
