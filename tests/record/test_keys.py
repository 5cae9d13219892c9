"""
API keys in the record: what is revoked or made while they are copied is revoked or made.
"""

from __future__ import annotations

import pytest

from duly.apikeys import KeyRing
from duly.record.keys import KeptKeys


@pytest.fixture
def kept(database, queue):
    return KeptKeys(database, queue.namespace)


async def names(store) -> set[str]:
    return {key.name for key in await KeyRing(store, {}).all()}


async def test_keys_that_change_while_the_queue_gets_them_stay_as_they_were_changed(
    database, queue, kept, after
):
    ring = KeyRing(queue, {}, keeper=kept)
    await ring.create("old", ["admin"])
    await ring.create("lost", ["read"])
    await queue.link.call("DEL", queue.keys[0].fixed["api_keys"])
    await kept.restore(queue)

    async def change() -> None:
        await ring.revoke("old")
        await ring.create("new", ["read"])

    after(database, "read", change)
    await kept.restore(queue)
    assert {"lost", "new"} == await names(queue)
    await kept.restore(queue)
    assert {"lost", "new"} == await names(queue)


async def test_a_key_that_is_revoked_while_a_record_begins_is_not_kept(queue, kept, after):
    ring = KeyRing(queue, {})  # of a process without the record
    await ring.create("old", ["admin"])
    await ring.create("shop", ["enqueue"])
    after(queue.link, "call", lambda: ring.revoke("old"))
    await kept.adopt(queue)
    await kept.restore(queue)
    assert {"shop"} == await names(queue)


async def test_a_record_that_begins_while_a_key_is_revoked_does_not_keep_it(queue, kept, after):
    await KeyRing(queue, {}).create("old", ["admin"])
    after(kept, "drop", lambda: kept.adopt(queue))
    await KeyRing(queue, {}, keeper=kept).revoke("old", force=True)
    await kept.restore(queue)
    assert set() == await names(queue)
