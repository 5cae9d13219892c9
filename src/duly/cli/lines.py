"""
Jobs as JSON lines: ``{"topic": …, "id": …, "payload": …, "delay": … | "due_at": …}``, one each.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from duly.backoff import from_wire
from duly.durations import parse_duration, parse_time
from duly.errors import UsageError
from duly.job import check_topic
from duly.newjob import NewJob

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_LINE = 2 * 1024 * 1024  #: a payload is bounded far below
BATCH_JOBS = 2_000
BATCH_BYTES = 4 * 1024 * 1024


class Line(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    What a line may say: the options of a job, in JSON.
    """

    topic: str | None = None  #: that of the command line if not said
    id: str | None = None  #: generated if not said; then the line is not safe to repeat
    payload: msgspec.Raw = msgspec.Raw(b"{}")  #: any JSON
    delay: float | str | None = None  #: seconds, or 1h30m, or PT1H30M
    due_at: str | None = None  #: RFC 3339 with an offset
    expires: str | None = None  #: RFC 3339 with an offset
    priority: str = "normal"  #: high, normal or low
    ttr: float | str | None = None  #: as delay
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None  #: e.g. {"kind": "fixed", "delay": 5}
    context: dict[str, Any] | None = None
    on_conflict: str = "keep"  #: keep, replace or raise
    retain: float | str | None = None  #: as delay
    max_crashes: int | None = None
    callback: str | None = None  #: a URL
    reply_to: str | None = None  #: a queue of replies


_decoder = msgspec.json.Decoder(Line)


class Read(NamedTuple):
    """
    One line as it was read: a job, or why it is none.
    """

    number: int
    text: bytes
    job: NewJob[Any] | UsageError


def read_lines(file: BinaryIO, topic: str | None) -> Iterator[Read]:
    """
    Read jobs, one at a time; empty lines are passed over.
    """
    number = 0
    while text := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(text) > LONGEST_LINE:
            while not text.endswith(b"\n") and (text := file.readline(LONGEST_LINE)):
                pass
            yield Read(number, b"", UsageError(f"longer than {LONGEST_LINE} bytes"))
        elif stripped := text.strip():
            yield Read(number, stripped, _job(stripped, topic))


def batches(lines: Iterator[Read]) -> Iterator[list[Read]]:
    """
    Put lines together, never more than a bounded number of jobs and bytes.
    """
    batch: list[Read] = []
    room = BATCH_BYTES
    for line in lines:
        batch.append(line)
        room -= len(line.text)
        if len(batch) >= BATCH_JOBS or room <= 0:
            yield batch
            batch, room = [], BATCH_BYTES
    if batch:
        yield batch


def _job(text: bytes, topic: str | None) -> NewJob[Any] | UsageError:
    try:
        text.decode()
        line = _decoder.decode(text)
        named = line.topic if line.topic is not None else topic
        if named is None:
            return UsageError('no topic: write "topic" into the line, or TOPIC on the command line')
        return NewJob(
            check_topic(named),
            bytes(line.payload),
            id=line.id,
            delay=_wait(line.delay, "delay"),
            due_at=None if line.due_at is None else parse_time(line.due_at, "due_at"),
            expires=None if line.expires is None else parse_time(line.expires, "expires"),
            priority=line.priority,  # type: ignore[arg-type]  # checked when it becomes an order
            ttr=_wait(line.ttr, "ttr"),
            max_attempts=line.max_attempts,
            backoff=None if line.backoff is None else from_wire(line.backoff),
            context=line.context,
            on_conflict=line.on_conflict,  # type: ignore[arg-type]  # as above
            retain=_wait(line.retain, "retain"),
            max_crashes=line.max_crashes,
            callback=line.callback,
            reply_to=line.reply_to,
        )
    except UsageError as error:
        return error
    except UnicodeDecodeError:
        return UsageError("not UTF-8")
    except msgspec.ValidationError as error:
        return UsageError(str(error))
    except (ValueError, RecursionError) as error:
        return UsageError(f"no JSON: {error}")


def _wait(value: float | str | None, what: str) -> timedelta | None:
    return None if value is None else timedelta(milliseconds=parse_duration(value, what))
