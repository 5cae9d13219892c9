"""
One connection to a server: a command goes out, its reply comes back.

redis-py connects, with TLS, password and database; then this takes its
transport over.  Its own way to a reply leads through several coroutines and a
stream reader, which took more time than the server did for the whole call.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hiredis import Reader, pack_command

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


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
        self.lost = False
        self.blocks = False  #: carries calls that wait on the server
        writer = connection._writer  # noqa: SLF001  # there is no other way to it; tests would fail without it
        assert writer is not None, "a connection is made before it is taken over"  # noqa: S101  # of our caller
        self._transport = writer.transport
        self._transport.set_protocol(self)

    async def exchange(self, command: tuple[Any, ...], timeout_s: float) -> Any:
        """
        Send one command and wait for its reply.

        Raises:
            ReplyError: The server answered with an error.
            WireLost: There was no answer; the command may have run.
        """
        if self.lost:
            raise WireLost("the connection was closed")
        self._reply = reply = self._loop.create_future()
        # Packed in C: redis-py's own packing took longer than all else that a client does.
        packed = command[0] if type(command[0]) is Packed else pack_command(command)
        self._transport.write(packed)
        timer = self._loop.call_later(timeout_s, self._break, f"no reply within {timeout_s:g} s")
        try:
            answer = await reply
        finally:
            timer.cancel()
            self._reply = None
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    def data_received(self, data: bytes) -> None:
        """
        Read on, until the reply is whole.
        """
        try:
            self._reader.feed(data)
            answer = self._reader.gets()
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing more can be read from here
            self._break(f"what came back is no reply: {error}")
            return
        if answer is False:
            return
        if self._reply is None or self._reply.done():
            self._break("a reply that nobody asked for")
        else:
            self._reply.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        """
        Tell the call under way.
        """
        self._break(str(exc or "the server closed the connection"))

    def _break(self, why: str) -> None:
        self.lost = True
        self._transport.abort()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(WireLost(why))

    async def aclose(self) -> None:
        """
        Close, without waiting for anything.
        """
        self.lost = True
        await self._connection.disconnect(nowait=True)
