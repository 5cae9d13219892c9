"""
What clients send: read within bounds, decoded into types, and refused with the field that was wrong.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duly.http.grammar import ADVICE
from duly.http.problems import Problem
from duly.http.refusals import READ

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive

T = TypeVar("T")

#: As msgspec says where: "Expected `int`, got `str` - at `$.ttr`".
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<field>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`")
_ADVICE = {f"Expected `str` matching regex {pattern!r}": advice for pattern, advice in ADVICE.items()}
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")

JSON = ("application/json",)
NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson")


def media_type(request: Request) -> str:
    """
    The media type of the body, without parameters.
    """
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def check_encoding(request: Request) -> None:
    """
    Refuse a body that is compressed: how large it is would show only once it is read.

    Raises:
        Problem: It is: 415.
    """
    said = request.headers.get("content-encoding", "identity").strip()
    if said.lower() != "identity":
        raise Problem(
            "unsupported",
            f"send the body as it is, without Content-Encoding: {said}",
            headers={"Accept-Encoding": "identity"},
        )


async def read_body(request: Request, limit: int) -> bytes:
    """
    The whole body, of at most *limit* bytes.

    Raises:
        Problem: It is larger: 413.
    """
    said = request.headers.get("content-length")
    if said is not None and said.isascii() and said.isdigit() and (len(said) > 18 or int(said) > limit):
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    request.scope[READ] = True
    return b"".join(parts)


async def client_gone(receive: Receive) -> None:
    """
    Return when the client has gone; its request must have been read, or not be wanted.
    """
    while (await receive())["type"] != "http.disconnect":
        pass


def too_large(limit: int) -> Problem:
    """
    The refusal of a body.
    """
    return Problem("too-large", f"the body may be {limit} bytes; store more elsewhere and send a reference")


async def read_json(
    request: Request, decoder: msgspec.json.Decoder[T], limit: int, *, empty: bytes = b""
) -> T:
    """
    The body as a value; *empty* stands for one without a byte.

    Raises:
        Problem: It is too large, compressed, of another media type, no JSON, or not what is asked for.
    """
    check_encoding(request)
    body = await read_body(request, limit)
    if not body and empty:
        return decode(decoder, empty)
    if media_type(request) not in JSON:
        said = request.headers.get("content-type") or "none"
        raise Problem(
            "unsupported", f"send application/json, not {said}", headers={"Accept": "application/json"}
        )
    return decode(decoder, body)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """
    Decode JSON, or say what is wrong with it.

    Raises:
        Problem: It is no JSON (400), or not what is asked for (422).
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise Problem("malformed", f"the body is no JSON: {error}") from None


def invalid(error: msgspec.ValidationError) -> Problem:
    """
    A value of the wrong kind, and where it is.
    """
    text = str(error)
    where = _WHERE.match(text)
    path = where["field"] if where else None
    what = where["what"] if where else text
    named = _UNKNOWN.match(what) or _MISSING.match(what)
    if named:
        path = f"{path}.{named['field']}" if path else named["field"]
    what = _ADVICE.get(what, what)
    said = what[:1].lower() + what[1:]
    return Problem("invalid", f"{path}: {said}" if path else said, field=path or None)
