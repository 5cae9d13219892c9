"""
The auditor: whatever disagrees with the records is mended, a little at a time, and only that.
"""

from __future__ import annotations

import pytest

from duly.job import JobState, Lane
from duly.namespace import create
from duly.services.auditor import STEP, Auditor
from duly.store import Store
from tests.store.kit import claim, enqueue, key, order


@pytest.fixture
async def jobs(store, clock):
    """
    A job in every state: s scheduled, t tried before, r ready, p ready as suspect, x running, d done, k dead.
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
    await store.recover(0)
    clock.advance(s=1)
    await store.promote(0)
    await enqueue(store, "x")
    await claim(store, suspects=False)
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
    raw.zadd(jobs.keys[0].fixed[index], {member: 5})
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
    raw.zrem(jobs.keys[0].fixed[index], f"mail/{id_}")
    assert [1, 0] == await passes(jobs)
    found = getattr(look(), index)[f"mail/{id_}"]
    assert found == (1_017_000 + 24 * 3_600_000 if score is None else score)


async def test_a_running_job_without_a_lease_is_recovered_soon(jobs, raw, views):
    raw.delete(jobs.keys[0].fixed["leases"])
    await Auditor(jobs).run_pass()
    assert 1 == (await jobs.recover(0)).recovered
    assert (JobState.scheduled, 1) == ((await views.get(key("x"))).state, (await views.get(key("x"))).crashes)


@pytest.mark.parametrize("id_", ["r", "p"])
@pytest.mark.parametrize("damage", ["deleted", "stream gone"])
async def test_a_ready_job_that_nobody_would_get_is_lined_up_again(jobs, raw, look, damage, id_):
    stream = jobs.keys[0].stream("mail", Lane.high if id_ == "r" else Lane.suspect)
    [[entry, _]] = raw.xrange(stream)
    if damage == "deleted":
        raw.xdel(stream, entry)
    else:
        raw.delete(stream)
    assert [1, 0] == await passes(jobs)
    look()
    ready = await claim(jobs) + await claim(jobs)
    assert {"r", "p"} == {lease.key.id for lease in ready}


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
    raw.zrem(jobs.keys[0].fixed["due"], "mail/t")
    raw.zadd(jobs.keys[0].fixed["dead"], {"mail/none": 1})
    offset = await feed.last(0)
    await Auditor(jobs).run_pass()
    _, events = await feed.read(0, offset)
    assert {("mended", "t", "scheduled"), ("mended", "none", "not in dead")} == {
        (event.verb, event.id, event.reason) for event in events
    }


async def test_everything_at_once_is_mended_in_two_passes(jobs, raw, look, clock):
    fixed = jobs.keys[0].fixed
    for index in ("due", "leases", "done", "dead"):
        raw.delete(fixed[index])
        raw.zadd(fixed[index], {"mail/none": 1, "other/none": 1})
    for lane in Lane:
        raw.delete(jobs.keys[0].stream("mail", lane))
    raw.delete(fixed["topics"])
    raw.hdel(fixed["meta"], "done_bytes", "dead_bytes")
    mended = await passes(jobs)
    assert len(mended) == 3
    shard = look(check=False)
    assert {"mail/s", "mail/t"} == shard.due.keys()
    assert {"mail/x"} == shard.leases.keys()
    clock.advance(s=200)
    await jobs.recover(0)
    clock.advance(s=200)
    ended = 0
    while leases := await claim(jobs, number=8):
        for lease in leases:
            await jobs.ack(lease)
            ended += 1
    assert 5 == ended
    look()


async def test_a_step_looks_at_a_bounded_number_of_jobs(store, raw, look):
    await store.enqueue_many([order(f"{at:05}", delay_ms=10) for at in range(1_500)])
    asked = []
    audit = store.audit

    async def counting(shard, members):
        asked.append(len(members))
        return await audit(shard, members)

    store.audit = counting
    raw.delete(store.keys[0].fixed["due"])
    auditor = Auditor(store)
    assert 0 == await auditor.run_once()
    assert [1] == [len(asked)]
    for _ in range(100):
        await auditor.run_once()
    assert max(asked) <= STEP
    assert len(asked) >= 15
    look()


async def test_an_audit_that_failed_begins_anew(jobs, raw):
    auditor = Auditor(jobs)
    audit, jobs.audit = jobs.audit, None
    with pytest.raises(TypeError):
        await auditor.run_once()
    jobs.audit = audit
    raw.zrem(jobs.keys[0].fixed["due"], "mail/t")
    for _ in range(20):
        await auditor.run_once()
    assert 0 == await auditor.run_pass()


async def test_every_shard_is_audited(link, namespace, clock, raw):
    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.enqueue_many([order(str(at), delay_ms=10) for at in range(30)])
    for keys in store.keys:
        raw.delete(keys.fixed["due"])
    assert [30, 0] == await passes(store)
