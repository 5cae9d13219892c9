"""
Idempotency keys in the record: the entry of a request and the row of its job are committed together.

Of a batch there is a row for every 125 lines, so that each is as small as an entry.
"""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, literal_column, select, update

from duly.errors import JobExists, OutcomeUnknown, QueueFull
from duly.idempotency import (
    LINE_BYTES,
    Entries,
    Entry,
    KeyReused,
    Used,
    fill_of,
    lines_of,
    new_entry,
    no_room,
    owner_of,
    part_of,
    read_entry,
    same_line,
    same_request,
    write_entry,
)
from duly.record.batches import statement
from duly.record.dialects import delete_rows, dialect_of, insert_absent
from duly.record.tables import idempotency
from duly.record.writes import Wanted, Written
from duly.store.answers import full
from duly.store.requests import OWNER_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Connection

    from duly.job import Once
    from duly.record.clock import Clock, Moment
    from duly.record.database import Database
    from duly.store import Store

EVERY_S = 60.0
AT_ONCE = 500  #: rows of one transaction
LINES = 125  #: of a batch that a row has
SINCE_BYTES = 8  #: in front of the lines: when the batch came first
ROW_BYTES = 256  #: that a row takes beside what it keeps: its name, its times, its places in two indexes
ANSWER_BYTES = 128  #: that is kept of a request, its answer included: what it usually takes
COUNT_S = 60.0  #: how long a count of all rows is good enough
RECOUNT_S = 1.0  #: and how long at least, where some of them have gone since


