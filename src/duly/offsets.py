"""
Places in the events of all shards, as one text: what a reader keeps to go on after a restart.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.errors import UsageError
from duly.events import Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = 0xFFFFFFFF  #: every row of an entry


class Place(NamedTuple):
    """
    How far somebody has read in one shard: an entry, and how many of its rows.
    """

    offset: Offset
    rows: int = ALL


Places = list[Place | None]


def write_places(places: Sequence[Place | None]) -> str:
    """
    Places as a text: opaque, and all that is needed to go on.
    """
    told = [
        None
        if place is None
        else (place.offset.counter, place.rows, bytes.fromhex(place.offset.nonce), place.offset.epoch)
        for place in places
    ]
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(told)).decode().rstrip("=")


def check_places(text: str, what: str) -> None:
    """
    Check that a text is one that `write_places` made.

    Raises:
        UsageError: It is none of ours.
    """
    _read(text, what)


def read_places(text: str, shards: int, what: str = "Last-Event-ID") -> Places:
    """
    Places from their text, which the caller was given as *what*.

    Raises:
        UsageError: It is none of ours.
    """
    told = _read(text, what)
    if len(told) != shards:
        raise UsageError(f"{what} is of a queue with {len(told)} shards, and this one has {shards}")
    return [
        None if each is None else Place(Offset(each[3], each[0], each[2].hex()), each[1]) for each in told
    ]


def _read(text: str, what: str) -> list[tuple[int, int, bytes, str] | None]:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        told = msgspec.msgpack.decode(data, type=list[tuple[int, int, bytes, str] | None])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise UsageError(f"{what} is not an id that a stream of events gave") from None
    if any(each and not (0 < each[0] < 2**63 and 0 <= each[1] <= ALL) for each in told):
        raise UsageError(f"{what} is not an id that a stream of events gave")
    return told
