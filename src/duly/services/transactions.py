"""
The transactions of a worker's runs: what a run and the record's database have to know of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.context import Committed
from duly.errors import LeaseLost, Unsupported, UsageError
from duly.outcome import Ack

if TYPE_CHECKING:
    import asyncio

    from duly.context import CurrentJob
    from duly.job import JobKey
    from duly.record.runs import EndedRun
    from duly.record.transaction import JobTransaction
    from duly.services.running import Run, Running

NO_RECORD = (
    "current_job().transaction() is one of the record's database, and this worker has no record: "
    "set record, DULY_RECORD or --record"
)


def begin_transaction(running: Running, job: CurrentJob) -> JobTransaction:
    """
    Prepare a transaction that ends the job of a run.

    Raises:
        Unsupported: The worker has no record.
        LeaseLost: The run is over.
    """
    if running.transactions is None:
        raise Unsupported(NO_RECORD)
    run = running.runs.get(job.member)
    if run is None or run.job is not job:
        raise LeaseLost(f"the run of {job.topic}/{job.id} is over")
    return running.transactions.transaction(_Ending(running, run, job))


class _Ending:
    """
    A run that may end in a transaction of its handler; see `duly.record.transactionsteps.RunEnding`.
    """

    def __init__(self, running: Running, run: Run, job: CurrentJob) -> None:
        self.key: JobKey = run.lease.key
        self.revision = run.lease.revision
        self._running = running
        self._run = run
        self._job = job

    @property
    def stopped(self) -> bool:
        """
        Whether the handler was told to stop.
        """
        return self._job.cancelled

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """
        The event loop of the worker.
        """
        return self._run.task.get_loop()

    def enter(self) -> None:
        """
        Note that a block begins.

        Raises:
            UsageError: The run is in one, or its job has ended with one.
            LeaseLost: The run was told to stop.
        """
        if self._job.in_transaction:
            raise UsageError(f"{self.key} is in a transaction already: use its session")
        if self._job.committed is not None:
            raise UsageError(f"{self.key} has ended with its transaction: a run has one that commits")
        if self._job.cancelled:
            raise LeaseLost(f"{self.key} was told to stop")
        self._job.in_transaction = True

    def leave(self) -> None:
        """
        Note that the block is over.
        """
        self._job.in_transaction = False

    def encode(self, value: object) -> bytes:
        """
        Write a result of the handler.

        Raises:
            UsageError: It has no form in JSON, is too large, or is none that the handler returns.
        """
        if not self._job.in_transaction:
            raise UsageError(f"the transaction of {self.key} is over: a result is given inside its block")
        return self._run.handler.encode_result(value)

    def succeed(self, result: bytes) -> EndedRun:
        """
        Describe the run as one that succeeds now.
        """
        return self._running.ended_run(self._run, "acked", Ack(result))

    def commit(self, value: object, result: bytes) -> None:
        """
        Note that the ending is committed.
        """
        self._job.committed = Committed(value, result)

    def lose(self) -> None:
        """
        Note that the run does not count any more.
        """
        self._job.fenced = True
        self._job.cancel()
