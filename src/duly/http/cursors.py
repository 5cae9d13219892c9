"""
Cursors: where a list goes on, as one word that needs no escaping in a query.
"""

from __future__ import annotations

import base64
import binascii
import re

from duly.job import ID, TOPIC, JobState, Lane

_WORD = re.compile("^[A-Za-z0-9_-]+$")
SCHEMA = {"type": "string", "pattern": _WORD.pattern, "maxLength": 1000}

# What a page says: a shard, and behind which entry of an index or of a stream to go on; with a record, before
# that, behind which row.
_KEY = f"{TOPIC.pattern}/{ID.pattern}"
_INDEX = re.compile(rf"(?:record:-?[0-9]{{1,18}} (?:{_KEY}|/) )?[0-9]{{1,5}}:(?:[0-9]{{1,17}} {_KEY})?")
_LANES = "|".join(lane.name for lane in Lane)
_STREAM = re.compile(rf"[0-9]{{1,5}}:(?:{TOPIC.pattern} (?:{_LANES}) [0-9]{{1,18}}-[0-9]{{1,18}})?")


def write(state: JobState, place: str) -> str:
    """
    The cursor of a page in one state; an empty place is its beginning.
    """
    return base64.urlsafe_b64encode(f"{state.name}!{place}".encode()).decode().rstrip("=")


def read(cursor: str) -> tuple[JobState, str] | None:
    """
    The state and the place that a cursor stands for, None if it is none of ours.
    """
    if not _WORD.fullmatch(cursor):
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    name, mark, place = text.partition("!")
    if not mark or name not in JobState.__members__:
        return None
    state = JobState[name]
    pattern = _STREAM if state is JobState.ready else _INDEX
    if place and not pattern.fullmatch(place):
        return None
    return state, place
