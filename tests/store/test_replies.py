"""
A job with a reply_to tells its end to the queue of that name, in the same script call, however it ends.
"""

from __future__ import annotations

import pytest

from duly.codec import Envelope, encode_envelope
from duly.documents import ended_fields_of
from duly.errors import UsageError
from duly.job import JobState, Order
from duly.namespace import create
from duly.records import HEAD, Head, ended_job, options_of
from duly.replies import LEASE_S, StoreReplies
from duly.services.auditor import Auditor
from duly.store import Store
from duly.waiting import Waiters
from tests.shards import on_all
from tests.store.kit import LossyLink, claim, enqueue, key, order

DAY_MS = 24 * 3_600_000


def to(name="inbox", **more):
    return encode_envelope(Envelope(reply_to=name, **more))


async def send(store, id_="a", name="inbox", **options):
    return await enqueue(store, id_, envelope=to(name), **options)


async def run(store, id_="a", result=b'"done"', name="inbox", **options):
    await send(store, id_, name, **options)
    [lease] = await claim(store)
    await store.ack(lease, result)


@pytest.fixture
async def replies(store):
    waiters = Waiters(store)
    yield StoreReplies(store, waiters)
    await waiters.aclose()


async def told(replies, name="inbox", limit=10):
    """
    Take and ack what is there: id, state and outcome of each job.
    """
    taken = (await replies.take(name, limit=limit)).replies
    await replies.ack(name, [reply.id for reply in taken])
    return [(reply.job.id, reply.job.state.name, reply.job.outcome) for reply in taken]


async def test_an_acked_job_replies_with_its_result(store, replies, clock):
    placed = await send(store, delay_ms=500)
    clock.advance(ms=500)
    [lease] = await claim(store)
    assert [] == await told(replies)
    clock.advance(ms=40)
    await store.ack(lease, b'{"sent":1}', lateness_ms=7)
    [reply] = (await replies.take("inbox", limit=10)).replies
    assert ("mail", "a", placed.revision) == (reply.job.topic, reply.job.id, reply.job.revision)
    assert (JobState.succeeded, {"sent": 1}, None) == (reply.state, reply.result, reply.error)
    start = placed.due_ms
    assert (start, start, start + 40, 7) == (
        reply.job.due_ms,
        reply.job.started_ms,
        reply.job.ended_ms,
        reply.job.lateness_ms,
    )
    await reply.ack()
    await reply.ack()
    assert [] == await told(replies)


async def test_a_buried_job_replies_with_its_error_and_a_retried_one_not_yet(store, replies, clock):
    await send(store)
    [lease] = await claim(store)
    await store.retry(lease, 100, b'{"type":"Boom"}', "Boom")
    assert [] == await told(replies)
    clock.advance(ms=100)
    [lease] = await claim(store)
    await store.bury(lease, b'{"type":"Boom"}', "Boom")
    assert [("a", "dead", b'{"type":"Boom"}')] == await told(replies)


@pytest.mark.parametrize("size", [100, 5_000], ids=["in the record", "apart"])
@pytest.mark.parametrize("retain_s", [None, 0, 90])
async def test_a_reply_tells_times_and_options_and_carries_no_payload(
    store, views, replies, clock, raw, size, retain_s
):
    options = {"ttr_ms": 1_500, "expires_ms": clock.now_ms + DAY_MS, "retain_s": retain_s}
    envelope = to(max_attempts=7, backoff={"kind": "fixed", "delay": 5}, context={"tenant": "acme"})
    await enqueue(store, "a", envelope=envelope, payload=b'"' + b"x" * size + b'"', **options)
    [lease] = await claim(store)
    await store.retry(lease, 100, b'{"type":"Boom"}', "Boom")
    clock.advance(ms=100)
    [lease] = await claim(store)
    await store.ack(lease, b"1")
    [reply] = (await replies.take("inbox", limit=10)).replies
    assert ended_fields_of(await views.get(key("a"))) | {"result": 1} == ended_fields_of(reply.job)
    assert reply.job.scheduled_ms == reply.job.created_ms < reply.job.due_ms
    entries = [entry for shard in await on_all(store, "replies", "XRANGE", "-", "+") for entry in shard]
    assert [False] == [b"xxx" in b"".join(about) for _, about in entries]


