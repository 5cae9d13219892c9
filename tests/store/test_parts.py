"""
Further parts of a record: a release that does not know them carries them along, whatever becomes of the job.
"""

from __future__ import annotations

import pytest

from duly.codec import Envelope, encode_envelope
from duly.job import JobState, Lane
from duly.records import CREATED, FIRST_DUE, OPTIONS, options_at, read
from duly.services.auditor import Auditor
from duly.store import Want
from tests.store.kit import claim, enqueue, ids, key

#: Two that nobody knows: a name, a length, a value, with bytes that mean something elsewhere.
PARTS = b"\xc8\x05\x00\xffjob\xfe\x02\n/"
LONG = b'"' + b"x" * 3_000 + b'"'


@pytest.fixture
def later_release(store, raw):
    """
    Give a job parts as a later release would, in the place where they stand.
    """
    jobs = store.keys[0].fixed["jobs"]

    def later_release(id_="a", parts=PARTS):
        record = raw.hget(jobs, f"mail/{id_}")
        at, body = options_at(record)
        assert at + OPTIONS.size == body
        size = len(parts).to_bytes(2, "big")
        raw.hset(jobs, f"mail/{id_}", record[: body - 2] + size + parts + record[body:])

    return later_release


@pytest.fixture
def parts(store, raw, look):
    """
    The parts of a job as it is stored, with its state; everything else is as it has to be.
    """

    def parts(id_="a"):
        look()
        record = read(raw.hget(store.keys[0].fixed["jobs"], f"mail/{id_}"))
        return record.head.state.name, b"".join(unknown(record.parts))

    return parts


def unknown(parts):
    """
    Those that this release does not write: its own are times of six bytes.
    """
    while parts:
        end = 2 + parts[1]
        if parts[0] not in (CREATED, FIRST_DUE) or parts[1] != 6:
            yield parts[:end]
        parts = parts[end:]


async def make(store, state, **options):
    """
    A job in some state that asks for something, so that its record has options.
    """
    waits = state in ("scheduled", "due")
    await enqueue(store, "a", ttr_ms=30_000, delay_ms=100 if waits else 0, **options)


@pytest.mark.parametrize("payload", [b"1", LONG])
@pytest.mark.parametrize("envelope", [b"", encode_envelope(Envelope(max_attempts=2, reply_to="inbox"))])
@pytest.mark.parametrize("lane", [Lane.normal, Lane.low])
async def test_a_job_keeps_parts_that_nobody_knows_through_its_whole_life(
    store, later_release, parts, views, clock, payload, envelope, lane
):
    await make(store, "scheduled", payload=payload, envelope=envelope, lane=lane)
    later_release()

    async def take(**options):
        [lease] = await claim(store, **options)
        assert (payload, envelope, 30_000) == (lease.payload, lease.envelope, lease.ttr_ms)
        assert ("running", PARTS) == parts()
        return lease

    async def seen():
        job = await views.get(key("a"))
        assert (payload, 30_000) == (job.payload, job.ttr_ms)
        return parts()

    await store.reschedule(key("a"), delay_ms=50)
    assert ("scheduled", PARTS) == await seen()
    await store.let_go(await store.hold(key("a"), least_ms=1_000))
    assert ("scheduled", PARTS) == await seen()
    watched = [store.keys[0].fixed["jobs"], store.keys[0].fixed["outcomes"], store.keys[0].due("mail")]
    await store.link.run("watch", watched, ["mail/a"])
    assert ("scheduled", PARTS) == await seen()
    clock.advance(ms=50)
    await store.promote(0)
    assert ("ready", PARTS) == await seen()
    await store.release(await take())
    assert ("ready", PARTS) == await seen()
    lease = await take()
    assert [True] == await store.extend(0, [lease])
    await store.progress(lease, b"1")
    await store.retry(lease, 10, b"{}", "Boom")
    assert ("scheduled", PARTS) == await seen()
    clock.advance(ms=10)
    await store.retry(await take(), 10, counted=False)  # straight from where it was due
    clock.advance(ms=10)
    for crashes in range(2):
        await take()
        clock.advance(s=40)
        assert 1 == (await store.recover(0)).recovered
        assert ("ready", PARTS) == await seen(), crashes
    await store.bury(await take(), b"{}")
    assert ("dead", PARTS) == await seen()
    await store.requeue([key("a")])
    assert ("ready", PARTS) == await seen()
    await store.ack(await take(), b"1")
    assert ("succeeded", PARTS) == await seen()
    await store.requeue([key("a")])
    await store.cancel([key("a")])
    assert ("cancelled", PARTS) == await seen()
    assert 0 == await Auditor(store).run_pass()


