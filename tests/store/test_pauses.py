"""
Topics that are paused, and topics with a backlog limit.
"""

from __future__ import annotations

import pytest

from duly.errors import QueueFull
from duly.namespace import create
from duly.store import Store
from duly.views import Views
from tests.shards import promote_all
from tests.store.kit import claim, enqueue, order


@pytest.mark.several_shards
async def test_a_paused_topic_is_promoted_and_finished_but_not_claimed(store, views, clock, look):
    await enqueue(store, "running")
    [lease] = await claim(store)
    await enqueue(store, "later", delay_ms=100)
    await enqueue(store, "now")
    await store.pause("mail")
    clock.advance(ms=100)
    assert [] == await claim(store)
    assert 1 == await promote_all(store)
    assert [] == await claim(store)
    assert {"later", "now"} == {job.id for job in await views.peek("mail")}
    await store.ack(lease)
    look()
    await store.resume("mail")
    assert 2 == len(await claim(store))


@pytest.mark.several_shards
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


@pytest.mark.several_shards
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


@pytest.mark.parametrize(("asked", "taken"), [(10, 10), (2, 3), (3, 3)])
async def test_the_shards_share_a_limit_that_is_shown_as_it_was_asked_for(
    link, namespace, clock, asked, taken
):
    """
    Every shard takes one job at least, or some ids would be refused for ever.
    """
    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.limit("mail", asked)
    answers = await store.enqueue_many([order(str(at)) for at in range(100)])
    assert taken == sum(not isinstance(answer, QueueFull) for answer in answers)
    [topic] = (await Views(store).stats()).topics
    assert (asked, taken) == (topic.limit, topic.counts["ready"])
    assert {"mail": (asked, taken)} == await store.backlogs(["mail", "other"])
    await store.limit("mail", None)
    assert None is (await Views(store).stats()).topics[0].limit
    assert {} == await store.backlogs(["mail"])


async def test_a_limit_that_an_older_release_set_is_shown_by_its_shares(link, namespace, clock):
    await create(link, namespace, 3, clock="test")
    store = Store(link, namespace=namespace, shards=3, now=clock)
    await store.limit("mail", 10)
    for keys in store.keys:
        await link.call("HSET", keys.fixed["topics"], "mail:limit", 7)
    assert 21 == (await Views(store).stats()).topics[0].limit
    assert 21 == (await store.backlogs(["mail"]))["mail"].limit
