"""
Jobs as JSON lines: ``{"topic": …, "id": …, "payload": …, "delay": … | "due_at": …}``, one each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from duly.codec import check_json
from duly.errors import UsageError
from duly.job import check_topic
from duly.newjob import NewJob
from duly.options import OPTIONS, fields

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_LINE = 2 * 1024 * 1024  #: a payload is bounded far below
BATCH_JOBS = 2_000
BATCH_BYTES = 4 * 1024 * 1024


#: What a line may say: topic, payload and the options of a job, in JSON.
Line: Any = msgspec.defstruct(
    "Line",
    [
        ("topic", str | None, None),
        ("payload", msgspec.Raw, msgspec.Raw(b"{}")),
        *fields(lambda option: option.kind.json),
    ],
    forbid_unknown_fields=True,
    kw_only=True,
)

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
        said = {option.name: option.read(getattr(line, option.name)) for option in OPTIONS}
        payload = bytes(line.payload)
        check_json(payload)
        return NewJob(check_topic(named), payload, **said)
    except UsageError as error:
        return error
    except UnicodeDecodeError:
        return UsageError("not UTF-8")
    except msgspec.ValidationError as error:
        return UsageError(str(error))
    except (ValueError, RecursionError) as error:
        return UsageError(f"no JSON: {error}")
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a line, the others are sent
        return UsageError(f"cannot be read: {type(error).__name__}: {error}")
