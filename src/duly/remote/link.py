"""
One exchange with the service: survive what can be survived, and say precisely what could not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

import duly
from duly.errors import OutcomeUnknown, RecordUnavailable, ServerUnsuitable, StoreUnavailable, UsageError
from duly.extras import needed
from duly.forks import importing
from duly.loops import OneLoop
from duly.pauses import Pauses
from duly.remote.answers import TYPES, Problem, error_of

with needed("a queue with an http(s):// URL"):
    import httpx

# What httpx imports with its first request, while no fork waits for it.
with suppress(ImportError):
    import_module("anyio._backends._asyncio")

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

log = logging.getLogger("duly.remote")

T = TypeVar("T")

TRY_S = 1.0  #: how long a request may be unanswered before the service is asked over a new connection
SHORTEST_TRY_S = 0.05  #: for the least patience
TRIES = 5  #: that the patience is enough for
COPIES = 3  #: of one request that are under way at most, while the service answers to others
AT_ONCE = 32  #: calls under way, more take turns: with many connections httpx is slower
WAITING_AT_ONCE = 32  #: beside them: calls that wait for a job to end
QUIET_S = 60.0  #: a stream that says nothing for so long is lost; the service says something every 15 s
KEPT_S = 3.0  #: an idle connection is closed before the service would close it
STREAM = "text/event-stream"
SLOWEST = 64 * 1024  #: bytes a second that a line to the service carries at least
USUAL = 1024 * 1024  #: bytes a second that it carries where nothing is wrong

READS = {"GET", "HEAD"}  #: a lost answer to these is no unknown outcome: they change nothing
_GATEWAY = {408, 502, 503, 504}  #: said by what stands between: whether the service got the call is not known
_problems = msgspec.json.Decoder(Problem)


class _Failed(Exception):  # never leaves this module
    """
    There was no answer, or one that may be another one soon.
    """

    def __init__(self, why: str, *, maybe_ran: bool, after_s: float = 0.0, of_record: bool = False) -> None:
        super().__init__(why)
        self.of_record = of_record  #: it is the service's record that is away
        self.maybe_ran = maybe_ran
        self.after_s = after_s  #: when the service asks to be called again


@dataclass(frozen=True, slots=True)
class Reply:
    """
    An answer of the service.
    """

    body: bytes
    headers: Mapping[str, str]
    problem: Problem | None = None
    replayed: bool = False  #: an earlier sending may have run as well
    status: int = 200


class StreamLost(Exception):
    """
    A stream has ended, or says nothing any more.
    """


class Stream:
    """
    An answer that goes on: parts of it as they come.  Its connection is given back when nobody holds it.
    """

    def __init__(self, link: RemoteLink, client: httpx.AsyncClient, response: httpx.Response) -> None:
        self.link = link
        self.loop = asyncio.get_running_loop()
        self._client = client
        self._parts: AsyncIterator[bytes] = response.aiter_raw()
        self._open = True

    async def part(self) -> bytes:
        """
        The next part.

        Raises:
            StreamLost: It has ended, or was cut off, or nothing came in time.
        """
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            raise StreamLost("the stream ended") from None
        except (httpx.RequestError, httpx.StreamError) as error:
            raise StreamLost(str(error) or _said(error)) from error

    def close(self) -> None:
        """
        Have the connection closed soon; from any thread, and a second time without effect.
        """
        if not self._open:
            return
        self._open = False
        # On a loop that is closed there is no connection left.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.link.end, self._client)

    def __del__(self) -> None:
        """
        Close: whoever followed has left.
        """
        self.close()


class RemoteLink:
    """
    A service, reached over as many connections as there are calls under way, up to a bound.

    A request that is unanswered for `try_s` is not given up for that alone: the service may be busy.  A new
    connection tells the two apart.  If that one is answered, the other connections may be silent for ever:
    nothing more is sent over them, and the request is sent again, with the same headers; whichever answer
    comes first counts.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, patience_s: float = 5.0, timeout_s: float = 5.0
    ) -> None:
        """
        Prepare, without connecting yet.

        *patience_s* is how long a call goes on, with all of its tries, *timeout_s* how long nothing may be
        heard of it.

        Raises:
            UsageError: *url* is no address.
        """
        self.place = url.rstrip("/")
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting_slots = asyncio.Semaphore(WAITING_AT_ONCE)
        self._belongs = OneLoop()
        self._closed = False
        headers = {"Accept": "application/json", "User-Agent": f"duly/{duly.__version__}"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
            _warn_in_the_open(self.place)
        most = AT_ONCE + WAITING_AT_ONCE
        self._limits = httpx.Limits(
            max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEPT_S
        )
        self._asking = asyncio.Lock()  #: whoever asks over a new connection asks for all
        self._calls: Counter[httpx.AsyncClient] = Counter()  #: under way
        #: for streams, which keep a connection for as long as they last: of these there is no bound
        self._streams: set[httpx.AsyncClient] = set()
        self._endings: set[asyncio.Task[None]] = set()
        try:
            # Made once: it reads every authority that there is.
            with importing():
                tls = httpx.create_ssl_context()
            self._make = partial(
                httpx.AsyncClient, base_url=self.place, headers=headers, follow_redirects=False, verify=tls
            )
            with importing():
                self._client = self._make(limits=self._limits)
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise UsageError(f"cannot use {self.place} as the address of a service: {error}") from error

    @property
    def try_s(self) -> float:
        """
        How long a request may be unanswered before the service is asked over a new connection.
        """
        return max(SHORTEST_TRY_S, min(TRY_S, self.timeout_s / TRIES))

    @property
    def closed(self) -> bool:
        """
        Whether it was closed.
        """
        return self._closed

    @property
    def crowded(self) -> bool:
        """
        Whether more calls wait for jobs to end than can wait at once.
        """
        return self._waiting_slots.locked()

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        media: str = "application/json",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        wait_s: float = 0.0,
        replay: bool = True,
        aged: bool = False,
    ) -> Reply:
        """
        Send one request and return its answer, sending it again while that is safe and there is patience.

        *wait_s* is how long the service was asked to wait.  Without *replay* it is not sent again once it may
        have run.  With *aged* the service is told, when it is sent again, how long ago it was sent first.

        Raises:
            StoreUnavailable: It was refused for now or never sent.
            OutcomeUnknown: There was no answer, also after replays.
            ServerUnsuitable: The key does not allow it, or what answers is no duly service.
        """
        self._belongs.check()
        loop = asyncio.get_running_loop()
        first_s: float | None = None

        def request() -> httpx.Request:
            nonlocal first_s
            said = {**({} if body is None else {"Content-Type": media}), **(headers or {})}
            if first_s is None:
                first_s = loop.time()
            elif aged:
                said["Duly-Age"] = str(math.ceil((loop.time() - first_s) * 1000))
            return self._client.build_request(
                method,
                path,
                content=body,
                params=params,
                headers=said,
                timeout=httpx.Timeout(
                    None,
                    # Twice within the patience: the first may get lost where the second gets through.
                    connect=max(self.try_s, self.timeout_s / 2),
                    write=self.timeout_s + len(body or b"") / SLOWEST,
                    read=self.timeout_s + wait_s,
                ),
            )

        look_s = wait_s + len(body or b"") / USUAL + self.try_s
        most_s = wait_s + len(body or b"") / SLOWEST + self.timeout_s
        slots = self._waiting_slots if wait_s else self._slots
        deadline: float | None = None
        pauses = Pauses(longest_s=1.0)
        changes, maybe_ran = method not in READS, False

        def may_have_run(*, sent: bool) -> bool:
            # The one place that knows: what changes nothing has no outcome that could be unknown.
            nonlocal maybe_ran
            maybe_ran = maybe_ran or (sent and changes)
            return maybe_ran

        while True:
            copies: list[httpx.AsyncClient] = []
            try:
                async with slots:
                    begun_s = loop.time()
                    left_s = most_s if deadline is None else max(deadline - begun_s, self.try_s)
                    response = await self._answer(
                        request, copies, look_s=look_s, most_s=min(most_s, left_s), replay=replay
                    )
                is_replayed = may_have_run(sent=len(copies) > 1)
                problem = self._problem(response)
                return Reply(response.content, response.headers, problem, is_replayed, response.status_code)
            except _Failed as error:
                failed = error
            except (StoreUnavailable, ServerUnsuitable) as error:
                # It is the replay that was refused: the call itself may have run.
                if may_have_run(sent=len(copies) > 1):
                    raise self._unknown(error) from error
                raise
            # From the first failure on: a call that waits for a job has taken its time before.  One that was
            # not answered has failed since it should have been.
            now = loop.time()
            deadline = deadline or min(now, begun_s + look_s - self.try_s) + self.patience_s
            wait = max(pauses.take(), failed.after_s)
            unknown = may_have_run(sent=failed.maybe_ran)
            if now + wait > deadline or self._closed or (unknown and not replay):
                if unknown:
                    raise self._unknown(failed) from failed
                if failed.of_record:
                    raise RecordUnavailable(f"cannot use {self.place}: {failed}") from failed
                said = str(failed).removesuffix("; nothing was changed")
                raise StoreUnavailable(f"cannot use {self.place}: {said}; nothing was changed") from failed
            await asyncio.sleep(wait)

    async def follow(
        self,
        path: str,
        *,
        headers: Mapping[str, str],
        params: list[tuple[str, str]],
        patience_s: float | None = None,
    ) -> Stream:
        """
        Begin a stream over a connection of its own, trying again while there is patience.

        Raises:
            StoreUnavailable: It was refused or never begun.
            ServerUnsuitable: What answers is no duly service.
            UsageError: Something about the question is wrong.
        """
        client = self._make()
        self._streams.add(client)
        request = client.build_request(
            "GET",
            path,
            params=tuple(params),
            headers={"Accept": f"{STREAM}, application/problem+json", **headers},
            timeout=httpx.Timeout(self.timeout_s, connect=max(self.try_s, self.timeout_s / 2), read=QUIET_S),
        )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.patience_s if patience_s is None else patience_s)
        pauses = Pauses(longest_s=1.0)
        try:
            while True:
                try:
                    return Stream(self, client, await self._begin(client, request))
                except _Failed as failed:
                    wait = max(pauses.take(), failed.after_s)
                    if loop.time() + wait > deadline or self._closed:
                        raise StoreUnavailable(f"cannot follow {self.place}: {failed}") from failed
                await asyncio.sleep(wait)
        except BaseException:
            self.end(client)
            raise

    async def _begin(self, client: httpx.AsyncClient, request: httpx.Request) -> httpx.Response:
        try:
            # A stream may be silent for longer than its answer may take to begin.
            async with asyncio.timeout(max(self.try_s, self.timeout_s / 2)):
                response = await self._exchange(request, client)
                if response.headers.get("content-type", "").partition(";")[0] == STREAM:
                    return response
                try:
                    await response.aread()
                finally:
                    await response.aclose()
        except TimeoutError as error:
            raise _Failed("no answer in time", maybe_ran=False) from error
        except httpx.RequestError as error:
            raise _Failed(str(error) or _said(error), maybe_ran=False) from error
        problem = self._problem(response)
        raise self._no_service(response) if problem is None else error_of(problem, self.place)

    def end(self, client: httpx.AsyncClient) -> None:
        """
        Close the connection of a stream that somebody has left; on the event loop.
        """
        task = asyncio.get_running_loop().create_task(self._end(client))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end(self, client: httpx.AsyncClient) -> None:
        with suppress(httpx.HTTPError, OSError, RuntimeError):
            await client.aclose()
        self._streams.discard(client)

    def _unknown(self, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(f"no answer from {self.place} that tells what became of it: {cause}")

    async def _answer(
        self,
        request: Callable[[], httpx.Request],
        copies: list[httpx.AsyncClient],
        *,
        look_s: float,
        most_s: float,
        replay: bool,
    ) -> httpx.Response:
        """
        Send a request and read its answer; where nothing is heard, ask over a new connection.

        If that is answered, the request is sent over it again, unless it is not to be sent twice.
        *copies* is told of each.
        """
        loop = asyncio.get_running_loop()
        until_s, look_at_s = loop.time() + most_s, loop.time() + look_s
        tries: set[asyncio.Task[httpx.Response]] = set()
        fresh: asyncio.Task[httpx.AsyncClient | None] | None = None
        failed: _Failed | None = None

        def send(client: httpx.AsyncClient) -> None:
            copies.append(client)
            self._calls[client] += 1
            tries.add(loop.create_task(self._exchange(request(), client)))

        send(self._client)
        try:
            while tries:
                wait_s = (until_s if fresh else min(look_at_s, until_s)) - loop.time()
                waited = tries if fresh is None else {*tries, fresh}
                done, _ = await asyncio.wait(waited, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done & tries:
                    tries.discard(task)
                    try:
                        return await self._read(task.result())  # type: ignore[arg-type]  # one of `tries`
                    except _Failed as error:
                        failed = error
                if fresh is not None and fresh.done():
                    client, fresh = fresh.result(), None
                    look_at_s = loop.time() + 2 * self.try_s * len(copies)
                    if client is None or not replay or not tries or len(copies) == COPIES:
                        continue
                    # A service that stood still for all answers both now.
                    if not (await asyncio.wait(tries, timeout=self.try_s / 4))[0]:
                        send(client)
                elif loop.time() >= until_s:
                    raise _Failed("no answer in time", maybe_ran=True)
                elif not done and fresh is None and not self._closed:
                    fresh = loop.create_task(self._fresh(copies[-1]))
            assert failed is not None, "the last try has failed"  # noqa: S101  # or it was the answer
            raise _Failed(str(failed), maybe_ran=failed.maybe_ran or len(copies) > 1, after_s=failed.after_s)
        finally:
            await self._give_up(tries if fresh is None else {*tries, fresh})
            for client in copies:
                self._calls[client] -= 1
                self._retire(client)

    @staticmethod
    async def _give_up(tasks: set[asyncio.Task[Any]]) -> None:
        """
        End what is under way, with its connections.
        """
        for task in tasks:
            task.cancel()
        for told in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(told, httpx.Response):
                await told.aclose()

    async def _fresh(self, silent: httpx.AsyncClient) -> httpx.AsyncClient | None:
        """
        Return connections over which the service answers, in place of *silent* ones; None if it does not.
        """
        async with self._asking:
            if self._client is not silent:
                return self._client  # somebody else has asked
            client = self._make(limits=self._limits)
            try:
                async with asyncio.timeout(2 * self.try_s):
                    await client.get("/healthz")
            except (httpx.HTTPError, TimeoutError, OSError):
                await client.aclose()
                return None
            except BaseException:
                await client.aclose()
                raise
            log.info("%s answers on a new connection, and not on another one", self.place)
            self._client = client
            self._retire(silent)
            return client

    def _retire(self, client: httpx.AsyncClient) -> None:
        """
        Close connections that nobody uses any more, and nobody will.
        """
        if not self._calls[client]:
            del self._calls[client]
            if client is not self._client:
                self.end(client)

    @staticmethod
    async def _read(response: httpx.Response) -> httpx.Response:
        try:
            await response.aread()
        except httpx.RequestError as error:
            raise _Failed(str(error) or _said(error), maybe_ran=True) from error
        finally:
            await response.aclose()
        return response

    async def _exchange(self, request: httpx.Request, client: httpx.AsyncClient) -> httpx.Response:
        """
        Send a request, and wait until its answer begins.
        """
        if self._closed:
            raise _Failed("the app was closed", maybe_ran=False)
        try:
            return await client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            why = _because(error)
            if isinstance(why, ssl.SSLCertVerificationError):
                raise ServerUnsuitable(
                    f"{self.place} shows a certificate that is not trusted here: {why.verify_message}; "
                    "where it is your own, name its authority in SSL_CERT_FILE"
                ) from error
            said = str(why) or type(why).__name__
            raise _Failed(f"cannot connect ({said})", maybe_ran=False) from error
        except httpx.RequestError as error:
            raise _Failed(str(error) or _said(error), maybe_ran=True) from error

    def _problem(self, response: httpx.Response) -> Problem | None:
        """
        What an answer says went wrong; None if nothing did.
        """
        status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0]
        if status == 204 or (200 <= status < 300 and kind in ("application/json", "application/x-ndjson")):
            return None
        problem = _read_problem(response.content) if kind == "application/problem+json" else None
        after_s = _seconds(response.headers.get("retry-after", ""))
        if problem is None:
            if status == 429 or status in _GATEWAY:
                raise _Failed(f"the answer was {status}", maybe_ran=status != 429, after_s=after_s)
            raise self._no_service(response)
        match problem.kind:
            case "too-many-requests":
                said = f"{problem.detail} (in {after_s:g} s)" if after_s else problem.detail
                raise _Failed(said, maybe_ran=False, after_s=after_s)
            case "busy":
                raise _Failed(problem.detail, maybe_ran=False, after_s=after_s)
            case "unavailable" | "record-unavailable":
                of_record = problem.kind == "record-unavailable"
                raise _Failed(problem.detail, maybe_ran=False, after_s=after_s, of_record=of_record)
            case "out-of-memory":
                # It does not pass by itself within the patience.
                raise StoreUnavailable(f"{self.place}: {problem.detail}")
            case "outcome-unknown" | "timeout":
                raise _Failed(problem.detail, maybe_ran=True, after_s=after_s)
            case "unauthenticated":
                raise ServerUnsuitable(
                    f"{self.place} does not let us in: {problem.detail}; set api_key, or DULY_API_KEY"
                )
            case "forbidden" | "cross-site" | "misdirected":
                raise ServerUnsuitable(f"{self.place} does not allow it: {problem.detail}")
        return problem

    def _no_service(self, response: httpx.Response) -> ServerUnsuitable:
        if response.is_redirect:
            # The key is for who stands in the settings, and for nobody else.
            there = response.headers.get("location", "elsewhere")
            return ServerUnsuitable(
                f"{self.place} sends us to {there}: use the address of the service itself"
            )
        kind = response.headers.get("content-type", "nothing")
        return ServerUnsuitable(
            f"what answers at {self.place} is no duly service: {response.status_code} with {kind} "
            f"to {response.request.method} {response.request.url.path}"
        )

    def decode(self, decoder: msgspec.json.Decoder[T], reply: Reply) -> T:
        """
        Read the document of an answer.

        Raises:
            ServerUnsuitable: It is not what a duly service answers.
        """
        try:
            return decoder.decode(reply.body)
        except msgspec.DecodeError as error:
            raise ServerUnsuitable(f"what answers at {self.place} is no duly service: {error}") from error

    async def look(self) -> Reply:
        """
        See that a duly service is there: it answers in its own words what it does not know.

        Raises:
            StoreUnavailable: Nobody answers.
            ServerUnsuitable: Somebody else does.
        """
        return await self.call("GET", "/v1")

    async def aclose(self) -> None:
        """
        Close; calls under way fail.
        """
        self._closed = True
        for client in [*self._streams, *self._calls]:
            await self._end(client)
        if self._endings:
            await asyncio.wait(self._endings)
        await self._client.aclose()


def _read_problem(body: bytes) -> Problem | None:
    try:
        problem = _problems.decode(body)
    except msgspec.DecodeError:
        return None
    return problem if problem.type.startswith(TYPES) else None


def _seconds(text: str) -> float:
    """
    What Retry-After says; a date is not used by our service, and another's may be of another clock.
    """
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _because(error: BaseException) -> BaseException:
    """
    What an error of the client was made from.
    """
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _said(error: Exception) -> str:
    return {"ReadTimeout": "no answer in time", "WriteTimeout": "it could not be sent in time"}.get(
        type(error).__name__, type(error).__name__
    )


def _warn_in_the_open(url: str) -> None:
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "http" and host not in ("localhost", "::1") and not host.startswith("127."):
        log.warning("the API key goes to %s unencrypted: use https", url)
