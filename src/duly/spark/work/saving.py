"""
Outcomes to the store: by token, in chunks, however long the store is away.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.group import MAX_BYTES
from duly.pauses import Pauses
from duly.services.saving import TRIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from duly.store import Ending, Finish, Store

log = logging.getLogger("duly.batches")

PER_CALL = 500  #: outcomes in one script call
IN_FLIGHT = 3


class Saver:
    """
    Stores the outcomes of batches.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._room = asyncio.Semaphore(IN_FLIGHT)

    async def save(self, by_verb: Mapping[Ending, Sequence[Finish]]) -> tuple[int, list[Finish]]:
        """
        Store outcomes; how many count, and those that do not: lost with their lease, or refused.
        """
        calls = []
        for verb, finishes in by_verb.items():
            by_shard: dict[int, list[Finish]] = {}
            for finish in finishes:
                by_shard.setdefault(finish.lease.shard, []).append(finish)
            for shard, mine in by_shard.items():
                calls += [self._send(verb, shard, part) for part in _parts(mine)]
        stored, lost = 0, []
        for chunk, words in await asyncio.gather(*calls):
            ok = words.count(b"ok")
            stored += ok
            if ok < len(words):
                lost += [finish for finish, word in zip(chunk, words, strict=True) if word != b"ok"]
        return stored, lost

    async def _send(
        self, verb: Ending, shard: int, chunk: list[Finish]
    ) -> tuple[list[Finish], list[bytes | DulyError]]:
        pauses, tries = Pauses(), 0
        async with self._room:
            while True:
                try:
                    words = await self._store.finish(verb, shard, chunk)
                except DulyError as error:
                    # Unreachable or unknown: the same call again is safe, and the leases decide.
                    log.warning("%d outcomes not stored yet: %s", len(chunk), error)
                    await asyncio.sleep(pauses.take())
                    continue
                refused = [word for word in words if isinstance(word, DulyError)]
                tries += 1
                if not refused:
                    return chunk, words
                if tries == TRIES:
                    log.critical(
                        "the server refuses %d outcomes, whose jobs run again: %s", len(refused), refused[0]
                    )
                    return chunk, words
                await asyncio.sleep(pauses.take())


def _parts(finishes: list[Finish]) -> Iterator[list[Finish]]:
    """
    Cut outcomes of different jobs into what one script call may take.
    """
    begin = size = 0
    for at, (_, _, own) in enumerate(finishes):
        more = sum([len(part) for part in own if type(part) is bytes])
        if at - begin == PER_CALL or (size + more > MAX_BYTES and at > begin):
            yield finishes[begin:at]
            begin, size = at, 0
        size += more
    if finishes:
        yield finishes[begin:]
