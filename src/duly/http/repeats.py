"""
Requests whose change takes more than one call to the queue: what is kept of one that may be sent again.

A change that is one call on each shard is remembered by the shards, with its answer.  A purge makes calls for
whatever jobs it finds, and a repeat would find others.  So the request is noted before the first call, with
the numbers that the queue had then, and again at the end with its answer.  A repeat is given that answer.  If
the first try never came to its end, the repeat goes on, but not to what was sent or changed since it began.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from duly.errors import SERVER_ERRORS, OutcomeUnknown
from duly.idempotency import owner_of
from duly.store.requests import OWNER_CHARS, NoRoom

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request

    from duly.ids import Repeatable
    from duly.store import Store

log = logging.getLogger("duly.http")

KEEP_MS = 300_000  #: as long as a shard remembers a call
NO_BOUND = 2**53  #: of what is kept: these are few, short, and soon forgotten


class _Kept(msgspec.Struct, array_like=True):
    newest: list[int]
    answer: bytes = b""


_read = msgspec.msgpack.Decoder(_Kept).decode
_write = msgspec.msgpack.Encoder().encode


class FirstTry(NamedTuple):
    """
    What is known of a request that was sent before.
    """

    newest: Sequence[int]  #: the numbers of the queue when it came
    answer: bytes  #: empty where it never came to its end


class Repeats:
    """
    A request that may be sent again; without a key it is another one each time.
    """

    def __init__(self, store: Store, request: Request, call: Repeatable | None) -> None:
        self._store = store
        key, digest = getattr(request.state, "key", None), call.digest if call else b""
        self._call, self._name = call, owner_of(key.id if key else "") + digest.hex()[OWNER_CHARS:]
        self._newest: list[int] = []

    async def begin(self, newest: Callable[[], Awaitable[list[int]]] | None = None) -> FirstTry | None:
        """
        Take note of the request with the numbers that *newest* tells; None if this is its first try.

        Raises:
            OutcomeUnknown: It was sent so long ago that nobody remembers whether it came.
        """
        if self._call is None:
            return None
        self._newest = [] if newest is None else await newest()
        kept = await self._note(_Kept(self._newest), "first")
        if kept:
            first = _read(kept)
            self._newest = first.newest
            return FirstTry(first.newest, first.answer)
        if (self._call.age_ms or 0) >= KEEP_MS:
            raise OutcomeUnknown("a request came again so late that nobody knows whether it was done before")
        return None

    async def end(self, answer: bytes) -> None:
        """
        Keep the answer.
        """
        if self._call is None:
            return
        try:
            await self._note(_Kept(self._newest, answer), "all")
        except SERVER_ERRORS as error:
            # It is done: the same request again finds little to do.
            log.warning("the answer to a request that may be sent again was not kept: %s", error)

    async def _note(self, about: _Kept, how: Literal["first", "all"]) -> bytes:
        noted = await self._store.note(self._name, _write(about), how=how, keep_ms=KEEP_MS, most=NO_BOUND)
        assert not isinstance(noted, NoRoom), "there is no bound"  # noqa: S101  # see NO_BOUND
        return noted[1]
