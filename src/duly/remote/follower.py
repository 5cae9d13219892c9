"""
Following events over HTTP: one stream, begun again from the same place on when it is lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from duly.errors import ServerUnsuitable, StoreUnavailable, UsageError
from duly.follower import NOW, START, Follower
from duly.loops import running_loop
from duly.pauses import Pauses
from duly.remote.answers import EventAnswer, LostAnswer, event_of, gap_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.events import Event
    from duly.follower import EventFilter
    from duly.remote.link import RemoteLink, Stream

T = TypeVar("T")

PATH = "/v1/events"

_events = msgspec.json.Decoder(EventAnswer)
_gaps = msgspec.json.Decoder(LostAnswer)


class RemoteFollower(Follower):
    """
    Events that a service sends.
    """

    def __init__(
        self,
        open_: Callable[[], Awaitable[RemoteLink]],
        filter_: EventFilter,
        since: str,
        wait_s: float | None,
    ) -> None:
        super().__init__(filter_, since, wait_s)
        self._open = open_
        self._id: str | None = None if since in (NOW, START) else since
        self._stream: Stream | None = None
        self._text = b""  #: what came of a message that is not whole yet
        self._told = False  #: the stream has brought more than the place at which it begins
        self._lost_s: float | None = None  #: since when streams are lost and nothing new came
        self._begun_s = 0.0
        self._pauses = Pauses(longest_s=1.0)

    @property
    def offset(self) -> str | None:
        """
        Where to go on behind the last event that was given, and behind what was left out after it.
        """
        return self._id

    async def begin(self) -> None:
        """
        Begin the stream, and take the place at which it begins.
        """
        try:
            while self._id is None or not self._follows():
                try:
                    await (self._message() if self._follows() else self._begin(self._wait_s))
                except _Lost as lost:
                    await self._lose(lost)
        except BaseException:
            self._forget()
            raise

    async def aclose(self) -> None:
        """
        Close the stream.
        """
        self._forget()

    async def next(self) -> Event | None:
        """
        Return the next event; None where none came in the time that was said.
        """
        try:
            return await self._next()
        except BaseException:
            # Also where the task is cancelled: whoever asks again begins a new stream.
            self._forget()
            raise

    async def _next(self) -> Event | None:
        loop = running_loop()
        end = None if self._wait_s is None else loop.time() + self._wait_s
        fresh = False  #: the stream was begun by this call
        while True:
            try:
                if not self._follows():
                    await self._begin(None if end is None else max(0.0, end - loop.time()))
                    fresh = True
                message = await self._message()
            except _Lost as lost:
                await self._lose(lost)
                continue
            match message:
                case "message", data:
                    return event_of(self._decode(_events, data))
                case "lost", data:
                    gap = self._decode(_gaps, data)
                    if gap.since is None:
                        raise UsageError(gap.why.replace("Last-Event-ID", "since"))
                    raise gap_of(gap)
                case "end", _:
                    self._drop()
                    # Else it was said while the event before was worked on, and there may be more by now.
                    if fresh or (self._wait_s and end is not None and loop.time() >= end):
                        return None

    def _follows(self) -> bool:
        """
        Whether there is a stream that this loop can read.
        """
        stream = self._stream
        return stream is not None and stream.loop is asyncio.get_running_loop() and not stream.link.closed

    async def _begin(self, wait_s: float | None) -> None:
        self._drop()
        link = await self._open()
        params = [("topic", topic) for topic in sorted(self._filter.topics)]
        params += [("verb", verb.value) for verb in sorted(self._filter.verbs)]
        if self._since == START and self._id is None:
            params.append(("from", START))
        if wait_s is not None:
            params.append(("wait", f"{wait_s:.3f}"))
        headers = {} if self._id is None else {"Last-Event-ID": self._id}
        patience_s = None
        if self._lost_s is not None:
            patience_s = max(0.0, self._lost_s + link.patience_s - asyncio.get_running_loop().time())
        self._stream = await link.follow(PATH, headers=headers, params=params, patience_s=patience_s)
        self._text, self._told = b"", False
        self._begun_s = asyncio.get_running_loop().time()

    async def _lose(self, lost: _Lost) -> None:
        """
        Have the stream begun again, unless that has been tried for long enough.
        """
        stream, now_s = self._stream, asyncio.get_running_loop().time()
        self._drop()
        assert stream is not None  # noqa: S101  # it was lost
        link = stream.link
        if self._lost_s is None or now_s - self._begun_s > link.patience_s:
            self._lost_s = now_s
        if link.closed or now_s > self._lost_s + link.patience_s:
            why = "the app was closed" if link.closed else f"every stream ends at once ({lost})"
            raise StoreUnavailable(f"cannot follow {link.place}: {why}") from lost
        await asyncio.sleep(self._pauses.take())

    async def _message(self) -> tuple[str, bytes] | None:
        """
        The kind and the data of the next message; None for one that only says where to go on.
        """
        from duly.remote.link import StreamLost  # noqa: PLC0415  # packages that need not be there

        assert self._stream is not None  # noqa: S101  # just begun
        while b"\n\n" not in self._text:
            try:
                self._text += await self._stream.part()
            except StreamLost as lost:
                raise _Lost(str(lost)) from lost
        text, _, self._text = self._text.partition(b"\n\n")
        if self._told:
            # It goes on: what happens to it from here on is another loss.
            self._lost_s = None
            self._pauses.reset()
        self._told = True
        fields: dict[bytes, bytes] = {}
        for line in text.splitlines():
            name, _, value = line.partition(b":")
            fields[name] = value.removeprefix(b" ")
        if b"id" in fields:
            self._id = fields[b"id"].decode()
        if b"data" not in fields:
            return None
        return fields.get(b"event", b"message").decode(), fields[b"data"]

    def _decode(self, decoder: msgspec.json.Decoder[T], data: bytes) -> T:
        try:
            return decoder.decode(data)
        except msgspec.DecodeError as error:
            raise ServerUnsuitable(f"the service tells of an event in other words: {error}") from error

    def _forget(self) -> None:
        self._drop()
        self._lost_s = None

    def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class _Lost(Exception):  # never leaves this module
    """
    The stream ended before it was meant to.
    """
