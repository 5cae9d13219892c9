"""
A call whose reply was lost is sent again, and never undoes what others did in between.
"""

from __future__ import annotations

import pytest

from duly.connection import Link
from duly.errors import Conflict, OutcomeUnknown
from duly.job import JobState
from duly.store import Store
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

    async def run(self, name, keys, args, *, again=None):
        if name != self.script:
            return await super().run(name, keys, args, again=again)
        self.script = ""
        self.late = (name, keys, again or args)
        self.first = await super().run(name, keys, args, again=again)
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


async def test_what_is_remembered_survives_a_restart_of_the_server(namespace):
    server = Server(binary("valkey"), appendfsync="always").start()
    links = [Link(server.url), Replaying(server.url)]
    try:
        store, mine = (Store(link, namespace=namespace) for link in links)
        await store.create()
        await enqueue(store, "a", delay_ms=90_000)

        async def others() -> None:
            await store.reschedule(key("a"), delay_ms=50_000)
            server.kill()
            server.start()

        lose(mine, "reschedule", others)
        mine_s = (await mine.reschedule(key("a"), delay_ms=10_000)).due_ms / 1000
        [about] = await store.get([key("a")])
        assert float(about[4]) / 1000 > mine_s + 30
    finally:
        for link in links:
            await link.aclose()
        server.stop()


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
