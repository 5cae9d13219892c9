"""
Outcomes to the store: by token, in chunks, however long the store is away.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.group import chunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duly.store import Ending, Finish, Store

log = logging.getLogger("duly.batches")

PER_CALL = 500  #: outcomes in one script call
IN_FLIGHT = 3
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Saver:
    """
    Stores the outcomes of batches.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def save(self, by_verb: Mapping[Ending, Sequence[Finish]]) -> tuple[int, list[Finish]]:
        """
        Store outcomes; how many count, and those that do not because their lease was lost.
        """
        calls = []
        for verb, finishes in by_verb.items():
            by_shard: dict[int, list[Finish]] = {}
            for finish in finishes:
                by_shard.setdefault(finish.lease.shard, []).append(finish)
            for shard, mine in by_shard.items():
                parts = chunks(mine, key=_key, size=_size, max_jobs=PER_CALL)
                calls += [self._send(verb, shard, part) for part in parts]
        stored, lost = 0, []
        for words in await asyncio.gather(*calls):
            stored += sum(word == b"ok" for _, word in words)
            lost += [finish for finish, word in words if word != b"ok"]
        return stored, lost

    async def _send(self, verb: Ending, shard: int, chunk: list[Finish]) -> list[tuple[Finish, bytes]]:
        pause_s = FIRST_PAUSE_S
        async with self._room:
            while True:
                try:
                    words = await self._store.finish(verb, shard, chunk)
                except DulyError as error:
                    # Refused, unreachable or unknown: the same call again is safe, and the leases decide.
                    log.warning("%d outcomes not stored yet: %s", len(chunk), error)
                    await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                    pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                else:
                    return list(zip(chunk, words, strict=True))


def _key(finish: Finish) -> str:
    return finish.lease.key.id


def _size(finish: Finish) -> int:
    return sum(len(part) for part in finish.own if isinstance(part, bytes))
