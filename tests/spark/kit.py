"""
What tests of Spark share: a queue, what is in it, and rows to write.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from duly.connection import Link
from duly.due import scheduled_topics
from duly.records import BASE, HEAD
from duly.store import Store

SOON = datetime(2150, 1, 1, tzinfo=UTC)  #: no test runs for so long

ROWS = StructType(
    [
        StructField("id", StringType()),
        StructField("due_at", TimestampType()),
        StructField("payload", StringType()),
    ]
)


def rows(count: int, payload: str = '{"n": %d}') -> list[tuple[str, datetime, str]]:
    return [(f"r{n}", SOON + timedelta(milliseconds=n), payload.replace("%d", str(n))) for n in range(count)]


class Queue:
    """
    A namespace, with ways to look into it.
    """

    def __init__(self, url: str, namespace: str, shards: int = 1) -> None:
        self.url, self.namespace = url, namespace
        self.store = Store(Link(url), namespace=namespace, shards=shards)

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "namespace": self.namespace}

    async def content(self, *names: str) -> list[dict[bytes, bytes]]:
        """
        Hashes and sorted sets of all shards, for comparison.
        """
        found = []
        for keys in self.store.keys:
            for name in names:
                flat = await self.store.link.call("HGETALL", keys.fixed[name])
                found.append(dict(zip(flat[::2], flat[1::2], strict=True)))
        return found

    async def everything(self) -> list[dict[bytes, bytes]]:
        found = await self.content("jobs", "bodies", "topics", "outcomes")
        for keys in self.store.keys:
            for topic in await scheduled_topics(self.store.link, keys):
                flat = await self.store.link.call("ZRANGE", keys.due(topic), 0, -1, "WITHSCORES")
                found.append(dict(zip(flat[::2], flat[1::2], strict=True)))
        return found


def masked(record: bytes) -> bytes:
    """
    A record without what differs from one call to the next: its revision and request.
    """
    size = HEAD.size if record[0] & 64 else BASE.size
    return record[: size - 14] + b"#" * 14 + record[size:]


def without(found: list[dict[bytes, bytes]]) -> list[dict[bytes, bytes]]:
    return [{name: masked(record) for name, record in found[0].items()}, *found[1:]]


def frame(spark: Any, values: list[Any], schema: StructType = ROWS) -> Any:
    return spark.createDataFrame(values, schema)
