"""
A handler's transaction on the record's database: its own SQL and the ending of its job commit together.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.util import greenlet_spawn

from duly.errors import UsageError
from duly.record.database import first_line
from duly.record.jobsession import AsyncJobSession, JobSession
from duly.record.transactionsteps import AsyncWay, BlockingWay, Steps, WholeTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from duly.record.transactionpools import TransactionPools
    from duly.record.transactionsteps import RunEnding

log = logging.getLogger("duly.record")


class JobTransaction:
    """
    A block whose end commits what was done in its session, together with the success of the job.

    In an async handler ``async with`` gives an `AsyncJobSession`, in a plain function ``with`` gives a
    `JobSession`.  The first run of a job to commit wins; what any other has done is rolled back.
    """

    def __init__(self, pools: TransactionPools, ending: RunEnding) -> None:
        self._pools = pools
        self._ending = ending
        self._steps: Steps

    async def __aenter__(self) -> AsyncJobSession:
        """
        Begin.

        Raises:
            LeaseLost: The row says that this run does not count: nothing was done.
            RecordUnavailable: The database cannot be reached: nothing was done.
            UsageError: The run is in a block already, has ended with one, or is not on this event loop.
        """
        if asyncio.get_running_loop() is not self._ending.loop:
            raise UsageError("a transaction belongs to the worker's event loop: in a thread, use `with`")
        self._ending.enter()
        try:
            await self._pools.take_turn()
            try:
                engine = self._pools.for_loop()
                self._steps = steps = Steps(
                    engine.sync_engine,
                    self._pools.namespace,
                    self._ending,
                    AsyncWay(engine.name),
                    schema=self._pools.schema,
                )
                await _abandoned_if_cancelled(steps)
                connection = AsyncConnection(engine, steps.connection)
                session = AsyncJobSession(connection, steps.result)
                steps.session = session.sync_session
            except BaseException:
                self._pools.give_turn()
                raise
        except BaseException:
            self._ending.leave()
            raise
        return session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """
        Commit, or roll back if the block raised.

        Raises:
            LeaseLost: Another run was first, or the job has ended or changed: nothing was done.
            RecordUnavailable: The database went away before the commit: nothing was done.
            OutcomeUnknown: It went away during the commit, and the run was stopped before it was back.
        """
        try:
            await _to_its_end(self._steps, self._steps.finish if error is None else self._steps.undo)
        finally:
            self._pools.give_turn()
            self._ending.leave()

    def __enter__(self) -> JobSession:
        """
        Begin, in a thread.

        Raises:
            LeaseLost, RecordUnavailable, UsageError: As in `__aenter__`.
        """
        if _on_loop():
            raise UsageError("with current_job().transaction() is for plain functions: use `async with` here")
        self._ending.enter()
        try:
            self._steps = steps = Steps(
                self._pools.for_threads(),
                self._pools.namespace,
                self._ending,
                BlockingWay(),
                schema=self._pools.schema,
            )
            steps.begin()
            steps.session = session = JobSession(steps.connection, steps.result)
        except BaseException:
            self._ending.leave()
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """
        Commit, or roll back if the block raised.

        Raises:
            LeaseLost, RecordUnavailable, OutcomeUnknown: As in `__aexit__`.
        """
        try:
            (self._steps.finish if error is None else self._steps.undo)()
        finally:
            self._ending.leave()


def _on_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _abandoned_if_cancelled(steps: Steps) -> None:
    """
    Begin; a beginning that its handler does not wait for any more is rolled back as soon as it is there.
    """
    task = WholeTask(greenlet_spawn(steps.begin), loop=asyncio.get_running_loop())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        steps.given_up = True
        task.add_done_callback(partial(_abandon, steps))
        raise


def _abandon(steps: Steps, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is None:
        undoing = WholeTask(greenlet_spawn(steps.undo), loop=asyncio.get_running_loop())
        _abandoned.add(undoing)
        undoing.add_done_callback(_abandoned.discard)


_abandoned: set[asyncio.Future[None]] = set()


async def _to_its_end(steps: Steps, work: Callable[[], None]) -> None:
    """
    Run *work* to its end, also if its task is cancelled meanwhile; that is raised then.
    """
    task = WholeTask(greenlet_spawn(work), loop=asyncio.get_running_loop())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled, steps.given_up = error, True
    if cancelled is None:
        task.result()
        return
    if not task.cancelled() and (failure := task.exception()) is not None:
        log.debug("a transaction whose handler was stopped has failed: %s", first_line(failure))
    raise cancelled
