"""
What is kept, for how long, and how it is looked at: prune, lists, stats.
"""

from __future__ import annotations

import random

import pytest

from duly.connection import Link
from duly.errors import UsageError
from duly.job import JobState, Lane, Order
from duly.namespace import create
from duly.store import Keeping, Store
from duly.views import PAGE, Views
from tests.shards import in_shard_order, prune_all
from tests.store.kit import claim, enqueue, key, order

HOUR_MS = 3_600_000


async def end(store, *ids, how="ack", size=0, **options):
    """
    Let jobs end.
    """
    for id_ in ids:
        await enqueue(store, id_, **options)
        [lease] = await claim(store, options.get("topic", "mail"))
        match how:
            case "ack":
                await store.ack(lease, b"r" * size)
            case "bury":
                await store.bury(lease, b"r" * size)
            case "cancel":
                await store.cancel([lease.key])


def totals(seen):
    """
    The bytes that the shards say they keep of ended jobs: done and dead.
    """
    return tuple(
        sum(int(value) for name, value in seen.meta.items() if name.rpartition(":")[2] == field)
        for field in ("done_bytes", "dead_bytes")
    )


async def every(views, state, topic=None, *, cursor=None, limit=100):
    """
    All jobs by pages, and the sizes of the pages.
    """
    jobs, sizes = [], []
    while True:
        page = await views.page(state, topic, cursor=cursor, limit=limit)
        jobs += page.jobs
        sizes.append(len(page.jobs))
        cursor = page.cursor
        if cursor is None:
            return jobs, sizes


@pytest.fixture
async def keeper(link, namespace, clock):
    """
    Make a store with limits of its own.
    """

    async def keeper(**keeping):
        await create(link, namespace, 1, clock="test")
        return Store(link, namespace=namespace, now=clock, keeping=Keeping(**keeping))

    return keeper


# -- prune ------------------------------------------------------------------------------------------------


@pytest.mark.several_shards
async def test_ended_jobs_go_when_their_time_is_over_and_not_before(store, views, clock, look):
    await end(store, "a")
    await end(store, "c", how="cancel")
    await end(store, "d", how="bury")
    clock.advance(ms=24 * HOUR_MS - 1)
    assert (0, False) == await prune_all(store)
    clock.advance(ms=1)
    assert (2, False) == await prune_all(store)
    assert ["d"] == [job.id for job in await views.get_many([key("a"), key("c"), key("d")]) if job]
    clock.advance(ms=13 * 24 * HOUR_MS)
    assert (1, False) == await prune_all(store)
    seen = look()
    assert ({}, {}, {}, (0, 0)) == (seen.jobs, seen.bodies, seen.outcomes, totals(seen))


@pytest.mark.several_shards
@pytest.mark.parametrize("size", [10, 5_000])
async def test_a_job_may_say_how_long_it_is_kept_and_the_dead_are_kept_all_the_same(
    store, views, clock, size
):
    await end(store, "short", retain_s=120, payload=b"x" * size)
    await end(store, "long", retain_s=30 * 24 * 3600, payload=b"x" * size)
    await end(store, "dead", how="bury", retain_s=120, payload=b"x" * size)
    clock.advance(s=120)
    assert (1, False) == await prune_all(store)
    clock.advance(ms=13 * 24 * HOUR_MS)
    assert (0, False) == await prune_all(store)
    assert [b"x" * size] * 2 == [job.payload for job in await views.get_many([key("long"), key("dead")])]
    clock.advance(ms=24 * HOUR_MS)
    assert (1, False) == await prune_all(store)
    assert {"long"} == {job.id for job in [await views.get(key(id_)) for id_ in ("long", "dead")] if job}


async def test_beyond_the_bytes_the_first_to_go_anyway_go_first(keeper, look):
    store = await keeper(done_bytes=5_000)
    for at in range(10):
        await end(store, str(at), size=800)
    heavy = totals(look())[0]
    assert heavy > 10 * 800
    pruned, more = await store.prune(0)
    shard = look()
    assert (0 < pruned < 10, False) == (True, more)
    assert totals(shard)[0] <= 5_000 < totals(shard)[0] + 1_300
    assert [f"mail/{at}" for at in range(pruned, 10)] == sorted(shard.jobs)


