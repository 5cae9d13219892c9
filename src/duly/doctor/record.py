"""
Checks of the record: whether its database answers, and fits.
"""

from __future__ import annotations

from duly.doctor.finding import Finding
from duly.errors import DulyError

CHECK = "record"


def tables(url: str | None) -> Finding | None:
    """
    What is to be said about the record, None where there is none.
    """
    if url is None:
        return None
    try:
        from duly.record import schema  # noqa: PLC0415  # packages that need not be there
    except ImportError as error:
        return Finding(CHECK, "problem", f"a record needs {error.name}", "pip install 'duly[record]'")
    try:
        found = schema.check(url)
    except DulyError as error:
        return Finding(
            CHECK, "problem", str(error), "see that it runs and that the address is right: --record"
        )
    if found:
        return Finding(CHECK, "problem", "; ".join(found), schema.MIGRATE)
    return Finding(CHECK, "ok", f"its tables fit, at version {schema.newest()}")
