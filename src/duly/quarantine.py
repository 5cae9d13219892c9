"""
Jobs in quarantine as people and programs see them: their names, and what can still be read of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from duly.durations import say_time
from duly.errors import JobNotFound
from duly.events import Verb, rows_of
from duly.feed import Feed
from duly.job import JobKey, JobState, moment, shard_of
from duly.records import HEAD, head_of
from duly.views import check_cursor, check_keys, check_limit, wrong_cursor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from duly.store import Store

LOOKED_AT = 500  #: the newest script calls of a shard, in which it is looked for when a job was put aside
STEP = 100
TEXT_CHARS, WORD_CHARS = 2_000, 4

_CURSOR = re.compile("([0-9]{1,5}):([0-9]{1,20})")  #: a shard, and where its scan goes on


class QuarantinedDocument(msgspec.Struct, kw_only=True):
    """
    A stored job that cannot be read.
    """

    topic: str
    id: str
    shard: int
    bytes: int  #: of what is stored of it, without a body that is kept apart
    since: str | None  #: when it was put aside; null if that was long ago


class QuarantinedContent(QuarantinedDocument, kw_only=True):
    """
    A stored job that cannot be read, and what may still be true of it.
    """

    state: str | None
    attempts: int | None
    crashes: int | None
    revision: int | None
    text: str  #: what looks like text in it
    record: bytes  #: all that is stored, as base64
    body: bytes  #: likewise, where it is kept apart


class Quarantine(Protocol):
    """
    The jobs in quarantine, wherever they are asked for.
    """

    async def size(self) -> int:
        """
        Return how many there are.
        """

    async def page(
        self, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[QuarantinedDocument], str | None]:
        """
        Return some of them and where to go on; a page may be empty and still have a cursor.
        """

    async def content(self, key: JobKey) -> QuarantinedContent:
        """
        Return all that is known of one.
        """

    async def drop(self, keys: Sequence[JobKey]) -> list[bool]:
        """
        Remove some for good; False for each that was not there.
        """

    async def drop_all(self) -> int:
        """
        Remove them all for good; return how many they were.
        """


class StoreQuarantine:
    """
    The quarantine of a store.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def size(self) -> int:
        """
        Return how many jobs there are.
        """
        return sum(await self._store.quarantine_sizes())

    async def page(
        self, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[QuarantinedDocument], str | None]:
        """
        Return about *limit* of them and where to go on; a page may be empty and still have a cursor.
        """
        return await quarantine_page(self._store, cursor, limit)

    async def content(self, key: JobKey) -> QuarantinedContent:
        """
        Return all that is known of one.

        Raises:
            JobNotFound: It is not there.
        """
        return await quarantined_content(self._store, key)

    async def drop(self, keys: Sequence[JobKey]) -> list[bool]:
        """
        Remove some for good; False for each that was not there.
        """
        shards = self._store.shards
        return [(await self._store.drop(shard_of(*key, shards), [key.member]))[0] for key in check_keys(keys)]

    async def drop_all(self) -> int:
        """
        Remove them all for good, also those with names that no job can have; return how many they were.
        """
        dropped = 0
        for shard in range(self._store.shards):
            cursor = "0"
            while True:
                cursor, found = await self._store.quarantined(shard, cursor)
                dropped += sum(await self._store.drop(shard, [member for member, _ in found]))
                if cursor == "0":
                    break
        return dropped


async def quarantined(found: Quarantine) -> AsyncIterator[list[QuarantinedDocument]]:
    """
    Every job in quarantine, some at a time.
    """
    cursor: str | None = None
    while True:
        page, cursor = await found.page(cursor)
        yield page
        if cursor is None:
            return


