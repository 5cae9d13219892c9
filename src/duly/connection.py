"""
One exchange with the server: survive what can be survived, and say precisely what could not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)

from duly.errors import OutcomeUnknown, ServerUnsuitable, StoreUnavailable, UsageError
from duly.pauses import Pauses
from duly.scripts import library
from duly.wire import ReplyError, Wire, WireLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

log = logging.getLogger("duly.connection")

_PASSING = {"BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"}
_ELSEWHERE = {"LOADING", "READONLY"}  #: the server changed its role, or is starting
_FORBIDDEN = {"NOPERM", "NOAUTH", "WRONGPASS"}
_CLOSED = (AuthenticationError, AuthorizationError, NoPermissionError)
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
MAX_CONNECTIONS = 64  #: of one client; a thousand calls at once take turns
MAX_BLOCKING = 64  #: besides, for calls that wait on the server


class _NotSent(Exception):  # never leaves this module
    """
    No connection could be made, so the server has not seen the call.
    """


class _NoFunction(Exception):  # never leaves this module
    """
    The server does not know our functions (yet, or any more).
    """


class _Refused(Exception):  # never leaves this module
    """
    The server answered that it did nothing, and may answer otherwise soon.
    """


class _ReplyLost(Exception):  # never leaves this module
    """
    The call was sent and no reply came: it may have run.
    """


def unreachable(error: BaseException) -> bool:
    """
    Whether it is that nobody answered, and not that somebody refused.
    """
    return isinstance(error, StoreUnavailable) and isinstance(error.__cause__, _NotSent)


class Link:
    """
    A server, reached over as many connections as there are calls under way, up to a bound.

    Every mutating call carries a request id or is idempotent by itself, so a
    call whose reply was lost is sent again.  redis-py's own retries are off:
    they would repeat calls without telling.
    """

    def __init__(
        self,
        url: str,
        *,
        ensure: Callable[[], Awaitable[None]] | None = None,
        patience_s: float = 5.0,
        timeout_s: float = 6.0,
    ) -> None:
        """
        Prepare, without connecting yet.

        *ensure* is asked to bring the server up when it cannot be reached.

        Raises:
            UsageError: *url* is not the address of a Redis or Valkey server.
        """
        self.url = url
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        #: awaited before each call, for a server that nobody could look at yet
        self.before: Callable[[], Awaitable[None]] | None = None
        self._ensure = ensure
        self._idle: list[Wire] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        # Calls that wait on the server would take the slots of those that do not.
        self._idle_blocking: list[Wire] = []
        self._blocking_slots = asyncio.Semaphore(MAX_BLOCKING)
        self._closed = False
        try:
            self._pool = ConnectionPool.from_url(
                url,
                protocol=2,
                socket_timeout=None,
                socket_connect_timeout=5.0,
                retry=Retry(NoBackoff(), 0),
                health_check_interval=0,
            )
        except ValueError as error:
            msg = f"cannot use {url!r} as a server address: {error}; write redis://host:port/0, rediss:// or unix://path"
            raise UsageError(msg) from error

    async def call(
        self,
        *command: Any,
        again: Sequence[Any] | None = None,
        block_s: float | None = None,
    ) -> Any:
        """
        Send one command and return its reply, replaying it while that is safe and there is patience.

        *again* is what to send instead when the first sending may have run.  With *block_s* the server may
        keep the reply back for so long, and the call takes the place of no other.  Our functions are loaded
        where the server does not know them (yet, or any more).

        Raises:
            StoreUnavailable: It was refused or never sent.
            OutcomeUnknown: The reply was lost, also after replays.
        """
        if self.before is not None:
            await self.before()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        maybe_ran = False
        while True:
            try:
                return await self._exchange(tuple(again) if maybe_ran and again else command, block_s)
            except _NoFunction:
                await self._load(maybe_ran=maybe_ran)
                continue
            except _ReplyLost as error:
                maybe_ran = True
                cause: Exception = error
            except (_NotSent, _Refused) as error:
                cause = error
            except StoreUnavailable as error:
                # It is the replay that was refused: the call itself may have run.
                if maybe_ran:
                    raise self._unknown(error) from error
                raise
            if loop.time() + pauses.next_s > deadline or self._closed:
                if maybe_ran:
                    raise self._unknown(cause) from cause
                msg = f"cannot use {self.place}: {cause}; nothing was changed"
                raise StoreUnavailable(msg) from cause
            if isinstance(cause, _NotSent) and self._ensure:
                await self._ensure()
            await asyncio.sleep(pauses.take())

    async def _load(self, *, maybe_ran: bool) -> None:
        try:
            await self.call("FUNCTION", "LOAD", "REPLACE", library().source)
        except (StoreUnavailable, OutcomeUnknown) as error:
            if maybe_ran:
                raise self._unknown(error) from error
            # A function that was loaded or not has changed nothing.
            raise StoreUnavailable(str(error)) from error

    def _unknown(self, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no reply from {self.place}, also after replays: {cause}; calling again is safe"
        )

    async def _exchange(self, command: tuple[Any, ...], block_s: float | None = None) -> Any:
        async with self._slots if block_s is None else self._blocking_slots:
            wire = await self._wire(blocks=block_s is not None)
            try:
                reply = await wire.exchange(command, self.timeout_s if block_s is None else block_s + 5)
            except ReplyError as error:
                raise await self._answered(wire, error) from error
            except WireLost as error:
                await self._drop(wire)
                raise _ReplyLost(str(error)) from error
            except BaseException:
                # A cancelled call leaves its reply behind: the next caller must not read it.
                await self._drop(wire)
                raise
            self._keep(wire)
            return reply

    async def _answered(self, wire: Wire, error: ReplyError) -> Exception:
        """
        What an error of the server means to the caller.
        """
        if error.code in _ELSEWHERE:
            # Every connection of ours leads to the same place.
            await self._drop(wire)
            await self.drop_idle()
            return _Refused(error.said)
        if error.code in _FORBIDDEN:
            await self._drop(wire)
            return StoreUnavailable(
                f"{self.place} does not allow it: {error}; check the user and password in the URL and its ACL"
            )
        self._keep(wire)
        if error.said.startswith("Function not found"):
            return _NoFunction()
        if error.code == "OOM":
            return StoreUnavailable(
                f"{self.place} is at its memory limit and refused the call; nothing was changed ({error})"
            )
        if error.code in _PASSING:
            return _Refused(error.said)
        return StoreUnavailable(f"{self.place} refused the call: {error.said}; nothing was changed")

    async def _wire(self, *, blocks: bool) -> Wire:
        idle = self._idle_blocking if blocks else self._idle
        while idle:
            wire = idle.pop()
            if not wire.lost:
                return wire
            await self._drop(wire)
        connection = self._new_connection()
        await self._connect(connection)
        wire = Wire(connection)
        wire.blocks = blocks
        return wire

    async def _connect(self, connection: Any) -> None:
        try:
            await connection.connect()
        except (RedisError, OSError, TimeoutError) as error:
            # Who gives no password at all is refused within a connection error.
            if isinstance(error, _CLOSED) or isinstance(error.__cause__, _CLOSED):
                msg = f"{self.place} does not let us in: {error}; check the user and password in the URL"
                raise StoreUnavailable(msg) from error
            if isinstance(error, BusyLoadingError):
                raise _NotSent(f"the server is loading its data ({error})") from error
            if "Protocol" in str(error):
                msg = f"what answers at {self.place} is not a Redis or Valkey server: {error}"
                raise ServerUnsuitable(msg) from error
            raise _NotSent(str(error) or type(error).__name__) from error

    @property
    def place(self) -> str:
        """
        The server's address for messages: without a password.
        """
        kwargs = self._pool.connection_kwargs
        return kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"

    async def run(
        self, name: str, keys: Sequence[str], args: Sequence[Any], *, again: Sequence[Any] | None = None
    ) -> Any:
        """
        Run a script on some keys of a shard.
        """
        head = ("FCALL", library().function(name), len(keys), *keys)
        return await self.call(*head, *args, again=(*head, *again) if again else None)

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """
        Yield messages of *channels* for ever, over a connection of its own; a lost one is made again.

        Yields an empty message after each (re)connection: what was published before may be missed.
        """
        while True:
            connection = self._new_connection()
            try:
                await connection.connect()
                await connection.send_command("SUBSCRIBE", *channels, check_health=False)
                while True:
                    kind, channel, data = await connection.read_response(timeout=math.inf)
                    if kind == b"subscribe" and channel.decode() == channels[-1]:
                        yield "", b""
                    elif kind == b"message":
                        yield channel.decode(), data
            except (RedisError, OSError) as error:
                log.info("subscription lost (%s), subscribing again", error)
                await asyncio.sleep(LONGEST_PAUSE_S * random.uniform(0.5, 1.0))  # jitter, not secrecy
            finally:
                with suppress(RedisError, OSError, RuntimeError):
                    await connection.disconnect(nowait=True)

    def _new_connection(self) -> Any:
        make: Callable[[], Any] = self._pool.make_connection
        return make()

    def _keep(self, wire: Wire) -> None:
        (self._idle_blocking if wire.blocks else self._idle).append(wire)

    async def _drop(self, wire: Wire) -> None:
        with suppress(RedisError, OSError, RuntimeError):
            await wire.aclose()

    async def drop_idle(self) -> None:
        """
        Close connections that nobody uses.
        """
        idle = [*self._idle, *self._idle_blocking]
        self._idle.clear()
        self._idle_blocking.clear()
        for wire in idle:
            await self._drop(wire)

    async def aclose(self) -> None:
        """
        Close; calls under way fail at their next replay.
        """
        self._closed = True
        await self.drop_idle()
