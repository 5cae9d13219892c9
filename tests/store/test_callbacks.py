"""
Callbacks wait in a lane of their own: deliverers take them and nothing else, workers everything else.
"""

from __future__ import annotations

import pytest

from duly.job import JobState, Lane
from duly.services.auditor import Auditor
from tests.shards import fixed_of, one_id_on_each
from tests.store import snapshot
from tests.store.kit import claim, enqueue, key

URL = "https://example.com/hook"


async def call(store, id_="c", **options):
    return await enqueue(store, id_, lane=Lane.callback, **options)


async def taken(store, *, callbacks, **options):
    return [lease.key.id for lease in await claim(store, callbacks=callbacks, **options)]


async def both(store):
    """
    What an ordinary worker gets, then what a deliverer gets.
    """
    return await taken(store, callbacks=False), await taken(store, callbacks=True)


async def lease_of(store):
    [lease] = await claim(store, callbacks=True)
    assert Lane.callback is lease.lane
    return lease


async def test_a_ready_callback_is_for_deliverers_only(store):
    await call(store)
    await enqueue(store, "a")
    assert (["a"], ["c"]) == await both(store)


async def test_a_due_callback_is_for_deliverers_whoever_meets_it(store, clock):
    for first in (False, True):
        await call(store, f"c{first}", delay_ms=500)
        await enqueue(store, f"a{first}", delay_ms=500)
        clock.advance(ms=500)
        # Who comes first takes what is due without a way over the stream, and lines the rest up.
        mine, other = (f"a{first}", f"c{first}") if not first else (f"c{first}", f"a{first}")
        assert [mine] == await taken(store, callbacks=first)
        assert [other] == await taken(store, callbacks=not first)


async def test_a_promoted_callback_is_for_deliverers_only(store, clock):
    await call(store, delay_ms=500)
    clock.advance(ms=500)
    await store.promote(0)
    assert ([], ["c"]) == await both(store)


async def test_it_stays_one_after_a_retry_a_release_and_a_replacement(store, clock):
    await call(store)
    await store.retry(await lease_of(store), 100)
    clock.advance(ms=100)
    assert [] == await taken(store, callbacks=False)
    await store.release(await lease_of(store))
    assert [] == await taken(store, callbacks=False)
    await call(store, payload=b"2", on_conflict="replace")
    assert ([], ["c"]) == await both(store)


async def test_a_replacement_changes_who_runs_it(store):
    await call(store)
    await enqueue(store, "c", on_conflict="replace")
    assert (["c"], []) == await both(store)
    await call(store, on_conflict="replace")
    assert ([], ["c"]) == await both(store)


async def test_it_stays_one_when_it_is_requeued_or_rescheduled(store, clock):
    await call(store)
    await store.bury(await lease_of(store))
    await store.requeue([key("c")])
    assert [] == await taken(store, callbacks=False)
    await store.reschedule(key("c"), delay_ms=100)
    clock.advance(ms=100)
    assert ([], ["c"]) == await both(store)


@pytest.mark.parametrize("counted", [True, False])
async def test_a_recovered_one_is_no_suspect_and_still_for_deliverers(store, clock, counted):
    for id_ in ("c", "d"):
        await call(store, id_)
    assert 2 == len(await claim(store, callbacks=True))
    clock.advance(s=16)
    await store.recover(0, counted=counted)
    assert [] == await taken(store, callbacks=False)
    # Both at once, beside whatever else runs there: it was no fault of theirs.
    leases = await claim(store, callbacks=True, alone=False)
    assert ["c", "d"] == sorted(lease.key.id for lease in leases)
    assert [counted, counted] == [lease.crashes for lease in leases]


async def test_every_ending_takes_its_entry_off_the_lane(store, server, views):
    for verb in ("ack", "bury", "retry"):
        await call(store, verb)
    for lease in await claim(store, callbacks=True):
        await (store.retry(lease, 1000) if lease.key.id == "retry" else getattr(store, lease.key.id)(lease))
    await call(store, "cancel")
    await store.cancel([key("cancel")])
    with snapshot.client_of(server.socket) as client:
        shard = snapshot.take(client, store.keys[0], ["mail"])
    snapshot.check(shard)
    assert {} == shard.streams["mail", Lane.callback]


