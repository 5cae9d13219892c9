"""
Cursors: where a list goes on, as one word that needs no escaping in a query.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

from duly.http.grammar import CURSOR_PATTERN
from duly.job import ID, TOPIC, JobState, Lane

_WORD = re.compile(CURSOR_PATTERN)
SCHEMA = {"type": "string", "pattern": CURSOR_PATTERN, "maxLength": 1200}

# What a page says: a shard, and behind which entry of an index or of a stream to go on; with a record, before
# that, behind which row.  A topic without an id stands in front of all its jobs.
_KEY = f"{TOPIC.pattern}/(?:{ID.pattern})?"
_INDEX = re.compile(rf"(?:record:-?[0-9]{{1,18}} (?:{_KEY}|/) )?[0-9]{{1,5}}:(?:[0-9]{{1,17}} {_KEY})?")
_LANES = "|".join(lane.name for lane in Lane)
_STREAM = re.compile(rf"[0-9]{{1,5}}:(?:{TOPIC.pattern} (?:{_LANES}) [0-9]{{1,18}}-[0-9]{{1,18}})?")


class Cursor(NamedTuple):
    """
    Where a list goes on: in a state, behind a place, of one topic where the list goes topic by topic.
    """

    state: JobState
    place: str  #: empty for the beginning
    topic: str | None = None


def write(state: JobState, place: str, topic: str | None = None) -> str:
    """
    The cursor of a page in one state; an empty place is its beginning, or that of *topic*.
    """
    name = state.name if topic is None else f"{state.name}@{topic}"
    return base64.urlsafe_b64encode(f"{name}!{place}".encode()).decode().rstrip("=")


def read(cursor: str) -> Cursor | None:
    """
    What a cursor stands for, None if it is none of ours, or names another topic than the one it is about.
    """
    if not _WORD.fullmatch(cursor):
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, UnicodeDecodeError):
        return None
    head, mark, place = text.partition("!")
    name, of_topic, topic = head.partition("@")
    if not mark or name not in JobState.__members__:
        return None
    state = JobState[name]
    pattern = _STREAM if state is JobState.ready else _INDEX
    if place and not pattern.fullmatch(place):
        return None
    if not of_topic:
        return Cursor(state, place)
    if not TOPIC.fullmatch(topic) or not _topics_in(state, place) <= {topic}:
        return None
    return Cursor(state, place, topic)


def _topics_in(state: JobState, place: str) -> set[str]:
    """
    Return the topics that a place names.
    """
    if state is JobState.ready:
        return {place.partition(":")[2].partition(" ")[0]} - {""}
    return {word.partition("/")[0] for word in place.split(" ") if "/" in word} - {""}
