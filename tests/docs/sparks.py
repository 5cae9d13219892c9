"""
Tables of the formats for Spark.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from duly.durations import say_duration
from duly.spark.columns import REQUIRED, WRITTEN
from duly.spark.options import key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.types import StructType


def options_table(table: Callable[..., str], kind: type) -> str:
    """
    The options of a format, in the order of their class.
    """
    rows = [
        (f"`{key_of(each.name)}`", _default(each.name, each.default), each.metadata["about"])
        for each in fields(kind)
    ]
    return table(["option", "default", "meaning"], rows)


def _default(name: str, value: Any) -> str:
    if key_of(name) != name:
        return f"`{say_duration(value)}`"
    if value is MISSING:
        return "required"
    if value is None or value in ("", ()):
        return "none"
    return f"`{str(value).lower()}`"


def written_table(table: Callable[..., str]) -> str:
    rows = [
        (f"`{name}`", "yes" if name in REQUIRED else "", types, about)
        for name, (types, about) in WRITTEN.items()
    ]
    return table(["column", "required", "types", "meaning"], rows)


def schema_table(table: Callable[..., str], schema: StructType) -> str:
    return table(["column", "type"], [(f"`{each.name}`", each.dataType.simpleString()) for each in schema])