@pytest.mark.parametrize("limit", [128, 2])
@pytest.mark.parametrize("how", ["ack", "bury"])
async def test_what_ended_within_the_last_minute_is_the_last_to_go_beyond_the_bytes(
    keeper, clock, look, how, limit
):
    """
    A job with a short time would else be the first to go, however many older ones there are.
    """
    store = await keeper(done_ms=HOUR_MS, dead_ms=HOUR_MS, done_bytes=6_000, dead_bytes=6_000)
    old = [f"old{at}" for at in range(8)]
    await end(store, *old, how=how, size=800)
    clock.advance(s=60)
    young = [f"young{at}" for at in range(3)]
    store.keeping = Keeping(done_ms=1_000, dead_ms=1_000, done_bytes=6_000, dead_bytes=6_000)
    await end(store, *young, how=how, size=800, retain_s=30)
    while (await store.prune(0, limit=limit))[1]:
        pass
    left = look().jobs
    assert {f"mail/{id_}" for id_ in young} < left.keys()
    assert sum(totals(look())) <= 6_000 < sum(totals(look())) + 1_300
    # Where nothing else is left, they go all the same.
    store.keeping = Keeping(done_bytes=0, dead_bytes=0)
    while (await store.prune(0, limit=limit))[0]:
        pass
    assert {} == look().jobs


async def test_the_dead_are_weighed_apart_from_the_done(keeper, look):
    store = await keeper(done_bytes=1_000_000, dead_bytes=3_000)
    for at in range(5):
        await end(store, f"done{at}", size=900)
        await end(store, f"dead{at}", size=900, how="bury")
    assert 3 == (await store.prune(0))[0]
    shard = look()
    assert (5, 2) == (len(shard.done), len(shard.dead))


async def test_large_bodies_and_results_are_weighed(store, look):
    await end(store, "a", payload=b"x" * 50_000, size=20_000)
    assert 70_000 < totals(look())[0] < 71_000


@pytest.mark.parametrize("how", ["requeue", "replace"])
async def test_a_job_that_comes_back_to_life_weighs_nothing(store, look, how):
    await end(store, "done", payload=b"x" * 3_000, size=100)
    await end(store, "dead", how="bury", payload=b"x" * 30, size=100)
    await enqueue(store, "gone", retain_s=0, payload=b"x" * 3_000)
    await store.cancel([key("gone")])
    assert all(totals(look()))
    if how == "requeue":
        await store.requeue([key("done"), key("dead")])
        await enqueue(store, "gone", on_conflict="replace")
    else:
        for id_ in ("done", "dead", "gone"):
            await enqueue(store, id_, on_conflict="replace", payload=b"y" * 2_000)
    shard = look()
    assert ((0, 0), {}) == (totals(shard), shard.outcomes)


async def test_a_result_takes_the_place_of_the_error_before_it(store, views, look, clock):
    for counted, result in ((True, b""), (False, b""), (True, b"1"), (False, b"1")):
        clock.advance(ms=1)
        await enqueue(store, "a", on_conflict="replace")
        [lease] = await claim(store)
        await store.retry(lease, 1, b'{"type":"Boom"}', counted=counted)
        clock.advance(ms=1)
        [lease] = await claim(store)
        await store.ack(lease, result)
        assert result == (await views.get(key("a"))).outcome
        look()


async def test_cancelling_a_failed_job_that_retains_nothing_forgets_its_error(store, look, clock):
    await enqueue(store, "a", retain_s=0)
    [lease] = await claim(store)
    await store.retry(lease, 50, b'{"type":"Boom"}')
    await store.cancel([key("a")])
    assert {} == look().outcomes
    clock.advance(s=60)
    assert (1, False) == await store.prune(0)
    assert (0, 0) == totals(look())


async def test_a_prune_is_bounded_and_says_whether_there_is_more(store, clock):
    await store.enqueue_many([order(str(at)) for at in range(25)])
    await store.cancel([key(str(at)) for at in range(25)])
    clock.advance(ms=25 * HOUR_MS)
    assert [(10, True), (10, True), (5, False)] == [await store.prune(0, limit=10) for _ in range(3)]


