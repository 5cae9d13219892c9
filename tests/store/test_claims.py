"""
The way to a worker: claims and leases, wake-ups, pauses and limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from duly.errors import QueueFull
from duly.job import JobKey, JobState, Lane, Order
from duly.store import Want
from tests.store.kit import claim, enqueue, key, order

KIB = 1024


def ids(leases):
    return [lease.key.id for lease in leases]


async def crash(store, clock, *topics):
    """
    Claim what is there and let the leases run out.
    """
    leases = await claim(store, *topics)
    clock.advance(s=16)
    await store.recover(0)
    return leases


# -- how many ---------------------------------------------------------------------------------------------


async def test_a_claim_takes_no_more_than_the_free_slots_of_each_topic(store, look):
    for at in range(5):
        for topic in ("a", "b", "c"):
            await enqueue(store, str(at), topic)
    wants = [Want("a", 1, 60_000), Want("b", 3, 60_000), Want("c", 9, 60_000)]
    leases = (await store.claim(0, wants, worker="w", number=1)).leases
    assert {"a": 1, "b": 3, "c": 5} == Counter(lease.key.topic for lease in leases)
    look("a", "b", "c")


@pytest.mark.parametrize("limit", [1, 2, 5, 7])
async def test_a_claim_takes_no_more_than_its_limit(store, look, limit):
    for at in range(4):
        for topic in ("a", "b"):
            await enqueue(store, str(at), topic, lane=Lane(at % 3))
    assert limit == len(await claim(store, "a", "b", limit=limit, free=4))
    look("a", "b")


async def test_a_claim_of_a_topic_without_free_slots_takes_nothing_of_it(store):
    await enqueue(store, "1", "full")
    await enqueue(store, "1", "idle")
    wants = [Want("full", 0, 60_000), Want("idle", 1, 60_000)]
    assert ["idle"] == [
        lease.key.topic for lease in (await store.claim(0, wants, worker="w", number=8)).leases
    ]


async def test_a_claim_that_wants_nothing_gets_nothing(store):
    await enqueue(store, "1")
    assert [] == (await store.claim(0, [], worker="w", number=1)).leases


async def test_what_is_claimed_leaves_its_stream_for_a_lease(store, look):
    await asyncio.gather(*(enqueue(store, str(at), lane=Lane(at % 3)) for at in range(90)))
    await asyncio.gather(*(claim(store, worker=f"w{at}", limit=7) for at in range(9)))
    shard = look()
    in_line = [member for stream in shard.streams.values() for member in stream.values()]
    running = {member: job for member, job in shard.jobs.items() if job.state is JobState.running}
    assert (27, 63) == (len(in_line), len(running))
    assert shard.leases.keys() == running.keys()
    assert 63 == len({job.token for job in running.values()})


@pytest.mark.parametrize("state", ["running", "ready"])
async def test_entries_of_a_release_that_kept_them_to_the_end_are_no_jobs(store, raw, look, state):
    await store.enqueue_many([order(str(at)) for at in range(3)])
    stream = store.keys[0].stream("mail", Lane.normal)
    entries = raw.xrange(stream)
    leases = await claim(store, limit=2)
    if state == "ready":
        await store.release(leases[0])
    raw.delete(stream)
    for entry, fields in entries:
        raw.execute_command("XADD", stream, entry, *fields)
    assert ["2"] == ids(await claim(store, limit=9))


async def test_two_workers_never_get_the_same_job(store):
    await store.enqueue_many([order(str(at)) for at in range(100)])
    claims = await asyncio.gather(*(claim(store, worker=f"w{at}", limit=8) for at in range(16)))
    got = [lease.key.id for leases in claims for lease in leases]
    assert 100 == len(got) == len(set(got))


# -- bytes ------------------------------------------------------------------------------------------------


async def test_bodies_beyond_a_mebibyte_stay_ready_in_their_order(store, look):
    names = [f"{at:02}" for at in range(12)]
    for name in names:
        await enqueue(store, name, payload=b"x" * (300 * KIB))
    got = []
    while leases := await claim(store, limit=20):
        assert len(leases) <= 4
        got.append(ids(leases))
        look()
    assert names == [name for part in got for name in part]
    assert 4 == len(got)


async def test_the_byte_limit_holds_over_many_topics(store, look):
    topics = [f"t{at}" for at in range(8)]
    for topic in topics:
        await enqueue(store, "1", topic, payload=b"x" * (600 * KIB))
    total = 0
    while leases := await claim(store, *topics, limit=20):
        assert sum(len(lease.payload) for lease in leases) <= KIB * KIB
        total += len(leases)
        look(*topics)
    assert 8 == total


async def test_a_body_larger_than_the_limit_is_claimed_alone(store, look):
    await enqueue(store, "small", payload=b"x")
    await enqueue(store, "large", payload=b"x" * (1500 * KIB))
    await enqueue(store, "last", payload=b"x")
    got = [ids(await claim(store)) for _ in range(3)]
    assert [["small"], ["large"], ["last"]] == got
    look()


# -- what stands in the way -------------------------------------------------------------------------------


async def test_an_outdated_entry_is_dropped_when_met(store, raw, look):
    await enqueue(store, "a")
    keys = store.keys[0]
    number = raw.hincrby(keys.fixed["meta"], "sequence", 2)
    raw.xadd(keys.stream("mail", Lane.normal), {"job": "mail/gone"}, id=f"{number - 1}-0")
    raw.xadd(keys.stream("mail", Lane.normal), {"job": "mail/a"}, id=f"{number}-0")
    await enqueue(store, "b")
    assert ["a", "b"] == ids(await claim(store)) + ids(await claim(store))
    look()


@pytest.mark.parametrize("member", ["mail/gone", "other/gone", "no slash at all"])
async def test_an_id_without_a_job_at_the_head_of_due_does_not_block_the_line(
    store, raw, clock, look, member
):
    await enqueue(store, "a", delay_ms=100)
    raw.zadd(store.keys[0].fixed["due"], {member: 1})
    clock.advance(ms=100)
    assert 1 == (await store.promote(0)).moved
    assert {} == look().due
    assert ["a"] == ids(await claim(store))


async def test_a_member_of_due_whose_job_is_not_scheduled_is_dropped_from_it(store, raw, look):
    await enqueue(store, "a")
    raw.zadd(store.keys[0].fixed["due"], {"mail/a": 1})
    assert ["a"] == ids(await claim(store))
    look()


async def test_a_stream_whose_group_is_gone_is_read_from_its_beginning(store, raw, look):
    await enqueue(store, "a")
    [lease] = await claim(store)
    await enqueue(store, "b")
    raw.xgroup_destroy(store.keys[0].stream("mail", Lane.normal), "duly")
    assert ["b"] == ids(await claim(store))
    await store.ack(lease)
    assert {JobState.succeeded, JobState.running} == {job.state for job in look().jobs.values()}


# -- fairness ---------------------------------------------------------------------------------------------


async def test_no_topic_starves_under_load(store):
    topics = [f"t{at}" for at in range(10)]
    await store.enqueue_many([order(str(at), topic) for topic in topics for at in range(20)])
    taken = Counter()
    for number in range(40):
        leases = await claim(store, *topics, limit=3, number=number)
        taken.update(lease.key.topic for lease in leases)
    assert 120 == taken.total()
    assert min(taken[topic] for topic in topics) >= 8


async def test_no_lane_starves_under_load(store):
    for lane in (Lane.high, Lane.normal, Lane.low):
        await store.enqueue_many([order(f"{lane.name}{at}", lane=lane) for at in range(100)])
    taken = Counter()
    for number in range(48):
        taken.update(lease.lane for lease in await claim(store, limit=2, number=number))
    assert 96 == taken.total()
    assert taken[Lane.high] > taken[Lane.normal] + taken[Lane.low]
    assert taken[Lane.low] >= 12


# -- suspects ---------------------------------------------------------------------------------------------


async def test_a_lost_lease_counts_a_crash_and_the_job_comes_back_later_each_time(store, views, clock):
    await enqueue(store, "a", max_crashes=5)
    for crashes, wait_ms in ((1, 1_000), (2, 2_000), (3, 4_000), (4, 8_000)):
        await crash(store, clock)
        job = await views.get(key("a"))
        assert (JobState.scheduled, crashes, clock.now_ms + wait_ms, 0) == (
            job.state,
            job.crashes,
            job.due_ms,
            job.attempts,
        )
        clock.advance(ms=wait_ms - 1)
        assert [] == await claim(store)
        clock.advance(ms=1)


async def test_the_wait_of_a_suspect_has_a_limit(store, views, clock):
    await enqueue(store, "a", max_crashes=255)
    for _ in range(60):
        await crash(store, clock)
        job = await views.get(key("a"))
        assert job.due_ms - clock.now_ms <= 24 * 3_600_000
        clock.now_ms = job.due_ms
    assert 60 == job.crashes


async def test_too_many_crashes_bury_the_job_as_crashed(store, views, feed, clock):
    await enqueue(store, "a")
    for _ in range(3):
        await crash(store, clock)
        clock.advance(s=10)
    job = await views.get(key("a"))
    assert (JobState.dead, 3, 0) == (job.state, job.crashes, job.attempts)
    assert b'"type":"crashed"' in job.outcome
    _, events = await feed.read(0, None, 1000)
    assert ("buried", "crashed") == (events[-1].verb, events[-1].reason)


async def test_a_job_may_say_how_many_crashes_it_may_have(store, views, clock):
    await enqueue(store, "once", max_crashes=1)
    await crash(store, clock)
    assert JobState.dead is (await views.get(key("once"))).state


async def test_one_suspect_at_a_time_is_claimed_so_that_innocents_are_not_buried_with_it(store, clock):
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_)
    await crash(store, clock)
    clock.advance(s=1)
    await enqueue(store, "fresh")
    first = await claim(store, limit=10)
    assert [("fresh", 0), ("suspect", 1)] == sorted(
        (("suspect" if lease.crashes else lease.key.id), lease.crashes) for lease in first
    )
    assert [] == await claim(store, suspects=False)
    assert [1] == [lease.crashes for lease in await claim(store, suspects=True)]


async def test_a_claim_takes_as_many_suspects_as_it_says_and_no_more(store, clock):
    for number in range(6):
        await enqueue(store, f"j{number}")
    await crash(store, clock)
    clock.advance(s=1)
    await enqueue(store, "fresh")
    crashes = sorted(lease.crashes for lease in await claim(store, limit=10, suspects=4))
    assert [0, 1, 1, 1, 1] == crashes
    assert [1, 1] == [lease.crashes for lease in await claim(store, limit=10, suspects=4)]


async def test_one_suspect_at_a_time_over_all_topics_of_a_claim(store, clock):
    for topic in ("a", "b"):
        await enqueue(store, "1", topic)
    await crash(store, clock, "a", "b")
    clock.advance(s=1)
    assert 1 == len(await claim(store, "a", "b"))


async def test_a_crash_that_is_not_counted_puts_the_job_straight_back(store, views, clock):
    await enqueue(store, "a", lane=Lane.high)
    [stale] = await claim(store)
    clock.advance(s=16)
    assert 1 == (await store.recover(0, counted=False)).recovered
    job = await views.get(key("a"))
    assert (JobState.ready, 0, "high") == (job.state, job.crashes, job.priority)
    [fresh] = await claim(store, suspects=False)
    assert (1, Lane.high) == (fresh.attempt, fresh.lane)
    assert [False, True] == await store.extend(0, [stale, fresh])


async def test_recover_takes_nothing_whose_lease_still_runs(store, clock):
    await enqueue(store, "a")
    await claim(store)
    clock.advance(ms=14_999)
    assert (0, 0, 1_015_000) == (await store.recover(0))[1:]
    clock.advance(ms=1)
    assert (1, 0, None) == (await store.recover(0))[1:]


async def test_recover_finds_leases_of_topics_that_it_never_heard_of(store, clock, look):
    topics = [f"t{at}" for at in range(80)]
    for topic in topics:
        await enqueue(store, "1", topic)
    for at in range(0, 80, 20):
        await claim(store, *topics[at : at + 20], limit=20)
    clock.advance(s=16)
    assert 80 == (await store.recover(0)).recovered
    look(*topics)


async def test_a_worker_is_told_to_stop_a_run_that_was_recovered(store, clock):
    await enqueue(store, "a")
    channel = store.keys[0].fixed["stop"]
    heard = store.link.listen(channel)
    assert ("", b"") == await anext(heard)
    [lease] = await crash(store, clock)
    assert (channel, f"mail/a {lease.token}".encode()) == await asyncio.wait_for(anext(heard), 5)
    await heard.aclose()


# -- leases -----------------------------------------------------------------------------------------------


async def test_extend_never_moves_a_lease_past_the_time_to_run_and_its_grace(store, views, clock):
    await enqueue(store, "a", ttr_ms=20_000)
    [lease] = await claim(store)
    assert 1_015_000 == lease.expires_ms
    for _ in range(3):
        clock.advance(s=5)
        assert [True] == await store.extend(0, [lease])
    assert 1_025_000 == (await views.get(key("a"))).lease_ms
    clock.advance(s=10)
    assert [True] == await store.extend(0, [lease])
    assert 1_025_000 == (await views.get(key("a"))).lease_ms
    assert 1 == (await store.recover(0)).recovered


async def test_a_lease_is_no_longer_than_the_time_to_run_and_its_grace(store):
    await enqueue(store, "a", ttr_ms=1_000)
    assert [1_006_000] == [lease.expires_ms for lease in await claim(store)]


async def test_extend_answers_for_each_lease_in_order_however_many(store):
    await store.enqueue_many([order(str(at)) for at in range(450)])
    leases = [lease for _ in range(4) for lease in await claim(store, limit=200)]
    await store.ack(leases[0])
    await store.cancel([leases[300].key])
    held = await store.extend(0, leases)
    assert (450, [0, 300]) == (len(held), [at for at, ok in enumerate(held) if not ok])


async def test_a_name_of_a_worker_may_be_long_and_strange(store, views, feed):
    name = "host\twith\nparts/" + "é" * 300
    await enqueue(store, "a")
    await store.beat(name, b"{}")
    [lease] = await claim(store, worker=name)
    assert name == (await views.get(key("a"))).worker
    await store.ack(lease)
    _, events = await feed.read(0, None)
    assert [("enqueued", ""), ("claimed", name), ("acked", "")] == [
        (event.verb, event.worker) for event in events
    ]


# -- wake-ups ---------------------------------------------------------------------------------------------


async def ready_wait(store, *topics):
    """
    A wait that has certainly begun.
    """
    waiting = asyncio.create_task(store.wait(topics or ("mail",), 5))
    while not int(
        (await store.link.call("INFO", "clients")).decode().partition("blocked_clients:")[2].split()[0]
    ):
        await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("how", ["enqueue", "promote", "release", "requeue", "resume"])
async def test_a_waiting_worker_wakes_when_work_becomes_ready(store, clock, raw, how):
    await enqueue(store, "a", delay_ms=100 if how == "promote" else 0)
    lease = None
    if how != "promote":
        [lease] = await claim(store)
    match how:
        case "requeue":
            await store.ack(lease)
        case "resume":
            await store.pause("mail")
            await store.release(lease)
    raw.delete(store.keys[0].wake("mail"))
    waiting = await ready_wait(store)
    match how:
        case "enqueue":
            await enqueue(store, "b")
        case "promote":
            clock.advance(ms=100)
            await store.promote(0)
        case "release":
            await store.release(lease)
        case "requeue":
            await store.requeue([key("a")])
        case "resume":
            await store.resume("mail")
    assert await asyncio.wait_for(waiting, 2)
    assert 1 == len(await claim(store))


async def test_a_wait_for_another_topic_sleeps_on(store):
    waiting = await ready_wait(store, "other")
    await enqueue(store, "a")
    assert [] == await claim(store, "other")
    assert not waiting.done()
    await enqueue(store, "b", "other")
    assert await asyncio.wait_for(waiting, 2)


async def test_a_wait_in_vain_says_so(store):
    assert not await store.wait(["mail"], 0.01)


async def test_there_are_as_many_tokens_as_jobs_and_never_more_than_sixteen(store, look):
    await store.enqueue_many([order(str(at)) for at in range(3)])
    assert 3 == look().wakes["mail"]
    await store.enqueue_many([order(str(at)) for at in range(3, 60)])
    assert 16 == look().wakes["mail"]


async def test_a_claim_that_leaves_work_passes_a_token_on_and_one_that_empties_takes_them_away(
    store, raw, look
):
    await store.enqueue_many([order(str(at)) for at in range(5)])
    raw.delete(store.keys[0].wake("mail"))
    await claim(store, limit=2)
    assert 1 == look().wakes["mail"]
    await claim(store, limit=2)
    assert 1 == look().wakes["mail"]
    await claim(store, limit=2)
    assert 0 == look().wakes["mail"]


async def test_a_claim_that_is_full_passes_on_the_token_of_a_topic_that_it_did_not_come_to(store, raw, look):
    await enqueue(store, "1", "a")
    await enqueue(store, "1", "b")
    for topic in ("a", "b"):
        raw.delete(store.keys[0].wake(topic))
    [lease] = await claim(store, "a", "b", limit=1)
    left = {"a", "b"} - {lease.key.topic}
    assert dict.fromkeys(left, 1) == {
        topic: number for topic, number in look("a", "b").wakes.items() if number
    }


async def test_a_claim_that_may_take_no_suspect_does_not_wake_itself_for_ever(store, raw, clock, look):
    await enqueue(store, "a")
    await crash(store, clock)
    clock.advance(s=1)
    await store.promote(0)
    raw.delete(store.keys[0].wake("mail"))
    assert [] == await claim(store, suspects=False)
    assert 0 == look().wakes["mail"]


# -- pauses and limits ------------------------------------------------------------------------------------


async def test_a_paused_topic_is_promoted_and_finished_but_not_claimed(store, views, clock, look):
    await enqueue(store, "running")
    [lease] = await claim(store)
    await enqueue(store, "later", delay_ms=100)
    await enqueue(store, "now")
    await store.pause("mail")
    clock.advance(ms=100)
    assert [] == await claim(store)
    assert {"later", "now"} == {job.id for job in await views.peek("mail")}
    await store.ack(lease)
    look()
    await store.resume("mail")
    assert 2 == len(await claim(store))


async def test_time_spent_paused_is_not_lateness(store, clock):
    await enqueue(store, "a")
    await store.pause("mail")
    clock.advance(s=50)
    await store.resume("mail")
    clock.advance(s=1)
    await enqueue(store, "b", delay_ms=3_000)
    clock.advance(s=5)
    floors = {lease.key.id: (lease.due_ms, lease.floor_ms) for lease in await claim(store)}
    assert {"a": (1_000_000, 1_050_000), "b": (1_054_000, 1_054_000)} == floors


async def test_pausing_one_topic_leaves_others_alone_and_shows_in_the_stats(store, views):
    await enqueue(store, "1", "a")
    await enqueue(store, "1", "b")
    await store.pause("a")
    await store.pause("a")
    assert ["b"] == [lease.key.topic for lease in await claim(store, "a", "b")]
    assert {"a": True, "b": False} == {topic.topic: topic.paused for topic in (await views.stats()).topics}
    await store.resume("a")
    assert ["a"] == [lease.key.topic for lease in await claim(store, "a", "b")]


async def test_beyond_the_backlog_limit_that_job_alone_is_refused(store):
    await store.limit("mail", 2)
    await enqueue(store, "a")
    answers = await store.enqueue_many([order("b", delay_ms=5), order("c"), order("a"), order("x", "other")])
    assert ["created", "QueueFull", "kept", "created"] == [
        getattr(answer, "word", type(answer).__name__) for answer in answers
    ]
    with pytest.raises(QueueFull, match="mail"):
        await enqueue(store, "c")


async def test_what_runs_is_not_backlog_and_a_lifted_limit_is_gone(store):
    await store.limit("mail", 1)
    await enqueue(store, "a")
    await claim(store)
    await enqueue(store, "b")
    with pytest.raises(QueueFull):
        await enqueue(store, "c")
    assert "replaced" == (await enqueue(store, "b", payload=b"2", on_conflict="replace")).word
    with pytest.raises(QueueFull):
        await enqueue(store, "a", payload=b"2", on_conflict="replace")
    await store.limit("mail", None)
    await enqueue(store, "c")


# -- timers -----------------------------------------------------------------------------------------------


async def test_the_timer_stream_tells_of_a_new_earliest_due_time_and_of_nothing_else(store, raw):
    async def told(delay_ms):
        before = (
            raw.xinfo_stream(store.keys[0].fixed["timer"])
            if raw.exists(store.keys[0].fixed["timer"])
            else None
        )
        await enqueue(store, str(delay_ms), delay_ms=delay_ms)
        return before != raw.xinfo_stream(store.keys[0].fixed["timer"])

    assert [True, False, True, False, True] == [await told(ms) for ms in (500, 700, 300, 301, 1)]
    assert 1 == raw.xlen(store.keys[0].fixed["timer"])
    [[_, fields]] = raw.xrange(store.keys[0].fixed["timer"])
    assert [b"due_ms", b"1000001"] == fields


@pytest.mark.parametrize("how", ["retry", "reschedule", "recover"])
async def test_whatever_makes_an_earlier_due_time_tells_the_timers(store, raw, clock, how):
    await enqueue(store, "far", delay_ms=900_000)
    await enqueue(store, "a")
    if how != "reschedule":
        [lease] = await claim(store)
    before = raw.xrange(store.keys[0].fixed["timer"])
    match how:
        case "retry":
            await store.retry(lease, 50)
        case "reschedule":
            await store.reschedule(key("a"), delay_ms=50)
        case "recover":
            clock.advance(s=16)
            await store.recover(0)
    assert before != raw.xrange(store.keys[0].fixed["timer"])


async def test_three_timers_stand_in_line_and_the_others_only_scan(store, clock):
    async def rank(name, role="auto"):
        return (await store.promote(0, timer=name, role=role)).rank

    assert [0, 1, 2, 3, 0, 1] == [await rank(name) for name in ("a", "b", "c", "d", "a", "b")]
    clock.advance(ms=4_500)
    assert 1 == await rank("b")
    clock.advance(ms=600)
    assert [0, 2, 1] == [await rank("d"), await rank("e"), await rank("b")]
    assert 3 == (await store.promote(0)).rank


async def test_a_follower_never_leads_and_a_leader_takes_the_lead(store, clock):
    async def rank(name, role):
        return (await store.promote(0, timer=name, role=role)).rank

    assert 3 == await rank("f", "follower")
    assert 0 == await rank("a", "auto")
    assert 0 == await rank("boss", "leader")
    assert 1 == await rank("a", "auto")


async def test_a_claim_holds_the_timer_of_its_process(store):
    wants = [Want("mail", 1, 60_000)]
    claimed = await store.claim(0, wants, worker="w", number=1, timer="t1")
    assert 0 == claimed.look.rank
    assert 1 == (await store.promote(0, timer="t2")).rank


async def test_a_worker_that_says_good_bye_leaves_nothing_behind_on_any_shard(link, namespace, clock, raw):
    from duly.namespace import create
    from duly.store import Store

    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.enqueue_many([Order(JobKey("mail", str(at)), b"1") for at in range(12)])
    await store.beat("w1", b"{}")
    for shard in range(3):
        assert (await store.claim(shard, [Want("mail", 10, 60_000)], worker="w1", number=1)).leases
    await store.beat("w1", b"")
    left = [raw.hlen(keys.fixed["claims"]) for keys in store.keys]
    assert ([0, 0, 0], 0) == (left, raw.hlen(store.keys[0].fixed["workers"]))


async def test_a_lease_of_another_length_ends_with_the_time_to_run(store, look, clock):
    for id_, ttr_ms in (("short", 20_000), ("long", 90_000)):
        await enqueue(store, id_, ttr_ms=ttr_ms)
    leases = await claim(store, lease_ms=60_000)
    now = clock()
    ends = {"mail/short": now + 20_000, "mail/long": now + 60_000}
    assert ends == {lease.key.member: lease.expires_ms for lease in leases} == look().leases
    clock.advance(s=10)
    assert [True, True] == await store.extend(0, leases, lease_ms=40_000)
    assert {"mail/short": now + 20_000, "mail/long": now + 50_000} == look().leases
    assert [True, True] == await store.extend(0, leases)
    assert {"mail/short": now + 25_000, "mail/long": now + 25_000} == look().leases
