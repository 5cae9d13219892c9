"""
Packed rows on their way: several calls under way at once, the next rows packed meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hiredis import pack_command

from duly.connection import Link
from duly.group import MAX_BYTES
from duly.ids import new_nonce
from duly.keys import ShardKeys
from duly.scripts import library, load
from duly.spark.tally import Tally
from duly.wire import Packed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from duly.spark.packing import Parcel

IN_FLIGHT = 4
CALL_JOBS = 250  #: of one call: about 3 ms of the server's time, as for every other sender
CHANGED = "the job was changed by others since the run began"
TAKEN = "a job with this id exists already"
PATIENCE_S = 30.0  #: a task that fails is begun anew, so a server that restarts is waited for


class Loop:
    """
    An event loop in a thread of its own, and one link on it.
    """

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="duly-spark", daemon=True)
        self._thread.start()
        self._closers: list[Callable[[], Coroutine[Any, Any, Any]]] = []
        self.link: Link = self.call(_link(url))

    def start(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """
        Begin, without waiting.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """
        Run to the end, and wait for it.
        """
        return self.start(work).result()

    def at_end(self, close: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """
        Have something closed before the link is.
        """
        self._closers.append(close)

    def close(self) -> None:
        """
        Close the link and end the thread.
        """
        self.call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for close in reversed(self._closers):
            await close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await self.link.aclose()


async def _link(url: str) -> Link:
    return Link(url, patience_s=PATIENCE_S)


class Chunk(NamedTuple):
    """
    What leaves in one call.
    """

    shard: int
    topics: list[str]
    places: NDArray[np.int64]  #: numbers of its rows in their batch
    data: bytes


class Sender:
    """
    Sends packed rows of one task, and counts what became of them.
    """

    def __init__(
        self,
        loop: Loop,
        namespace: str,
        shards: int,
        refuse: Callable[[Parcel, dict[int, str]], None],
        pace: Callable[[int], Coroutine[Any, Any, None]] | None = None,
        now: Callable[[], int] | None = None,
        seen: Sequence[int] | None = None,
    ) -> None:
        """
        Prepare: *seen* are the numbers that the shards had when the run began, if it may replace jobs.
        """
        self.tally = Tally()
        self._seen = seen
        self._loop = loop
        self._now = now  #: of a test clock
        self._keys = [ShardKeys(namespace, shard) for shard in range(shards)]
        self._refuse = refuse
        self._pace = pace
        self._under_way: list[tuple[Parcel, Chunk, Future[Any]]] = []
        script = load("enqueue")
        self._fixed = [name for name in script.keys if not name.endswith("...")]

    def send(self, parcel: Parcel) -> None:
        """
        Send a batch; this waits while too many calls are under way.
        """
        for chunk in chunks_of(parcel, len(self._keys)):
            while len(self._under_way) >= IN_FLIGHT:
                self._settle()
            self._under_way.append((parcel, chunk, self._loop.start(self._call(chunk))))

    def finish(self) -> Tally:
        """
        Wait for all answers.
        """
        while self._under_way:
            self._settle()
        return self.tally

    async def _call(self, chunk: Chunk) -> Any:
        if self._pace is not None:
            await self._pace(len(chunk.places))
        return await self._loop.link.call(Packed(self._head(chunk) + chunk.data))

    def _head(self, chunk: Chunk) -> bytes:
        keys = self._keys[chunk.shard]
        names = [keys.fixed[name] for name in self._fixed]
        for topic in chunk.topics:
            names += keys.lanes(topic)
        head = ("FCALL", library().function("enqueue"), len(names), *names)
        now_ms = "" if self._now is None else self._now()
        # A task may repeat minutes later what another began: see lib/requests.lua.
        repeats = (0, 0, "0") if self._seen is None else (0, self._seen[chunk.shard], "2")
        words: Any = (*head, now_ms, new_nonce(), *repeats, "", len(chunk.topics), *chunk.topics)
        packed: bytes = pack_command(words)
        return b"*%d%b" % (len(words) + 3 * len(chunk.places), packed[packed.index(b"\r") :])

    def _settle(self) -> None:
        parcel, chunk, future = self._under_way.pop(0)
        _, _, answers = future.result()
        refused: dict[int, str] = {}
        for at, answer in enumerate(answers):
            if type(answer) is int:
                self.tally.new += 1
                continue
            match answer.split(b" ", 1)[0]:
                case b"kept":
                    self.tally.kept += 1
                case b"created":
                    self.tally.new += 1
                case b"replaced":
                    self.tally.replaced += 1
                case b"exists":
                    refused[int(chunk.places[at])] = TAKEN
                case b"unknown":
                    refused[int(chunk.places[at])] = CHANGED
                case _:
                    refused[int(chunk.places[at])] = "the topic is at its backlog limit"
        if refused:
            self._refuse(parcel, refused)


def chunks_of(parcel: Parcel, shards: int) -> Iterator[Chunk]:
    """
    Cut a batch into calls: of one shard each, within the bounds of a call, no member twice.
    """
    places = np.flatnonzero(parcel.rows.is_valid().to_numpy(zero_copy_only=False))
    if shards == 1:
        yield from _chunks(parcel, 0, places)
        return
    owners = np.fromiter(
        # A member has the slash where the identity has a NUL, and a slash is in neither part.
        (
            zlib.crc32(member.replace(b"/", b"\0"))
            for member in parcel.members.take(pa.array(places)).to_pylist()
        ),
        np.int64,
        len(places),
    )
    for shard in range(shards):
        yield from _chunks(parcel, shard, places[owners % shards == shard])


def _chunks(parcel: Parcel, shard: int, places: NDArray[np.int64]) -> Iterator[Chunk]:
    if not len(places):
        return
    whole = len(places) == len(parcel.rows)
    at = pa.array(places)
    rows = parcel.rows if whole else parcel.rows.take(at)
    members = parcel.members if whole else parcel.members.take(at)
    topics = parcel.topics if whole else parcel.topics.take(at)
    named = topics.dictionary.to_pylist() if len(topics.dictionary) == 1 else None
    _, offsets_buffer, data = rows.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[rows.offset : rows.offset + len(rows) + 1]
    view = memoryview(data)
    for first, last in _cuts(offsets, members):
        yield Chunk(
            shard,
            named or topics.slice(first, last - first).unique().dictionary_decode().to_pylist(),
            places[first:last],
            bytes(view[offsets[first] : offsets[last]]),
        )


def _cuts(offsets: NDArray[np.int32], members: pa.BinaryArray) -> Iterator[tuple[int, int]]:
    size = len(offsets) - 1
    names = None if pc.count_distinct(members).as_py() == size else members.to_pylist()
    first = 0
    while first < size:
        most = int(np.searchsorted(offsets, offsets[first] + MAX_BYTES, side="right")) - 1
        last = min(max(most, first + 1), first + CALL_JOBS, size)
        if names is not None:
            seen: set[bytes] = set()
            for at in range(first, last):
                if names[at] in seen:
                    last = at
                    break
                seen.add(names[at])
        yield first, last
        first = last