async def test_what_was_pruned_is_told(store, feed, clock):
    await end(store, "a")
    await end(store, "b", how="bury")
    clock.advance(ms=25 * HOUR_MS)
    await store.prune(0)
    _, events = await feed.read(0, None)
    assert [("pruned", "a", JobState.succeeded)] == [
        (e.verb, e.id, e.state) for e in events if e.verb == "pruned"
    ]


async def test_an_index_entry_without_a_job_is_removed_by_prune(store, raw, clock, look):
    await end(store, "a")
    raw.zadd(store.keys[0].fixed["done"], {"mail/gone": 1})
    raw.zadd(store.keys[0].fixed["dead"], {"mail/gone": 1})
    assert (0, False) == await store.prune(0)
    look()


async def test_a_pruned_id_is_free_again(store, clock):
    first = await enqueue(store, "a")
    await store.cancel([key("a")])
    clock.advance(ms=25 * HOUR_MS)
    await store.prune(0)
    again = await enqueue(store, "a", on_conflict="raise")
    assert again.revision > first.revision


# -- lists ------------------------------------------------------------------------------------------------


async def test_a_list_of_thousands_is_read_by_pages_soonest_first(store, views):
    await store.enqueue_many([order(f"{at:04}", delay_ms=10_000 - at) for at in range(2_500)])
    jobs, sizes = await every(views, JobState.scheduled, limit=PAGE)
    assert [f"{at:04}" for at in range(2_499, -1, -1)] == [job.id for job in jobs]
    assert max(sizes) == PAGE
    assert (await every(views, JobState.scheduled, limit=10**9))[1] == sizes


@pytest.mark.several_shards
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_jobs_of_the_same_moment_are_each_listed_once(store, views, limit):
    await store.enqueue_many([order(f"{at:03}", delay_ms=500) for at in range(130)])
    jobs, sizes = await every(views, JobState.scheduled, limit=limit)
    ids = in_shard_order(store, "mail", [f"{at:03}" for at in range(130)])
    assert ids == [job.id for job in jobs]
    assert max(sizes) <= limit


@pytest.mark.several_shards
@pytest.mark.parametrize("same", [True, False], ids=["same moment", "different moments"])
async def test_each_job_is_listed_once_when_others_vanish_between_pages(store, views, same):
    ids = [f"{at:03}" for at in range(100)]
    await store.enqueue_many([order(id_, delay_ms=500 if same else 500 + int(id_)) for id_ in ids])
    seen, cursor = [], None
    while True:
        page = await views.page(JobState.scheduled, cursor=cursor, limit=10)
        seen += [job.id for job in page.jobs]
        # The job behind which the next page goes on is gone, and another one in front of it.
        await store.cancel([job.key for job in page.jobs[-3::2]])
        cursor = page.cursor
        if cursor is None or len(seen) > 1_000:
            break
    assert in_shard_order(store, "mail", ids) == seen


async def test_a_page_goes_on_behind_the_place_of_a_job_that_moved(store, views):
    """
    As bytes are sorted, in whatever locale the server runs.
    """
    ids = sorted(f"{a}{b}" for a in "aBc.~Z9=" for b in "-xY_0")
    await store.enqueue_many([order(id_, delay_ms=500) for id_ in ids])
    for at in range(0, len(ids) - 1, 7):
        page = await views.page(JobState.scheduled, limit=at + 1)
        assert ids[: at + 1] == [job.id for job in page.jobs]
        await store.reschedule(key(ids[at]), delay_ms=400)
        rest, _ = await every(views, JobState.scheduled, cursor=page.cursor)
        assert ids[at + 1 :] == [job.id for job in rest]
        await store.reschedule(key(ids[at]), delay_ms=500)


class BusyLink(Link):
    """
    A link to a queue in which something happens before each call.
    """

    async def call(self, *words, **options):
        await self.happens()
        return await super().call(*words, **options)


@pytest.mark.several_shards
@pytest.mark.parametrize("goes", ["first", "last listed"])
async def test_no_job_is_missed_when_others_vanish_while_a_page_is_read(store, server, clock, goes):
    early, late = [f"e{at:02}" for at in range(60)], [f"l{at:02}" for at in range(30)]
    await store.enqueue_many([order(id_, delay_ms=500 + at) for at, id_ in enumerate(early)])
    await store.enqueue_many([order(id_, delay_ms=9_000) for id_ in late])
    link = BusyLink(server.url)
    views = Views(Store(link, namespace=store.namespace, shards=store.shards, now=clock))
    seen = []

    async def happens():
        left = [id_ for id_ in early if id_ in seen] if goes == "last listed" else early
        for id_ in left[-1:] if goes == "last listed" else left[:1]:
            early.remove(id_)
            await store.cancel([key(id_)])

    link.happens = happens
    cursor = None
    while True:
        page = await views.page(JobState.scheduled, cursor=cursor, limit=5)
        seen += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            break
    await link.aclose()
    assert in_shard_order(store, "mail", late) == [id_ for id_ in seen if id_ in late]


