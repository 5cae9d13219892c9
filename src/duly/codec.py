"""
What crosses the wire: JSON and nothing else, bounded in size.
"""

from __future__ import annotations

import math
import re
import traceback as _traceback
from typing import Any

import msgspec

from duly.errors import DulyError, UsageError

MESSAGE_CHARS = 2_000
TRACEBACK_CHARS = 8_000
SIGNATURE_CHARS = 120

#: What differs between two messages of the same failure: uuids, addresses, hashes, ids, numbers.
_VARYING = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"
    r"|\b0[xX][0-9a-fA-F]+\b"
    r"|\b(?=[0-9A-Za-z]*[0-9])(?:[0-9a-fA-F]{8,}|[0-9A-Za-z]{16,})\b"
    r"|[0-9]+(?:\.[0-9]+)*"
)


class Unreadable(DulyError):
    """
    What was stored cannot be read: no JSON, or not what the handler takes.
    """


class Envelope(msgspec.Struct, omit_defaults=True, frozen=True):
    """
    What travels with a job beside its payload; all but the first only clients read.
    """

    #: the queue that is told of its end; scripts read it, and expect it in the first place
    reply_to: str | None = None
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None  #: see `duly.backoff.to_wire`
    context: dict[str, Any] | None = None
    callback: str | None = None  #: where it is delivered to, instead of being run


#: How the envelope of a job begins that asks for a reply.
ASKING = b'{"reply_to":"'


def _other(value: Any) -> Any:
    """
    Turn what msgspec does not know into what it does: pydantic models, without importing pydantic.
    """
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} has no form in JSON")
    return dump(mode="json")


_encoder = msgspec.json.Encoder(enc_hook=_other)
_decoder = msgspec.json.Decoder()
_envelope_decoder = msgspec.json.Decoder(Envelope)
_NO_ENVELOPE = Envelope()


def encode(value: object, *, what: str = "payload", limit: int) -> bytes:
    """
    Write *value* as JSON of at most *limit* bytes.

    Raises:
        UsageError: It has no form in JSON, or is too large.
    """
    try:
        data = _encoder.encode(value)
        if b"null" in data and value is not None:  # msgspec writes NaN and infinities as null
            _refuse_non_finite(msgspec.to_builtins(value, enc_hook=_other), what)
    except UsageError:
        raise
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise UsageError(f"{what} cannot be written as JSON: {error}") from error
    if len(data) > limit:
        raise UsageError(
            f"{what} is {len(data)} bytes, the limit is {limit}; store it elsewhere and send a reference"
        )
    return data


def _refuse_non_finite(value: object, path: str) -> None:
    match value:
        case float() if not math.isfinite(value):
            raise UsageError(f"{path} is {value}, and JSON has no such number")
        case dict():
            for name, inner in value.items():
                _refuse_non_finite(inner, f"{path}.{name}")
        case list() | tuple():
            for position, inner in enumerate(value):
                _refuse_non_finite(inner, f"{path}[{position}]")


def decode(data: bytes) -> Any:
    """
    Read JSON.

    Raises:
        Unreadable: It is none.
    """
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from error


def encode_envelope(envelope: Envelope) -> bytes:
    """
    Write an envelope; one that says nothing takes no space.

    Raises:
        UsageError: Its context has no form in JSON.
    """
    if envelope == _NO_ENVELOPE:
        return b""
    try:
        return _encoder.encode(envelope)
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        raise UsageError(f"context cannot be written as JSON: {error}") from error


def decode_envelope(data: bytes) -> Envelope:
    """
    Read an envelope; fields of a later version are passed over.

    Raises:
        Unreadable: It is none.
    """
    if not data:
        return _NO_ENVELOPE
    try:
        return _envelope_decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"envelope: {error}") from error


def readable_envelope(data: bytes) -> Envelope:
    """
    Read an envelope for a list, which one that cannot be read must not stop: nothing is known of that one.
    """
    try:
        return decode_envelope(data)
    except Unreadable:
        return _NO_ENVELOPE


def error_document(exc: BaseException, *, traceback: bool = False) -> bytes:
    """
    Describe a failure for the record of its job.  Never raises.

    The traceback is left out unless asked for: pollers may read the document.
    """
    document = {"type": _type_of(exc), "message": _message_of(exc)[:MESSAGE_CHARS]}
    if traceback:
        document["traceback"] = _traceback_of(exc)[-TRACEBACK_CHARS:]
    return _encode_text(document)


def reason_document(reason: str, message: str = "") -> bytes:
    """
    Describe an ending that was planned or decided by duly: `crashed`, `unreadable`, `expired`, `buried`.

    Of the same shape as the document of an exception, so that readers need one form.
    """
    return _encode_text({"type": reason[:MESSAGE_CHARS], "message": message[:MESSAGE_CHARS]})


def signature(exc: BaseException) -> str:
    """
    Name a failure so that its like get the same name: one short line without what varies.
    """
    return signature_of(_type_of(exc), _message_of(exc))


def signature_of(kind: str, message: str) -> str:
    """
    Put a kind and a message into one line of at most 120 characters, numbers and ids collapsed to `#`.
    """
    collapsed = _VARYING.sub("#", message[:MESSAGE_CHARS])
    line = " ".join(f"{kind}: {collapsed}".split()) if message else kind
    return "".join(filter(str.isprintable, line))[:SIGNATURE_CHARS].rstrip(" :")


def _type_of(exc: BaseException) -> str:
    kind = type(exc)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[-200:]


def _message_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException:  # noqa: BLE001  # a broken __str__ must not hide the failure itself
        return "(its message cannot be shown)"


def _traceback_of(exc: BaseException) -> str:
    try:
        return "".join(_traceback.format_exception(exc))
    except BaseException:  # noqa: BLE001  # as above
        return "(its traceback cannot be shown)"


def _encode_text(document: dict[str, str]) -> bytes:
    # Half a surrogate pair, as in the name of a file, has no form in UTF-8.
    return _encoder.encode({name: text.encode(errors="replace").decode() for name, text in document.items()})
