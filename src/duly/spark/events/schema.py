"""
The columns of events, derived from `duly.events.Event`.
"""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import pyarrow as pa
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from duly.events import Event


def _is_text(hint: Any) -> bool:
    """
    Whether values of this type are shown by a word: text, and names of states and verbs.
    """
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    return issubclass(hint, str | Enum)


_TEXT = {name: _is_text(hint) for name, hint in get_type_hints(Event).items()}

#: Every field of an event, under its own name: numbers are 64 bits wide, states and verbs are words.
EVENTS = StructType([StructField(name, StringType() if text else LongType()) for name, text in _TEXT.items()])
ARROW = pa.schema([(name, pa.string() if text else pa.int64()) for name, text in _TEXT.items()])

_NUMBERS, _PARTS = ("shard", "counter"), ("about", "members", "heads", "reasons")
#: One row for each entry of a stream, as the server keeps it: for who takes them apart elsewhere.
PACKED = StructType(
    [
        *(StructField(name, LongType()) for name in _NUMBERS),
        *(StructField(name, BinaryType()) for name in _PARTS),
    ]
)
PACKED_ARROW = pa.schema(
    [*((name, pa.int64()) for name in _NUMBERS), *((name, pa.binary()) for name in _PARTS)]
)
