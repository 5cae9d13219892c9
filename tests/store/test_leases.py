"""
Leases: how long they are, and how they are extended.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from duly.errors import LeaseLost
from tests.store.kit import claim, enqueue, key, order


async def test_extend_never_moves_a_lease_past_the_time_to_run_and_its_grace(store, views, clock):
    await enqueue(store, "a", ttr_ms=20_000)
    [lease] = await claim(store)
    assert 1_015_000 == lease.expires_ms
    for _ in range(3):
        clock.advance(s=5)
        assert [True] == await store.extend(0, [lease])
    assert 1_025_000 == (await views.get(key("a"))).lease_ms
    clock.advance(s=10)
    assert [True] == await store.extend(0, [lease])
    assert 1_025_000 == (await views.get(key("a"))).lease_ms
    assert 1 == (await store.recover(0)).recovered


async def test_a_lease_is_no_longer_than_the_time_to_run_and_its_grace(store):
    await enqueue(store, "a", ttr_ms=1_000)
    assert [1_006_000] == [lease.expires_ms for lease in await claim(store)]


async def test_extend_answers_for_each_lease_in_order_however_many(store):
    await store.enqueue_many([order(str(at)) for at in range(450)])
    leases = [lease for _ in range(4) for lease in await claim(store, limit=200)]
    await store.ack(leases[0])
    await store.cancel([leases[300].key])
    held = await store.extend(0, leases)
    assert (450, [0, 300]) == (len(held), [at for at, ok in enumerate(held) if not ok])


async def test_a_lease_of_another_length_ends_with_the_time_to_run(store, look, clock):
    for id_, ttr_ms in (("short", 20_000), ("long", 90_000)):
        await enqueue(store, id_, ttr_ms=ttr_ms)
    leases = await claim(store, lease_ms=60_000)
    now = clock()
    ends = {"mail/short": now + 20_000, "mail/long": now + 60_000}
    assert ends == {lease.key.member: lease.expires_ms for lease in leases} == look().leases
    clock.advance(s=10)
    assert [True, True] == await store.extend(0, leases, lease_ms=40_000)
    assert {"mail/short": now + 20_000, "mail/long": now + 50_000} == look().leases
    assert [True, True] == await store.extend(0, leases)
    assert {"mail/short": now + 25_000, "mail/long": now + 25_000} == look().leases


@pytest.mark.parametrize("verb", ["ack", "retry", "bury", "release", "progress"])
async def test_a_token_of_the_same_number_from_another_past_is_refused(store, views, verb):
    # A server that was rolled back counts to the same number again: then only the nonce tells them apart.
    await enqueue(store, "a")
    [lease] = await claim(store)
    other = replace(lease, nonce=bytes(8))
    rest = {"retry": (0,), "progress": (b"1",)}.get(verb, ())
    with pytest.raises(LeaseLost):
        await getattr(store, verb)(other, *rest)
    assert [False] == await store.extend(0, [other])
    assert "running" == (await views.get(key("a"))).state.name
    await store.ack(lease)
