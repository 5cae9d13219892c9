"""
A run of several processes keeps to one rate.
"""

from __future__ import annotations


async def test_the_first_call_leaves_at_once_and_each_other_waits_for_those_before(store):
    assert 0 == await store.pace("night", 500, rate=0.05)
    assert 9_900 < await store.pace("night", 500, rate=0.05) <= 10_000
    assert 19_900 < await store.pace("night", 1, rate=0.05) <= 20_000


async def test_runs_do_not_hold_each_other_back(store):
    await store.pace("one", 1_000, rate=1)
    assert 0 == await store.pace("two", 1_000, rate=1)


async def test_time_that_was_not_used_is_not_saved_up(store):
    await store.pace("night", 1, rate=1_000_000)
    await store.link.call("PING")
    assert 0 == await store.pace("night", 1_000, rate=0.1)
    assert await store.pace("night", 1, rate=0.1) > 9_900


async def test_what_a_killed_run_left_is_dropped_by_the_next(store):
    seconds, _ = await store.link.call("TIME")
    key = store.keys[0].fixed["pace"]
    await store.link.call(
        "HSET", key, "killed", (int(seconds) - 61) * 1_000_000, "recent", int(seconds) * 1_000_000
    )
    await store.pace("night", 1, rate=1)
    assert {b"recent", b"night"} == set(await store.link.call("HKEYS", key))
