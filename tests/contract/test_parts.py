"""
Parts: what an app is made of, and what it gives: every public name is there.
"""

from __future__ import annotations

import pytest

from duly import Duly, JobHandle, UsageError
from duly.apikeys import KeyRing
from duly.follower import Follower
from duly.quarantine import Quarantine
from duly.replies import Replies
from duly.views import Views
from tests.contract.faces import MARIADB, OVER_HTTP, PLAIN, SHARDED, TWIN

not_served = pytest.mark.unsupported(
    *OVER_HTTP, reason="it needs the queue's own server, a `redis://` URL; `duly keys` runs beside it"
)
not_blocking = pytest.mark.unsupported(
    TWIN, MARIADB, reason="its calls are awaited: use `await app.store()` or `app.record()` on an event loop"
)
needs_record = pytest.mark.unsupported(PLAIN, SHARDED, reason="there is none: `Duly(url, record=…)`")


async def test_every_public_name_is_there(queue):
    sent = await queue.enqueue("mail", delay=60)
    for found, kind in (
        (queue, Duly),
        (sent, JobHandle),
        (await queue.views(), Views),
        (await queue.quarantine(), Quarantine),
        (queue.events(), Follower),
        (queue.replies("done"), Replies),
    ):
        for name in public(kind):
            assert hasattr(found, name), f"{kind.__name__}.{name}"


async def test_what_is_declared_on_it_is_declared_on_the_app(queue):
    @queue.handler("parts.declared")
    async def declared() -> None: ...

    assert declared is queue.handlers.get("parts.declared")
    queue.remove_handler("parts.declared")
    assert queue.handlers.get("parts.declared") is None
    assert queue.configured == queue.settings


async def test_a_job_is_promised_to_a_caller_that_waits(queue):
    sent = await queue.enqueue_awaited(Duly().handler("mail")(print_nothing).job())
    assert ("mail", True) == (sent.topic, sent.created)


@not_served
async def test_api_keys_are_made_and_revoked(queue):
    ring = await queue.key_ring()
    assert all(hasattr(ring, name) for name in public(KeyRing))
    assert not await ring.any()
    text, key = await ring.create("shop", ["enqueue"])
    assert (key, [key], True) == (await ring.find(text), await ring.all(), await ring.any())
    with pytest.raises(UsageError, match="the last API key"):
        await ring.revoke("shop")
    assert [key] == await ring.revoke("shop", force=True)
    assert await ring.find(text) is None


@not_served
@not_blocking
async def test_the_store_is_reached(queue):
    assert queue.settings.namespace == (await queue.store()).namespace


@not_served
@not_blocking
@needs_record
async def test_the_record_is_reached(queue):
    await queue.enqueue("mail", delay=60)
    assert await (await queue.record()).size() >= 1


def public(kind):
    return [name for name in dir(kind) if not name.startswith("_")]


async def print_nothing() -> None: ...