async def test_a_list_of_one_topic_reads_on_through_others_in_short_pages(store, views, clock):
    crowd = [order(f"{at:04}", "crowd", delay_ms=10) for at in range(2_200)]
    rare = [order("first", "rare", delay_ms=5), order("last", "rare", delay_ms=20)]
    await store.enqueue_many([*crowd, *rare])
    jobs, sizes = await every(views, JobState.scheduled, "rare", limit=5)
    assert (["first", "last"], [2]) == ([job.id for job in jobs], sizes), "they have an index of their own"
    hundreds = [crowd[at : at + 100] for at in range(0, len(crowd), 100)]  # of one millisecond each
    for some in (rare[:1], *hundreds, rare[1:]):
        await store.cancel([one.key for one in some])
        clock.advance(ms=1)
    jobs, sizes = await every(views, JobState.cancelled, "rare", limit=5)
    assert (["first", "last"], [1, 0, 1]) == ([job.id for job in jobs], sizes)


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_scheduled_jobs_of_many_topics_are_listed_as_one_line(store, views, limit):
    """
    Each topic has an index of its own: some with more than a page, some with one, many due at the same time.
    """
    drawn = random.Random(5)
    dues = {}
    for at in range(400):
        topic = "crowd" if at % 3 else f"t{drawn.randrange(150)}"
        dues[key(f"{drawn.randrange(10**6):06}-{at}", topic)] = 1_000_000 + 10 * drawn.randrange(1, 9)
    await store.enqueue_many([order(one.id, one.topic, due_ms=due) for one, due in dues.items()])
    jobs, _ = await every(views, JobState.scheduled, limit=limit)
    line = sorted(dues, key=lambda one: (dues[one], one.member))
    assert line == [job.key for job in jobs]
    jobs, _ = await every(views, JobState.scheduled, "crowd", limit=limit)
    assert [one for one in line if one.topic == "crowd"] == [job.key for job in jobs]


async def test_ready_jobs_are_listed_over_topics_and_lanes(store, views):
    for topic in ("a", "b"):
        for lane in (Lane.low, Lane.normal, Lane.high):
            await store.enqueue_many([order(f"{lane.name}{at}", topic, lane=lane) for at in range(3)])
    lanes = ["high", "normal", "low"]
    expected = [(topic, f"{lane}{at}") for topic in ("a", "b") for lane in lanes for at in range(3)]
    for limit in (1, 2, 5, 100):
        jobs, _ = await every(views, JobState.ready, limit=limit)
        assert expected == [(job.topic, job.id) for job in jobs]
    jobs, _ = await every(views, JobState.ready, "b", limit=4)
    assert expected[9:] == [(job.topic, job.id) for job in jobs]


async def test_a_list_of_ready_jobs_leaves_out_those_that_run(store, views):
    await store.enqueue_many([order(str(at)) for at in range(6)])
    running = await claim(store, limit=4)
    jobs, _ = await every(views, JobState.ready, limit=2)
    assert ["4", "5"] == [job.id for job in jobs]
    jobs, _ = await every(views, JobState.running, limit=3)
    assert {lease.key for lease in running} == {job.key for job in jobs}


@pytest.mark.several_shards
async def test_succeeded_and_cancelled_share_an_index_and_are_told_apart(store, views):
    await end(store, "a", "b")
    await end(store, "c", how="cancel")
    await end(store, "d", how="bury")
    listed = {state: [job.id async for job in views.each(state)] for state in JobState if state.ended}
    done = in_shard_order(store, "mail", ["a", "b"])
    assert {JobState.succeeded: done, JobState.cancelled: ["c"], JobState.dead: ["d"]} == listed