async def quarantine_page(
    store: Store, cursor: str | None, limit: int
) -> tuple[list[QuarantinedDocument], str | None]:
    """
    About *limit* jobs in quarantine, and where to go on; a page may be empty and still have a cursor.

    Raises:
        UsageError: The cursor is not one of this list.
    """
    cursor, limit = check_cursor(cursor), check_limit(limit)
    place = _CURSOR.fullmatch("0:0" if cursor is None else cursor)
    if place is None or not (int(place[1]) < store.shards and int(place[2]) < 2**64):
        raise wrong_cursor(cursor)
    shard = int(place[1])
    after, found = await store.quarantined(shard, place[2], limit)
    if after == "0":
        following = f"{shard + 1}:0" if shard + 1 < store.shards else None
    else:
        following = f"{shard}:{after}"
    return await _documents(store, shard, found), following


async def quarantined_content(store: Store, key: JobKey) -> QuarantinedContent:
    """
    All that is known of one job in quarantine.

    Raises:
        JobNotFound: It is not there.
    """
    check_keys([key])
    found = await store.quarantined_job(key)
    if found is None:
        raise JobNotFound(f"{key} is not in quarantine")
    record, body = found
    [document] = await _documents(store, shard_of(*key, store.shards), [(key.member.encode(), record)])
    return QuarantinedContent(
        **msgspec.structs.asdict(document), **readable_parts(record, body), record=record, body=body
    )


def readable_parts(record: bytes, body: bytes = b"") -> dict[str, Any]:
    """
    What may still be true of a damaged record: state and numbers where they would stand, and text.
    """
    parts: dict[str, Any] = dict.fromkeys(("state", "attempts", "crashes", "revision"))
    if record and record[0] & 7 <= JobState.cancelled:
        parts["state"] = JobState(record[0] & 7).name
        # What was cut off reads as zero; a number of which a byte is missing is not told.
        head, end = head_of(record.ljust(HEAD.size, b"\0"))
        whole = len(record) >= end
        if head.mark & 64 and len(record) >= 5:
            parts |= {"attempts": head.attempts, "crashes": head.crashes}
        if whole and head.revision < 2**53:
            parts["revision"] = head.revision
    parts["text"] = " … ".join([*_texts(record), *_texts(body)])[:TEXT_CHARS]
    return parts


def _texts(data: bytes) -> list[str]:
    shown = data[: 4 * TEXT_CHARS].decode(errors="replace").replace("\N{REPLACEMENT CHARACTER}", "\0")
    words = "".join(char if char.isprintable() else "\0" for char in shown).split("\0")
    return [word for word in words if len(word) >= WORD_CHARS]


async def _documents(
    store: Store, shard: int, found: Iterable[tuple[bytes, bytes]]
) -> list[QuarantinedDocument]:
    # Not every program that writes into our keys writes text.
    sizes = {member.decode(errors="backslashreplace"): len(record) for member, record in found}
    times = await _put_aside_at(store, shard, set(sizes)) if sizes else {}
    documents = []
    for member, size in sizes.items():
        key, at = JobKey.of(member), moment(times.get(member))
        documents.append(
            QuarantinedDocument(
                topic=key.topic, id=key.id, shard=shard, bytes=size, since=say_time(at) if at else None
            )
        )
    return documents


async def _put_aside_at(store: Store, shard: int, members: set[str]) -> dict[str, int]:
    """
    When jobs were put aside, for those whose event is among the newest.
    """
    times: dict[str, int] = {}
    feed = Feed(store)
    before: int | None = None
    for _ in range(0, LOOKED_AT, STEP):
        entries = await feed.before(shard, before, STEP)
        for entry in entries:
            if any(verb is Verb.quarantined for verb, _ in entry.counts):
                for row in rows_of(entry):
                    if row.verb is Verb.quarantined and row.key.member in members:
                        times.setdefault(row.key.member, entry.at_ms)
        if len(entries) < STEP or len(times) == len(members):
            break
        before = entries[-1].offset.counter
    return times


def hex_lines(data: bytes, most: int = 4_096) -> list[str]:
    """
    Bytes as people look at them: place, numbers, letters; the first *most* of them.
    """
    lines = []
    for at in range(0, min(len(data), most), 16):
        part = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):<23}  {part[8:].hex(' '):<23}  |{letters}|")
    return lines