def test_a_reply_without_options_is_read_as_far_as_it_goes():
    order = Order(key("a"), b"1", expires_ms=5, envelope=to())
    head = Head(3 + 32 + 64, 1, 0, 1, 0, 0, 9, 0, 0, bytes(8), bytes(8), 8, 7, 6_000, bytes(6))
    job = ended_job(b"mail/a", HEAD.pack(*head), b"2")
    assert (JobState.succeeded, 7, 9, b"2", 0) == (
        *(job.state, job.due_ms, job.ended_ms, job.outcome, job.expires_ms),
    )
    whole = ended_job(b"mail/a", HEAD.pack(*head) + options_of(order) + to(), b"2")
    assert (5, "inbox") == (whole.expires_ms, whole.envelope.reply_to)


@pytest.mark.parametrize("state", ["scheduled", "ready", "running"])
async def test_a_cancelled_job_replies(store, replies, state):
    await send(store, delay_ms=100 if state == "scheduled" else None)
    if state == "running":
        await claim(store)
    await store.cancel([key("a")])
    await store.cancel([key("a")])
    assert [("a", "cancelled", b'{"type":"cancelled"}')] == await told(replies)


@pytest.mark.parametrize("by", ["promote", "claim", "claim when ready", "audit"])
async def test_an_expired_job_replies(store, replies, clock, by):
    delay_ms = None if by in ("claim when ready", "audit") else 100
    await send(store, delay_ms=delay_ms, expires_ms=clock.now_ms + 200)
    clock.advance(ms=300)
    if by == "promote":
        await store.promote(0)
    elif by == "audit":
        await Auditor(store).run_pass()
    else:
        assert [] == await claim(store)
    assert [("a", "cancelled", b'{"type":"expired"}')] == await told(replies)


async def test_a_job_that_loses_its_workers_replies_once_it_is_dead(store, replies, clock):
    await send(store, max_crashes=2)
    for crash in range(3):
        assert [] == await told(replies), crash
        clock.advance(s=60)
        assert 1 == len(await claim(store))
        clock.advance(s=60)
        await store.recover(0)
    [(id_, state, outcome)] = await told(replies)
    assert ("a", "dead") == (id_, state)
    assert b'"crashed"' in outcome


async def test_a_reply_tells_also_what_is_not_kept_of_the_job(store, replies, views):
    await run(store, retain_s=0, payload=b"1")
    assert b"" == (await views.get(key("a"))).outcome
    assert [("a", "succeeded", b'"done"')] == await told(replies)
    await send(store, "b", retain_s=0)
    await store.cancel([key("b")])
    assert [("b", "cancelled", b'{"type":"cancelled"}')] == await told(replies)


async def test_a_payload_that_is_kept_apart_hides_no_reply(store, replies, clock):
    await run(store, payload=b'"%s"' % (b"x" * 5_000))
    await send(store, "b", payload=b'"%s"' % (b"x" * 5_000))
    await store.cancel([key("b")])
    assert ["a", "b"] == [id_ for id_, _, _ in await told(replies)]


async def test_a_job_without_a_reply_to_leaves_nothing(store, replies, raw):
    await enqueue(store, "a", envelope=encode_envelope(Envelope(context={"reply_to": "inbox"})))
    [lease] = await claim(store)
    await store.ack(lease, b"1")
    assert [] == await told(replies)
    assert 0 == raw.exists(*(store.keys[0].fixed[f"repl{part}"] for part in ("ies", "y_lines", "y_drops")))


async def test_replies_come_in_the_order_of_the_endings_each_to_its_queue(store, replies):
    names = {"a": "inbox", "b": "inbox.2", "c": "inbox", "d": "inbo", "e": "inbox"}
    for id_, name in names.items():
        await send(store, id_, name)
    leases = {lease.key.id: lease for lease in await claim(store)}
    for id_ in ("e", "d", "c", "b", "a"):
        await store.ack(leases[id_])
    assert ["e", "c", "a"] == [id_ for id_, _, _ in await told(replies)]
    assert ["b"] == [id_ for id_, _, _ in await told(replies, "inbox.2")]
    assert ["d"] == [id_ for id_, _, _ in await told(replies, "inbo")]


