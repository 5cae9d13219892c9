"""
What a process with a record does beside its work: relay, follow the events, watch the queue, tidy up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING, Protocol

from duly.errors import DulyError
from duly.pauses import Pauses
from duly.record.database import GrantMissing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from duly.record.leader import Leader
    from duly.record.relay import Relay

log = logging.getLogger("duly.record")

RESIGNS_S = 2.0  #: how long a leader fails before another process has its turn


class Step(Protocol):
    """
    One duty: does a bounded step and says how much there was to do.
    """

    every_s: float

    async def run_once(self) -> int:
        """
        Do one step.
        """


class Upkeep:
    """
    The duties of a record.  None of them ends because a server is away or refuses: it goes on after that.
    """

    def __init__(self, leader: Leader, relay: Relay, steps: Mapping[str, Step]) -> None:
        self._leader = leader
        self._relay = relay
        self._steps = steps

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """
        One for each duty, to be cancelled in the end.
        """
        beat = _keep_on("leader", self._leader)
        return [
            beat,
            self._relay.run(asyncio.Event()),
            *(_keep_on(name, step, self._leader) for name, step in self._steps.items()),
        ]

    async def aclose(self) -> None:
        """
        Let another process lead at once.
        """
        await self._leader.aclose()


async def _keep_on(name: str, step: Step, leader: Leader | None = None) -> None:
    pauses, told, good_s = Pauses(), "", time.monotonic()
    while True:
        try:
            busy = await step.run_once()
        except GrantMissing as error:
            # Other duties go on; this one is tried at its usual times, and named once.
            if str(error) != told:
                told = str(error)
                log.error("%s: %s", name, error)  # noqa: TRY400  # a sentence for who gives grants
            busy = 0
        except DulyError as error:
            log.warning("%s: %s; trying again in %.1f s", name, error, pauses.next_s)
            if leader is not None and time.monotonic() - good_s > RESIGNS_S:
                # Another process may reach what this one does not: the server that counts now, for one.
                await leader.resign()
            await pauses.wait()
            continue
        else:
            told = ""
        pauses.reset()
        good_s = time.monotonic()
        if not busy:
            await asyncio.sleep(step.every_s * random.uniform(0.9, 1.1))  # jitter, not secrecy