@pytest.mark.parametrize("payload", [b"1", LONG])
async def test_a_job_that_is_claimed_when_due_keeps_them(store, later_release, parts, clock, payload):
    await make(store, "due", payload=payload)
    later_release()
    clock.advance(ms=100)
    [lease] = await claim(store)
    assert (payload, ("running", PARTS)) == (lease.payload, parts())


@pytest.mark.parametrize("by", ["promote", "claim", "claim when ready"])
async def test_a_job_that_comes_too_late_keeps_them(store, later_release, parts, clock, by):
    await make(store, "ready" if by == "claim when ready" else "due", expires_ms=clock.now_ms + 150)
    later_release()
    clock.advance(ms=200)
    if by == "promote":
        await store.promote(0)
    else:
        assert [] == await claim(store)
    assert ("cancelled", PARTS) == parts()


async def test_what_is_left_of_a_job_that_is_not_kept_has_them(store, later_release, parts):
    await make(store, "ready", retain_s=0)
    later_release()
    [lease] = await claim(store)
    await store.ack(lease, b"1")
    assert ("succeeded", PARTS) == parts()


async def test_another_revision_has_none_of_the_former(store, later_release, parts):
    await make(store, "ready")
    later_release()
    await make(store, "scheduled", payload=b"2", on_conflict="replace")
    assert ("scheduled", b"") == parts()


async def test_a_lost_entry_and_a_lost_index_are_mended_with_them(store, later_release, parts, raw):
    await make(store, "ready")
    later_release()
    raw.delete(store.keys[0].stream("mail", Lane.normal))
    await Auditor(store).run_pass()
    assert ("ready", PARTS) == parts()
    assert ["a"] == ids(await claim(store))


async def test_a_claim_that_is_sent_again_brings_them_again(store, later_release, parts):
    await make(store, "ready")
    later_release()
    run, lost = store.link.run, []

    async def lossy(name, keys, args, *, again=None):
        answer = await run(name, keys, args, again=again)
        if name == "claim" and not lost:
            lost.append(answer)
            return await run(name, keys, again or args)
        return answer

    store.link.run = lossy
    [lease] = (await store.claim(0, [Want("mail", 1, 60_000)], worker="w")).leases
    assert (1, 30_000, b"{}") == (len(lost), lease.ttr_ms, lease.payload)
    assert ("running", PARTS) == parts()


async def test_parts_may_be_as_long_as_their_length_can_say(store, later_release, parts, clock):
    most = b"".join(bytes([at % 256, 255]) + bytes(255) for at in range(255))
    await make(store, "due")
    later_release(parts=most)
    clock.advance(ms=100)
    [lease] = await claim(store)
    assert (b"{}", ("running", most)) == (lease.payload, parts())
    await store.ack(lease, b"1")
    assert ("succeeded", most) == parts()


async def test_states_of_all_are_what_they_are_without_parts(store, later_release, views, clock):
    for state in ("scheduled", "ready"):
        await enqueue(store, state, ttr_ms=30_000, delay_ms=100 if state == "scheduled" else 0)
        later_release(state)
    page = await views.page(JobState.scheduled)
    assert ["scheduled"] == [job.id for job in page.jobs]
    assert ["ready"] == [job.id for job in await views.peek("mail")]
