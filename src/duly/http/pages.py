"""
Pages of lists that are read as a whole: by name, so many, and so many bytes of them.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duly.http import cursors
from duly.http.grammar import CURSOR_PATTERN
from duly.http.operations import Parameter, limit, read_limit
from duly.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.requests import Request

T = TypeVar("T")

MAX_PAGE = 1000
LONGEST = 1000  #: cursor

PARAMETERS = (
    Parameter("cursor", "query", "where the last page ended; taken from it", cursors.SCHEMA),
    limit("at most so many on a page", MAX_PAGE, MAX_PAGE),
)


def page_of(
    request: Request, rows: Iterable[T], name: Callable[[T], str], bound: int
) -> tuple[list[T], str | None]:
    """
    Return the page of *rows* that a request asks for, and the cursor of the next one, None at the end.

    It ends before its rows are more than *bound* bytes together, unless the first alone is.

    Raises:
        Problem: Limit or cursor are wrong.
    """
    most, after = read_limit(request, MAX_PAGE, MAX_PAGE), _name_of(request.query_params.get("cursor"))
    # By name, and not by number: what comes and goes meanwhile moves nothing else to another page.
    left = sorted((row for row in rows if after is None or name(row) > after), key=name)
    found = first_of(left[:most], bound)
    return found, _cursor_of(name(found[-1])) if len(found) < len(left) else None


def first_of(rows: list[T], bound: int) -> list[T]:
    """
    Return the first *rows* that are *bound* bytes together, or the first one if it alone is more.
    """
    size = 0
    for at, row in enumerate(rows):
        size += len(msgspec.json.encode(row))
        if at and size > bound:
            return rows[:at]
    return rows


def _cursor_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def _name_of(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    with suppress(ValueError):  # no base64, or no text
        if len(cursor) <= LONGEST and re.fullmatch(CURSOR_PATTERN, cursor):
            return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
    raise Problem("invalid", "cursor is not one that a page of this list gave", field="cursor")
