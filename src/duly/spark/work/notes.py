"""
What a driver has done so far, for `duly stats`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.runs import Runs

if TYPE_CHECKING:
    from duly.spark.work.worker import BatchWorker
    from duly.store import Store

log = logging.getLogger("duly.batches")

EVERY_S = 10.0  #: a driver that is killed has told what it did until shortly before


class Notes:
    """
    The run of a driver, noted while it goes on and when it ends.
    """

    def __init__(self, store: Store, worker: BatchWorker) -> None:
        self.wrong: str | None = None  #: what ended it
        self._runs = Runs(store)
        self._worker = worker
        self._begun_s = time.monotonic()

    async def keep(self) -> None:
        """
        Note the run from time to time, for ever, if there is something new.
        """
        told: dict[str, int] | None = None
        while True:
            await asyncio.sleep(EVERY_S)
            if told != (told := self._worker.counts()):
                await self.note()

    async def note(self) -> None:
        """
        Note the run; a store that is away hears of it the next time.
        """
        seconds = time.monotonic() - self._begun_s
        wrong = self.wrong or self._worker.wrong
        try:
            await self._runs.note("work", seconds=seconds, counts=self._worker.counts(), error=wrong)
        except DulyError as error:
            log.info("the run could not be noted: %s", error)
