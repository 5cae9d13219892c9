"""
Whether a queue and a database belong together: both know the id of the record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from duly.record.database import Database
from duly.record.generations import newest_generation

if TYPE_CHECKING:
    from duly.record.target import AnyTarget
    from duly.store import Store


async def stranger(store: Store, source: AnyTarget) -> str | None:
    """
    Return a sentence if the queue belongs to another record than that in *source*; changes nothing.

    Raises:
        StoreUnavailable, RecordUnavailable: One of them is away.
        LayoutMismatch, ServerUnsuitable: The database lacks tables or grants.
    """
    known = set()
    for keys in store.keys:
        known.add(await store.link.call("HGET", keys.fixed["meta"], "record") or b"")
    known.discard(b"")
    if not known:
        return None
    database = Database(source)
    try:
        found = await database.read(partial(newest_generation, namespace=store.namespace))
    finally:
        await database.aclose()
    if found is not None and known == {found.record_id.encode()}:
        return None
    return (
        f"namespace {store.namespace!r} at {store.link.place} belongs to the record in another database: "
        "say that one's record, or choose another namespace"
    )
