"""
The writing half of the format `duly`: tasks that enqueue their rows, and a driver that tells how it went.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from duly.keys import ShardKeys
from duly.runs import Runs
from duly.spark.packing import Packer, requests
from duly.spark.plan import Planner
from duly.spark.rejects import Rejects
from duly.spark.sending import Loop, Sender
from duly.spark.shards import recording
from duly.spark.tally import Tally
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from duly.connection import Link
    from duly.spark.options import WriteOptions
    from duly.spark.packing import Parcel


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """
    What one task did.
    """

    tally: Tally


class _Writing:
    """
    What batch and stream have in common.
    """

    def __init__(self, options: WriteOptions, shards: int) -> None:
        self.options = options
        self.shards = shards
        self.began_s = time.time()
        self.seen: list[int] | None = None  #: the number that each shard had come to by then

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """
        Enqueue the rows of one task.

        Raises:
            UsageError: A row was not accepted, and such rows are to fail the write.
        """
        task = TaskContext.get()
        # A stage is one batch of a stream; a task that is run again has the same place in it.
        place = f"{task.stageId()}/{task.partitionId()}" if task else ""
        return Written(enqueue_rows(self.options, self.shards, iterator, place, self.seen))

    def tell(self, messages: Sequence[WriterCommitMessage | None], error: str | None = None) -> None:
        """
        Add up what the tasks did, for who asks and for `duly stats`.
        """
        total = Tally()
        for message in messages:
            if isinstance(message, Written):
                total.add(message.tally)
        seconds = time.time() - self.began_s
        options = self.options
        if options.report:
            document = total.document() | {"seconds": seconds, "run": options.run, "error": error}
            fresh = Path(f"{options.report}.new")
            fresh.write_bytes(msgspec.json.encode(document))
            fresh.replace(options.report)
        if options.plan:
            return
        if options.record:
            recording().bring(options, self.shards)
        loop = Loop(options.url)
        try:
            store = Store(loop.link, namespace=options.namespace, shards=self.shards)
            counts = {name: getattr(total, name) for name in ("new", "kept", "replaced", "rejected")}
            loop.call(Runs(store).note(options.name, seconds=seconds, counts=counts, error=error))
        finally:
            loop.close()


class JobWriter(_Writing, DataSourceArrowWriter):
    """
    Of a batch.
    """

    def __init__(self, options: WriteOptions, shards: int) -> None:
        super().__init__(options, shards)
        if options.on_conflict == "replace" and not options.plan and not options.record:
            loop = Loop(options.url)
            try:
                self.seen = loop.call(_sequences(loop.link, options.namespace, shards))
            finally:
                loop.close()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Tell how it went.
        """
        self.tell(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """
        Tell that it went wrong; what was accepted stays, and a second run adds only the rest.
        """
        self.tell(messages, "some tasks failed; run it again: what was accepted is not added twice")


class JobStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """
    Of a stream: each batch is a run.
    """

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  # PySpark's words
        """
        Tell how it went.
        """
        self.tell(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803  # likewise
        """
        Tell that it went wrong.
        """
        self.tell(messages, "some tasks failed; start the query again: what was accepted is not added twice")


async def _sequences(link: Link, namespace: str, shards: int) -> list[int]:
    metas = [ShardKeys(namespace, shard).fixed["meta"] for shard in range(shards)]
    return [int(await link.call("HGET", meta, "sequence") or 0) for meta in metas]


def enqueue_rows(
    options: WriteOptions,
    shards: int,
    batches: Iterator[pa.RecordBatch],
    place: str,
    seen: Sequence[int] | None = None,
) -> Tally:
    """
    Enqueue rows, or with `plan` only see what would become of them.

    With *seen* no row replaces a job that others changed since.

    Raises:
        UsageError: A row was not accepted, and such rows are to fail the write.
    """
    packer = Packer(options.topic, options.on_conflict, options.limits)
    rejects = Rejects(options.rejects)
    loop = Loop(options.url)
    tally = Tally()

    def refuse(parcel: Parcel, reasons: dict[int, str]) -> None:
        for reason in reasons.values():
            tally.show("rejected", reason)
        tally.rejected += len(reasons)
        if not options.plan:
            rejects.add(parcel.batch, reasons, options.topic)

    async def pace(jobs: int) -> None:
        store = Store(loop.link, namespace=options.namespace, shards=shards)
        await asyncio.sleep(await store.pace(options.run, jobs, options.rate))

    try:
        way: Any
        paced = pace if options.rate else None
        if options.record:
            by_record = recording()
            way = (
                by_record.RecordPlanner(loop, options, shards, refuse)
                if options.plan
                else by_record.Recorder(loop, options, shards, refuse, paced)
            )
        elif options.plan:
            way = Planner(loop, options.namespace, shards, options.on_conflict, refuse)
        else:
            way = Sender(loop, options.namespace, shards, refuse, paced, seen=seen)
        first = 0
        for batch in batches:
            parcel = packer.pack(batch, requests(options.run, place, first, batch.num_rows))
            first += batch.num_rows
            if parcel.rejected:
                refuse(parcel, parcel.rejected)
            way.send(parcel)
        tally.add(way.finish())
        rejects.flush()
    finally:
        loop.close()
    return tally
