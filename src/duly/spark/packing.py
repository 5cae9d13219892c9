"""
Rows as the server takes them: Arrow columns become the arguments of enqueue.lua, many rows at a time.

What is plainly right is checked and packed by columns.  Every other row, whether wrong or only unusual, goes
through the same code as a job of any other sender, which either makes an order of it or says what is wrong.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from duly.codec import ASKING, encode
from duly.durations import MAX_DUE_MS, parse_time
from duly.errors import UsageError
from duly.job import RESERVED, TOPIC, Lane, check_topic
from duly.newjob import Limits, NewJob
from duly.options import CARRIED, OBJECT
from duly.records import options_of
from duly.spark.arrays import binary, dicts, digits, fixed, flags, join, json_flags, read_json, texts
from duly.spark.columns import OPTIONAL, REQUIRED
from duly.store.packing import ASKS_FOR_REPLY, FROM_NOW, HAS_OPTIONS, ON_CONFLICT, SPEC

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from duly.job import OnConflict, Order
    from duly.options import Option

ID_PATTERN = r"^[A-Za-z0-9._~:@=+-]+$"
ID_CHARS = 200
REQUEST_BYTES = 6
RUN_BYTES = 3  #: of those, as in enqueue.lua

_LANES = pa.array([lane.name for lane in (Lane.normal, Lane.high, Lane.low)])


@dataclass(frozen=True, slots=True)
class Parcel:
    """
    A batch of rows, packed.
    """

    batch: pa.RecordBatch
    rows: pa.BinaryArray  #: three arguments of each row as they travel; null where it was rejected
    members: pa.BinaryArray
    topics: pa.DictionaryArray
    due_ms: NDArray[np.int64]
    orders: dict[int, Order]  #: of rows that were packed one by one
    rejected: dict[int, str] = field(default_factory=dict)  #: why, by the number of the row


@dataclass(frozen=True, slots=True)
class Packer:
    """
    How rows become arguments.
    """

    topic: str | None = None  #: of rows that name none
    on_conflict: OnConflict = "keep"
    limits: Limits = field(default_factory=Limits)

    def pack(self, batch: pa.RecordBatch, requests: NDArray[np.uint8]) -> Parcel:
        """
        Pack a batch; *requests* has the six bytes of each row that tell a replay from a new call.
        """
        size = batch.num_rows
        topics = self._topics(batch)
        ids = texts(batch.column("id"))
        plain = _good_topics(topics) & _good_ids(ids)
        due_ms, on_time = _due_ms(batch.column("due_at"))
        payloads, readable = self._payloads(batch.column("payload"))
        lanes, known = _lanes(batch)
        plain &= on_time & readable & known
        # What these columns say is packed by the code that all senders share.
        for option in CARRIED:
            if option.name in batch.schema.names:
                plain &= flags(batch.column(option.name).is_null())

        members = join(binary(topics.cast(pa.string())), b"/", binary(ids))
        head = np.empty((size, SPEC.size), np.uint8)
        head[:, 0] = lanes << 3 | ON_CONFLICT[self.on_conflict]
        head[:, 1:] = due_ms.astype(">u8").view(np.uint8).reshape(size, 8)
        lengths = pc.add(pc.binary_length(payloads), REQUEST_BYTES)
        rows = join(
            *(b"$", digits(pc.binary_length(members)), b"\r\n", members),
            *(b"\r\n$%d\r\n" % SPEC.size, fixed(head), b"\r\n$", digits(lengths)),
            *(b"\r\n", fixed(requests), payloads, b"\r\n"),
        )
        parcel = Parcel(batch, rows, members, topics, due_ms, {})
        return parcel if plain.all() else self._unusual(parcel, plain, requests)

    def order(self, row: dict[str, Any] | UnicodeDecodeError) -> Order:
        """
        Make an order of one row, as every sender does.

        Raises:
            UsageError: Something about it is wrong; the message says what.
        """
        if isinstance(row, UnicodeDecodeError):
            raise UsageError(f"not UTF-8: {row}")
        for name in REQUIRED:
            if row.get(name) is None:
                raise UsageError(f"{name} is null")
        topic = row.get("topic") if row.get("topic") is not None else self.topic
        if topic is None:
            raise UsageError("no topic: fill the column `topic`, or say option topic")
        id_, due_at, payload = row["id"], row["due_at"], row["payload"]
        return NewJob(
            check_topic(topic),
            read_json(payload)
            if isinstance(payload, str | bytes)
            else encode(payload, limit=self.limits.payload),
            id=str(id_) if isinstance(id_, int) and not isinstance(id_, bool) else id_,
            due_at=parse_time(due_at, "due_at") if isinstance(due_at, str) else due_at,
            priority="normal" if row.get("priority") is None else row["priority"],
            on_conflict=self.on_conflict,
            **{option.name: option.read(_object(row.get(option.name), option)) for option in CARRIED},
        ).order(self.limits)

    def _unusual(self, parcel: Parcel, plain: NDArray[np.bool_], requests: NDArray[np.uint8]) -> Parcel:
        batch, places = parcel.batch, np.flatnonzero(~plain)
        names = [name for name in (*REQUIRED, *OPTIONAL) if name in batch.schema.names]
        found = batch.select(names).take(pa.array(places))
        packed: list[bytes | None] = []
        members: list[bytes | None] = []
        for place, row in zip(places.tolist(), dicts(found), strict=True):
            try:
                order = self.order(row)
            except UsageError as error:
                parcel.rejected[place] = str(error)
                packed.append(None)
                members.append(None)
                continue
            parcel.orders[place] = order
            parcel.due_ms[place] = order.due_ms or 0
            packed.append(pack_order(order, requests[place].tobytes()))
            members.append(order.key.member.encode())
        mask = pa.array(~plain)
        return Parcel(
            batch,
            pc.replace_with_mask(parcel.rows, mask, pa.array(packed, pa.binary())),
            pc.replace_with_mask(parcel.members, mask, pa.array(members, pa.binary())),
            parcel.topics,
            parcel.due_ms,
            parcel.orders,
            parcel.rejected,
        )

    def _topics(self, batch: pa.RecordBatch) -> pa.DictionaryArray:
        if "topic" not in batch.schema.names:
            return pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(batch.num_rows, np.int32)), pa.array([self.topic], pa.string())
            )
        named = batch.column("topic")
        if not pa.types.is_string(named.type):
            # No name of a topic: such rows are looked at one by one and told what is wrong.
            named = pc.if_else(named.is_null(), pa.scalar(None, pa.string()), "")
        if self.topic is not None:
            named = named.fill_null(self.topic)
        return named.dictionary_encode()

    def _payloads(self, column: pa.Array) -> tuple[pa.BinaryArray, NDArray[np.bool_]]:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            found = binary(texts(column).fill_null("0"))
            small = flags(pc.less_equal(pc.binary_length(found), self.limits.payload))
            return found, small & flags(column.is_valid()) & json_flags(found)
        if not pa.types.is_nested(column.type):
            return pa.array([b""] * len(column), pa.binary()), np.zeros(len(column), bool)
        documents: list[bytes | None] = []
        for value in column.to_pylist(maps_as_pydicts="strict"):
            try:
                documents.append(None if value is None else encode(value, limit=self.limits.payload))
            except UsageError:
                documents.append(None)
        packed = pa.array(documents, pa.binary())
        return packed.fill_null(b""), flags(packed.is_valid())


def pack_order(order: Order, request: bytes) -> bytes:
    """
    The three arguments of one order as they travel.
    """
    options = options_of(order)
    spec = order.lane << 3 | ON_CONFLICT[order.on_conflict] | (HAS_OPTIONS if options else 0)
    if order.envelope.startswith(ASKING):
        spec |= ASKS_FOR_REPLY
    now = order.due_ms is None
    head = SPEC.pack(spec | (FROM_NOW if now else 0), order.delay_ms or 0 if now else order.due_ms)
    member = order.key.member.encode()
    rest = b"".join((request, options, order.envelope, order.payload))
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in (member, head, rest))


def arguments(packed: bytes) -> list[bytes]:
    """
    The arguments of one row, unpacked.
    """
    parts: list[bytes] = []
    at = 0
    while at < len(packed):
        end = packed.index(b"\r\n", at)
        size = int(packed[at + 1 : end])
        parts.append(packed[end + 2 : end + 2 + size])
        at = end + 4 + size
    return parts


def requests(run: str, task: str, first: int, count: int) -> NDArray[np.uint8]:
    """
    Six bytes for each row of a run, by its place: a task that is run again makes the same ones.

    The first three are those of the run: its own rows may replace each other.
    """
    digest = hashlib.blake2b(f"{run}/{task}".encode(), digest_size=8).digest()
    mixed = np.arange(first, first + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed += np.uint64(int.from_bytes(digest))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    found = np.ascontiguousarray(mixed.astype(">u8").view(np.uint8).reshape(count, 8)[:, :REQUEST_BYTES])
    of_run = hashlib.blake2b(run.encode(), digest_size=RUN_BYTES).digest()
    found[:, :RUN_BYTES] = np.frombuffer(of_run, np.uint8)
    return found


def _good_topics(topics: pa.DictionaryArray) -> NDArray[np.bool_]:
    good = [_is_topic(text) for text in topics.dictionary.to_pylist()]
    found = pa.array([*good, False]).take(topics.indices.fill_null(len(good)))
    return flags(found)


def _good_ids(ids: pa.StringArray) -> NDArray[np.bool_]:
    good = pc.and_(pc.match_substring_regex(ids, ID_PATTERN), pc.less_equal(pc.binary_length(ids), ID_CHARS))
    return flags(good) & ~flags(pc.is_in(ids, pa.array([".", ".."])))


def _due_ms(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    kind = column.type
    if not pa.types.is_timestamp(kind) or kind.tz is None:
        return np.ones(len(column), np.int64), np.zeros(len(column), bool)
    micros = (
        column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    )
    # Rounded up: never early.
    ms = np.maximum(-(-micros // 1000), 1)
    return ms, (ms <= MAX_DUE_MS) & flags(column.is_valid())


def _lanes(batch: pa.RecordBatch) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    if "priority" not in batch.schema.names:
        return np.zeros(batch.num_rows, np.uint8), np.ones(batch.num_rows, bool)
    named = batch.column("priority")
    if not pa.types.is_string(named.type):
        return np.zeros(batch.num_rows, np.uint8), flags(named.is_null())
    found = pc.index_in(named.fill_null("normal"), _LANES)
    return found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint8), flags(found.is_valid())


def _object(value: Any, option: Option) -> Any:
    if option.kind is not OBJECT or not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{option.name} is no JSON: {error}") from error


def _is_topic(text: str | None) -> bool:
    return text is not None and TOPIC.fullmatch(text) is not None and not text.startswith(RESERVED)
