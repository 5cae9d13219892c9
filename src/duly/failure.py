"""
What is stored of a failure: a document for those who read of it, and a signature that its like share.
"""

from __future__ import annotations

import re
import traceback as _traceback

import msgspec

from duly.codec import decode

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


def error_document(exc: BaseException, *, traceback: bool = False) -> bytes:
    """
    Describe a failure for the record of its job.  Never raises.

    The traceback is left out unless asked for: pollers may read the document.
    """
    document = {"type": _type_of(exc), "message": _message_of(exc)[:MESSAGE_CHARS]}
    if traceback:
        document["traceback"] = traceback_of(exc)
    return _encode_text(document)


def with_traceback(document: bytes, traceback: str) -> bytes:
    """
    Add the traceback of a failure to its document, as `error_document` does.
    """
    return _encode_text(decode(document) | {"traceback": traceback[-TRACEBACK_CHARS:]})


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


def kind_in(line: str) -> str:
    """
    Return the kind that such a line begins with, for readers who may not see the message.
    """
    return line.partition(": ")[0]


def _type_of(exc: BaseException) -> str:
    kind = type(exc)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name[-200:]


def _message_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException:  # noqa: BLE001  # a broken __str__ must not hide the failure itself
        return "(its message cannot be shown)"


def traceback_of(exc: BaseException) -> str:
    """
    Write the traceback of an exception, the end of it if it is long.  Never raises.
    """
    try:
        return "".join(_traceback.format_exception(exc))[-TRACEBACK_CHARS:]
    except BaseException:  # noqa: BLE001  # as above
        return "(its traceback cannot be shown)"


def _encode_text(document: dict[str, str]) -> bytes:
    # Half a surrogate pair, as in the name of a file, has no form in UTF-8.
    return msgspec.json.encode(
        {name: text.encode(errors="replace").decode() for name, text in document.items()}
    )
