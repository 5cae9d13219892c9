"""
The last run of each pipeline: when, how many, how long, and what was wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.durations import say_time
from duly.job import moment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duly.store import Store

ERROR_CHARS = 500


class RunDocument(msgspec.Struct, kw_only=True, frozen=True):
    """
    How the last run of a pipeline went.
    """

    name: str
    ended_at: str
    seconds: float
    counts: dict[str, int]
    error: str | None = None  #: what was wrong; null if all went well


class Runs:
    """
    What the first shard remembers of pipelines.
    """

    def __init__(self, store: Store) -> None:
        self._link = store.link
        self._key = store.keys[0].fixed["runs"]

    async def note(
        self, name: str, *, seconds: float, counts: Mapping[str, int], error: str | None = None
    ) -> RunDocument:
        """
        Remember a run that just ended, in place of the one before it.
        """
        time_s, micros = await self._link.call("TIME")
        ended = moment(int(time_s) * 1000 + int(micros) // 1000)
        run = RunDocument(
            name=name,
            ended_at=say_time(ended) if ended else "",
            seconds=round(seconds, 3),
            counts=dict(counts),
            error=None if error is None else error[:ERROR_CHARS],
        )
        await self._link.call("HSET", self._key, name, msgspec.json.encode(run))
        return run

    async def all(self) -> list[RunDocument]:
        """
        The last run of each pipeline that ever ran here, by name.
        """
        found = await self._link.call("HGETALL", self._key)
        return sorted(
            (msgspec.json.decode(value, type=RunDocument) for value in found[1::2]), key=lambda run: run.name
        )