async def test_a_lost_entry_is_mended_into_its_lane(store, server):
    await call(store)
    with snapshot.client_of(server.socket) as client:
        client.delete(store.keys[0].stream("mail", Lane.callback))
    assert 1 == await Auditor(store).run_pass()
    assert ([], ["c"]) == await both(store)


@pytest.mark.several_shards
async def test_a_paused_topic_delivers_nothing(store, server):
    await call(store)
    await store.pause("mail")
    assert ([], []) == await both(store)
    with snapshot.client_of(server.socket) as client:
        tokens = fixed_of(store, "mail", "c")["callbacks"]
        client.delete(tokens)
        await store.resume("mail")
        assert [b"mail"] == client.lrange(tokens, 0, -1)
    assert ([], ["c"]) == await both(store)


@pytest.mark.several_shards
async def test_a_topic_with_a_callback_is_for_deliverers_only(store, clock):
    before, after = (one_id_on_each(store, "mail", prefix) for prefix in ("before", "after"))
    for id_ in before:
        await enqueue(store, id_, lane=Lane.low)
    await store.set_callback("mail", URL)
    for id_ in after:
        await enqueue(store, id_, delay_ms=100)
    await call(store)
    clock.advance(ms=100)
    assert [] == await taken(store, callbacks=False)
    assert {*before, *after, "c"} == set(await taken(store, callbacks=True))


async def test_suspects_of_such_a_topic_are_for_deliverers_and_isolated_ones_run_alone_there(store, clock):
    await store.set_callback("mail", URL)
    for id_ in ("a", "b"):
        await enqueue(store, id_)
    for lane in (Lane.suspect, Lane.isolated):
        assert 2 == len(await claim(store, callbacks=True))
        clock.advance(s=16)
        await store.recover(0)
        assert [] == await taken(store, callbacks=False), lane
    assert [] == await claim(store, callbacks=True, alone=False)
    assert [Lane.isolated] == [lease.lane for lease in await claim(store, callbacks=True)]


@pytest.mark.several_shards
async def test_without_its_callback_a_topic_is_the_workers_again(store):
    await store.set_callback("mail", URL)
    ids = one_id_on_each(store, "mail")
    for id_ in ids:
        await enqueue(store, id_)
    await store.set_callback("mail", None)
    assert ids == await taken(store, callbacks=False)


async def test_deliverers_are_woken_by_the_name_of_the_topic_and_workers_are_not(store, clock, server):
    with snapshot.client_of(server.socket) as client:
        tokens, wake = store.keys[0].fixed["callbacks"], store.keys[0].wake("mail")
        await call(store)
        assert [b"mail"] == client.lrange(tokens, 0, -1)
        assert 0 == client.llen(wake)
        client.delete(tokens)
        await call(store, "later", delay_ms=100)
        assert 0 == client.llen(tokens)
        clock.advance(ms=100)
        await store.promote(0)
        assert [b"mail"] == client.lrange(tokens, 0, -1)
        client.delete(tokens)
        # What is left behind is told to the next one.
        assert 1 == len(await claim(store, callbacks=True, limit=1))
        assert [b"mail"] == client.lrange(tokens, 0, -1)
        client.delete(tokens)
        await claim(store, callbacks=True)
        assert 0 == client.llen(tokens)
        # Nobody takes them, and the list is bounded all the same.
        client.lpush(tokens, *["x"] * 1000)
        await call(store, "more")
        assert 1000 == client.llen(tokens)


async def test_it_has_no_priority_to_tell_of_and_is_listed(store, views):
    await call(store)
    page = await views.page(JobState.ready, "mail")
    assert [("c", "normal")] == [(job.id, job.priority) for job in page.jobs]
