"""
One call of a batch handler: jobs to Spark, its answer back, in a thread that can be given up.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # as everybody who writes Spark calls it
from pyspark.sql.types import ArrayType, MapType, StructType

from duly.sentry import batch_context
from duly.spark.work.frames import frame_of
from duly.spark.work.outcomes import JSON, WrongAnswer, check_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from duly.batchhandler import BatchHandler
    from duly.job import Lease
    from duly.services.threads import Threads

#: Tables below so many bytes become a part of the plan: the planner evaluates what it can of the function by
#: itself, in one thread and row by row.  With 20,000 rows, tasks took half the time.
LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"
MANY_ROWS = 1_000
AGAIN_S = 0.2  #: how often Spark is told to stop what was given up


class Call:
    """
    A batch under way.
    """

    def __init__(self, spark: SparkSession, handler: BatchHandler, leases: Sequence[Lease]) -> None:
        self._spark = spark
        self._handler = handler
        self._leases = leases
        self._tag = f"duly-{secrets.token_hex(8)}"
        self._answer: asyncio.Future[pa.Table] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()  #: its thread has come back, whoever still waits for it
        self._ended = threading.Event()  #: the same, also once there is no loop any more

    async def run(self, threads: Threads) -> pa.Table:
        """
        Return what the function answered, as one table.

        Raises:
            WrongAnswer: It is no DataFrame, or lacks a column.
            Exception: Whatever the function or Spark raised, or `give_up` was told.
        """
        loop = asyncio.get_running_loop()

        def settle(answer: pa.Table, error: BaseException | None) -> None:
            self.over.set()
            if self._answer.done():
                return
            if error is None:
                self._answer.set_result(answer)
            else:
                self._answer.set_exception(_as_exception(error))

        def done(answer: pa.Table, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, answer, error)

        # Nothing that one batch has set is there in the next.
        context = batch_context(self._handler.topic, len(self._leases))
        threads.submit(partial(context.run, self._work), done)
        return await self._answer

    def give_up(self, threads: Threads, why: Exception) -> None:
        """
        Stop waiting, and stop what Spark is doing for it, as far as that can be stopped.
        """
        if self._answer.done():
            return
        self._answer.set_exception(why)
        threads.submit(self._cancel, lambda _answer, _error: None)

    def _cancel(self) -> None:
        """
        Stop the function's jobs in Spark until it comes back: those that it has yet to begin, too.
        """
        # Not by the tags of the session: those reach only some of the jobs that a function may start.
        cancel = self._spark.sparkContext.cancelJobsWithTag
        cancel(self._tag)
        while not self._ended.wait(AGAIN_S):
            cancel(self._tag)

    def _work(self) -> pa.Table:
        handler, spark = self._handler, self._spark
        try:
            spark.sparkContext.addJobTag(self._tag)
            answer = handler.fn(self._frame())
            if not isinstance(answer, DataFrame):
                raise WrongAnswer(
                    f"the batch handler of {handler.topic} returned {type(answer).__name__}, not a DataFrame"
                )
            check_columns(answer.columns, handler.topic)
            return answer.select(*_columns(answer)).toArrow()
        finally:
            self._ended.set()
            spark.sparkContext.removeJobTag(self._tag)

    def _frame(self) -> DataFrame:
        spark, rows = self._spark, frame_of(self._leases)
        if rows.num_rows < MANY_ROWS:
            return spark.createDataFrame(rows)
        before = spark.conf.get(LOCAL_BYTES)
        spark.conf.set(LOCAL_BYTES, "0")
        try:
            return spark.createDataFrame(rows)
        finally:
            spark.conf.set(LOCAL_BYTES, str(before))


def _columns(answer: DataFrame) -> list[Column]:
    """
    What is asked of an answer.  Results of several parts become JSON where they are, not row by row here.
    """
    columns = [F.col(name) for name in ("id", "outcome", "error") if name in answer.columns]
    if "result" in answer.columns:
        nested = isinstance(answer.schema["result"].dataType, StructType | ArrayType | MapType)
        columns.append(
            F.to_json("result", {"ignoreNullFields": "false"}).cast("binary").alias(JSON)
            if nested
            else F.col("result")
        )
    return columns


class SparkFailed(Exception):
    """
    Spark did not bring an answer; in one line, without the frames of its own code.
    """


def _as_exception(error: BaseException) -> Exception:
    if isinstance(error, PySparkException | Py4JJavaError):
        return SparkFailed(_in_one_line(error))
    # A function that calls sys.exit() ends its batch, not the driver.
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")


def _in_one_line(error: PySparkException | Py4JJavaError) -> str:
    """
    What went wrong; of what was raised on an executor, the last line of the traceback that Spark quotes.
    """
    text = str(error)
    if isinstance(error, Py4JJavaError):
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = str(cause.toString())
    _, _, trace = text.partition("Traceback (most recent call last):")
    lines = [line for line in trace.partition("\n\n")[0].splitlines() if line and not line[0].isspace()]
    return lines[-1] if lines else text.partition("\n")[0]
