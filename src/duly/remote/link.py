"""
One exchange with the service: survive what can be survived, and say precisely what could not.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import msgspec

import duly
from duly.errors import OutcomeUnknown, ServerUnsuitable, StoreUnavailable, UsageError
from duly.pauses import Pauses
from duly.remote.answers import TYPES, Problem

try:
    import httpx
except ModuleNotFoundError as missing:
    raise UsageError(
        f"a queue with an http(s):// URL needs {missing.name}: pip install 'duly[client]'"
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("duly.remote")

T = TypeVar("T")

CONNECT_S = 5.0
AT_ONCE = 32  #: calls under way, more take turns: with many connections httpx is slower
WAITING_AT_ONCE = 32  #: beside them: calls that wait for a job to end
KEPT_S = 3.0  #: an idle connection is closed before the service would close it
SLOWEST = 64 * 1024  #: bytes a second that a line to the service carries at least

_GATEWAY = {408, 502, 503, 504}  #: said by what stands between: whether the service got the call is not known
_problems = msgspec.json.Decoder(Problem)


class _Failed(Exception):  # never leaves this module
    """
    There was no answer, or one that may be another one soon.
    """

    def __init__(self, why: str, *, maybe_ran: bool, after_s: float = 0.0) -> None:
        super().__init__(why)
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


class RemoteLink:
    """
    A service, reached over as many connections as there are calls under way, up to a bound.
    """

    def __init__(
        self, url: str, *, api_key: str | None = None, patience_s: float = 5.0, timeout_s: float = 6.0
    ) -> None:
        """
        Prepare, without connecting yet.

        Raises:
            UsageError: *url* is no address.
        """
        self.place = url.rstrip("/")
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._waiting_slots = asyncio.Semaphore(WAITING_AT_ONCE)
        self._closed = False
        headers = {"Accept": "application/json", "User-Agent": f"duly/{duly.__version__}"}
        if api_key is not None:
            headers["Authorization"] = f"Bearer {api_key}"
            _warn_in_the_open(self.place)
        most = AT_ONCE + WAITING_AT_ONCE
        try:
            self._client = httpx.AsyncClient(
                base_url=self.place,
                headers=headers,
                follow_redirects=False,
                limits=httpx.Limits(
                    max_connections=most, max_keepalive_connections=most, keepalive_expiry=KEPT_S
                ),
            )
        except (httpx.InvalidURL, ValueError, OSError) as error:
            raise UsageError(f"cannot use {self.place} as the address of a service: {error}") from error

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
    ) -> Reply:
        """
        Send one request and return its answer, sending it again while that is safe and there is patience.

        *wait_s* is how long the service was asked to wait.  Without *replay* it is not sent again once it may
        have run.

        Raises:
            StoreUnavailable: It was refused or never sent.
            OutcomeUnknown: There was no answer, also after replays.
            ServerUnsuitable: What answers is no duly service.
        """
        loop = asyncio.get_running_loop()
        request = self._client.build_request(
            method,
            path,
            content=body,
            params=params,
            headers={**({} if body is None else {"Content-Type": media}), **(headers or {})},
            timeout=httpx.Timeout(
                None,
                connect=CONNECT_S,
                write=self.timeout_s + len(body or b"") / SLOWEST,
                read=self.timeout_s + wait_s,
            ),
        )
        slots = self._waiting_slots if wait_s else self._slots
        deadline: float | None = None
        pauses = Pauses(longest_s=1.0)
        maybe_ran = False
        while True:
            try:
                async with slots:
                    response = await self._exchange(request)
                problem = self._problem(response)
                return Reply(response.content, response.headers, problem, maybe_ran, response.status_code)
            except _Failed as error:
                failed = error
            except (StoreUnavailable, ServerUnsuitable) as error:
                # It is the replay that was refused: the call itself may have run.
                if maybe_ran:
                    raise self._unknown(error) from error
                raise
            maybe_ran = maybe_ran or (failed.maybe_ran and method != "GET")
            # Counted from the first failure: a call that waits for a job has taken its time before.
            now = loop.time()
            deadline = deadline or now + self.patience_s
            wait = max(pauses.take(), failed.after_s)
            if now + wait > deadline or self._closed or (maybe_ran and not replay):
                if maybe_ran:
                    raise self._unknown(failed) from failed
                raise StoreUnavailable(f"cannot use {self.place}: {failed}; nothing was changed") from failed
            await asyncio.sleep(wait)

    def _unknown(self, cause: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(f"no answer from {self.place} that tells what became of it: {cause}")

    async def _exchange(self, request: httpx.Request) -> httpx.Response:
        if self._closed:
            raise _Failed("the app was closed", maybe_ran=False)
        try:
            return await self._client.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
            why = _because(error)
            if isinstance(why, ssl.SSLCertVerificationError):
                raise StoreUnavailable(
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
        if 200 <= status < 300 and kind in ("application/json", "application/x-ndjson"):
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
            case "unavailable":
                # Whether its own call to the server was lost, or never left, the service does not tell.
                raise _Failed(problem.detail, maybe_ran=True, after_s=after_s)
            case "unauthenticated":
                raise StoreUnavailable(
                    f"{self.place} does not let us in: {problem.detail}; set api_key, or DULY_API_KEY"
                )
            case "forbidden":
                raise StoreUnavailable(f"{self.place} does not allow it: {problem.detail}")
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
