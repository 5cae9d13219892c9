"""
The event streams of a namespace, read without an event loop: Spark's processes have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from duly.errors import LayoutMismatch, StoreUnavailable, UsageError
from duly.keys import ShardKeys
from duly.spark.events.unpacking import entry_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from duly.spark.events.unpacking import Entry

PAGE_ROWS = 20_000  #: what one reply should bring: entries hold from one row to hundreds
PAGE_ENTRIES = 4_000


class Shards:
    """
    Reads entries of any shard; every call only looks, so that a lost connection is tried again.
    """

    def __init__(self, url: str, namespace: str) -> None:
        self.namespace = namespace
        try:
            self._client = redis.Redis.from_url(
                url,
                protocol=2,
                socket_timeout=30,
                socket_connect_timeout=10,
                retry=Retry(ExponentialBackoff(cap=1, base=0.05), 6),
                retry_on_error=[redis.exceptions.BusyLoadingError],
            )
        except ValueError as error:
            raise UsageError(f"cannot use {url!r} as a server address: {error}") from error
        # Replies as they come: redis-py would make a table of each entry, and we only want the values.
        self._client.response_callbacks.clear()
        self.place = url.rpartition("@")[2]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def count(self) -> int:
        """
        How many shards the namespace has.

        Raises:
            LayoutMismatch: Nobody has made the namespace.
        """
        found = self._ask("HGET", ShardKeys(self.namespace, 0).fixed["meta"], "shards")
        if found is None:
            raise LayoutMismatch(
                f"there is no namespace {self.namespace!r} at {self.place}: no app has used it yet; "
                "check the namespace and the server"
            )
        return int(found)

    def first(self, shard: int) -> Entry | None:
        """
        The oldest entry that is still there.
        """
        return next(iter(self._range(shard, "XRANGE", "-", "+", 1)), None)

    def last(self, shard: int) -> Entry | None:
        """
        The newest entry.
        """
        return next(iter(self._range(shard, "XREVRANGE", "+", "-", 1)), None)

    def at(self, shard: int, counter: int) -> Entry | None:
        """
        The entry with this counter.
        """
        return next(iter(self._range(shard, "XRANGE", f"{counter}-0", f"{counter}-0", 1)), None)

    def pages(self, shard: int, first: int, last: int) -> Iterator[list[Entry]]:
        """
        Yield the entries with counters from *first* to *last* that are there, some at a time.
        """
        size = 16
        while first <= last:
            page = self._range(shard, "XRANGE", f"{first}-0", f"{last}-0", size)
            if not page:
                return
            yield page
            first = page[-1].offset.counter + 1
            rows = max(1, sum(entry.rows for entry in page))
            size = min(PAGE_ENTRIES, max(16, PAGE_ROWS * len(page) // rows))

    def _range(self, shard: int, *command: Any) -> list[Entry]:
        name, start, end, count = command
        key = ShardKeys(self.namespace, shard).fixed["events"]
        return [entry_of(id_, fields) for id_, fields in self._ask(name, key, start, end, "COUNT", count)]

    def _ask(self, *command: Any) -> Any:
        try:
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]  # as redis-py declares it
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"cannot read events at {self.place}: {error}; try again") from error
