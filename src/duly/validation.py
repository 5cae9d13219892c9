"""
What pydantic and msgspec find wrong with JSON, told in one line that repeats nothing of it.

Such lines are logged and stored with jobs, and the JSON may be secret: its values, and the keys of its dicts.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

from duly.forks import importing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic import TypeAdapter

HIDDEN = "..."  #: in the place of a key, as msgspec writes it
#: Of pydantic's messages, those that repeat what was given, without it.
_PLAIN = {
    "union_tag_invalid": "Input tag is none of the expected tags",
    "uuid_parsing": "Input should be a valid UUID",
}
#: What msgspec repeats stands before the place, which has no keys.
_REPEATED = re.compile(
    r"(unknown field|Invalid (?:enum )?value) .*?(?= - at `[^`]*`(?: in `[^`]*`)?$|$)", re.DOTALL
)


def is_pydantic(kind: Any) -> bool:
    """
    Return whether a class is pydantic's, or tells pydantic how to read it.
    """
    return isinstance(kind, type) and (
        hasattr(kind, "__pydantic_core_schema__") or hasattr(kind, "__get_pydantic_core_schema__")
    )


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """
    Pydantic's own reader and writer of a type; only for a type that uses pydantic.
    """
    with importing():
        from pydantic import TypeAdapter  # noqa: PLC0415  # a package that need not be there

    return TypeAdapter(kind)


def nodes_of(schema: Any) -> Iterator[dict[str, Any]]:
    """
    All parts of a schema of pydantic's.
    """
    if isinstance(schema, dict):
        yield schema
        schema = [inner for key, inner in schema.items() if key not in ("metadata", "config")]
    if isinstance(schema, list):
        for inner in schema:
            yield from nodes_of(inner)


def told(error: Exception, kind: Any = None) -> str:
    """
    Say what was wrong with JSON that should be read as *kind*.
    """
    if not type(error).__module__.startswith("pydantic"):
        return _REPEATED.sub(r"\1", str(error)).replace("contains unknown", "contains an unknown")
    listed = getattr(error, "errors", None)
    if not callable(listed):
        return " ".join(str(error).split("[input_value")[0].split())
    names = _names(kind)
    lines = []
    for each in listed(include_url=False, include_input=False, include_context=False):
        loc = [step if isinstance(step, int) or step in names else HIDDEN for step in each["loc"]]
        lines.append(f"{place_of(loc)}: {_PLAIN.get(each['type'], each['msg'])}".removeprefix(": "))
    return "; ".join(lines)


@cache
def _names(kind: Any) -> frozenset[str]:
    """
    The names in a type that pydantic reads: of fields, their aliases and the members of unions.
    """
    try:
        adapter = adapter_of(kind)
    except Exception:  # noqa: BLE001  # msgspec reads it, and what a user's own check raised is pydantic's
        return frozenset()
    if not adapter.pydantic_complete:
        return frozenset()
    found: set[str] = {"[key]"}
    for node in nodes_of(adapter.core_schema):
        fields, choices, alias = node.get("fields"), node.get("choices"), node.get("validation_alias")
        found |= {*(fields if isinstance(fields, dict) else ()), *_texts(choices), *_texts(alias)}
        found |= {str(node[key]) for key in ("name", "model_name", "dataclass_name", "type") if key in node}
    return frozenset(found)


def _texts(value: Any) -> Iterator[str]:
    """
    The texts in a value that may be one, or a list or dict of them.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple) or (isinstance(value, dict) and "type" not in value):
        for each in value:
            yield from _texts(each)


def place_of(loc: Iterable[str | int], within: str = "") -> str:
    """
    Write where pydantic found something wrong, as msgspec does: `items[0].name`.
    """
    for step in loc:
        if isinstance(step, int) or step == HIDDEN:
            within += f"[{step}]"
        else:
            within += f".{step}" if within else step
    return within
