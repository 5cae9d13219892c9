"""
Jobs sent by Spark's bulk writer, with the code that runs in its tasks, in the place of the store's own way.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from duly.codec import Unreadable, decode, decode_envelope
from duly.errors import JobExists, QueueFull
from duly.job import Lane, Placed, moment
from duly.newjob import CALLBACK_CRASHES
from duly.spark.packing import Packer, Parcel, pack_order, requests
from duly.spark.sending import TAKEN, Loop, Sender
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import Iterable

    from duly.errors import DulyError
    from duly.job import Order
    from duly.store import Store

_runs = itertools.count(1)
_ROWS = pa.schema(
    [
        ("topic", pa.string()),
        ("id", pa.string()),
        ("due_at", pa.timestamp("us", "UTC")),
        ("payload", pa.string()),
        ("priority", pa.string()),
        ("ttr", pa.duration("ms")),
        ("max_attempts", pa.int32()),
        ("context", pa.string()),
        ("callback", pa.string()),
        ("reply_to", pa.string()),
    ]
)


class BulkWriter:
    """
    What stands in for `Store.enqueue` and `Store.enqueue_many` of every store on one server.
    """

    def __init__(self, url: str) -> None:
        self._loop = Loop(url)

    def close(self) -> None:
        self._loop.close()

    async def enqueue(self, store: Store, order: Order) -> Placed:
        [answer] = await self.enqueue_many(store, [order])
        if not isinstance(answer, Placed):
            raise answer
        return answer

    async def enqueue_many(self, store: Store, orders: Iterable[Order]) -> list[Placed | DulyError]:
        answers: list[Placed | DulyError] = []
        now_ms = await Views(store).now_ms()
        for (on_conflict, is_row), group in itertools.groupby(
            orders, lambda order: (order.on_conflict, _is_row(order, store))
        ):
            some = list(group)
            asked = requests(str(next(_runs)), "0/0", 0, len(some))
            if is_row:
                rows = pa.RecordBatch.from_pylist([_row(order, now_ms) for order in some], _ROWS)
                parcel = Packer(on_conflict=on_conflict).pack(rows, asked)
                assert {} == parcel.rejected
            else:
                parcel = _parcel(some, asked)
            answers += await self._send(store, some, parcel)
        return answers

    async def _send(self, store: Store, orders: list[Order], parcel: Parcel) -> list[Placed | DulyError]:
        refused: dict[int, str] = {}
        sender = Sender(
            self._loop, store.namespace, store.shards, lambda _, why: refused.update(why), now=store._now
        )
        views, keys = Views(store), [order.key for order in orders]
        before = await views.get_many(keys)
        sender.send(parcel)
        tally = sender.finish()
        answers: list[Placed | DulyError] = []
        for place, (key, old, job) in enumerate(zip(keys, before, await views.get_many(keys), strict=True)):
            if place in refused:
                error = JobExists if refused[place] == TAKEN else QueueFull
                answers.append(error(f"{key} {refused[place]}"))
                continue
            assert job is not None
            word: Any = "created" if old is None else "kept" if old.revision == job.revision else "replaced"
            answers.append(Placed(key, word, job.revision, job.due_ms, job.state))
        assert len(orders) == tally.new + tally.kept + tally.replaced + len(refused)
        return answers


def _is_row(order: Order, store: Store) -> bool:
    """
    Whether columns of a table say all of it.
    """
    if order.due_ms is None and store._now is None:
        return False  # by the server's clock, of which a row knows nothing
    try:
        decode(order.payload)
    except Unreadable:
        return False
    envelope = decode_envelope(order.envelope)
    most = CALLBACK_CRASHES if envelope.callback else 0
    return (
        (order.expires_ms, order.retain_s, order.max_crashes, envelope.backoff) == (0, None, most, None)
        and (order.lane is Lane.callback) == (envelope.callback is not None)
        and order.envelope == (b"" if envelope == decode_envelope(b"") else msgspec.json.encode(envelope))
    )


def _row(order: Order, now_ms: int) -> dict[str, Any]:
    envelope = decode_envelope(order.envelope)
    return {
        "topic": order.key.topic,
        "id": order.key.id,
        "due_at": moment(now_ms + (order.delay_ms or 0) if order.due_ms is None else order.due_ms),
        "payload": order.payload.decode(),
        "priority": None if order.lane in (Lane.normal, Lane.callback) else order.lane.name,
        "ttr": order.ttr_ms or None,
        "max_attempts": envelope.max_attempts,
        "context": None if envelope.context is None else msgspec.json.encode(envelope.context).decode(),
        "callback": envelope.callback,
        "reply_to": envelope.reply_to,
    }


def _parcel(orders: list[Order], asked: Any) -> Parcel:
    """
    Orders packed one by one, as the writer packs a row that is not plain.
    """
    packed = [pack_order(order, asked[at].tobytes()) for at, order in enumerate(orders)]
    return Parcel(
        pa.RecordBatch.from_pylist([{"id": order.key.id} for order in orders]),
        pa.array(packed, pa.binary()),
        pa.array([order.key.member.encode() for order in orders], pa.binary()),
        pa.array([order.key.topic for order in orders], pa.string()).dictionary_encode(),
        np.zeros(len(orders), np.int64),
        dict(enumerate(orders)),
    )
