"""
The auditor: whatever disagrees with the records is mended, a little at a time, and only that.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.due import SCANNED_AT_ONCE, counted_topics, scheduled_topics
from duly.ids import new_request
from duly.job import JobState, Lane
from duly.namespace import create
from duly.services.auditor import PACE_S, STEP, STEPS, Auditor
from duly.store import Promise, Store
from tests.store.kit import claim, crash, enqueue, index_of, key, order


@pytest.fixture
async def jobs(store, clock):
    """
    A job in every state: s scheduled, t tried before, r ready, p ready as suspect, i ready to run isolated,
    x running, d done, k dead.
    """
    await enqueue(store, "d")
    await enqueue(store, "k")
    await enqueue(store, "t")
    await enqueue(store, "p")
    leases = {lease.key.id: lease for lease in await claim(store)}
    await store.ack(leases["d"], b"1")
    await store.bury(leases["k"], b"{}")
    await store.retry(leases["t"], 90_000, b"{}")
    clock.advance(s=16)
    await enqueue(store, "x")
    assert ["x"] == [lease.key.id for lease in await claim(store)]
    await store.recover(0)
    clock.advance(s=1)
    await store.hydrate([Promise(order("i", due_ms=clock.now_ms), 1, new_request(), crashes=2)])
    await enqueue(store, "s", delay_ms=5_000)
    await enqueue(store, "r", lane=Lane.high)
    return store


async def passes(store):
    """
    How much each pass mends, until one mends nothing.
    """
    mended = []
    while not mended or mended[-1]:
        mended.append(await Auditor(store).run_pass())
        assert len(mended) < 5
    return mended


async def test_where_nothing_is_wrong_nothing_is_mended(jobs, look, feed):
    before = look()
    assert [0] == await passes(jobs)
    assert before == look()


HOME = {"mail/s": "due", "mail/x": "leases", "mail/d": "done", "mail/k": "dead"}
WRONG = [
    (index, member)
    for index in ("due", "leases", "done", "dead")
    for member in (*HOME, "mail/none", "mail/r", "stranger")
    if HOME.get(member) != index
]


@pytest.mark.parametrize(("index", "member"), WRONG)
async def test_a_wrong_entry_in_an_index_is_removed(jobs, raw, look, index, member):
    before = look()
    raw.zadd(index_of(jobs, index), {member: 5})
    assert [1, 0] == await passes(jobs)
    after = look()
    assert (before.due, before.leases, before.done, before.dead) == (
        after.due,
        after.leases,
        after.done,
        after.dead,
    )


@pytest.mark.parametrize(
    ("index", "id_", "score"),
    [
        ("due", "s", 1_017_000),
        ("due", "t", 1_090_000),
        ("leases", "x", 1_017_000),
        ("done", "d", None),
        ("dead", "k", None),
    ],
)
async def test_a_job_that_is_missing_from_its_index_is_put_back(jobs, raw, look, index, id_, score):
    raw.zrem(index_of(jobs, index), f"mail/{id_}")
    assert [1, 0] == await passes(jobs)
    found = getattr(look(), index)[f"mail/{id_}"]
    assert found == (1_017_000 + 24 * 3_600_000 if score is None else score)


async def test_a_running_job_without_a_lease_is_recovered_soon(jobs, raw, views):
    raw.delete(jobs.keys[0].fixed["leases"])
    await Auditor(jobs).run_pass()
    assert 1 == (await jobs.recover(0)).recovered
    assert (JobState.ready, 1) == ((await views.get(key("x"))).state, (await views.get(key("x"))).crashes)


@pytest.mark.parametrize(("id_", "lane"), [("r", Lane.high), ("p", Lane.suspect), ("i", Lane.isolated)])
@pytest.mark.parametrize("damage", ["deleted", "stream gone"])
async def test_a_ready_job_that_nobody_would_get_is_lined_up_again(jobs, raw, look, damage, id_, lane):
    stream = jobs.keys[0].stream("mail", lane)
    [[entry, _]] = raw.xrange(stream)
    if damage == "deleted":
        raw.xdel(stream, entry)
    else:
        raw.delete(stream)
    assert [1, 0] == await passes(jobs)
    look()
    ready = [lease.key.id for _ in range(2) for lease in await claim(jobs)]
    assert ["i", "p", "r"] == sorted(ready)
    assert id_ in ready


@pytest.mark.parametrize("member", ["mail/none", "mail/d", "mail/s", "mail/r", "mail/x"])
async def test_an_entry_that_no_job_stands_behind_is_swept_away(jobs, raw, look, member):
    number = raw.hincrby(jobs.keys[0].fixed["meta"], "sequence", 1)
    raw.xadd(jobs.keys[0].stream("mail", Lane.low), {"job": member}, id=f"{number}-0")
    assert [1, 0] == await passes(jobs)
    look()


@pytest.mark.parametrize("field", ["mail:ready", "mail:dead", "mail:running", "nobody:ready"])
async def test_a_wrong_counter_is_set_right(jobs, raw, look, field):
    raw.hset(jobs.keys[0].fixed["topics"], field, 77)
    assert [1, 0] == await passes(jobs)
    look()


@pytest.mark.parametrize("field", ["done_bytes", "dead_bytes"])
async def test_wrong_byte_totals_are_set_right(jobs, raw, look, field):
    raw.hset(jobs.keys[0].fixed["meta"], field, 77_000)
    mended = await passes(jobs)
    assert [1, 0] == mended
    look()


@pytest.mark.parametrize("wrong", ["missing", "too early", "too late", "of nothing"])
async def test_a_wrong_entry_in_the_index_of_topics_is_set_right(jobs, raw, look, feed, wrong):
    before, next_due = look(), jobs.keys[0].fixed["next_due"]
    match wrong:
        case "missing":
            raw.delete(next_due)
        case "too early" | "too late":
            raw.zadd(next_due, {"mail": 5 if wrong == "too early" else 10**13})
        case "of nothing":
            raw.zadd(next_due, {"stranger": 5})
    offset = await feed.last(0)
    assert [1, 0] == await passes(jobs)
    assert before.next_due == look().next_due
    [told] = (await feed.read(0, offset))[1]
    assert ("mended", "next due") == (told.verb, told.reason)


async def test_timers_hear_of_a_due_time_that_was_mended(jobs, raw):
    raw.delete(jobs.keys[0].fixed["next_due"])
    before = raw.xrange(jobs.keys[0].fixed["timer"])
    await passes(jobs)
    assert before != raw.xrange(jobs.keys[0].fixed["timer"])


@pytest.mark.parametrize("wrong", ["missing", "of nothing"])
async def test_a_wrong_entry_among_the_topics_with_ready_jobs_is_set_right(jobs, raw, look, wrong):
    before, ready = look(), jobs.keys[0].fixed["ready_topics"]
    if wrong == "missing":
        raw.delete(ready)
    else:
        raw.sadd(ready, "stranger")
        await jobs.limit("stranger", 5)
    await passes(jobs)
    assert before.ready_topics == look().ready_topics


async def test_a_lost_note_of_the_lanes_in_use_is_written_again(jobs, raw):
    raw.hdel(jobs.keys[0].fixed["topics"], "mail:lanes")
    await passes(jobs)
    assert ["i", "p", "r"] == sorted([lease.key.id for _ in range(2) for lease in await claim(jobs)])


async def test_empty_streams_of_topics_that_were_used_once_are_deleted(store, raw, look):
    for at in range(20):
        await enqueue(store, "1", f"once{at}", lane=Lane(at % 3))
    await enqueue(store, "1", "used")
    for at in range(20):
        for lease in await claim(store, f"once{at}"):
            await store.ack(lease)
    await passes(store)
    left = {name.decode().rpartition(":ready:")[2] for name in raw.keys(f"{store.keys[0].prefix}ready:*")}
    assert {"used:normal"} == {name.removeprefix(store.keys[0].prefix + "ready:") for name in left}
    await enqueue(store, "2", "once0")
    assert 1 == len(await claim(store, "once0"))
    look("used", *(f"once{at}" for at in range(20)))


async def test_limits_and_pauses_are_no_counters(jobs, views):
    await jobs.limit("mail", 5)
    await jobs.pause("mail")
    assert [0] == await passes(jobs)
    [topic] = (await views.stats()).topics
    assert (5, True) == (topic.limit, topic.paused)


async def test_counters_are_left_alone_while_jobs_move(jobs, raw):
    fixed = jobs.keys[0].fixed
    began = raw.hget(fixed["meta"], "events")
    await enqueue(jobs, "new")
    answer = await jobs.link.run("recount", [fixed["meta"], fixed["topics"]], [began, 0, 0, "mail:ready", 0])
    assert None is answer


async def test_what_was_mended_is_told_with_the_reason(jobs, raw, feed):
    raw.zrem(index_of(jobs, "due"), "mail/t")
    raw.zadd(jobs.keys[0].fixed["dead"], {"mail/none": 1})
    offset = await feed.last(0)
    await Auditor(jobs).run_pass()
    _, events = await feed.read(0, offset)
    assert {("mended", "t", "scheduled"), ("mended", "none", "not in dead")} == {
        (event.verb, event.id, event.reason) for event in events
    }


async def test_everything_at_once_is_mended_in_three_passes(jobs, raw, look, clock):
    fixed = jobs.keys[0].fixed
    for index in ("due", "leases", "done", "dead"):
        raw.delete(index_of(jobs, index))
        raw.zadd(index_of(jobs, index), {"mail/none": 1, "other/none": 1})
    raw.delete(fixed["next_due"], fixed["ready_topics"])
    for lane in Lane:
        raw.delete(jobs.keys[0].stream("mail", lane))
    raw.delete(fixed["topics"])
    raw.hdel(fixed["meta"], "done_bytes", "dead_bytes")
    mended = await passes(jobs)
    assert len(mended) == 4
    shard = look(check=False)
    assert {"mail/s", "mail/t"} == shard.due.keys()
    assert {"mail/x"} == shard.leases.keys()
    clock.advance(s=200)
    await jobs.recover(0)
    clock.advance(s=200)
    ended = 0
    while leases := await claim(jobs):
        for lease in leases:
            await jobs.ack(lease)
            ended += 1
    assert 6 == ended
    look()


async def test_a_step_looks_at_a_bounded_number_of_jobs(store, raw, look):
    await store.enqueue_many([order(f"{at:05}", delay_ms=10) for at in range(1_500)])
    asked = []
    audit = store.audit

    async def counting(shard, members):
        asked.append(len(members))
        return await audit(shard, members)

    store.audit = counting
    raw.delete(index_of(store, "due"))
    auditor = Auditor(store)
    assert 0 == await auditor.run_once()
    assert 1 <= len(asked) <= STEPS
    for _ in range(100):
        await auditor.run_once()
    assert max(asked) <= STEP
    assert len(asked) >= 15
    look()


async def test_no_read_of_an_audit_or_a_list_grows_with_the_topics(store, monkeypatch):
    topics = [f"t{number:05}" for number in range(3_000)]
    # The last one is due first.
    await store.enqueue_many([order("a", topic, delay_ms=60_000 - at) for at, topic in enumerate(topics)])
    sizes = []
    call = store.link.call

    async def noted(*words, **options):
        reply = await call(*words, **options)
        if words[0] in {"ZSCAN", "HSCAN"}:
            sizes.append(len(reply[1]) / 2)
        elif isinstance(reply, list):
            sizes.append(len(reply))
        return reply

    monkeypatch.setattr(store.link, "call", noted)
    [keys] = store.keys
    assert topics[::-1] == await scheduled_topics(store.link, keys)
    found = [names async for names in counted_topics(store.link, keys)]
    assert set(topics) == set.union(*found)
    steps = Auditor(store)._walk()
    for _ in range(100):
        await anext(steps)
    # A scan may return a few more than it was asked for.
    assert max(sizes) <= 1.5 * SCANNED_AT_ONCE
    assert len(sizes) > 20


async def test_only_the_one_that_leads_audits(store, raw, look):
    await store.enqueue_many([order(str(at), delay_ms=10) for at in range(3)])
    raw.delete(index_of(store, "due"))
    leads = False
    auditor = Auditor(store, leads=lambda: leads)
    for _ in range(20):
        await auditor.run_once()
    assert {} == look(check=False).due
    leads = True
    for _ in range(20):
        await auditor.run_once()
    look()


async def test_a_pass_that_has_begun_is_paced_and_then_it_rests(store):
    await store.enqueue_many([order(f"{at:05}") for at in range(1_500)])
    auditor = Auditor(store, every_s=15.0)
    await auditor.run_once()
    assert 1.0 == auditor.every_s
    for _ in range(10):
        await auditor.run_once()
        if auditor.every_s > 1:
            break
    assert 15.0 == auditor.every_s


@pytest.mark.parametrize("jobs", [4_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_a_hundred_thousand_jobs_that_are_kept_are_walked_within_minutes(store, raw, jobs):
    # How often it goes a step and how long it rests is set; how many steps so many jobs take is seen.
    retained, minutes = 100_000, 5
    await store.enqueue_many([order(f"{at:05}") for at in range(jobs)])
    while leases := await claim(store, limit=1_000):
        await asyncio.gather(*[store.ack(lease) for lease in leases])
    assert jobs == raw.zcard(index_of(store, "done"))
    done, broken = index_of(store, "done"), "mail/00007"
    assert 1 == raw.zrem(done, broken)
    auditor = Auditor(store)
    gos = 0
    while gos == 0 or auditor.every_s == PACE_S:
        await auditor.run_once()
        gos += 1
    assert raw.zscore(done, broken) is not None
    assert gos * PACE_S * retained / jobs <= minutes * 60
    # It comes back soon, too, and nothing of that costs the others much.
    assert auditor.every_s <= 15
    assert STEP * STEPS / PACE_S <= 1_000


async def test_an_audit_that_failed_begins_anew(jobs, raw):
    auditor = Auditor(jobs)
    audit, jobs.audit = jobs.audit, None
    with pytest.raises(TypeError):
        await auditor.run_once()
    jobs.audit = audit
    raw.zrem(index_of(jobs, "due"), "mail/t")
    for _ in range(20):
        await auditor.run_once()
    assert 0 == await auditor.run_pass()


async def test_every_shard_is_audited(link, namespace, clock, raw):
    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.enqueue_many([order(str(at), delay_ms=10) for at in range(30)])
    for keys in store.keys:
        raw.delete(keys.due("mail"))
    assert [30, 0] == await passes(store)


@pytest.mark.several_shards
@pytest.mark.parametrize("lane", [Lane.normal, Lane.low, Lane.callback])
async def test_a_ready_job_that_nobody_started_in_time_is_cancelled(store, views, clock, look, lane):
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_, expires_ms=clock.now_ms + 1_000, lane=lane)
    await enqueue(store, "later", expires_ms=clock.now_ms + 60_000, lane=lane)
    clock.advance(ms=1_000)
    await Auditor(store).run_pass()
    assert [JobState.ready] * 4 == [(await views.get(key(id_))).state for id_ in ("a", "b", "c", "later")]
    clock.advance(ms=1)
    assert 0 == await Auditor(store).run_pass(), "nothing was wrong"
    for id_ in ("a", "b", "c"):
        job = await views.get(key(id_))
        assert (JobState.cancelled, b'{"type":"expired"}', 0) == (job.state, job.outcome, job.attempts)
    before = look()
    assert 0 == await Auditor(store).run_pass()
    assert before == look()
    [stats] = (await views.stats()).topics
    assert (1, 3) == (stats.counts["ready"], stats.counts["cancelled"])


async def test_it_is_cancelled_in_a_paused_topic_as_well_as_one_that_crashed(store, views, clock):
    await enqueue(store, "crashed", expires_ms=clock.now_ms + 20_000)
    await crash(store, clock)
    await store.pause("mail")
    await enqueue(store, "paused", expires_ms=clock.now_ms + 1_000)
    clock.advance(s=5)
    await Auditor(store).run_pass()
    assert [JobState.cancelled] * 2 == [(await views.get(key(id_))).state for id_ in ("crashed", "paused")]
    await store.resume("mail")
    assert [] == await claim(store)


async def test_a_running_job_is_not_cancelled_when_it_expires(store, views, clock):
    await enqueue(store, "a", expires_ms=clock.now_ms + 1_000)
    await claim(store)
    clock.advance(s=2)
    await Auditor(store).run_pass()
    assert JobState.running is (await views.get(key("a"))).state
