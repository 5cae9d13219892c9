"""
Damaged records: each is put aside by whatever meets it, and nothing else waits for it.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import records
from duly.errors import JobNotFound, QueueFull, StoreUnavailable
from duly.ids import new_request
from duly.job import JobState, Lane
from duly.record.sight import look_up
from duly.records import BASE, HEAD, OPTIONS, is_whole
from duly.services.auditor import Auditor
from duly.store import Promise
from tests.store.kit import claim, enqueue, ids, key, order

#: Cut off anywhere: nothing, too little for any record, within the run, in front of the options, within them.
SIZES = (0, 1, 5, 14, 15, 60, HEAD.size - 1, HEAD.size, HEAD.size + 5, HEAD.size + OPTIONS.size - 1)


@pytest.fixture
def damage(store, raw):
    """
    Cut off the record of a job; what is left of it.
    """

    def damage(id_="bad", size=5):
        jobs, member = store.keys[0].fixed["jobs"], f"mail/{id_}"
        left = raw.hget(jobs, member)[:size]
        raw.hset(jobs, member, left)
        return left

    return damage


@pytest.fixture
def aside(store, raw):
    """
    What was put aside, by id.
    """

    def aside():
        found = raw.hgetall(store.keys[0].fixed["quarantine"])
        return {
            member.decode().partition("/")[2]: left
            for member, left in zip(found[::2], found[1::2], strict=True)
        }

    return aside


async def told_of(feed):
    _, events = await feed.read(0, None, 1_000)
    return [(event.topic, event.id) for event in events if event.verb == "quarantined"]


async def three(store, **options):
    """
    A damaged one between good ones, or what will be.

    Each asks for something, so that its record has all parts.
    """
    for id_ in ("one", "bad", "two"):
        await enqueue(store, id_, ttr_ms=30_000, **options)


# -- those that find work ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lane", [Lane.normal, Lane.high])
async def test_a_claim_goes_on_behind_a_damaged_ready_job(store, damage, aside, feed, look, lane, size):
    await three(store, lane=lane)
    left = damage(size=size)
    assert ["one", "two"] == ids(await claim(store))
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    look()


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_claim_goes_on_behind_a_damaged_suspect(store, damage, aside, clock, look, crashes):
    waiting = [order(id_, due_ms=clock.now_ms) for id_ in ("one", "bad", "two")]
    await store.hydrate([Promise(each, 1, new_request(), crashes=crashes) for each in waiting])
    left = damage()
    taken = [id_ for _ in range(3) for id_ in ids(await claim(store))]
    assert (["one", "two"], {"bad": left}) == (taken, aside())
    look()


@pytest.mark.parametrize("size", [0, 5, 14, 20])
async def test_a_claim_goes_on_behind_a_damaged_due_job(store, damage, aside, feed, clock, look, size):
    await three(store, delay_ms=10)
    left = damage(size=size)
    clock.advance(ms=10)
    assert ["one", "two"] == ids(await claim(store))
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    look()


@pytest.mark.parametrize("size", [0, 5, 14, 20])
async def test_promote_goes_on_behind_a_damaged_job(store, damage, aside, feed, clock, look, size):
    await three(store, delay_ms=10)
    left = damage(size=size)
    clock.advance(ms=10)
    assert 2 == (await store.promote(0)).moved
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    assert 0 == (await store.promote(0)).moved
    look()


async def test_a_shard_with_nothing_but_damaged_jobs_comes_to_rest(store, damage, aside, clock, look):
    await three(store, delay_ms=10)
    for id_ in ("one", "bad", "two"):
        damage(id_)
    clock.advance(ms=10)
    seen = await store.promote(0)
    assert (0, False, None) == (seen.moved, seen.more, seen.next_due_ms)
    assert 3 == len(aside())
    look()


@pytest.mark.parametrize("size", SIZES)
async def test_recover_goes_on_behind_a_damaged_running_job(store, damage, aside, feed, clock, look, size):
    await three(store)
    await claim(store)
    left = damage(size=size)
    clock.advance(s=16)
    assert 2 == (await store.recover(0)).recovered
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    assert (0, None) == ((await store.recover(0)).recovered, (await store.recover(0)).next_lease_ms)
    look()


# -- those that end runs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release"])
@pytest.mark.parametrize("size", SIZES)
async def test_a_batch_of_outcomes_is_not_refused_for_a_damaged_job(store, damage, aside, views, verb, size):
    await three(store)
    leases = await claim(store)
    left = damage(size=size)
    own = (10,) if verb == "retry" else ()
    answers = await asyncio.gather(
        *(getattr(store, verb)(lease, *own) for lease in leases), return_exceptions=True
    )
    assert [None, JobNotFound, None] == [answer and type(answer) for answer in answers]
    assert {"bad": left} == aside()
    states = {(await views.get(key(id_))).state for id_ in ("one", "two")}
    assert 1 == len(states - {JobState.running})


@pytest.mark.parametrize("size", SIZES)
async def test_leases_are_prolonged_beside_a_damaged_job(store, damage, size):
    await three(store)
    leases = await claim(store)
    damage(size=size)
    held = await store.extend(0, leases)
    assert [True, True] == [held[0], held[2]]


# -- those that people ask for ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "ended"])
async def test_cancel_goes_on_behind_a_damaged_job(store, damage, aside, feed, state):
    await three(store, delay_ms=10 if state == "scheduled" else 0)
    if state in ("running", "ended"):
        leases = await claim(store)
        if state == "ended":
            for lease in leases:
                await store.bury(lease)
    left = damage()
    ended = JobState.dead if state == "ended" else JobState.cancelled
    assert [ended, None, ended] == await store.cancel([key(id_) for id_ in ("one", "bad", "two")])
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    assert [None] == await store.cancel([key("bad")])


async def test_reschedule_hold_and_forget_do_not_know_a_damaged_job(store, damage, aside):
    await three(store, delay_ms=10)
    for verb in ("reschedule", "hold", "forget"):
        await enqueue(store, verb, delay_ms=10)
        damage(verb)
    with pytest.raises(JobNotFound):
        await store.reschedule(key("reschedule"), delay_ms=50)
    assert None is await store.hold(key("hold"), least_ms=50)
    assert [True, False] == await store.forget([(key("one"), 2**50), (key("forget"), 2**50)])
    assert {"reschedule", "hold", "forget"} == aside().keys()


async def test_requeue_goes_on_behind_a_damaged_job(store, damage, aside):
    await three(store)
    for lease in await claim(store):
        await store.bury(lease)
    damage()
    answers = await store.requeue([key(id_) for id_ in ("one", "bad", "two")])
    assert ["requeued", JobNotFound, "requeued"] == [getattr(one, "word", type(one)) for one in answers]
    assert {"bad"} == aside().keys()


@pytest.mark.parametrize("size", SIZES)
async def test_prune_goes_on_behind_a_damaged_job(store, damage, aside, feed, clock, size):
    await three(store)
    for lease in await claim(store):
        await (store.bury(lease) if lease.key.id == "two" else store.ack(lease))
    left = damage(size=size)
    clock.advance(s=20 * 86_400)
    assert (2, False) == await store.prune(0)
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    assert [0, 0] == [await store.link.call("ZCARD", store.keys[0].fixed[name]) for name in ("done", "dead")]


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "ended"])
@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_an_id_whose_record_is_damaged_can_be_used_again(
    store, damage, aside, views, clock, on_conflict, state, delay_ms
):
    await three(store, delay_ms=10 if state == "scheduled" else 0)
    if state in ("running", "ended"):
        leases = await claim(store)
        if state == "ended":
            for lease in leases:
                await store.bury(lease, b'{"type":"Old"}')
    left = damage()
    placed = await enqueue(store, "bad", payload=b"2", delay_ms=delay_ms, on_conflict=on_conflict)
    assert ("created", {"bad": left}) == (placed.word, aside())
    job = await views.get(key("bad"))
    assert (b"2", b"", placed.revision) == (job.payload, job.outcome, job.revision)
    clock.advance(ms=500)
    [lease] = [lease for lease in await claim(store) if lease.key.id == "bad"]
    await store.ack(lease)
    assert (JobState.succeeded, b"") == (
        (await views.get(key("bad"))).state,
        (await views.get(key("bad"))).outcome,
    )


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_job_with_a_damaged_record_is_taken_from_the_database_again(
    store, damage, aside, views, clock, cancelled
):
    placed = await enqueue(store, "bad", ttr_ms=30_000)
    damage()
    promise = Promise(order("bad", due_ms=clock.now_ms), placed.revision, new_request(), cancelled=cancelled)
    [answer] = await store.hydrate([promise])
    assert ("created", {"bad"}) == (answer.word, aside().keys())
    assert (JobState.cancelled if cancelled else JobState.ready) is (await views.get(key("bad"))).state


async def test_lists_leave_a_damaged_job_out(store, damage, views):
    await three(store)
    damage()
    assert [None, "one"] == [job and job.id for job in await views.get_many([key("bad"), key("one")])]
    assert ["one", "two"] == [job.id for job in await views.peek("mail")]
    assert ["one", "two"] == [job.id for job in (await views.page(JobState.ready)).jobs]


async def test_whoever_waits_for_a_damaged_job_is_told_that_there_is_none(store, damage):
    await enqueue(store, "bad")
    damage()
    watched = [store.keys[0].fixed["jobs"], store.keys[0].fixed["outcomes"], store.keys[0].due("mail")]
    assert [] == await store.link.run("watch", watched, ["mail/bad"])


async def test_python_and_lua_agree_on_which_records_are_whole(store, raw):
    """
    Every mark, cut off around every part, with further parts behind the options that are there or missing.
    """
    ends = [size for part in (0, OPTIONS.size) for size in (BASE.size + part, HEAD.size + part)]
    sizes = {0, 1, *(end + step for end in ends for step in (-1, 0, 1, 3, 255, 256, 257))}
    found = {}
    for parts in (0, 3, 256):
        for size in sizes:
            for mark in range(256) if size else (0,):
                record = bytearray(size)
                record[:1] = bytes([mark])[:size]
                at = (HEAD.size if mark & 64 else BASE.size) + OPTIONS.size
                if size >= at:
                    record[at - 2 : at] = parts.to_bytes(2)
                found[f"mail/{parts}-{size}-{mark}"] = bytes(record)
    raw.hset(store.keys[0].fixed["jobs"], mapping=found)
    told = await store.get([key(member.partition("/")[2]) for member in found])
    assert {member: is_whole(record) for member, record in found.items()} == {
        member: bool(about) for member, about in zip(found, told, strict=True)
    }
    assert {True, False} == {is_whole(record) for record in found.values()}


@pytest.mark.parametrize("size", SIZES)
async def test_a_comparison_with_a_record_misses_a_damaged_job_and_tells_once(store, damage, caplog, size):
    records._tell_damaged.cache_clear()  # other tests damage jobs of this name, too
    await three(store)
    damage(size=size)
    for _ in range(2):
        seen = await look_up(store, [key(id_) for id_ in ("one", "bad", "two")])
        assert ["one", None, "two"] == [each and each.key.id for each in seen]
    assert 1 == sum("mail/bad is damaged" in line for line in caplog.messages)


async def test_a_job_whose_envelope_cannot_be_read_stops_no_list(store, raw, views):
    await enqueue(store, "one")
    await enqueue(store, "bad", envelope=b'{"context":{}}')
    jobs = store.keys[0].fixed["jobs"]
    raw.hset(jobs, "mail/bad", raw.hget(jobs, "mail/bad").replace(b'{"context', b'\xff"context'))
    found = (await views.page(JobState.ready)).jobs
    assert [("one", b"{}"), ("bad", b"{}")] == [(job.id, job.payload) for job in found]
    assert None is found[1].envelope.context


# -- what is counted --------------------------------------------------------------------------------------


async def put_into(store, state):
    """
    Three jobs in a state.
    """
    await three(store, delay_ms=10 if state == "scheduled" else 0)
    if state == "cancelled":
        await store.cancel([key(id_) for id_ in ("one", "bad", "two")])
    elif state not in ("scheduled", "ready"):
        for lease in await claim(store):
            match state:
                case "succeeded":
                    await store.ack(lease)
                case "dead":
                    await store.bury(lease)


def counted(look):
    numbers = {name.partition(":")[2]: number for name, number in look(check=False).topics.items()}
    return {state.name: numbers[state.name] for state in JobState if numbers.get(state.name)}


@pytest.mark.parametrize("state", [state.name for state in JobState])
@pytest.mark.parametrize("size", [0, 5, 14])
async def test_a_damaged_job_that_somebody_looks_at_is_counted_no_more(
    store, damage, aside, views, look, state, size
):
    await put_into(store, state)
    left = damage(size=size)
    for _ in range(2):
        assert None is await views.get(key("bad"))
        assert ({"bad": left}, {state: 2}) == (aside(), counted(look))


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
async def test_the_first_byte_tells_how_a_damaged_job_has_ended(store, damage, views, look, state):
    for each in ("succeeded", "cancelled"):
        await enqueue(store, each)
        if each == "succeeded":
            [lease] = await claim(store)
            await store.ack(lease)
        else:
            await store.cancel([key(each)])
    damage(state)
    assert None is await views.get(key(state))
    assert {each: 1 for each in ("succeeded", "cancelled") if each != state} == counted(look)


@pytest.mark.parametrize("verb", ["claim", "ack", "bury", "retry", "release", "cancel", "recover", "prune"])
async def test_whichever_verb_meets_a_damaged_job_counts_it_no_more(store, damage, aside, clock, look, verb):
    await three(store, delay_ms=0 if verb != "cancel" else 10)
    leases = [] if verb in ("claim", "cancel") else await claim(store)
    if verb == "prune":
        for lease in leases:
            await store.bury(lease)
    damage()
    match verb:
        case "claim":
            await claim(store)
        case "cancel":
            await store.cancel([key("bad")])
        case "recover" | "prune":
            clock.advance(s=20 * 86_400)
            await getattr(store, verb)(0)
        case _:
            with pytest.raises(JobNotFound):
                await getattr(store, verb)(leases[1], *((10,) if verb == "retry" else ()))
    assert {"bad"} == aside().keys()
    left = {"claim": {"running": 2}, "cancel": {"scheduled": 2}, "recover": {"ready": 2}, "prune": {}}
    assert left.get(verb, {"running": 2}) == counted(look)


async def test_damaged_jobs_take_no_part_of_a_limit_once_somebody_has_met_them(store, damage, views):
    await store.limit("mail", 3)
    await three(store, delay_ms=10)
    for id_ in ("one", "bad", "two"):
        damage(id_)
    assert [None] * 3 == await views.get_many([key(id_) for id_ in ("one", "bad", "two")])
    assert ["created"] * 3 == [(await enqueue(store, f"new{at}")).word for at in range(3)]
    with pytest.raises(QueueFull):
        await enqueue(store, "more")


@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_the_id_of_a_damaged_job_is_free_where_its_topic_is_full(store, damage, look, delay_ms):
    await store.limit("mail", 3)
    await three(store, delay_ms=delay_ms)
    damage()
    assert "created" == (await enqueue(store, "bad", delay_ms=delay_ms)).word
    with pytest.raises(QueueFull):
        await enqueue(store, "more")
    assert {"scheduled" if delay_ms else "ready": 3} == counted(look)


async def test_a_look_at_a_damaged_job_needs_no_right_to_write(store, damage, aside, views, monkeypatch):
    await three(store)
    damage()

    async def refuse(*_):
        raise StoreUnavailable("no")

    monkeypatch.setattr(store, "audit", refuse)
    assert (None, {}) == (await views.get(key("bad")), aside())


# -- the auditor ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["scheduled", "ready", "running", "ended", "dead"])
@pytest.mark.parametrize("size", [0, 5, 60])
async def test_the_auditor_puts_damaged_records_aside_and_mends_what_they_leave(
    store, damage, aside, feed, look, state, size
):
    await three(store, delay_ms=10 if state == "scheduled" else 0)
    if state in ("running", "ended", "dead"):
        for lease in await claim(store):
            if state != "running":
                await (store.ack if state == "ended" else store.bury)(lease)
    left = damage(size=size if state != "scheduled" else min(size, 14))
    for _ in range(5):
        if not await Auditor(store).run_pass():
            break
    assert 0 == await Auditor(store).run_pass()
    assert ({"bad": left}, [("mail", "bad")]) == (aside(), await told_of(feed))
    look()


async def test_one_damaged_job_among_many_hides_none_from_the_auditor(store, damage, aside, raw, look):
    await store.enqueue_many([order(f"{at:03}", delay_ms=10) for at in range(250)])
    for at in range(0, 250, 10):
        damage(f"{at:03}")
    raw.delete(store.keys[0].due("mail"))
    for _ in range(4):
        await Auditor(store).run_pass()
    assert (25, 225) == (len(aside()), len(look().due))


async def test_the_auditor_tells_the_log_once_of_what_is_in_quarantine(store, damage, caplog):
    auditor = Auditor(store)
    for id_ in ("one", "two"):
        await enqueue(store, id_)
        damage(id_)
        for _ in range(3):
            await auditor.run_pass()
    told = [line for line in caplog.messages if "duly jobs quarantine ls" in line]
    assert ["1 damaged", "2 damaged"] == [line[:9] for line in told]


# -- looking after them -----------------------------------------------------------------------------------


async def test_what_is_dropped_is_gone_and_what_has_its_id_by_now_is_not(store, damage, aside, raw):
    for id_ in ("one", "bad", "two"):
        await enqueue(store, id_, payload=b"1" * 5_000)
        damage(id_)
    await Auditor(store).run_pass()
    await enqueue(store, "two", payload=b"2" * 5_000)
    assert [3] == await store.quarantine_sizes()
    assert (b"1" * 5_000, b"") == tuple(
        [(await store.quarantined_job(key(id_)))[1] for id_ in ("one", "two")]
    )
    assert None is await store.quarantined_job(key("none"))
    assert [True, False, True] == await store.drop(0, ["mail/one", "mail/none", "mail/two"])
    assert [False] == await store.drop(0, ["mail/one"])
    assert ({"bad"}, {"mail/bad", "mail/two"}) == (
        set(aside()),
        {member.decode() for member in raw.hkeys(store.keys[0].fixed["bodies"])},
    )


async def test_a_long_list_comes_in_parts(store, raw):
    raw.hset(store.keys[0].fixed["quarantine"], mapping={f"mail/{at}": b"x" for at in range(3_000)})
    cursor, found, parts = "0", set(), 0
    while not parts or cursor != "0":
        cursor, part = await store.quarantined(0, cursor, 100)
        assert len(part) < 1_000
        found, parts = found | {member for member, _ in part}, parts + 1
    assert 3_000 == len(found)
