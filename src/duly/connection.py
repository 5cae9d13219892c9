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

from hiredis import pack_command
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from duly.errors import OutcomeUnknown, ServerUnsuitable, StoreUnavailable, UsageError
from duly.scripts import load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from duly.scripts import Script

log = logging.getLogger("duly.connection")

_PASSING = ("BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY")
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
MAX_CONNECTIONS = 64  #: of one client; a thousand calls at once take turns


class _NotSent(Exception):  # never leaves this module
    """
    No connection could be made, so the server has not seen the call.
    """


class _Refused(Exception):  # never leaves this module
    """
    The server answered that it did nothing, and may answer otherwise soon.
    """


class _ReplyLost(Exception):  # never leaves this module
    """
    The call was sent and no reply came: it may have run.
    """


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
        self._ensure = ensure
        self._idle: list[Any] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
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
        script: Script | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """
        Send one command and return its reply, replaying it while that is safe and there is patience.

        *again* is what to send instead when the first sending may have run; *script* is loaded where the
        server does not know it (yet, or any more).

        Raises:
            StoreUnavailable: It was refused or never sent.
            OutcomeUnknown: The reply was lost, also after replays.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        pause_s = FIRST_PAUSE_S
        maybe_ran = False
        while True:
            try:
                return await self._exchange(
                    tuple(again) if maybe_ran and again else command, timeout_s or self.timeout_s
                )
            except NoScriptError as error:
                if script is None:
                    raise StoreUnavailable(f"{self.place} refused the call: {error}") from error
                await self._load(script, maybe_ran=maybe_ran)
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
            if loop.time() + pause_s > deadline or self._closed:
                if maybe_ran:
                    raise self._unknown(cause) from cause
                msg = f"cannot use {self.place}: {cause}; nothing was changed"
                raise StoreUnavailable(msg) from cause
            if isinstance(cause, _NotSent) and self._ensure:
                await self._ensure()
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _load(self, script: Script, *, maybe_ran: bool) -> None:
        try:
            await self.call("SCRIPT", "LOAD", script.source)
        except (StoreUnavailable, OutcomeUnknown) as error:
            if maybe_ran:
                raise self._unknown(error) from error
            # A script that was loaded or not has changed nothing.
            raise StoreUnavailable(str(error)) from error

    def _unknown(self, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no reply from {self.place}, also after replays: {cause}; calling again is safe"
        )

    async def _exchange(self, command: tuple[Any, ...], timeout_s: float) -> Any:
        async with self._slots:
            return await self._exchange_on(
                self._idle.pop() if self._idle else self._new_connection(), command, timeout_s
            )

    async def _exchange_on(self, connection: Any, command: tuple[Any, ...], timeout_s: float) -> Any:
        try:
            if not connection.is_connected:
                await self._connect(connection)
            async with asyncio.timeout(timeout_s):
                # Packed in C: redis-py's own packing took longer than all else that a client does.
                await connection.send_packed_command(pack_command(command), check_health=False)
                reply = await connection.read_response()
        except (NoScriptError, _NotSent):
            self._idle.append(connection)
            raise
        except (ReadOnlyError, BusyLoadingError) as error:
            # The server changed its role or is starting: every connection of ours leads to the same place.
            await self._drop(connection)
            await self.drop_idle()
            raise _Refused(str(error)) from error
        except OutOfMemoryError as error:
            self._idle.append(connection)
            msg = f"{self.place} is at its memory limit and refused the call; nothing was changed ({error})"
            raise StoreUnavailable(msg) from error
        except (NoPermissionError, AuthenticationError, AuthorizationError) as error:
            await self._drop(connection)
            msg = (
                f"{self.place} does not allow it: {error}; check the user and password in the URL and its ACL"
            )
            raise StoreUnavailable(msg) from error
        except ResponseError as error:
            self._idle.append(connection)
            if str(error).startswith(_PASSING):
                raise _Refused(str(error)) from error
            msg = f"{self.place} refused the call: {error}; nothing was changed"
            raise StoreUnavailable(msg) from error
        except (RedisError, OSError, TimeoutError) as error:
            await self._drop(connection)
            raise _ReplyLost(str(error) or type(error).__name__) from error
        except BaseException:
            # A cancelled call leaves its reply behind: the next caller must not read it.
            await self._drop(connection)
            raise
        self._idle.append(connection)
        return reply

    async def _connect(self, connection: Any) -> None:
        try:
            await connection.connect()
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            msg = f"{self.place} does not let us in: {error}; check the user and password in the URL"
            raise StoreUnavailable(msg) from error
        except (RedisError, OSError, TimeoutError) as error:
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
        Run a script by its content hash; load it where the server does not know it (yet, or any more).
        """
        script = load(name)
        head = ("EVALSHA", script.sha, len(keys), *keys)
        return await self.call(*head, *args, again=(*head, *again) if again else None, script=script)

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
                await self._drop(connection)

    def _new_connection(self) -> Any:
        make: Callable[[], Any] = self._pool.make_connection
        return make()

    async def _drop(self, connection: Any) -> None:
        with suppress(RedisError, OSError, RuntimeError):
            await connection.disconnect(nowait=True)

    async def drop_idle(self) -> None:
        """
        Close connections that nobody uses.
        """
        idle, self._idle = self._idle, []
        for connection in idle:
            await self._drop(connection)

    async def aclose(self) -> None:
        """
        Close; calls under way fail at their next replay.
        """
        self._closed = True
        await self.drop_idle()