class KeptEntries(Entries):
    """
    The entries of a namespace as the record has them: each is written with its job, and has its answer.
    """

    def __init__(self, database: Database, store: Store, clock: Clock, *, keep_ms: int, most: int) -> None:
        super().__init__(store, keep_ms=keep_ms, most=most)
        self._namespace = store.namespace
        self._database = database
        self._clock = clock
        self._taken: dict[str, int] = {}  #: bytes, by the owner, as far as is known here
        self._reserved: dict[
            str, int
        ] = {}  #: of these, by the name: those of entries that are not written yet
        self._first_ms: dict[str, int] = {}  #: when the first row of each is forgotten
        self._counted_s = -COUNT_S
        self._counting = asyncio.Lock()

    async def reserve(self, name: str, digest: bytes) -> Entry:
        """
        Find the entry that stands, or make one; it is kept once the job is written.

        Raises:
            KeyReused: It is of another request.
            KeysFull: There is no room for another one.
            RecordUnavailable: The database cannot be reached.
        """
        look = partial(_standing, namespace=self._namespace, names=[name], now_ms=self._clock.now().floor_ms)
        found = (await self._database.read(look)).get(name)
        if found is not None:
            return same_request(found, digest)
        if name not in self._reserved:  # one that is sent again meanwhile is the same row
            await self._take_room(name, ROW_BYTES + ANSWER_BYTES)
            self._reserved[name] = ROW_BYTES + ANSWER_BYTES
        return new_entry(digest)

    async def answer(self, name: str, entry: Entry) -> None:  # noqa: ARG002  # the record has what it says
        """
        Note that the entry is written: its answer was committed with the job.
        """
        self._reserved.pop(name, None)

    def give_up(self, name: str) -> None:
        """
        Give back the room of an entry whose job was not written, so that it was not either.
        """
        self._give_back(name, self._reserved.pop(name, 0), self._counted_s)

    async def lines(self, name: str, first: int, digests: Sequence[bytes]) -> tuple[int, list[bytes]]:
        """
        Note lines of a batch, from the place *first* on.

        Returns: when the batch came first, 0 if that is now; and what was noted of the lines before.

        Raises:
            KeysFull: There is no room for more lines.
            RecordUnavailable: The database cannot be reached.
        """
        lines = Lines(Batch(self._namespace, name), first, digests)
        now_ms = self._clock.now().floor_ms
        # Of a batch that is sent again most lines, or all, were noted before.
        missing = await self._database.read(partial(_missing_bytes, lines=lines, now_ms=now_ms))
        if missing:
            await self._take_room(name, missing)
        counted_s = self._counted_s
        note = partial(_note_lines, lines=lines, now_ms=now_ms, until_ms=now_ms + self.keep_ms)
        try:
            since_ms, noted, added = await self._database.write(note)
        except OutcomeUnknown:  # the next count knows
            raise
        except Exception:
            self._give_back(name, missing, counted_s)
            raise
        self._give_back(name, missing - added, counted_s)
        return since_ms, noted

    async def stored(self, name: str, first: int, digests: Sequence[bytes]) -> None:
        """
        Note of lines from the place *first* on which of their jobs were stored.
        """
        mark = partial(_mark_lines, batch=Batch(self._namespace, name), first=first, digests=digests)
        await self._database.write(mark)

    async def used(self, callers: Iterable[str]) -> Used:
        """
        Return how much is taken, and how far each of *callers* has come with its share.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        async with self._counting:
            await self._count()
        taken = sum(self._taken.values())
        fills = {
            caller: fill_of(self._taken.get(owner_of(caller), 0), taken, self.most) for caller in callers
        }
        return Used(taken, fills)

    async def _take_room(self, name: str, added: int) -> None:
        """
        Count bytes that are about to be written.

        Raises:
            KeysFull: Their caller would have more than is left for others.
            RecordUnavailable: The database cannot be reached.
        """
        owner = name[:OWNER_CHARS]
        async with self._counting:
            await self._count()
            if not self._has_room(owner, added) and self._wait_ms(owner) <= 0:
                await self._count(RECOUNT_S)  # what was counted is forgotten, in part at least
        if not self._has_room(owner, added):
            raise no_room(self.most, max(self._wait_ms(owner), 1))
        self._taken[owner] = self._taken.get(owner, 0) + added
        self._first_ms.setdefault(owner, self._clock.now().floor_ms + self.keep_ms)

    def _has_room(self, owner: str, added: int) -> bool:
        return self._taken.get(owner, 0) + added <= self.most - sum(self._taken.values()) - added

    def _wait_ms(self, owner: str) -> int:
        """
        Until the first of an owner's rows is forgotten, or of everybody's if it has none.
        """
        now_ms = self._clock.now().floor_ms
        first_ms = self._first_ms.get(owner) or min(self._first_ms.values(), default=now_ms + self.keep_ms)
        return first_ms - now_ms

    def _give_back(self, name: str, added: int, counted_s: float) -> None:
        if counted_s == self._counted_s:  # another count has what was written, and nothing else
            owner = name[:OWNER_CHARS]
            self._taken[owner] = self._taken.get(owner, 0) - added

    async def _count(self, every_s: float = COUNT_S) -> None:
        """
        Count all rows, once in a while: what other processes write meanwhile is beyond the bound.
        """
        if time.monotonic() - self._counted_s <= every_s:
            return
        of, length = idempotency.c, func.length(idempotency.c.about)
        owner = func.substr(of.name, literal_column("1"), literal_column(str(OWNER_CHARS)))
        count = (
            select(owner, func.sum(length + literal_column(str(ROW_BYTES))), func.min(of.until_ms))
            .where(of.namespace == self._namespace, of.until_ms > self._clock.now().floor_ms)
            .group_by(owner)
        )
        found = await self._database.read(lambda connection: connection.execute(count).all())
        self._taken = {name: int(taken) for name, taken, _ in found}
        self._first_ms = {name: first_ms for name, _, first_ms in found}
        self._reserved = {}
        self._counted_s = time.monotonic()


class Batch(NamedTuple):
    """
    The rows of a batch.
    """

    namespace: str
    name: str

    def row(self, number: int) -> str:
        """
        The name of the row for some lines.
        """
        if number == 0:
            return self.name
        return self.name[:OWNER_CHARS] + part_of(f"{self.name}\0{number}")

    def parts(self, first: int, digests: Sequence[bytes]) -> Iterator[tuple[str, int, bytes]]:
        """
        Lines by the rows that have them: the name of each, the byte where they begin there, and the lines.
        """
        at = 0
        while at < len(digests):
            number, place = divmod(first + at, LINES)
            some = digests[at : at + LINES - place]
            yield self.row(number), place * LINE_BYTES, b"".join(some)
            at += len(some)


class Lines(NamedTuple):
    """
    Some lines of a batch, from the place *first* on, and how its rows have them.
    """

    batch: Batch
    first: int
    digests: Sequence[bytes]

    def rows(self) -> list[str]:
        """
        The names of the rows that have them, and of the first one.
        """
        return sorted({self.batch.row(0), *(name for name, _, _ in self.parts())})

    def parts(self) -> list[tuple[str, int, bytes]]:
        """
        See `Batch.parts`.
        """
        return list(self.batch.parts(self.first, self.digests))

    def before(self, kept: Mapping[str, bytes]) -> list[bytes]:
        """
        What *kept* rows have of them, by the parts.
        """
        return [
            kept.get(name, b"")[SINCE_BYTES + place :][: len(lines)] for name, place, lines in self.parts()
        ]

    def added(self, kept: Mapping[str, bytes]) -> int:
        """
        Return how many bytes they add to *kept* rows: none, if the batch is refused.
        """
        before = self.before(kept)
        if not self.first and not all(map(same_line, lines_of(b"".join(before)), self.digests)):
            return 0
        rows = sum(name not in kept for name in self.rows())
        lines = len(self.digests) * LINE_BYTES - sum(map(len, before))
        return rows * (ROW_BYTES + SINCE_BYTES) + lines


def _missing_bytes(connection: Connection, lines: Lines, now_ms: int) -> int:
    look = select(idempotency.c.name, idempotency.c.about).where(
        *_named(lines.batch.namespace, lines.rows()), idempotency.c.until_ms > now_ms
    )
    return lines.added({name: bytes(about) for name, about in connection.execute(look)})


def _note_lines(
    connection: Connection, lines: Lines, now_ms: int, until_ms: int
) -> tuple[int, list[bytes], int]:
    """
    Note lines that are not noted.

    Returns: when the batch came first, what was noted before, and the bytes that were added.
    """
    batch, names = lines.batch, lines.rows()
    _forget(connection, batch.namespace, names, now_ms)
    # The first row says when the batch came, and until when its key counts.
    head = select(idempotency.c.until_ms).where(*_named(batch.namespace, [batch.row(0)]))
    until_ms = connection.scalar(head) or until_ms
    new = now_ms.to_bytes(SINCE_BYTES)
    rows = [
        {"namespace": batch.namespace, "name": name, "about": new, "until_ms": until_ms} for name in names
    ]
    # Whoever sends the same meanwhile waits here until this transaction is committed.
    insert_absent(connection, idempotency, rows)
    found = _locked(connection, batch.namespace, names)
    kept = {name: about for name, about in found.items() if about != new}
    before, added = lines.before(kept), lines.added(kept)
    if added:
        for (name, _, some), was in zip(lines.parts(), before, strict=True):
            if len(was) < len(some):
                _write(connection, batch.namespace, name, found[name] + some[len(was) :])
    elif made := [name for name in names if name not in kept]:
        # Of a batch that is refused nothing is kept.
        delete_rows(connection, idempotency, {"namespace": batch.namespace}, "name", made)
    came = found[batch.row(0)]
    since_ms = 0 if came == new else int.from_bytes(came[:SINCE_BYTES])
    return since_ms, lines_of(b"".join(before)), added


def _mark_lines(connection: Connection, batch: Batch, first: int, digests: Sequence[bytes]) -> None:
    parts = list(batch.parts(first, digests))
    kept = _locked(connection, batch.namespace, sorted(name for name, _, _ in parts))
    for name, place, lines in parts:
        if (was := kept.get(name)) is not None:
            from_ = SINCE_BYTES + place
            _write(connection, batch.namespace, name, was[:from_] + lines + was[from_ + len(lines) :])


def _locked(connection: Connection, namespace: str, names: Sequence[str]) -> dict[str, bytes]:
    """
    What rows have; nobody else changes them until the transaction is over.
    """
    if dialect_of(connection) == "mysql":
        told = {"namespace": namespace, "names": json.dumps(names)}
        found = connection.execute(statement("entries", "mysql"), told)
    else:
        look = select(idempotency.c.name, idempotency.c.about).where(*_named(namespace, names))
        found = connection.execute(look.order_by(idempotency.c.name).with_for_update())
    return {name: bytes(about) for name, about in found}


def _write(connection: Connection, namespace: str, name: str, about: bytes) -> None:
    connection.execute(update(idempotency).where(*_named(namespace, [name])).values(about=about))


class Expiry:
    """
    Takes away entries whose time is over.
    """

    every_s = EVERY_S

    def __init__(self, database: Database, namespace: str, clock: Clock) -> None:
        self._database = database
        self._namespace = namespace
        self._clock = clock

    async def run_once(self) -> int:
        """
        Take away some of them; how many.

        Raises:
            RecordUnavailable: The database cannot be reached.
        """
        now_ms = self._clock.now().floor_ms
        past = (idempotency.c.namespace == self._namespace, idempotency.c.until_ms <= now_ms)
        look = select(idempotency.c.name).where(*past).limit(AT_ONCE)
        if not await self._database.read(lambda connection: connection.scalars(look).all()):
            return 0

        def drop(connection: Connection) -> int:
            # What somebody has locked is gone when its turn comes again.
            names = connection.scalars(look.with_for_update(skip_locked=True)).all()
            delete_rows(connection, idempotency, {"namespace": self._namespace}, "name", names)
            return len(names)

        return await self._database.write(drop)


def accept_once(
    connection: Connection,
    namespace: str,
    wanted: Sequence[Wanted],
    now: Moment,
    accept: Callable[[Connection, Sequence[Wanted]], Sequence[Written]],
) -> list[Written]:
    """
    Promise jobs by *accept*, but none for a request whose entry stands: that one gets its first answer again.
    """
    keyed = {name: each for each in reversed(wanted) if (name := _entry(each)) is not None}
    if not keyed:
        return list(accept(connection, wanted))
    answered = _reserved(connection, namespace, keyed, now)
    mine = [
        each
        for each in wanted
        if (name := _entry(each)) is None or (keyed[name] is each and name not in answered)
    ]
    written = dict(zip(map(id, mine), accept(connection, mine) if mine else (), strict=True))
    for each in mine:
        name, answer = _entry(each), written[id(each)].answer
        if name is None:
            continue
        if isinstance(answer, QueueFull):  # there may be room when it is sent again
            continue
        answered[name] = _made(each).with_answer(answer)
        _write(connection, namespace, name, write_entry(answered[name]))
    return [written.get(id(each)) or _again(each, answered) for each in wanted]


def _reserved(
    connection: Connection, namespace: str, keyed: dict[str, Wanted], now: Moment
) -> dict[str, Entry]:
    """
    Write entries for requests that have none, and return those that have an answer, or are of others.
    """
    names = sorted(keyed)
    _forget(connection, namespace, names, now.floor_ms)
    rows = [
        {
            "namespace": namespace,
            "name": name,
            "about": write_entry(_made(keyed[name])),
            "until_ms": now.floor_ms + _once(keyed[name]).keep_ms,
        }
        for name in names
    ]
    # Whoever sends the same meanwhile waits here until this transaction is committed.
    insert_absent(connection, idempotency, rows)
    found = {name: read_entry(about) for name, about in _locked(connection, namespace, names).items()}
    return {
        name: entry
        for name, entry in found.items()
        if entry.answered or entry.digest != _once(keyed[name]).digest
    }


def _forget(connection: Connection, namespace: str, names: Sequence[str], now_ms: int) -> None:
    """
    Delete those entries whose time is over, of which there are few: the others are only looked at.
    """
    past = select(idempotency.c.name).where(*_named(namespace, names), idempotency.c.until_ms <= now_ms)
    gone = connection.scalars(past).all()
    delete_rows(connection, idempotency, {"namespace": namespace}, "name", gone, until_ms=now_ms)


def _standing(connection: Connection, namespace: str, names: Sequence[str], now_ms: int) -> dict[str, Entry]:
    look = select(idempotency.c.name, idempotency.c.about).where(
        *_named(namespace, names), idempotency.c.until_ms > now_ms
    )
    return {name: read_entry(bytes(about)) for name, about in connection.execute(look)}


def _named(namespace: str, names: Sequence[str]) -> tuple[ColumnElement[bool], ...]:
    return idempotency.c.namespace == namespace, idempotency.c.name.in_(names)


def _entry(wanted: Wanted) -> str | None:
    once = wanted.order.once
    return once.entry or None if once is not None else None


def _once(wanted: Wanted) -> Once:
    once = wanted.order.once
    assert once is not None  # noqa: S101  # it has an entry
    return once


def _made(wanted: Wanted) -> Entry:
    return Entry(_once(wanted).digest, wanted.order.key.id, wanted.request)


def _again(wanted: Wanted, answered: dict[str, Entry]) -> Written:
    """
    The first answer; that of a twin that found no room, for one that shared its transaction.
    """
    once = _once(wanted)
    entry = answered.get(once.entry)
    if entry is None:
        return Written(full(wanted.order.key))
    try:
        same_request(entry, once.digest)
    except KeyReused as error:
        return Written(error)
    if entry.placed is None:
        return Written(JobExists(entry.refused or ""))
    return Written(entry.placed)
