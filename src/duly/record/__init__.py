"""
The record: a database that remembers what was promised, so that a queue that lost its memory loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.record.lending import lend

__all__ = ["lend"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module 'duly.record' has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        from duly.record.lending import lend  # noqa: PLC0415  # needs packages that need not be there
    except ImportError as error:
        msg = f"duly.record needs {error.name}: pip install 'duly[record]'"
        raise ImportError(msg, name=error.name) from error
    return lend