async def test_a_reply_in_the_hands_of_a_reader_comes_again_when_its_lease_is_over(store, replies, clock):
    for id_ in ("a", "b"):
        await run(store, id_)
    [first] = (await replies.take("inbox", limit=1)).replies
    [second] = (await replies.take("inbox", limit=10)).replies
    assert ("a", "b") == (first.job.id, second.job.id)
    assert [] == (await replies.take("inbox", limit=10)).replies
    clock.advance(s=LEASE_S)
    again = (await replies.take("inbox", limit=10)).replies
    assert [first, second] == again
    # Who was late has dealt with it all the same.
    assert 1 == await replies.ack("inbox", [first.id])
    clock.advance(s=LEASE_S)
    assert [second] == (await replies.take("inbox", limit=10)).replies


async def test_an_ack_touches_only_replies_of_its_own_queue(store, replies):
    await run(store, "a", name="inbox")
    [reply] = (await replies.take("inbox", limit=1)).replies
    assert 0 == await replies.ack("other", [reply.id, "7-1", "0-99"])
    assert 1 == await replies.ack("inbox", [reply.id])
    with pytest.raises(UsageError, match="is not the id of a reply"):
        await replies.ack("inbox", ["mail/a"])


async def test_a_job_that_is_requeued_replies_again_with_its_new_revision(store, replies):
    await run(store, result=b"1")
    [placed] = await store.requeue([key("a")])
    [lease] = await claim(store)
    await store.ack(lease, b"2")
    taken = (await replies.take("inbox", limit=10)).replies
    assert [1, 2] == [reply.result for reply in taken]
    assert taken[0].job.revision < taken[1].job.revision == placed.revision


async def test_what_replaces_a_job_decides_who_is_told(store, replies):
    await send(store, delay_ms=100)
    await enqueue(store, "a", envelope=to("other"), delay_ms=200, on_conflict="replace")
    await store.cancel([key("a")])
    assert [] == await told(replies)
    assert ["a"] == [id_ for id_, _, _ in await told(replies, "other")]
    await enqueue(store, "a", delay_ms=300, on_conflict="replace")
    await store.cancel([key("a")])
    assert ([], []) == (await told(replies), await told(replies, "other"))


async def test_another_reply_to_is_another_job_and_the_same_is_kept(store, clock):
    due_ms = clock.now_ms + 5_000
    words = [
        (await store.enqueue(order("a", envelope=to(name), due_ms=due_ms, on_conflict="replace"))).word
        for name in ("inbox", "inbox", "other")
    ]
    assert ["created", "kept", "replaced"] == words


async def test_a_rescheduled_and_an_awaited_job_still_reply(store, replies, link):
    await send(store, delay_ms=100)
    await store.reschedule(key("a"), delay_ms=0)
    fixed = store.keys[0].fixed
    watched = [fixed["jobs"], fixed["outcomes"], store.keys[0].due("mail")]
    await link.run("watch", watched, ["mail/a"])
    [lease] = await claim(store)
    await store.release(lease)
    [lease] = await claim(store)
    await store.ack(lease)
    assert [("a", "succeeded", b"")] == await told(replies)


async def test_an_ack_whose_answer_was_lost_replies_once(server, namespace, clock):
    link = LossyLink(server.url)
    await create(link, namespace, 1, clock="test")
    store = Store(link, namespace=namespace, now=clock)
    waiters = Waiters(store)
    replies = StoreReplies(store, waiters)
    await send(store)
    [lease] = await claim(store)
    link.lose = True
    await store.ack(lease, b"1")
    link.lose = False
    assert [("a", "succeeded", b"1")] == await told(replies)
    await waiters.aclose()
    await link.aclose()


