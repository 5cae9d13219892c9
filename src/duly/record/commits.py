"""
Group commit: what piles up while one transaction is under way is committed together by the next.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from duly.group import Group

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from contextlib import AbstractAsyncContextManager

    from sqlalchemy import Connection

    from duly.record.database import Database

Item = TypeVar("Item")
Answer = TypeVar("Answer")

Run: TypeAlias = "Callable[[Connection, list[Item]], Sequence[Answer]]"

AT_ONCE = 500  #: items of one transaction


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
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.transactions = 0  #: committed so far
        self._group: Group[tuple[Kind[Any, Any], Any], Any] = Group(
            self._commit, key=_key, size=_size, max_jobs=AT_ONCE
        )

    async def ask(self, kind: Kind[Item, Answer], item: Item) -> Answer:
        """
        Make a change and wait until it is committed.

        Raises:
            RecordUnavailable, OutcomeUnknown: See `Database.write`.
        """
        return cast("Answer", await self._group.ask((kind, item)))

    async def _commit(self, batch: list[tuple[Kind[Any, Any], Any]]) -> list[Any]:
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

            answers = await self._database.write(work)
            self.transactions += 1
            for kind, mine in places.items():
                if kind.after is not None:
                    await kind.after([answers[place] for place in mine])
        return answers


def _key(item: tuple[Kind[Any, Any], Any]) -> Hashable:
    kind, what = item
    return kind, kind.key(what)


def _size(item: tuple[Kind[Any, Any], Any]) -> int:
    kind, what = item
    return kind.size(what)
