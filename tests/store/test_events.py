"""
What happened, read from any place on: dense, told once, and every gap made evident.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.events import Event, Offset, Verb
from duly.feed import EventsLost, Feed
from duly.glance import glance
from duly.job import JobState, Lane
from duly.namespace import create
from duly.store import Keeping, Store
from duly.views import Views
from tests.shards import ids_on, one_id_on_each
from tests.store.kit import claim, enqueue, key, order


@pytest.fixture
async def small(link, namespace, clock):
    """
    A store whose event stream holds twenty rows.
    """
    await create(link, f"{namespace}small", 1, clock="test", max_event_rows=20)
    return Store(link, namespace=f"{namespace}small", now=clock)


async def everything(feed):
    return (await feed.read(0, None, 100_000))[1]


async def told(feed):
    return [(str(event.verb), event.id) for event in await everything(feed)]


# -- what is told -----------------------------------------------------------------------------------------


async def test_a_job_that_is_held_and_let_go_tells_why_it_was_moved(store, feed):
    placed = await enqueue(store, "a", delay_ms=100)
    await enqueue(store, "b", delay_ms=100)
    await store.let_go(await store.hold(key("a"), least_ms=1_000))
    await store.let_go(await store.hold(key("b"), least_ms=10))  # it would not have started anyway
    moved = [event for event in await everything(feed) if event.verb == "rescheduled"]
    assert [("a", "held", 1_001_000), ("a", "let go", placed.due_ms)] == [
        (event.id, event.reason, event.due_ms) for event in moved
    ]
    assert {placed.revision} == {event.revision for event in moved}


async def test_every_verb_tells_what_it_did_to_which_job(store, feed, clock):
    await enqueue(store, "a", delay_ms=100)
    await enqueue(store, "a", delay_ms=200, on_conflict="replace")
    await store.reschedule(key("a"), delay_ms=50)
    clock.advance(ms=50)
    await store.promote(0)
    [lease] = await claim(store)
    await store.release(lease)
    [lease] = await claim(store)
    await store.retry(lease, 10, b"{}", "Boom")
    clock.advance(s=1)
    await store.promote(0)
    await claim(store)
    clock.advance(s=16)
    await store.recover(0)
    [lease] = await claim(store)
    await store.bury(lease, b"{}", "Bad")
    await store.requeue([key("a")])
    [lease] = await claim(store)
    await store.ack(lease)
    await enqueue(store, "b")
    await store.cancel([key("b")], reason="purged")
    clock.advance(s=100_000)
    await store.prune(0)
    await store.pause("mail")
    await store.resume("mail")
    story = "enqueued replaced rescheduled promoted claimed released claimed retried promoted claimed"
    story += " recovered claimed buried requeued claimed acked"
    ends = [
        ("enqueued", "b"),
        ("cancelled", "b"),
        ("pruned", "a"),
        ("pruned", "b"),
        ("paused", ""),
        ("resumed", ""),
    ]
    assert [(verb, "a") for verb in story.split()] + ends == await told(feed)


@pytest.mark.several_shards
async def test_a_pause_of_all_shards_is_told_once_also_if_it_stopped_half_way(store, feed):
    async def verbs():
        shards = [(await feed.read(shard, None))[1] for shard in range(store.shards)]
        return [event.verb for events in shards for event in events]

    await store._begin("mail", "pause", None)
    assert [] == await verbs()
    await store.pause("mail")
    await store.pause("mail")
    assert ["paused"] == await verbs()
    await store._begin("mail", "resume", None)
    assert ["paused"] == await verbs()
    await store.resume("mail")
    assert ["paused", "resumed"] == await verbs()


async def test_what_changed_nothing_tells_nothing(store, feed, clock):
    await enqueue(store, "a")
    await enqueue(store, "a")
    [lease] = await claim(store)
    await store.extend(0, [lease])
    await store.progress(lease, b"1")
    await store.ack(lease)
    await store.ack(lease)
    await store.cancel([key("a"), key("none")])
    await store.promote(0)
    await store.recover(0)
    await store.prune(0)
    assert [("enqueued", "a"), ("claimed", "a"), ("acked", "a")] == await told(feed)


async def test_a_job_that_is_claimed_when_due_tells_of_the_claim(store, feed, clock):
    await enqueue(store, "a", delay_ms=5)
    clock.advance(ms=5)
    await claim(store)
    assert "claimed" == (await everything(feed))[-1].verb


async def test_an_event_tells_the_job_as_it_stood_afterwards(store, feed, clock):
    await enqueue(store, "a", delay_ms=100, lane=Lane.high)
    clock.advance(ms=130)
    [lease] = await claim(store, worker="w7")
    clock.advance(ms=20)
    await store.retry(lease, 1_000, b"{}", "Boom: #", lateness_ms=30)
    clock.advance(s=1)
    [lease] = await claim(store, worker="w8")
    clock.advance(ms=5)
    await store.ack(lease, lateness_ms=2)
    events = {(str(event.verb), event.attempt): event for event in await everything(feed)}
    first = events["enqueued", 0]
    assert ("mail", "a", 1_000_100, JobState.scheduled, "high", 1_000_000) == (
        first.topic,
        first.id,
        first.due_ms,
        first.state,
        first.priority,
        first.at_ms,
    )
    claimed = events["claimed", 1]
    assert ("w7", JobState.running, 1_000_130, 1_000_100, None) == (
        claimed.worker,
        claimed.state,
        claimed.at_ms,
        claimed.due_ms,
        claimed.run_ms,
    )
    retried = events["retried", 1]
    assert ("Boom: #", JobState.scheduled, 30, 20, 1_001_150) == (
        retried.reason,
        retried.state,
        retried.lateness_ms,
        retried.run_ms,
        retried.due_ms,
    )
    acked = events["acked", 2]
    assert (JobState.succeeded, 2, 5) == (acked.state, acked.lateness_ms, acked.run_ms)
    assert events["claimed", 2].revision == first.revision == acked.revision


async def test_reasons_say_why(store, feed, clock):
    await enqueue(store, "late", expires_ms=1_000_001)
    await enqueue(store, "unwanted")
    await store.cancel([key("unwanted")], reason="purged")
    clock.advance(ms=5)
    await claim(store)
    await enqueue(store, "poison", max_crashes=1)
    await enqueue(store, "jumped")
    leases = {lease.key.id: lease for lease in await claim(store)}
    await store.extend(0, [leases["jumped"]])
    clock.advance(s=16)
    await store.recover(0, counted=False)
    jumped = {event.id: event.reason for event in await everything(feed) if event.verb == "recovered"}
    assert {"poison": "clock", "jumped": "clock"} == jumped
    for _ in range(3):
        while await claim(store):
            pass
        clock.advance(s=16)
        await store.recover(0)
    reasons = {(event.verb, event.id): event.reason for event in await everything(feed)}
    assert "expired" == reasons["cancelled", "late"]
    assert "purged" == reasons["cancelled", "unwanted"]
    assert "crashed" == reasons["buried", "poison"]
    assert ("crashed", "crashed") == (reasons["recovered", "jumped"], reasons["recovered", "poison"])


async def test_a_reason_with_line_breaks_does_not_hide_what_happened(store, feed):
    await enqueue(store, "a")
    await enqueue(store, "b")
    for lease in await claim(store):
        await store.bury(lease, b"{}", "one\ntwo\tthree\r\n")
    reasons = [event.reason for event in await everything(feed) if event.verb == "buried"]
    assert ["one two three  "] * 2 == reasons


async def test_many_jobs_of_one_call_are_rows_of_one_entry(store, feed, raw):
    await store.enqueue_many([order(str(at), delay_ms=at) for at in range(200)])
    events = await everything(feed)
    assert [(1, at, str(at)) for at in range(200)] == [
        (event.counter, event.row, event.id) for event in events
    ]
    assert 1 == raw.xlen(store.keys[0].fixed["events"])


async def test_every_verb_in_the_scripts_is_known_to_readers():
    from duly.scripts import library

    for verb in Verb:
        assert f"'{verb}'" in library().source, verb


def test_the_fields_of_an_event_are_the_contract():
    fields = "shard epoch counter row at_ms verb topic id revision state priority attempt crashes"
    fields += " due_ms lateness_ms run_ms worker reason"
    assert fields.split() == list(Event.__struct_fields__)


# -- counting ---------------------------------------------------------------------------------------------


async def test_counters_are_dense_under_concurrency(store, feed, raw):
    await asyncio.gather(*(enqueue(store, str(at)) for at in range(50)))

    async def work(name):
        for _ in range(5):
            for lease in await claim(store, worker=name, limit=3):
                await store.ack(lease)

    await asyncio.gather(*(work(f"w{at}") for at in range(5)))
    events = await everything(feed)
    counters = sorted({event.counter for event in events})
    assert list(range(1, len(counters) + 1)) == counters
    assert [f"{counter}-0".encode() for counter in counters] == [
        entry for entry, _ in raw.xrange(store.keys[0].fixed["events"])
    ]
    assert 1 == len({event.epoch for event in events})


async def test_reading_goes_on_behind_the_last_offset(store, feed):
    for at in range(7):
        await enqueue(store, str(at))
    offset, got = None, []
    while True:
        offset, events = await feed.read(0, offset, 3)
        if not events:
            break
        got.append([event.id for event in events])
    assert [["0", "1", "2"], ["3", "4", "5"], ["6"]] == got
    assert offset == await feed.last(0)
    await enqueue(store, "new")
    offset, events = await feed.read(0, offset)
    assert (["new"], 8) == ([event.id for event in events], offset.counter)


async def test_an_empty_stream_has_no_offset_and_no_events(feed):
    assert (None, []) == await feed.read(0, None)
    assert (None, None) == (await feed.first(0), await feed.last(0))


def test_an_offset_can_be_written_down():
    offset = Offset("e1", 12, "00ff")
    assert offset == Offset.of(str(offset))


# -- the bound --------------------------------------------------------------------------------------------


async def test_beyond_the_bound_the_oldest_go_and_a_reader_is_told_what_it_missed(small):
    feed = Feed(small)
    await enqueue(small, "first")
    offset = await feed.last(0)
    for at in range(60):
        await enqueue(small, str(at))
    assert (await feed.fill(0)) <= 1
    with pytest.raises(EventsLost, match="events 2 to") as gap:
        await feed.read(0, offset)
    first = await feed.first(0)
    assert (offset, first.counter) == (gap.value.after, gap.value.first)
    assert 61 - 20 < first.counter
    # From there on nothing is missing.
    with pytest.raises(EventsLost):
        await feed.read(0, None)
    at_first, _ = await feed.read(0, first)
    assert 61 == at_first.counter


async def test_the_bound_is_hard_whatever_the_sizes_of_the_entries(small, raw):
    """
    Many small entries, then large ones: what a call adds is removed in the same call.
    """
    for at in range(18):
        await enqueue(small, str(at))
    for part in range(6):
        await small.enqueue_many([order(f"{part}-{at}") for at in range(15)])
        assert await Feed(small).fill(0) <= 1
    await small.enqueue_many([order(f"big-{at}") for at in range(50)])
    # An entry is never cut: the newest stays even if it is larger than the bound.
    assert 1 == raw.xlen(small.keys[0].fixed["events"])
    await enqueue(small, "last")
    assert await Feed(small).fill(0) <= 1


async def test_the_bound_holds_for_bytes_too(link, namespace, clock, raw):
    await create(link, namespace, 1, clock="test", max_event_bytes=20_000)
    store = Store(link, namespace=namespace, now=clock)
    feed = Feed(store)
    for at in range(300):
        await enqueue(store, f"{at:0100}")
    assert 0.5 < await feed.fill(0) <= 1
    stored = sum(sum(map(len, fields)) for _, fields in raw.xrange(store.keys[0].fixed["events"]))
    assert stored <= 20_000


async def test_fill_says_how_full_the_stream_is(small):
    feed = Feed(small)
    assert 0 == await feed.fill(0)
    for at in range(10):
        await enqueue(small, str(at))
    assert 0.5 == await feed.fill(0)
    await feed.commit("c", 0, await feed.last(0))
    await feed.trim(0)
    assert 0.05 == await feed.fill(0)


@pytest.mark.several_shards
async def test_news_of_every_shard_are_heard(store, feed):
    for shard, id_ in enumerate(one_id_on_each(store, "mail")):
        after = [await feed.last(each) for each in range(store.shards)]
        await enqueue(store, id_)
        assert {shard} == await feed.news(after, 20)


@pytest.mark.several_shards
async def test_the_fullest_stream_counts(link, namespace, shards, clock):
    await create(link, namespace, shards, clock="test", max_event_rows=20)
    store = Store(link, namespace=namespace, shards=shards, now=clock)
    for id_ in ids_on(store, "mail", shards - 1, 10):
        await enqueue(store, id_)
    assert 0.5 == (await glance(store, Views(store))).fill


async def test_a_lower_bound_is_reached_step_by_step(link, store, namespace):
    feed = Feed(store)
    for at in range(100):
        await enqueue(store, str(at))
    await create(link, namespace, 1, clock="test", max_event_rows=10)
    for at in range(30):
        await enqueue(store, f"x{at}")
    assert await feed.fill(0) <= 1


# -- consumers --------------------------------------------------------------------------------------------


async def test_trimming_waits_for_the_slowest_consumer_and_keeps_the_entry_at_its_offset(store, feed):
    for at in range(10):
        await enqueue(store, str(at))
    offset_4, _ = await feed.read(0, None, 4)
    offset_8, _ = await feed.read(0, None, 8)
    await feed.commit("slow", 0, offset_4)
    await feed.commit("fast", 0, offset_8)
    assert 3 == await feed.trim(0)
    assert offset_4 == await feed.first(0)
    assert ["4", "5", "6", "7", "8", "9"] == [event.id for event in (await feed.read(0, offset_4))[1]]
    assert 0 == await feed.trim(0)
    await feed.forget("slow")
    assert 4 == await feed.trim(0)
    assert offset_8 == await feed.first(0)
    assert offset_8 == await feed.committed("fast", 0)


async def test_without_consumers_and_for_one_that_has_read_nothing_nothing_is_trimmed(store, feed):
    for at in range(3):
        await enqueue(store, str(at))
    assert 0 == await feed.trim(0)
    await feed.commit("new", 0, None)
    assert 0 == await feed.trim(0)
    assert None is await feed.committed("new", 0)
    assert None is await feed.committed("stranger", 0)
    assert 3 == len(await everything(feed))


async def test_a_trim_is_bounded(store, feed):
    for at in range(10):
        await enqueue(store, str(at))
    await feed.commit("c", 0, await feed.last(0))
    assert [4, 4, 1, 0] == [await feed.trim(0, 4) for _ in range(4)]


async def test_a_consumer_holds_trimming_back_only_below_the_bound(small):
    feed = Feed(small)
    await enqueue(small, "first")
    await feed.commit("slow", 0, await feed.last(0))
    for at in range(40):
        await enqueue(small, str(at))
    assert 0 == await feed.trim(0)
    assert await feed.fill(0) <= 1
    with pytest.raises(EventsLost, match="trimmed before they were read"):
        await feed.read(0, await feed.committed("slow", 0))


# -- a server that lost its past --------------------------------------------------------------------------


@pytest.fixture
def rewrite(store, raw):
    """
    Put another past in place of the event stream.
    """

    def rewrite(change, last):
        events = store.keys[0].fixed["events"]
        entries = raw.xrange(events)[:last]
        raw.delete(events)
        for entry, fields in entries:
            values = dict(zip(fields[::2], fields[1::2], strict=True))
            about = change(values[b"about"]) if change else values[b"about"]
            raw.xadd(events, values | {b"about": about}, id=entry)

    return rewrite


@pytest.mark.parametrize(
    ("change", "last"),
    [
        (lambda about: about[:24] + b"othernon" + about[32:], 5),
        (lambda about: about[:32] + b"other" + about[48:], 5),
        (None, 3),
        (None, 0),
    ],
    ids=["another nonce", "another epoch", "absent", "empty"],
)
async def test_a_server_that_was_rolled_back_is_found_out(store, feed, rewrite, change, last):
    for at in range(5):
        await enqueue(store, str(at))
    offset, _ = await feed.read(0, None)
    rewrite(change, last)
    with pytest.raises(EventsLost, match="rolled back"):
        await feed.read(0, offset)


async def test_a_server_that_was_rolled_back_and_went_on_is_found_out(store, feed, rewrite, raw):
    """
    A consumer at 5, a server back at 3 and three new events: one would be missed without a visible gap.
    """
    for at in range(5):
        await enqueue(store, str(at))
    offset, _ = await feed.read(0, None)
    rewrite(None, 3)
    raw.hset(store.keys[0].fixed["meta"], "events", 3)
    for at in range(3):
        await enqueue(store, f"new{at}")
    assert 6 == (await feed.last(0)).counter
    with pytest.raises(EventsLost, match="rolled back"):
        await feed.read(0, offset)


async def test_a_namespace_made_anew_has_another_epoch(link, store, feed, raw):
    await enqueue(store, "a")
    offset, _ = await feed.read(0, None)
    raw.delete(*raw.keys(f"{store.keys[0].prefix}*"))
    await store.create()
    await enqueue(store, "a")
    assert offset.epoch != (await feed.last(0)).epoch
    with pytest.raises(EventsLost):
        await feed.read(0, offset)


# -- pruning ----------------------------------------------------------------------------------------------


async def test_the_whole_life_of_a_job_can_be_told_from_its_events_alone(link, namespace, clock):
    await create(link, namespace, 1, clock="test")
    store = Store(link, namespace=namespace, keeping=Keeping(done_ms=60_000), now=clock)
    await enqueue(store, "a", delay_ms=10)
    clock.advance(ms=10)
    [lease] = await claim(store)
    await store.ack(lease)
    clock.advance(s=61)
    assert (1, False) == await store.prune(0)
    states = [(event.verb, event.state) for event in await everything(Feed(store))]
    assert [
        ("enqueued", JobState.scheduled),
        ("claimed", JobState.running),
        ("acked", JobState.succeeded),
        ("pruned", JobState.succeeded),
    ] == states
