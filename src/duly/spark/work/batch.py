"""
One batch: its leases, its calls, and what is told of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Literal

from duly.logs import BRIEF, describe
from duly.spark.work.calling import Call
from duly.spark.work.frames import readable
from duly.spark.work.outcomes import Endings, endings_of, failed, released

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from duly.batchhandler import BatchHandler
    from duly.job import Lease
    from duly.metrics import Metrics
    from duly.record.outcomes import Outcomes
    from duly.record.transactionpools import TransactionPools
    from duly.services.threads import Threads
    from duly.store import Finish

log = logging.getLogger("duly.batches")

Why = Literal["", "timeout", "drain"]
_NONE: tuple[None, float] = (None, 0.0)


class Held:
    """
    The leases that the heart extends, from its own thread.

    Those claimed a moment ago are left out: most of their time is left, and most are over by the next beat.
    """

    def __init__(self, lease_ms: int) -> None:
        # A heart beats three times in a lease: the first extension comes by the middle of it.
        self._young_s = lease_ms / 6000
        self._leases: dict[str, tuple[Lease, float]] = {}  #: and since when
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._leases)

    def report_to(
        self,
        meter: Metrics | None,
        outcomes: Outcomes | None,
        transactions: TransactionPools | None = None,
    ) -> None:
        """
        Do nothing: batches are not measured job by job, and the record reads their outcomes from the events.
        """

    def hold(self, leases: Iterable[Lease]) -> None:
        """
        Extend these from now on.
        """
        now_s = time.monotonic()
        with self._lock:
            self._leases.update((lease.key.member, (lease, now_s)) for lease in leases)

    def drop(self, leases: Iterable[Lease]) -> None:
        """
        Extend these no more.
        """
        with self._lock:
            for lease in leases:
                member = lease.key.member
                # It may have been lost, and claimed anew by a later batch.
                if self._leases.get(member, _NONE)[0] is lease:
                    del self._leases[member]

    def held(self) -> list[Lease]:
        """
        The leases to extend.
        """
        before_s = time.monotonic() - self._young_s
        with self._lock:
            return [lease for lease, since_s in self._leases.values() if since_s <= before_s]

    def all(self) -> list[Lease]:
        """
        Every lease.
        """
        with self._lock:
            return [lease for lease, _ in self._leases.values()]


class Batch:
    """
    Jobs of one topic that run together.
    """

    def __init__(
        self, spark: SparkSession, handler: BatchHandler, leases: Sequence[Lease], sent_s: float
    ) -> None:
        self.handler = handler
        self.leases = leases
        self.given_up: Why = ""
        self.wrong = ""  #: why the function gave no answer
        self.ttr_ms = max(lease.ttr_ms for lease in leases)
        self._spark = spark
        self._sent_s = sent_s
        self._started_s = time.monotonic()
        self._call: Call | None = None

    async def run(self, threads: Threads) -> Endings:
        """
        Run all jobs and decide what becomes of each; whatever the function does, this does not raise.
        """
        together, unread = readable(self.leases)
        endings = failed(
            self.handler,
            [lease for lease in self.leases if lease.key.id in unread],
            unread,
            self._late_ms,
        )
        if together:
            endings.add(await self._run_readable(together, threads))
        return endings

    async def _run_readable(self, leases: list[Lease], threads: Threads) -> Endings:
        if self.given_up:
            return self._unanswered(leases, self._why())
        self._call = Call(self._spark, self.handler, leases)
        self._started_s = time.monotonic()
        try:
            answer = await self._call.run(threads)
        except Exception as error:  # noqa: BLE001  # a function may raise anything
            return self._unanswered(leases, error)
        return await asyncio.to_thread(endings_of, self.handler, leases, answer, self._late_ms)

    def _unanswered(self, leases: list[Lease], error: Exception) -> Endings:
        if self.given_up == "drain":
            return released(leases)
        topic = self.handler.topic
        # Without its words, which may quote a payload: the notes of runs are shown to more people than logs.
        self.wrong = f"{topic}: the batch failed: {type(error).__name__}"
        log.warning("%s: the batch failed: %s", topic, describe(error), exc_info=error, extra=BRIEF)
        return failed(self.handler, leases, error, self._late_ms)

    def is_over(self, now_s: float) -> bool:
        """
        Whether it has run for longer than any of its jobs may, and was not given up yet.
        """
        return not self.given_up and now_s > self._sent_s + self.ttr_ms / 1000

    def give_up(self, threads: Threads, why: Why) -> None:
        """
        Wait for the function no longer.
        """
        self.given_up = self.given_up or why
        if self._call is not None:
            self._call.give_up(threads, self._why())

    async def comes_back(self, within_s: float) -> bool:
        """
        Whether the thread of the function ends, within a while.
        """
        if self._call is None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await self._call.over.wait()
        except TimeoutError:
            return False
        return True

    def tell(self, endings: Endings, lost: list[Finish]) -> None:
        """
        Say how the batch went, in one line, and what was wrong with the answer.
        """
        counts = {verb: len(finishes) for verb, finishes in endings.by_verb.items()}
        seconds = time.monotonic() - self._sent_s
        log.info(
            "%s: %d jobs in %.1f s: %d ok, %d to be tried again, %d dead, %d given back; %d leases were lost",
            *(self.handler.topic, len(self.leases), seconds),
            *(counts["ack"], counts["retry"], counts["bury"], counts["release"], len(lost)),
        )
        for sentence in endings.wrong:
            log.warning("%s: %s", self.handler.topic, sentence)
        if endings.invented:
            log.warning(
                "%s: %d rows of the answer have ids that were not in the batch, e.g. %s; they are ignored",
                *(self.handler.topic, len(endings.invented), endings.invented[0]),
            )

    def _why(self) -> Exception:
        return TimeoutError(f"the batch ran longer than its time to run of {self.ttr_ms / 1000:g} s")

    def _late_ms(self, lease: Lease) -> int:
        late = lease.claimed_ms + (self._started_s - self._sent_s) * 1000 - lease.floor_ms
        return max(0, round(late))
