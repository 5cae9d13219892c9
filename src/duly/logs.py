"""
Log lines: which job a line is about, as fields that programs can read, and where lines go by default.

A line never holds a payload, a context or a result.  It does hold the message of an exception, cut short.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import decode
from duly.context import CURRENT
from duly.failure import error_document

if TYPE_CHECKING:
    from duly.job import Lease

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MESSAGE_CHARS = 200  #: of an exception; the job keeps more of it

#: For ``extra=`` beside ``exc_info=``: collectors such as Sentry get the exception, our own lines go without
#: its traceback.
BRIEF = {"_brief": True}


#: What every record has; whatever else it has was given by `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *BRIEF}


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


def describe(error: BaseException) -> str:
    """
    Describe an error in one line: its type, where it was raised, and its message.  Never raises.
    """
    return describe_document(error_document(error), error)


def describe_document(document: bytes, error: BaseException | None = None) -> str:
    """
    Describe a stored failure in one line, with the place where *error* was raised, if that is what it is of.
    """
    told = decode(document)
    kind, message = (str(told.get(name, "")) for name in ("type", "message"))
    kind, message = _one_line(kind), _one_line(message)
    return f"{kind or '?'}{_place_of(error)}: {message}" if message else f"{kind or '?'}{_place_of(error)}"


def _one_line(text: str) -> str:
    """
    Cut a text to a length that suits a line, without what would break the line or steer a terminal.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= MESSAGE_CHARS else f"{line[: MESSAGE_CHARS - 1]}…"


def _place_of(error: BaseException | None) -> str:
    """
    Say where an exception was raised: file and line of its innermost frame.  Reads no source file.
    """
    trace = None if error is None else error.__traceback__
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f" at {PurePath(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


class TextFormatter(logging.Formatter):
    """
    Lines of text; those that are marked as brief go without the traceback of their exception.
    """

    def __init__(self, form: str = TEXT) -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        """
        Write a record down.
        """
        if _is_brief(record):
            # A copy: others may want the exception, and what they have made of it is kept on the record.
            record = logging.makeLogRecord(vars(record) | {"exc_info": None, "exc_text": None})
        return super().format(record)


def _is_brief(record: logging.LogRecord) -> bool:
    return bool(getattr(record, "_brief", False))


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
        if record.exc_info and not _is_brief(record):
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
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level, handlers=[handler])


class LastResort(logging.Handler):
    """
    Writes warnings and errors of duly to stderr in a program that has set up no logging.

    Python's own last resort would print bare messages.  Where a record finds any other handler, that has it,
    and where Python's is switched off (``logging.lastResort = None``), so is this one.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """
        Write a record to stderr, unless somebody else does something with it.
        """
        if logging.lastResort is None or sys.stderr is None or self._has_company(record.name):
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # noqa: BLE001  # as every handler does: a line is no reason to fail
            self.handleError(record)

    def _has_company(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return True
            logger = logger.parent if logger.propagate else None
        return False


LAST_RESORT = LastResort()
logging.getLogger("duly").addHandler(LAST_RESORT)
