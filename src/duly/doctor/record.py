"""
Checks of the record: whether its database answers, and fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.doctor.finding import Finding
from duly.errors import DulyError
from duly.extras import ExtraMissing, install, needed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duly.idempotency import Used
    from duly.settings import Settings
    from duly.store import Store

CHECK = "record"
ITS_QUEUE = "queue of the record"


def tables(settings: Settings) -> Finding | None:
    """
    What is to be said about the record, None where there is none.
    """
    if settings.record is None:
        return None
    try:
        with needed("a record"):
            from duly.record import schema  # noqa: PLC0415  # packages that need not be there
            from duly.record.target import Target  # noqa: PLC0415
    except ExtraMissing as error:
        return Finding(CHECK, "problem", str(error), install("record"))
    try:
        found = schema.check(Target.of(settings))
    except DulyError as error:
        return Finding(
            CHECK, "problem", str(error), "see that it runs and that the address is right: --record"
        )
    if found:
        migrate = all(each.endswith(schema.MIGRATE) for each in found)
        return Finding(CHECK, "problem", "; ".join(found), schema.MIGRATE if migrate else "do what it says")
    return Finding(CHECK, "ok", f"its tables fit, at version {schema.newest()}")


async def identity(settings: Settings, store: Store) -> Finding:
    """
    Whether the queue belongs to the record of the settings.

    Raises:
        DulyError: One of them cannot be asked.
    """
    from duly.record.identity import stranger  # noqa: PLC0415  # packages that need not be there
    from duly.record.target import Target  # noqa: PLC0415

    found = await stranger(store, Target.of(settings))
    if found is not None:
        return Finding(ITS_QUEUE, "problem", found, "correct record or namespace in the settings")
    return Finding(ITS_QUEUE, "ok", "the queue and the record belong together")


async def request_keys(settings: Settings, store: Store, callers: Iterable[str]) -> Used:
    """
    How much room is taken by requests that may be sent again.

    Raises:
        RecordUnavailable: The database cannot be reached.
    """
    from duly.record.clock import Clock  # noqa: PLC0415  # packages that need not be there
    from duly.record.database import Database  # noqa: PLC0415
    from duly.record.idempotency import KeptEntries  # noqa: PLC0415
    from duly.record.target import Target  # noqa: PLC0415

    database = Database(Target.of(settings))
    try:
        most, keep_ms = settings.idempotency_bytes, settings.idempotency_ms
        return await KeptEntries(database, store, Clock(store), keep_ms=keep_ms, most=most).used(callers)
    finally:
        await database.aclose()
