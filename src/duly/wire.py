"""
One connection to a server: a command goes out, its reply comes back.

redis-py connects, with TLS, password and database; then this takes its
transport over.  Its own way to a reply leads through several coroutines and a
stream reader, which took more time than the server did for the whole call.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Any

from hiredis import Reader, pack_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.connection import AbstractConnection

LARGE = 64 * 1024  #: bytes; what is longer takes its time to be sent
SLOWEST = 500_000  #: bytes a second that a connection carries at least


class ReplyError(Exception):
    """
    What the server answered is an error.
    """

    @property
    def code(self) -> str:
        """
        Its first word.
        """
        return str(self).partition(" ")[0]

    @property
    def said(self) -> str:
        """
        What it says, without a first word that says nothing.
        """
        return str(self).removeprefix("ERR ")


class WireLost(Exception):
    """
    The connection broke, or no reply came in time.
    """


class Packed(bytes):
    """
    A command as it travels, for those who pack better than by words.
    """


class Wire(asyncio.Protocol):
    """
    A connection that carries one call at a time.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        """
        Take over a connection that redis-py has made.
        """
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(replyError=ReplyError)
        self._reply: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None  #: looks whether the call under way is overdue
        self._overdue_s = 0.0  #: when it will be
        self._overdue: Callable[[Wire], None] = _give_up  #: what is done then
        self.lost = False
        self.blocks = False  #: carries calls that wait on the server
        self.deadline_s = 0.0  #: when the call under way is given up, for who looks after it
        self.sent_s = monotonic()  #: when the last call was sent
        self.silent = False  #: its reply is overdue
        self.heard = False  #: a part of a reply has come since that was last asked
        writer = connection._writer  # noqa: SLF001  # there is no other way to it; tests would fail without it
        assert writer is not None, "a connection is made before it is taken over"  # noqa: S101  # of our caller
        self._transport = writer.transport
        self._transport.set_protocol(self)

    async def exchange(
        self, command: tuple[Any, ...], limit_s: float, overdue: Callable[[Wire], None] | None = None
    ) -> Any:
        """
        Send one command and wait for its reply.

        *overdue* is called when there is none within *limit_s*, and the call waits on; without it, the
        connection is given up then.

        Raises:
            ReplyError: The server answered with an error.
            WireLost: There was no answer; the command may have run.
        """
        if self.lost:
            raise WireLost("the connection was closed")
        self._reply = reply = self._loop.create_future()
        self.heard = False
        # Packed in C: redis-py's own packing took longer than all else that a client does.
        packed = command[0] if type(command[0]) is Packed else pack_command(command)
        self._transport.write(packed)
        if len(packed) > LARGE:
            limit_s += len(packed) / SLOWEST
        self.sent_s = monotonic()
        self.wait_on(limit_s, overdue)
        try:
            answer = await reply
        finally:
            self._reply = None
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    def wait_on(self, for_s: float, overdue: Callable[[Wire], None] | None = None) -> None:
        """
        Give the call under way so much time from now on.
        """
        self._overdue_s, self._overdue = self._loop.time() + for_s, overdue or _give_up
        # One that looks before then looks again: a timer for each call would cost more than its sending.
        if self._timer is None or self._timer.when() > self._overdue_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._overdue_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.waiting:
            return
        if self._loop.time() < self._overdue_s:
            self._set_timer()
        else:
            self._overdue(self)

    @property
    def waiting(self) -> bool:
        """
        Whether a call is under way.
        """
        return self._reply is not None and not self._reply.done()

    def idle_s(self) -> float:
        """
        How long ago the last call was sent.
        """
        return monotonic() - self.sent_s

    def data_received(self, data: bytes) -> None:
        """
        Read on, until the reply is whole.
        """
        try:
            self._reader.feed(data)
            answer = self._reader.gets()
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing more can be read from here
            self.give_up(f"what came back is no reply: {error}")
            return
        if answer is False:
            self.heard = True
            return
        if self._reply is None or self._reply.done():
            self.give_up("a reply that nobody asked for")
        else:
            self.silent = False
            self._reply.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """
        Tell the call under way.
        """
        self.give_up(str(exc or "the server closed the connection"))

    def give_up(self, why: str) -> None:
        """
        Break the connection, and tell the call under way why.
        """
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._transport.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(WireLost(why))

    async def aclose(self) -> None:
        """
        Close, without waiting for anything.
        """
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        await self._connection.disconnect(nowait=True)


def _give_up(wire: Wire) -> None:
    if wire.waiting:
        wire.give_up(f"no reply within {wire.idle_s():.3g} s")
