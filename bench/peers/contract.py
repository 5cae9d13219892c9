"""
What every system is asked for.

A file in `systems` has `ABOUT`, `commands()` and a class `Producer`; its handler only calls `ran(n)`.  This
module is imported in the environment of each system, so it needs the standard library only.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

URL = os.environ.get("PEERS_URL", "")  #: the server, set by the driver
BEST = os.environ.get("PEERS_PROFILE") == "best"  #: the best documented settings instead of the defaults
PAD = "x" * 79  #: with the number of the job, about 100 bytes of JSON
BATCH = 1_000  #: jobs in one call, where the caller of a bulk call has to choose
IN_FLIGHT = (
    50  #: calls at once, where there is no bulk call; clients have pools of 100 connections by default
)

RECORD = struct.Struct("<qdq")  #: number of the job, time of its start in seconds, number of the worker

Item = TypeVar("Item")

_ledger: int | None = None
_worker = int(os.environ.get("PEERS_WORKER", "0"))


def ran(n: int) -> None:
    """
    Note that job *n* has started: the whole work of a handler.

    Appending 24 bytes to a file is atomic and costs one or two microseconds, in every system alike.
    """
    global _ledger  # noqa: PLW0603  # opened once in each process, whoever starts it
    if _ledger is None:
        _ledger = os.open(os.environ["PEERS_LEDGER"], os.O_WRONLY | os.O_APPEND)
    os.write(_ledger, RECORD.pack(n, time.time(), _worker))


def batches(items: Sequence[Item], size: int = BATCH) -> Iterator[Sequence[Item]]:
    """
    Cut *items* into pieces.
    """
    return (items[at : at + size] for at in range(0, len(items), size))


async def side_by_side(send: Callable[[Item], Awaitable[Any]], items: Sequence[Item]) -> None:
    """
    Send all *items*, `IN_FLIGHT` at a time: what is left to a user where there is no bulk call.
    """
    turn = iter(items)

    async def take_turns() -> None:
        for item in turn:
            await send(item)

    await asyncio.gather(*(take_turns() for _ in range(IN_FLIGHT)))


@dataclass(frozen=True)
class Settings:
    """
    What is set, in words, and the pages of the documentation that say so.
    """

    words: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class About:
    """
    What a reader has to know of a system to judge its figures.
    """

    name: str
    packages: tuple[str, ...]  #: whose versions are told
    default: Settings
    best: Settings
    bulk: str  #: how many jobs are sent
    delays: str  #: how a job is delayed
    crash: str  #: what becomes of a job whose worker is killed
    lacks: dict[str, str] = field(default_factory=dict)  #: by figure, what its cell says of a missing feature


@dataclass(frozen=True)
class Commands:
    """
    What starts one worker, and what runs once beside all workers, if anything.

    `{worker}` in a word stands for the number of the worker.
    """

    worker: list[str]
    beside: list[str] | None = None


class Producer(Protocol):
    """
    Sends jobs.

    The three verbs are plain or async functions, and return once the server has accepted the jobs.
    """

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *error: object) -> None: ...

    def enqueue(self, n: int) -> Awaitable[None] | None:
        """
        Send job *n*, to run now.
        """

    def enqueue_many(self, numbers: Sequence[int]) -> Awaitable[None] | None:
        """
        Send many jobs, to run now, in the best documented way.
        """

    def schedule(self, jobs: Sequence[tuple[int, int]]) -> Awaitable[None] | None:
        """
        Send jobs with their due times, in milliseconds since 1970.
        """


class Blocking:
    """
    What a producer without an event loop has to open and close: nothing.
    """

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *error: object) -> None:
        pass
