"""
Idempotency: what is kept of a request that may be sent again, so that it is done once and answered alike.

The key of a request and the job that it makes may lie in different shards, so no script can write both.
The key is reserved first, with the six bytes that tell the call for the job from any other.  Then the job is
written, then the answer is added.  If a process dies in between, a repeated request does the rest: a call
with the same six bytes finds the job that the first one made.  It replaces no job that others have changed
since the key was reserved: theirs came behind it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from duly.errors import DulyError
from duly.figures import amount
from duly.ids import new_id, new_request
from duly.job import Once, Placed
from duly.store.requests import OWNER_CHARS, NoRoom

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duly.apikeys import ApiKey
    from duly.app import Duly
    from duly.store import Store

DIGEST_BYTES = 16
LINE_BYTES = 8  #: kept of each line of a batch: its digest, whose last bit says that its job was stored
WRONG = b"\xfd" * (LINE_BYTES - 1) + b"\xfc"  #: in the place of the digest of a line that is wrong
MAX_LINES = 500_000  #: of a batch under a key: 4 MB
NO_KEY = ""  #: stands for the callers of a service that needs no API key: they have one share
ASYNC_CALLERS = "async endpoints"  #: stands for all callers of async endpoints likewise
REFUSAL = 400  #: characters that are kept of a refusal; it names a topic and an id


class KeyReused(DulyError):
    """
    A key stands for another request.
    """


class KeysFull(DulyError):
    """
    A caller's requests that may be sent again have taken their share of the room; nothing was stored.
    """

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s  #: until the first of them are forgotten


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """
    What is kept of a request: at most 1 KiB, whatever its job carries.
    """

    digest: bytes  #: of what was asked for
    id: str  #: of the job, if the request has none of its own
    request: bytes  #: of the call that makes it
    placed: Placed | None = None  #: the first answer
    refused: str | None = None  #: or the first refusal: a job with that id exists
    since_ms: int = 0  #: not kept: when a request before this one reserved the key, 0 if there was none

    @property
    def answered(self) -> bool:
        """
        Whether the first answer is known.
        """
        return self.placed is not None or self.refused is not None

    def once(self, name: str, keep_ms: int) -> Once:
        """
        The call that makes the job.
        """
        return Once(self.request, name, self.digest, keep_ms, self.since_ms)

    def with_answer(self, answer: Placed | DulyError) -> Entry:
        """
        The entry once its request was answered.
        """
        told = {"refused": str(answer)[:REFUSAL]} if isinstance(answer, DulyError) else {"placed": answer}
        return msgspec.structs.replace(self, since_ms=0, **told)


class Used(NamedTuple):
    """
    How much room is taken.
    """

    bytes: int  #: by all callers
    fills: dict[str, float]  #: by the caller: of its share, 1 if there is no room for a new key


_entries = msgspec.msgpack.Decoder(Entry)
_pack = msgspec.msgpack.Encoder().encode


def new_entry(digest: bytes) -> Entry:
    """
    Describe a request that nobody has sent before.
    """
    return Entry(digest, new_id(), new_request())


def read_entry(data: bytes) -> Entry:
    """
    Read what was kept; where that is the lines of a batch, it is the entry of no other request.
    """
    try:
        return _entries.decode(data)
    except msgspec.DecodeError:
        return Entry(b"", "", b"")


def write_entry(entry: Entry) -> bytes:
    """
    Write what is kept.
    """
    return _pack(entry)


def name_of(caller: str, *parts: str) -> str:
    """
    Name an entry by what it belongs to: the caller, the operation, the topic, the key.
    """
    return owner_of(caller) + part_of("\0".join((caller, *parts)))


def part_of(text: str) -> str:
    """
    Name what belongs to a caller whose name stands in front.
    """
    return digest_of(text.encode()).hex()[OWNER_CHARS:]


def owner_of(caller: str) -> str:
    """
    What the names of a caller's entries begin with.
    """
    return digest_of(caller.encode()).hex()[:OWNER_CHARS]


def digest_of(data: bytes) -> bytes:
    """
    Tell one request from another.
    """
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


class Entries:
    """
    The entries of a namespace, each in a shard by its name; the server forgets them when their time is over.
    """

    def __init__(self, store: Store, *, keep_ms: int, most: int) -> None:
        self._store = store
        self.keep_ms = keep_ms  #: how long each counts
        self.most = most  #: bytes of all together

    async def reserve(self, name: str, digest: bytes) -> Entry:
        """
        Reserve a key for a request, or find the entry that stands.

        Raises:
            KeyReused: That is of another request.
            KeysFull: There is no room for another one.
        """
        entry = new_entry(digest)
        # A call whose reply was lost is sent again, and finds its own.
        since_ms, kept = self._noted(
            await self._store.note(
                name, write_entry(entry), how="first", keep_ms=self.keep_ms, most=self.most
            )
        )
        if not since_ms:
            return entry
        return msgspec.structs.replace(same_request(read_entry(kept), digest), since_ms=since_ms)

    async def answer(self, name: str, entry: Entry) -> None:
        """
        Keep the first answer.
        """
        await self._store.note(name, write_entry(entry), how="all", keep_ms=self.keep_ms)

    async def lines(self, name: str, first: int, digests: Sequence[bytes]) -> tuple[int, list[bytes]]:
        """
        Note lines of a batch, from the place *first* on.

        Returns: when the batch came first, 0 if that is now; and what was noted of the lines before.

        Raises:
            KeysFull: There is no room for more lines.
        """
        since_ms, noted = self._noted(
            await self._store.note(
                name,
                b"".join(digests),
                how="more",
                place=first * LINE_BYTES,
                keep_ms=self.keep_ms,
                most=self.most,
            )
        )
        return since_ms, lines_of(noted)

    async def stored(self, name: str, first: int, digests: Sequence[bytes]) -> None:
        """
        Note of lines from the place *first* on which of their jobs were stored.
        """
        await self._store.note(name, b"".join(digests), how="over", place=first * LINE_BYTES)

    async def used(self, callers: Iterable[str]) -> Used:
        """
        Return how much is taken, and how far each of *callers* has come with its share.
        """
        callers, most = list(callers), self.most // self._store.shards
        owners = [owner_of(caller) for caller in callers]
        shards = [await self._store.noted(shard, owners) for shard in range(self._store.shards)]
        # A key is refused where its shard has no room.
        fills = {
            caller: max(fill_of(shard.callers[at], shard.all, most) for shard in shards)
            for at, caller in enumerate(callers)
        }
        return Used(sum(shard.all for shard in shards), fills)

    def _noted(self, answer: tuple[int, bytes] | NoRoom) -> tuple[int, bytes]:
        if isinstance(answer, NoRoom):
            raise no_room(self.most, answer.wait_ms)
        return answer


async def entries_of(app: Duly, keep_s: float | None = None) -> Entries:
    """
    What is kept of requests: by the record if there is one, for as long as the settings say or *keep_s*.
    """
    keep_ms = app.settings.idempotency_ms if keep_s is None else max(1, int(keep_s * 1000))
    most = app.settings.idempotency_bytes
    if app.settings.record is not None:
        # Not by `record()`, which waits for the queue's server.
        return (await app.promises()).entries(keep_ms=keep_ms, most=most)
    return Entries(await app.store(), keep_ms=keep_ms, most=most)


def callers_of(keys: Iterable[ApiKey]) -> dict[str, str]:
    """
    Those who have a share each, and what to call them.
    """
    known = {key.id: f"API key {key.name}" for key in keys}
    return {NO_KEY: "callers without an API key", ASYNC_CALLERS: "callers of async endpoints"} | known


def fill_of(own: int, every: int, most: int) -> float:
    """
    Return how much of its share a caller has that takes *own* of *every* byte: none takes more than is left.
    """
    return min(own / max(most - every, 1), 1.0) if own else 0.0


def no_room(most: int, wait_ms: int) -> KeysFull:
    """
    What to say of a request of which nothing can be kept.
    """
    return KeysFull(
        "what is kept of this caller's requests that may be sent again has taken its share of "
        f"{most} bytes (the setting idempotency_bytes); nothing was stored: wait until the first are "
        f"forgotten, in {amount(wait_ms)}, or send it without a key",
        wait_ms / 1000,
    )


def lines_of(noted: bytes) -> list[bytes]:
    """
    What was noted of lines, apart.
    """
    return [noted[at : at + LINE_BYTES] for at in range(0, len(noted), LINE_BYTES)]


def same_line(noted: bytes, digest: bytes) -> bool:
    """
    Return whether a line is the one that was noted, stored or not; any is, where that was wrong.
    """
    return noted == WRONG or (noted[:-1] == digest[:-1] and noted[-1] | 1 == digest[-1] | 1)


def same_request(entry: Entry, digest: bytes) -> Entry:
    """
    Return *entry* if it is of the request with *digest*.

    Raises:
        KeyReused: It is of another one.
    """
    if entry.digest != digest:
        raise KeyReused("this Idempotency-Key was used for another request; use a new one for each")
    return entry