async def test_lists_go_over_all_shards(link, namespace, clock):
    await create(link, namespace, 4, clock="test")
    store = Store(link, namespace=namespace, shards=4, now=clock)
    views = Views(store)
    await store.enqueue_many([Order(key(str(at)), b"1", delay_ms=5) for at in range(40)])
    await store.enqueue_many([Order(key(f"r{at}"), b"1") for at in range(40)])
    for limit in (3, 1000):
        jobs, _ = await every(views, JobState.scheduled, limit=limit)
        assert {str(at) for at in range(40)} == {job.id for job in jobs}
        jobs, _ = await every(views, JobState.ready, limit=limit)
        assert {f"r{at}" for at in range(40)} == {job.id for job in jobs}


@pytest.mark.parametrize("cursor", ["", "x", "nonsense:1", "-1:5", "0:soon mail/a"])
async def test_a_cursor_that_is_none_of_ours_is_refused(views, cursor):
    with pytest.raises(UsageError, match="cursor"):
        await views.page(JobState.scheduled, cursor=cursor)


@pytest.mark.parametrize("state", list(JobState))
async def test_an_empty_list_has_one_empty_page(views, state):
    page = await views.page(state, limit=5)
    assert ([], None) == (page.jobs, page.cursor)


async def test_a_page_of_no_jobs_is_a_page_of_one(store, views):
    await enqueue(store, "a", delay_ms=1)
    await enqueue(store, "b", delay_ms=2)
    assert ["a"] == [job.id for job in (await views.page(JobState.scheduled, limit=0)).jobs]


@pytest.mark.several_shards
async def test_many_jobs_are_fetched_in_the_order_asked_for(store, views):
    await store.enqueue_many([order(str(at)) for at in range(250)])
    keys = [key(str(at)) for at in range(249, -1, -1)] + [key("none")]
    jobs = await views.get_many(keys)
    assert ([*keys[:-1], None]) == [job and job.key for job in jobs]


# -- stats ------------------------------------------------------------------------------------------------


@pytest.mark.several_shards
async def test_stats_count_every_state_of_every_topic(store, views, clock):
    await end(store, "1", "2")
    await end(store, "3", how="bury")
    await end(store, "4", how="cancel")
    await enqueue(store, "5", delay_ms=700)
    await enqueue(store, "6")
    await enqueue(store, "7", topic="slow")
    await claim(store, "slow")
    await store.limit("slow", 9)
    await store.pause("mail")
    stats = await views.stats()
    about = {topic.topic: topic for topic in stats.topics}
    assert {"scheduled": 1, "ready": 1, "running": 0, "succeeded": 2, "dead": 1, "cancelled": 1} == about[
        "mail"
    ].counts
    assert (1, 9, False, True) == (
        about["slow"].counts["running"],
        about["slow"].limit,
        about["slow"].paused,
        about["mail"].paused,
    )
    assert (1_000_700, 0) == (stats.next_due_ms, max(stats.overdue_ms, 0))
    clock.advance(s=1)
    assert 300 == (await views.stats()).overdue_ms
    assert ["mail", "slow"] == await views.topics()


async def test_stats_add_up_the_shards(link, namespace, clock):
    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.enqueue_many([Order(key(str(at)), b"1") for at in range(30)])
    await store.limit("mail", 100)
    [topic] = (await Views(store).stats()).topics
    assert (30, 100) == (topic.counts["ready"], topic.limit)


@pytest.mark.several_shards
async def test_workers_are_listed_with_how_long_they_were_silent(store, views, clock):
    await store.beat("w1", b'{"topics":["mail"],"pid":7}')
    await store.beat("w2", b'{"topics":["mail","slow"]}')
    clock.advance(s=10)
    await store.beat("w2", b'{"topics":["mail","slow"]}')
    await enqueue(store, "a")
    clock.advance(s=6)
    stats = await views.stats()
    about = {worker["worker"]: (worker["silent_ms"], worker["live"]) for worker in stats.workers}
    assert {"w1": (16_000, False), "w2": (6_000, True)} == about
    assert [1] == [topic.workers for topic in stats.topics]
    clock.advance(s=24 * 3600)
    await store.beat("w2", b"{}")
    assert ["w2"] == [worker["worker"] for worker in (await views.stats()).workers]
    await store.beat("w2", b"")
    assert [] == (await views.stats()).workers
