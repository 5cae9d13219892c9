"""
Functions that are defined again, by a cell of a notebook, a reload, or a factory that is called twice.
"""

from __future__ import annotations

import ast
import enum
import inspect
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.binding import function_of

if TYPE_CHECKING:
    from types import FrameType

_DEPTH = 8  #: of wrappers around wrappers; a function may hold itself
_FIXED = (str, bytes, int, float, tuple, frozenset, enum.Enum)


def put(fn: Any, functions: list[Any]) -> None:
    """
    Add a function that a user registers with our caller, or put it in the place of the one that it is again.
    """
    frame = sys._getframe(2)  # noqa: SLF001  # where it is registered
    for at, other in enumerate(functions):
        if _is_again(other, fn, frame):
            functions[at] = fn
            return
    functions.append(fn)


def _is_again(old: Any, new: Any, frame: FrameType, depth: int = 0) -> bool:
    """
    Return whether *new* is *old* again.

    What a function made with other values is another one, unless it was made where it is registered, in
    *frame*: a factory of an application holds new values each time.
    """
    if old is new or (inspect.ismethod(old) and old == new):
        return True
    if not (inspect.isfunction(old) and inspect.isfunction(new)) or depth > _DEPTH:
        return False
    if _name(old) != _name(new) or defined_twice(old, new):
        return False
    if new.__code__.co_name == "<lambda>" and old.__code__ != new.__code__:
        return False
    # The same lines ran twice without being compiled again: a loop tells its functions apart by defaults.
    if old.__code__ is new.__code__ and not all(map(_is_same, _defaults(old), _defaults(new))):
        return False
    return _is_made_in(frame, new) or all(
        _is_same(*pair) or _is_again(*pair, frame, depth + 1) for pair in zip_longest(_held(old), _held(new))
    )


def defined_twice(old: Any, new: Any) -> str | None:
    """
    Say where a file defines both of two functions of one name; None if one of them is there no more.
    """
    codes: list[Any] = [getattr(function_of(fn), "__code__", None) for fn in (old, new)]
    if None in codes or codes[0].co_filename != codes[1].co_filename:
        return None
    file, lines = codes[0].co_filename, {code.co_firstlineno for code in codes}
    if len(lines) == 1:
        return None
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        # No file, as in a notebook.
        return None
    defined = {
        min(part.lineno for part in (node, *node.decorator_list))
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == codes[1].co_name
    }
    return f"{file}, lines {' and '.join(map(str, sorted(lines)))}" if lines <= defined else None


def _name(fn: Any) -> tuple[str, ...]:
    # The name of a wrapper is that of what it wraps; the name of its code is its own.
    return fn.__module__, fn.__qualname__, fn.__code__.co_qualname


def _defaults(fn: Any) -> list[Any]:
    return [*(fn.__defaults__ or ()), *sorted((fn.__kwdefaults__ or {}).items())]


def _is_made_in(frame: FrameType, fn: Any) -> bool:
    code: Any = frame.f_code
    made = f"{code.co_qualname}.<locals>.{fn.__code__.co_name}"
    return (frame.f_globals.get("__name__"), made) == (fn.__module__, fn.__code__.co_qualname)


def _held(fn: Any) -> list[Any]:
    """
    What a function holds of those around it.
    """
    held = []
    for cell in fn.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            # Nothing yet.
            held.append(cell)
    return held


def _is_same(old: Any, new: Any) -> bool:
    # Of two lists, what is equal now need not be later.
    return old is new or (type(old) is type(new) and isinstance(old, _FIXED) and old == new)
