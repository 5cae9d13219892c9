"""
Wrong API keys, counted for all processes of a service.
"""

from __future__ import annotations


async def refuse(store, most=10, **wrong):
    return await store.refuse(wrong, each_ms=1_000, burst=3, most=most)


async def test_what_several_tell_is_added_up_and_forgotten_one_a_second(store, clock):
    assert {"a": 0.0, "b": 0.0} == await refuse(store, a=2, b=1)
    assert {"a": 1.0} == await refuse(store, a=1)
    assert {"a": 5.0, "b": 0.0} == await refuse(store, a=4, b=1)
    clock.advance(ms=5_500)
    assert {"a": 0.5} == await refuse(store, a=1)
    clock.advance(ms=60_000)
    assert {"a": 0.0} == await refuse(store, a=1)


async def test_a_bounded_number_of_addresses_is_remembered_those_with_most_wrong_keys(store):
    await refuse(store, 2, a=9, b=1, c=5)
    assert {"a": 8.0, "c": 4.0, "b": 0.0} == await refuse(store, 2, a=1, c=1, b=1)
    key = store.keys[0].fixed["wrong_keys"]
    assert [b"c", b"a"] == await store.link.call("ZRANGE", key, 0, -1)


async def test_nothing_stays_once_all_is_forgotten(store, clock):
    await refuse(store, a=9)
    key = store.keys[0].fixed["wrong_keys"]
    assert 8_000 < await store.link.call("PTTL", key) <= 9_000
    clock.advance(ms=9_000)
    await refuse(store, b=1)
    assert [b"b"] == await store.link.call("ZRANGE", key, 0, -1)
