"""
The record: a database that remembers what was promised, so that a queue that lost its memory loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.extras import needed
from duly.forks import importing

if TYPE_CHECKING:
    from duly.record.lending import lend

__all__ = ["include_name", "lend"]

PREFIX = "duly_"  #: every table of a record begins with it, and every part of one


def include_name(name: str | None, type_: str, parent_names: object = None) -> bool:
    """
    Keep an application's own Alembic from dropping the tables of a record, which its models do not name.

    In its ``env.py``: ``context.configure(…, include_name=include_name)``.

    Returns:
        False for the tables of a record, True for anything else.
    """
    del parent_names
    return not (type_ == "table" and name is not None and name.startswith(PREFIX))


def __getattr__(name: str) -> Any:
    if name != "lend":
        msg = f"module 'duly.record' has no attribute {name!r}"
        raise AttributeError(msg)
    with needed("duly.record"), importing():
        from duly.record.lending import lend  # noqa: PLC0415  # packages that need not be there
    return lend
