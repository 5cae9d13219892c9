"""
Log lines that programs can read: which job a line is about, as fields.

A line never holds a payload, a context, or the message of an exception of a handler, which may quote either.
"""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from duly.context import CURRENT

if TYPE_CHECKING:
    from duly.job import Lease

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: What every record has; whatever else it has was given by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def about(lease: Lease, worker: str = "") -> dict[str, Any]:
    """
    The fields of a log line about a run, for ``extra=``.
    """
    fields = {
        "topic": lease.key.topic,
        "id": lease.key.id,
        "attempt": lease.attempt,
        "token": lease.fence,
        "shard": lease.shard,
    }
    return fields | {"worker": worker} if worker else fields


def place_of(error: BaseException) -> str:
    """
    Name an error by its type and where it was raised, without its message.
    """
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{name} at {frames[-1].filename}:{frames[-1].lineno}" if frames else name


class JsonFormatter(logging.Formatter):
    """
    One JSON object on a line: time, level, logger, message, and the fields that the line was given.

    A line that code below a handler writes also says which job it was running.
    """

    def format(self, record: logging.LogRecord) -> str:
        """
        Write a record down.
        """
        document: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        job = CURRENT.get(None)
        if job is not None:
            document |= job.log_fields()
        document |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            document["stack"] = self.formatStack(record.stack_info)
        return _encode(document)


def _encode(document: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(document, enc_hook=repr).decode()
    except Exception:  # noqa: BLE001  # whatever others put into `extra`, the line must not be lost
        return msgspec.json.encode({name: _text(value) for name, value in document.items()}).decode()


def _text(value: object) -> str:
    try:
        return str(value).encode(errors="replace").decode()
    except Exception:  # noqa: BLE001  # as above
        return "(cannot be shown)"


def set_up(level: str, form: str) -> None:
    """
    Write log lines of *level* and above to stderr, as text or as JSON.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=[handler])
