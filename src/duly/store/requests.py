"""
What services tell each other of requests: note keeps something of those which may be sent again, refuse
counts those with a wrong API key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from duly.job import shard_of
from duly.store.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADDRESSES = 10_000  #: whose wrong API keys are counted
OWNER_CHARS = 8  #: of the name of what is kept: whose it is


class NoRoom(NamedTuple):
    """
    The answer to a caller that has taken its share of the room.
    """

    wait_ms: int  #: until the first of what it has there is forgotten


class Noted(NamedTuple):
    """
    Bytes that are kept in a shard: of all callers, and of those that were asked about.
    """

    all: int
    callers: list[int]


class Requests(Calls):
    """
    What the processes of a service need that do not know of each other's requests.
    """

    async def note(
        self,
        name: str,
        data: bytes,
        *,
        how: Literal["first", "more", "over", "all"],
        place: int = 0,
        keep_ms: int = 0,
        most: int = 0,
    ) -> tuple[int, bytes] | NoRoom:
        """
        Keep *data* of a request, for *keep_ms* from the first call on.

        With "first" it is kept if nothing is yet, with "more" from *place* on behind what is kept, with
        "over" there in place of what is kept, with "all" in place of everything.

        Returns: when the request came first by the server's clock, 0 if that is now, and what was kept there
            before; `NoRoom` if its caller would have more than is left to others of *most* bytes.
        """
        shard = shard_of("", name, self.shards)
        fixed = {
            "how": how,
            "place": place,
            "keep_ms": keep_ms,
            "most": max(most // self.shards, 1),
            "data": data,
        }
        keys = self.keys[shard]
        more = (keys.idempotency(name), keys.idempotency_share(name[:OWNER_CHARS]))
        first, second = await self._run("note", shard, (), fixed, more=more)
        return NoRoom(second) if first == b"full" else (first, second)

    async def refuse(
        self, wrong: Mapping[str, int], *, each_ms: int, burst: int, most: int = ADDRESSES
    ) -> dict[str, float]:
        """
        Count wrong API keys of addresses, beside those that other processes have told of.

        Each counts for *each_ms*, one after the other; *burst* are let through at once.

        Returns: for how many seconds each address is to be refused.
        """
        fixed = {"each_ms": each_ms, "burst": burst, "most": most}
        rest = [word for address, count in wrong.items() for word in (address, count)]
        told = await self._run("refuse", 0, (), fixed, rest)
        return {address: wait_ms / 1000 for address, wait_ms in zip(wrong, told, strict=True)}

    async def noted(self, shard: int, owners: Sequence[str]) -> Noted:
        """
        Return how many bytes are kept in a shard, of all and of each of *owners*.
        """
        seconds, micros = await self.link.call("TIME")
        keys, now_ms = self.keys[shard], self.now_ms(int(seconds) * 1000 + int(micros) // 1000)
        places = [keys.fixed["idempotency_bytes"], *map(keys.idempotency_share, owners)]
        total, *own = [_bytes(await self.link.call("HGETALL", place), now_ms) for place in places]
        return Noted(total, own)


def _bytes(spans: Sequence[bytes], now_ms: int) -> int:
    pairs = zip(spans[::2], spans[1::2], strict=True)
    return sum(int(size) for ends, size in pairs if int(ends) > now_ms)
