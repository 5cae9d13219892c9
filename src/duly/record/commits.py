"""
Group commit: what piles up while one transaction is under way is committed together by the next.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar, cast

from duly.group import Group
from duly.pauses import Pauses
from duly.record.database import ANSWERS_WITHIN_S, LOCKED_PAUSE_S, RowsLocked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy import Connection

    from duly.record.database import Database

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Run: TypeAlias = "Callable[[Connection, list[Item]], Sequence[Answer]]"

AT_ONCE = 500  #: items of one transaction
PARTS = 8  #: into which a transaction is cut that met a lock
LATE_S = 0.5  #: after which others pass by a transaction, where there may be another one beside it
ALONE = 3  #: items at most that try at once whether they are still locked: others need connections, too


@dataclass(frozen=True, slots=True, eq=False)
class Kind(Generic[Item, Answer]):
    """
    One sort of change: how many of them are made at once, on a connection.  It may be run more than once.
    """

    run: Run[Item, Answer]
    key: Callable[[Item], Hashable]  #: items of the same key go one after another
    size: Callable[[Item], int]
    #: What is done with the answers once they are committed, before anybody is told.  All at once, and before
    #: the next transaction: callers that go on together come back together, so that groups stay large.
    after: Callable[[Sequence[Answer]], Awaitable[object]] | None = None
    #: Asked before the transaction what to run instead of `run`; left when what follows the commit is done.
    around: Callable[[list[Item]], AbstractAsyncContextManager[Run[Item, Answer]]] | None = None


class Commits:
    """
    Changes of every kind, sharing transactions.

    Each kind is run once in a transaction, on all of its items; the kinds in the order of their first items.

    An item that needs what a transaction of a user has locked waits by itself, and keeps up no other.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.transactions = 0  #: committed so far
        self._alone = asyncio.Semaphore(ALONE)
        self._group: Group[tuple[Kind[Any, Any], Any], Any] = Group(
            self._commit,
            key=_key,
            size=_size,
            max_jobs=AT_ONCE,
            late_s=None if database.name == "sqlite" else LATE_S,
        )

    async def ask(self, kind: Kind[Item, Answer], item: Item) -> Answer:
        """
        Make a change and wait until it is committed.

        Raises:
            RecordUnavailable, OutcomeUnknown: See `Database.write`.
        """
        answer = await self._group.ask((kind, item))
        if isinstance(answer, _Locked):
            answer = await self._commit_alone((kind, item))
        if isinstance(answer, _Failed):
            raise answer.error
        return cast("Answer", answer)

    async def _commit(self, batch: list[tuple[Kind[Any, Any], Any]]) -> list[Any]:
        """
        Commit items, in parts if some of them are locked: which ones, no database tells.

        Returns: the answers, `_Locked` or `_Failed` instead of one where there is none.
        """
        try:
            return await self._try(batch)
        except RowsLocked:
            if len(batch) == 1:
                return [_Locked()]
        answers: list[Any] = []
        each = -(-len(batch) // PARTS)
        for at in range(0, len(batch), each):
            part = batch[at : at + each]
            try:
                answers += await self._commit(part)
            except Exception as error:  # noqa: BLE001  # other parts are committed, and theirs are told so
                answers += [_Failed(error)] * len(part)
        return answers

    async def _commit_alone(self, item: tuple[Kind[Any, Any], Any]) -> Any:
        """
        Commit an item that was locked, as soon as it is not.

        Raises:
            RowsLocked: It was for too long.
        """
        until_s = time.monotonic() + ANSWERS_WITHIN_S
        pauses = Pauses(LOCKED_PAUSE_S / 10, LOCKED_PAUSE_S)
        while True:
            await asyncio.sleep(pauses.take())
            async with self._alone:
                try:
                    [answer] = await self._try([item])
                except RowsLocked:
                    if time.monotonic() > until_s:
                        raise
                else:
                    return answer

    async def _try(self, batch: list[tuple[Kind[Any, Any], Any]]) -> list[Any]:
        places: dict[Kind[Any, Any], list[int]] = {}
        for place, (kind, _) in enumerate(batch):
            places.setdefault(kind, []).append(place)
        async with AsyncExitStack() as stack:
            runs: list[tuple[Run[Any, Any], list[int]]] = []
            for kind, mine in places.items():
                run = kind.run
                if kind.around is not None:
                    around = kind.around([batch[place][1] for place in mine])
                    run = await stack.enter_async_context(around)
                runs.append((run, mine))

            def work(connection: Connection) -> list[Any]:
                answers: list[Any] = [None] * len(batch)
                for run, mine in runs:
                    told = run(connection, [batch[place][1] for place in mine])
                    for place, answer in zip(mine, told, strict=True):
                        answers[place] = answer
                return answers

            answers = await self._database.write(work, wait=False)
            self.transactions += 1
            for kind, mine in places.items():
                if kind.after is not None:
                    await kind.after([answers[place] for place in mine])
        return answers


class _Locked:
    """
    Said of an item that needs what somebody else has locked: its caller waits for that.
    """


class _Failed(NamedTuple):
    """
    Why an item was not committed, while others of its batch were.
    """

    error: Exception


def _key(item: tuple[Kind[Any, Any], Any]) -> Hashable:
    kind, what = item
    return kind, kind.key(what)


def _size(item: tuple[Kind[Any, Any], Any]) -> int:
    kind, what = item
    return kind.size(what)
