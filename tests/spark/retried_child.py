"""
A Spark of its own whose tasks have two tries each: it schedules rows, and the first try fails half-way.

python retried_child.py URL NAMESPACE REJECTS CONF
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from duly.spark import session
from duly.spark.schedule import schedule
from tests.spark.kit import ROWS, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

BATCH, BATCHES = 10, 6  #: rows in a batch, and batches
#: Batches of the first try: more than is held back on the way, so that the first of them is sent.
PASSED_ON = 4
LARGE = '"' + "x" * 20_000 + '"'


def failing_once(url: str, namespace: str) -> Stage:
    """
    A stage that passes rows on; its first try fails once others have changed two of the jobs that were sent.
    """

    async def change_some() -> None:
        from duly.connection import Link
        from duly.job import JobKey, Order
        from duly.store import Store
        from tests.eventually import eventually

        link = Link(url)
        store = Store(link, namespace=namespace)
        keys = [JobKey("mail", f"r{number}") for number in range(BATCH)]

        async def sent() -> None:
            assert all(about and about[0] for about in await store.get(keys))

        try:
            await eventually(sent, 60)
            await store.enqueue(Order(keys[0], b'"theirs"', delay_ms=60_000, on_conflict="replace"))
            await store.cancel([keys[1]])
        finally:
            await link.aclose()

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import asyncio

        from pyspark import TaskContext

        if TaskContext.get().attemptNumber():
            yield from batches
            return
        for _ in range(PASSED_ON):
            yield next(batches)
        asyncio.run(change_some())
        raise RuntimeError("the first try fails")

    return pass_on


def main() -> None:
    url, namespace, rejects, conf = sys.argv[1:]
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": str(BATCH)}
    spark = session("local[1,2]", **json.loads(conf), **small)
    df = spark.createDataFrame(rows(BATCH * BATCHES, LARGE), ROWS).coalesce(1)
    report = schedule(
        df.mapInArrow(failing_once(url, namespace), ROWS),
        url=url,
        namespace=namespace,
        topic="mail",
        on_conflict="replace",
        rejects=rejects,
    )
    print(json.dumps([report.new, report.kept, report.replaced, report.rejected]))


if __name__ == "__main__":
    main()
