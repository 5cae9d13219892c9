"""
One exchange with the server: survive what can be survived, and say precisely what could not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
)

from duly.errors import (
    SERVER_ERRORS,
    DulyError,
    OutcomeUnknown,
    ServerUnsuitable,
    StoreUnavailable,
    UsageError,
)
from duly.forks import importing
from duly.loops import OneLoop
from duly.pauses import Pauses
from duly.scripts import library, load
from duly.wire import ReplyError, Wire, WireLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

log = logging.getLogger("duly.connection")

_PASSING = {"BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN"}
#: Refusals that end without a change of ours: a disk has room again, a replica or a slot is back.
_LATER = {"MISCONF", "NOREPLICAS", "MOVED", "ASK", "IOERR", "UNBLOCKED", "UNKILLABLE"}
_MENDED = {"NONAMESPACE", "UNSOUND"}  #: of our scripts, until the namespace is made anew, or compared
_ELSEWHERE = {"LOADING", "READONLY"}  #: the server changed its role, or is starting
_FORBIDDEN = {"NOPERM", "NOAUTH", "WRONGPASS"}
_CLOSED = (AuthenticationError, AuthorizationError, NoPermissionError)
#: Commands and scripts that change no job.  Where their reply is lost, there is no outcome to be known.
_READS = frozenset(
    "EXISTS GET HEXISTS HGET HGETALL HKEYS HLEN HMGET HSCAN INFO MEMORY SSCAN TIME XRANGE XREAD XREVRANGE "
    "ZCARD ZCOUNT ZMSCORE ZRANGE ZSCAN ZSCORE".split()
)
READING_SCRIPTS = frozenset({"create", "get", "page", "watch"})
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 0.5
EVALUATES_S = 10.0  #: how long to do without functions before they are tried again
LOAD_PAUSE_S = 0.25  #: between two tries for new jobs, which cannot do without
MAX_CONNECTIONS = 64  #: of one client; a thousand calls at once take turns
MAX_BLOCKING = 64  #: besides, for calls that wait on the server
TRY_S = 1.0  #: how long a connection may be silent before the server is asked over a new one
SHORTEST_TRY_S = 0.05  #: for the least patience
TRIES = 5  #: that the patience is enough for
REST_S = 10.0  #: a connection that was idle for so long is asked before it is trusted with a call
QUIET_S = 10.0  #: a subscription that hears nothing for so long asks whether it still stands


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


class OutOfMemory(StoreUnavailable):  # to users it is what it derives from
    """
    The server is at its memory limit.
    """


class CallRefused(ServerUnsuitable):  # to users it is what it derives from
    """
    The server refused a call, and does so again until somebody mends it.
    """


class _NotLoaded(OutOfMemory):  # likewise
    """
    The server is at its memory limit, and so takes no functions, which it does not have.
    """


@dataclass(slots=True)
class Tries:
    """
    What is known of the tries of one call, for a caller that has to know after its answer has come.
    """

    maybe_ran: bool = False  #: the reply to one of them was lost, so the answer may be that of a repeat


def unreachable(error: BaseException) -> bool:
    """
    Whether it is that nobody answered, and not that somebody refused.
    """
    return isinstance(error, StoreUnavailable) and isinstance(error.__cause__ or error.__context__, _NotSent)


def place_of(url: str) -> str:
    """
    The address in the URL of a server, for messages: without a password.
    """
    try:
        return _address(parse_url(url))
    except ValueError:
        return "an unknown address"


def _address(where: Mapping[str, Any]) -> str:
    return where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"


class Link:
    """
    A server, reached over as many connections as there are calls under way, up to a bound.

    Every mutating call carries a request id or is idempotent by itself, so a
    call whose reply was lost is sent again.  redis-py's own retries are off:
    they would repeat calls without telling.

    A connection that is silent for `try_s` is not closed for that alone: the server may be busy, and silent
    to all of its clients.  A new connection tells the two apart, see `_tell_apart`.
    """

    def __init__(
        self,
        url: str,
        *,
        ensure: Callable[[], Awaitable[None]] | None = None,
        patience_s: float = 5.0,
    ) -> None:
        """
        Prepare, without connecting yet.

        *ensure* is asked to bring the server up when it cannot be reached.  *patience_s* is how long a call
        goes on, with all of its tries.

        Raises:
            UsageError: *url* is not the address of a Redis or Valkey server.
        """
        self.url = url
        self.patience_s = patience_s
        #: awaited before each call, for a server that nobody could look at yet
        self.before: Callable[[], Awaitable[None]] | None = None
        self._ensure = ensure
        self._belongs = OneLoop()
        self._wires: set[Wire] = set()
        self._idle: list[Wire] = []
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        # Calls that wait on the server would take the slots of those that do not.
        self._idle_blocking: list[Wire] = []
        self._blocking_slots = asyncio.Semaphore(MAX_BLOCKING)
        self._suspects: set[Wire] = set()  #: connections whose reply is overdue
        self._telling: asyncio.Task[None] | None = None
        self._evaluates_until_s = 0.0  #: until then functions are not tried: the server did not take them
        self._loads_from_s = 0.0  #: but from then on for new jobs: there may be room again
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
            raise UsageError(msg) from None

    @property
    def try_s(self) -> float:
        """
        How long a connection may be silent before the server is asked over a new one.
        """
        return max(SHORTEST_TRY_S, min(TRY_S, self.patience_s / TRIES))

    async def call(
        self,
        *command: Any,
        again: Sequence[Any] | None = None,
        block_s: float | None = None,
        reads: bool = False,
        tries: Tries | None = None,
    ) -> Any:
        """
        Send one command and return its reply, replaying it while that is safe and there is patience.

        *again* is what to send instead when the first sending may have run.  With *block_s* the server may
        keep the reply back for so long, and the call takes the place of no other.  A command that *reads*
        changes nothing, so its lost reply is no unknown outcome; the usual ones are known.  Our functions are
        loaded where the server does not know them (yet, or any more).  *tries* is told of lost replies.

        Raises:
            StoreUnavailable: It was refused for now or never sent, or it reads and there was no reply.
            CallRefused: It was refused, and will be again.
            OutcomeUnknown: The reply was lost, also after replays.
        """
        self._belongs.check()
        if self.before is not None:
            await self.before()
        deadline_s = monotonic() + self.patience_s + (block_s or 0.0)
        pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        # Of a call that is made again the first sending may have run.
        maybe_ran = tries is not None and tries.maybe_ran
        while True:
            try:
                return await self._exchange(
                    tuple(again) if maybe_ran and again else command, deadline_s, block_s
                )
            except _NoFunction:
                await self._load(maybe_ran=maybe_ran)
                continue
            except _ReplyLost as error:
                maybe_ran = not (reads or command[0] in _READS)
                if tries is not None:
                    tries.maybe_ran = tries.maybe_ran or maybe_ran
                cause: Exception = error
            except (_NotSent, _Refused) as error:
                cause = error
            except (StoreUnavailable, ServerUnsuitable) as error:
                # It is the replay that was refused: the call itself may have run.
                if maybe_ran:
                    raise self._unknown(error) from error
                raise
            if monotonic() + pauses.next_s > deadline_s or self._closed:
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
        except SERVER_ERRORS as error:
            if maybe_ran:
                raise self._unknown(error) from error
            if isinstance(error, ServerUnsuitable):
                raise
            if isinstance(error, OutOfMemory):
                raise _NotLoaded(str(error)) from error
            # A function that was loaded or not has changed nothing.
            raise StoreUnavailable(str(error)) from error

    def _unknown(self, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"no reply from {self.place}, also after replays: {cause}; calling again is safe"
        )

    async def _exchange(
        self, command: tuple[Any, ...], deadline_s: float, block_s: float | None = None
    ) -> Any:
        async with self._slots if block_s is None else self._blocking_slots:
            wire = await self._wire(deadline_s, blocks=block_s is not None)
            wire.deadline_s = deadline_s
            try:
                reply = await wire.exchange(command, self.try_s + (block_s or 0.0), self._suspect)
            except ReplyError as error:
                raise await self._answered(wire, error) from error
            except WireLost as error:
                await self._drop(wire)
                raise _ReplyLost(str(error)) from error
            except BaseException:
                # A cancelled call leaves its reply behind: the next caller must not read it.
                await self._drop(wire)
                raise
            await self._keep(wire)
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
            return CallRefused(
                f"{self.place} does not allow it: {error}; check the user and password in the URL and its ACL"
            )
        await self._keep(wire)
        if error.said.startswith("Function not found"):
            return _NoFunction()
        if error.code == "OOM":
            return OutOfMemory(
                f"{self.place} is at its memory limit and refused the call; nothing was changed ({error})"
            )
        if error.code in _PASSING or error.said.startswith("max number of clients"):
            return _Refused(error.said)
        if error.code in _LATER | _MENDED:
            return StoreUnavailable(f"{self.place} refused the call: {error.said}; nothing was changed")
        # Not that nothing was changed: a script that fails half-way has written what it wrote before.
        return CallRefused(f"{self.place} refused the call, and will again: {error.said}")

    async def _wire(self, deadline_s: float, *, blocks: bool) -> Wire:
        idle = self._idle_blocking if blocks else self._idle
        while idle:
            wire = idle.pop()
            if wire.lost:
                await self._drop(wire)
            elif wire.idle_s() < REST_S or await self._answers(wire, deadline_s):
                return wire
        return await self._open(blocks=blocks)

    async def _answers(self, wire: Wire, deadline_s: float) -> bool:
        """
        Ask a connection that nobody has used for long whether it still leads to the server.
        """
        wire.deadline_s = deadline_s
        try:
            await wire.exchange(("PING",), self.try_s / 2, self._suspect)
        except ReplyError:
            return True
        except WireLost as error:
            await self._drop(wire)
            if monotonic() >= deadline_s:
                raise _NotSent(str(error)) from error
            return False
        except BaseException:
            await self._drop(wire)
            raise
        return True

    async def _open(self, *, blocks: bool = False) -> Wire:
        wire = Wire(await self._connect())
        wire.blocks = blocks
        self._wires.add(wire)
        return wire

    async def _connect(self) -> Any:
        connection = self._new_connection()
        try:
            # Not only until it is connected: a server that is stopped accepts, and says nothing.
            async with asyncio.timeout(self._connect_s):
                await connection.connect()
        except BaseException as error:
            with suppress(RedisError, OSError, RuntimeError):
                await connection.disconnect(nowait=True)
            if not isinstance(error, (RedisError, OSError)):
                raise
            # Who gives no password at all is refused within a connection error.
            if isinstance(error, _CLOSED) or isinstance(error.__cause__, _CLOSED):
                msg = f"{self.place} does not let us in: {error}; check the user and password in the URL"
                raise CallRefused(msg) from error
            if isinstance(error, BusyLoadingError):
                raise _NotSent(f"the server is loading its data ({error})") from error
            if "Protocol" in str(error):
                msg = f"what answers at {self.place} is not a Redis or Valkey server: {error}"
                raise ServerUnsuitable(msg) from error
            why = str(error) or f"no answer within {self._connect_s:g} s"
            raise _NotSent(why) from error
        return connection

    @property
    def _connect_s(self) -> float:
        # Twice within the patience: the first may get lost where the second gets through.
        return max(TRY_S, self.patience_s / 2)

    # -- silence ------------------------------------------------------------------------------------------

    def _suspect(self, wire: Wire) -> None:
        """
        Take note of a reply that is overdue; its call waits on.
        """
        if not wire.waiting:
            return
        if wire.heard:
            # A long reply is on its way.
            wire.heard = False
            wire.wait_on(self.try_s, self._suspect)
            return
        wire.silent = True
        # However little patience there is, a server may take a second.  And however late it is: if it was
        # this loop that was blocked, the reply is there and has only to be read.
        left_s = max(wire.deadline_s - monotonic(), TRY_S - wire.idle_s())
        wire.wait_on(max(left_s, self.try_s / 2))
        self._suspects.add(wire)
        if self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell_apart())

    async def _tell_apart(self) -> None:
        """
        Tell silent connections from a silent server, by a new connection.

        If the new one is answered, the silent ones are closed and their calls are sent again.  So are idle
        and blocking ones that nothing was heard from since: an address that moved, or a balancer that forgot
        its connections, concerns them all.  If the new one is silent, too, it is the server.  Then nothing is
        closed and every call waits on: a server that forks for two seconds must not lose all of its clients.
        """
        try:
            while any(wire.silent and wire.waiting for wire in self._suspects):
                fresh = await self._knock()
                silent = [wire for wire in self._suspects if wire.silent and (wire.waiting or wire.lost)]
                if fresh is None:
                    await asyncio.sleep(self.try_s)
                elif not silent:
                    await self._drop(fresh)
                else:
                    await self._replace(silent, fresh)
        finally:
            self._suspects.clear()
            self._telling = None

    async def _knock(self) -> Wire | None:
        """
        A new connection that was answered, None if it was not.
        """
        try:
            wire = await self._open()
        except (_NotSent, DulyError):
            return None
        try:
            await wire.exchange(("PING",), self._connect_s)
        except ReplyError:
            pass
        except WireLost:
            await self._drop(wire)
            return None
        except BaseException:
            await self._drop(wire)
            raise
        return wire

    async def _replace(self, silent: list[Wire], fresh: Wire) -> None:
        since_s = max(wire.sent_s for wire in silent)
        siblings = [
            wire
            for wire in self._wires
            if wire is not fresh and wire.sent_s < since_s and (wire.blocks or not wire.waiting)
        ]
        fresh.blocks = all(wire.blocks for wire in silent)
        log.info("%s answers on a new connection, and not on %d others", self.place, len(silent))
        for wire in (*silent, *siblings):
            wire.give_up(f"no reply for {wire.idle_s():.3g} s, while a new connection is answered")
        await self._keep(fresh)
        self._suspects.difference_update(silent)
        for idle in (self._idle, self._idle_blocking):
            lost = [wire for wire in idle if wire.lost]
            idle[:] = [wire for wire in idle if not wire.lost]
            for wire in lost:
                await self._drop(wire)

    # -----------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        """
        The server's address for messages: without a password.
        """
        return _address(self._pool.connection_kwargs)

    async def run(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        *,
        again: Sequence[Any] | None = None,
        tries: Tries | None = None,
    ) -> Any:
        """
        Run a script on some keys of a shard.
        """
        evaluates = monotonic() < self._evaluates_until_s
        if evaluates and not self._may_load_for(name):
            return await self._evaluate(name, keys, args, again, tries)
        head = ("FCALL", library().function(name), len(keys), *keys)
        try:
            answer = await self.call(
                *head,
                *args,
                again=(*head, *again) if again else None,
                reads=name in READING_SCRIPTS,
                tries=tries,
            )
        except _NotLoaded as error:
            if not evaluates:
                log.warning(
                    "%s; until it takes the functions of this release, jobs are claimed and finished "
                    "without, which is slow, and new ones are refused: raise maxmemory",
                    error,
                )
                self._evaluates_until_s = monotonic() + EVALUATES_S
            return await self._evaluate(name, keys, args, again, tries)
        if evaluates:
            self._evaluates_until_s = 0.0
        return answer

    def _may_load_for(self, name: str) -> bool:
        """
        Return whether to try to load the functions for a script: one that brings work in cannot do without.

        One call in `LOAD_PAUSE_S`: a server at its memory limit is not flooded with them.
        """
        now_s = monotonic()
        if _works_when_full(name) or now_s < self._loads_from_s:
            return False
        self._loads_from_s = now_s + LOAD_PAUSE_S
        return True

    async def _evaluate(
        self,
        name: str,
        keys: Sequence[str],
        args: Sequence[Any],
        again: Sequence[Any] | None,
        tries: Tries | None,
    ) -> Any:
        """
        Run a script of this release on a server that does not take its functions.

        Raises:
            StoreUnavailable: It is one that brings work in.
        """
        if not _works_when_full(name):
            raise OutOfMemory(
                f"{self.place} is at its memory limit: it takes neither new jobs nor the functions of this "
                "release; raise maxmemory. Nothing was changed"
            )
        head = ("EVAL", library().evaluated, len(keys), *keys, name)
        return await self.call(
            *head,
            *args,
            again=(*head, *again) if again else None,
            reads=name in READING_SCRIPTS,
            tries=tries,
        )

    async def listen(self, *channels: str) -> AsyncIterator[tuple[str, bytes]]:
        """
        Yield messages of *channels* for ever, over a connection of its own; a lost one is made again.

        Yields an empty message after each (re)connection: what was published before may be missed.
        """
        while True:
            connection: Any = None
            try:
                connection = await self._connect()
                await connection.send_command("SUBSCRIBE", *channels, check_health=False)
                asked = True
                while True:
                    limit_s = self.patience_s if asked else QUIET_S
                    message = await connection.read_response(timeout=limit_s)
                    if message is None and asked:
                        raise TimeoutError(f"nothing heard for {limit_s:g} s")
                    asked = message is None
                    if message is None:
                        await connection.send_command("PING", check_health=False)
                    elif message[0] == b"subscribe" and message[1].decode() == channels[-1]:
                        yield "", b""
                    elif message[0] == b"message":
                        yield message[1].decode(), message[2]
            except (RedisError, OSError, DulyError, _NotSent) as error:
                log.info("subscription lost (%s), subscribing again", error)
                await asyncio.sleep(LONGEST_PAUSE_S * random.uniform(0.5, 1.0))  # jitter, not secrecy
            finally:
                if connection is not None:
                    with suppress(RedisError, OSError, RuntimeError):
                        await connection.disconnect(nowait=True)

    def _new_connection(self) -> Any:
        pool: Any = self._pool
        pool.connection_class = _quiet(pool.connection_class)
        with importing():  # what the first one needs
            return pool.make_connection()

    async def _keep(self, wire: Wire) -> None:
        if self._closed:
            # Its call ended after the link did: nobody would close it any more.
            await self._drop(wire)
        else:
            (self._idle_blocking if wire.blocks else self._idle).append(wire)

    async def _drop(self, wire: Wire) -> None:
        self._wires.discard(wire)
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
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])
        await self.drop_idle()


def _works_when_full(name: str) -> bool:
    """
    Return whether a server at its memory limit runs a script: one that brings no work in.
    """
    return not {"allow-oom", "no-writes"}.isdisjoint(load(name).flags)


class _Quiet:
    """
    A connection of redis-py that leaves a loop which was only closed without a traceback.

    What waits for an answer is collected then, and redis-py needs a loop to close the connection.
    """

    async def disconnect(self, *words: Any, **options: Any) -> None:
        """
        Close the connection, or leave that to the collector where its loop is closed.
        """
        with suppress(RuntimeError):
            await super().disconnect(*words, **options)  # type: ignore[misc]  # of the class beside it


@cache
def _quiet(kind: Any) -> Any:
    """
    Return a class of connections as one that is `_Quiet`.
    """
    return kind if issubclass(kind, _Quiet) else type(kind.__name__, (_Quiet, kind), {})