async def test_beyond_its_bound_a_queue_drops_the_oldest_and_counts(store, replies, raw):
    # As on one of 5,000 shards: each keeps two.
    raw.hset(store.keys[0].fixed["meta"], "shards", 5_000)
    for id_ in ("a", "b", "c", "d"):
        await run(store, id_)
    await run(store, "e", name="other")
    taken = await replies.take("inbox", limit=10)
    assert (2, ["c", "d"]) == (taken.dropped, [reply.job.id for reply in taken.replies])
    assert b"2" == raw.hget(store.keys[0].fixed["meta"], "replies_dropped")
    await replies.ack("inbox", [reply.id for reply in taken.replies])
    assert 0 == (await replies.take("inbox", limit=10)).dropped


async def test_beyond_the_bytes_the_oldest_of_all_queues_go(store, replies, raw):
    await run(store, "a", result=b'"%s"' % (b"x" * 200_000))
    # As on one of 1,000 shards: each keeps 268,435 bytes.
    raw.hset(store.keys[0].fixed["meta"], "shards", 1_000)
    await run(store, "b", name="other", result=b'"%s"' % (b"x" * 200_000))
    taken = await replies.take("inbox", limit=10)
    assert (1, []) == (taken.dropped, taken.replies)
    assert 0 == (await replies.take("inbox", limit=10)).dropped, "told once, and forgotten with the queue"
    assert 1 == len(await told(replies, "other"))
    assert b"0" == raw.hget(store.keys[0].fixed["meta"], "reply_bytes")


async def test_a_reply_that_nobody_takes_is_dropped_after_a_day(store, replies, clock, raw):
    for id_ in ("a", "b"):
        await run(store, id_)
        clock.advance(ms=1)
    clock.advance(ms=DAY_MS - 2)
    fixed = store.keys[0].fixed
    await store.prune(0)
    assert 1 == raw.xlen(fixed["replies"])
    taken = await replies.take("inbox", limit=10)
    assert (1, ["b"]) == (taken.dropped, [reply.job.id for reply in taken.replies])
    clock.advance(ms=1)
    taken = await replies.take("inbox", limit=10)
    assert (2, []) == (taken.dropped, taken.replies)
    assert (0, 0, 0) == (
        raw.xlen(fixed["replies"]),
        raw.zcard(fixed["reply_lines"]),
        raw.zcard(fixed["reply_leases"]),
    )


async def test_many_large_replies_are_taken_a_part_at_a_time(store, replies):
    for number in range(6):
        await run(store, f"j{number}", result=b'"%s"' % (b"x" * 250_000))
    sizes = []
    while taken := (await replies.take("inbox", limit=10)).replies:
        sizes.append(len(taken))
    assert [4, 2] == sizes


async def test_a_reader_passes_over_what_others_hold_also_where_that_is_much(store, replies):
    for batch in range(3):
        orders = [order(f"j{batch}-{number:03d}", envelope=to()) for number in range(100)]
        await store.enqueue_many(orders)
        await store.cancel([each.key for each in orders])
    seen = []
    for _ in range(5):
        seen += [reply.job.id for reply in (await replies.take("inbox", limit=70)).replies]
    assert [f"j{batch}-{number:03d}" for batch in range(3) for number in range(100)] == seen


async def test_a_line_without_its_reply_does_not_block_the_queue(store, replies, raw):
    await run(store, "a")
    await run(store, "b")
    fixed = store.keys[0].fixed
    raw.xdel(fixed["replies"], raw.xrange(fixed["replies"], count=1)[0][0])
    assert ["b"] == [id_ for id_, _, _ in await told(replies)]
    assert 0 == raw.zcard(fixed["reply_lines"])


async def test_replies_of_all_shards_are_taken(link, namespace):
    await create(link, f"{namespace}s", 3)
    store = Store(link, namespace=f"{namespace}s", shards=3)
    waiters = Waiters(store)
    replies = StoreReplies(store, waiters)
    orders = [order(f"j{number}", envelope=to(), delay_ms=60_000) for number in range(12)]
    await store.enqueue_many(orders)
    await store.cancel([each.key for each in orders])
    found = []
    while taken := (await replies.take("inbox", limit=5)).replies:
        found += [reply.job.id for reply in taken]
        await replies.ack("inbox", [reply.id for reply in taken])
    assert sorted(each.key.id for each in orders) == sorted(found)
    await waiters.aclose()
