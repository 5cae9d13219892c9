"""
Access: whether a request needs a key, which one it carries, what it may do, and how often.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import math
import time
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING

from duly.addresses import host_name, is_loopback
from duly.apikeys import end_reads
from duly.errors import DulyError, StoreUnavailable
from duly.http import streamtokens
from duly.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from duly.apikeys import ApiKey, KeyRing, Scope
    from duly.http.settings import ServiceSettings
    from duly.store import Store

log = logging.getLogger("duly.http")

CALLERS = 10_000  #: whose buckets are remembered
WRONG_RATE, WRONG_BURST = 1.0, 20  #: requests of an address a second, and at once, without a valid key
SITE_BITS = 64  #: of an IPv6 address: whoever has one has all that begin alike
TELL_S = 1.0  #: how often the other processes are told of wrong keys
TOLD_AT_ONCE = 500  #: addresses
LOOK_S = (
    0.25  #: between two looks at the key of who waits, at least: a server that is away is not asked on and on
)
ALARM_S = 60.0  #: how often it is said that there is no key

CHALLENGE = {"WWW-Authenticate": "Bearer"}  #: what a 401 asks for

SAFE = ("GET", "HEAD", "OPTIONS")  #: methods that change nothing

#: A proxy writes one of these: behind it is a network, whatever address the proxy has.
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})


@lru_cache(maxsize=1024)
def caller_of(host: str) -> str:
    """
    Return who is counted for a request from *host*: an IPv4 address, or the /64 network of an IPv6 address.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> SITE_BITS << SITE_BITS, SITE_BITS)))


def may_read(request: Request, topic: str) -> bool:
    """
    Return whether the caller may see what jobs of *topic* carry.
    """
    key: ApiKey | None = request.state.key
    return key is None or key.allows("read", topic)


class Buckets:
    """
    A bucket of tokens for each caller: *rate* come in each second, *burst* fit in, a request takes one.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, caller: str) -> float:
        """
        Return how many seconds to wait for a token, 0 if there is one; none is taken.
        """
        if caller not in self._callers:
            return 0.0
        tokens, since = self._callers[caller]
        return max(0.0, (1 - tokens) / self._rate - (time.monotonic() - since))

    def take(self, caller: str) -> float:
        """
        Take a token; the answer is how many seconds to wait for one, 0 if it was there.
        """
        now = time.monotonic()
        tokens, since = self._callers.pop(caller, (float(self._burst), now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        wait_s = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._callers[caller] = (tokens if wait_s else tokens - 1, now)
        while len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
        return wait_s


class WrongKeys:
    """
    Wrong keys of each address: counted here at once, and by all processes of the service together.

    The store is told of them, and tells how many there are, once a second at most, and for a bounded number
    of addresses: an attack makes no load there.  While it is away, each process counts for itself.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._here = Buckets(WRONG_RATE, WRONG_BURST)
        self._until_s: OrderedDict[str, float] = OrderedDict()  #: what all together have sent is forgotten
        self._untold: dict[str, int] = {}
        self._told_s = -math.inf
        self._telling: asyncio.Task[None] | None = None

    def wait(self, address: str) -> float:
        """
        Return for how many seconds an address is refused, 0 if it is not.
        """
        return max(self._here.wait(address), self._until_s.get(address, 0.0) - time.monotonic())

    def add(self, address: str) -> None:
        """
        Count a wrong key.
        """
        self._here.take(address)
        if address in self._untold or len(self._untold) < TOLD_AT_ONCE:
            self._untold[address] = self._untold.get(address, 0) + 1
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while self._untold:
                await asyncio.sleep(self._told_s + TELL_S - time.monotonic())
                wrong, self._untold = self._untold, {}
                self._told_s = time.monotonic()
                try:
                    told = await self._store.refuse(
                        wrong, each_ms=round(1000 / WRONG_RATE), burst=WRONG_BURST
                    )
                except DulyError as error:
                    log.debug("wrong API keys are counted by each process alone: %s", error)
                else:
                    self._learn(told)
        finally:
            self._telling = None

    def _learn(self, told: Mapping[str, float]) -> None:
        for address, wait_s in told.items():
            self._until_s.pop(address, None)
            if wait_s > 0:
                self._until_s[address] = time.monotonic() + wait_s
        while len(self._until_s) > CALLERS:
            self._until_s.popitem(last=False)

    async def aclose(self) -> None:
        """
        Tell nothing more.
        """
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])


class Access:
    """
    The gate in front of every operation.
    """

    def __init__(self, keys: KeyRing, store: Store, settings: ServiceSettings, *, require_keys: bool) -> None:
        self._keys = keys
        self._required = require_keys
        self._buckets = Buckets(settings.rate, settings.burst) if settings.rate else None
        self._origins = frozenset(settings.cors_origins)
        self._keyless = Buckets(WRONG_RATE, WRONG_BURST)
        self._wrong = WrongKeys(store)
        self._alarmed_s = -math.inf

    async def aclose(self) -> None:
        """
        End what runs beside the requests.
        """
        await self._wrong.aclose()
        await end_reads(self._keys)

    async def begin(self) -> None:
        """
        Say at the start what holds if the keys are lost.
        """
        if not await self._keys.any() and (self._required or self._keys.seen()):
            self._alarm()
        if not self._required and not self._keys.lasting():
            log.warning(
                "this queue has neither a record nor a data directory to remember that it has API keys: if "
                "it loses them, a restarted service answers this machine without one; only --require-keys, "
                "or DULY_REQUIRE_KEYS=true, survives a restart",
            )

    async def check(
        self,
        request: Request,
        scope: Scope | None,
        topic: str | None = None,
        *,
        of_topics: bool = False,
        limited: bool = True,
        by_token: bool = False,
    ) -> ApiKey | None:
        """
        Let a request pass; the answer is its key, None where none is needed.

        With *by_token*, a stream token in the query stands for a key.

        Raises:
            Problem: It has no valid key (401), one that does not allow it (403), or comes too often (429); or
                needs no key and may be sent by a web page (403, 421).
            StoreUnavailable: The keys cannot be read.
        """
        request.state.token = request.query_params.get("token") if by_token else None
        address = caller_of(_address(request))
        key = None
        if scope is not None:
            try:
                key = await self._admitted(request, address)
            except Problem:
                # Apart from what the address may do: a web page that is refused must not use that up.
                self._limit(f"refused {address}", limited=limited)
                raise
        elif self._is_open(request):
            self._check_sender(request)
        self._limit(key.id if key else address, limited=limited)
        if key and scope and not (key.has(scope) if of_topics else key.allows(scope, topic)):
            raise Problem("forbidden", _refusal(key, scope, topic))
        return key

    async def _admitted(self, request: Request, address: str) -> ApiKey | None:
        """
        Return the key of a request, None where it needs none.

        Raises:
            Problem: It is not let in.
        """
        if not (_credentials(request) or request.state.token):
            # Before anything is looked up, and apart from wrong keys: who has a key is not kept out by it.
            wait_s = self._keyless.wait(address)
            if wait_s:
                raise _too_often("this address sent too many requests without an API key", wait_s)
        if not await self._needs_key(request):
            self._check_sender(request)
            return None
        return await self._key_of(request)

    def _limit(self, caller: str, *, limited: bool) -> None:
        """
        Take a token of the rate, if there is one.

        Raises:
            Problem: There was none left.
        """
        wait_s = self._buckets.take(caller) if self._buckets is not None and limited else 0.0
        if wait_s:
            raise _too_often("this caller sends more than its rate", wait_s)

    async def still(self, request: Request, key: ApiKey | None) -> bool:
        """
        Return whether a long request is still allowed: its key may have been revoked meanwhile.
        """
        if not await self._needs_key(request):
            return True
        try:
            # Not by the bucket of wrong keys: those of a neighbour end nothing that was let in.
            return key is not None and await self._found(request) == key
        except Problem:
            return False

    def look_s(self) -> float:
        """
        Return in how many seconds to look again at the key of a long request: once what was read is old.
        """
        return max(self._keys.fresh_s(), LOOK_S)

    async def confirm(self, request: Request) -> None:
        """
        Let a long request go on that was let in.

        Raises:
            Problem: Its key was revoked meanwhile.
        """
        try:
            allowed = await self.still(request, request.state.key)
        except StoreUnavailable:
            return  # what was read last still holds: nobody could revoke a key there since
        if not allowed:
            raise Problem("unauthenticated", "this API key was revoked meanwhile", headers=CHALLENGE)

    async def watch(self, request: Request) -> None:
        """
        Look at the key of a request that waits, whenever the keys are to be read again.

        Raises:
            Problem: It was revoked.
        """
        while True:
            await self.confirm(request)
            await asyncio.sleep(self.look_s())

    async def _needs_key(self, request: Request) -> bool:
        """
        Return whether this request must carry a key: because there are keys, were keys, or must be.
        """
        if await self._keys.any():
            return True
        if self._required or self._keys.seen():
            self._alarm()
            return True
        return not _comes_from_here(request)

    def _is_open(self, request: Request) -> bool:
        """
        Return whether this request would need no key, by what is known: a probe asks nobody.
        """
        return not self._required and not self._keys.seen() and _comes_from_here(request)

    def _check_sender(self, request: Request) -> None:
        """
        Keep out web pages that a browser on this machine shows: without keys, they could do everything.

        Raises:
            Problem: It names another host (421), as after DNS rebinding, or another site sent it (403).
        """
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not is_loopback(host_name(hosts[0])):
            raise Problem(
                "misdirected",
                f"Host: {', '.join(hosts)} is not localhost, 127.0.0.1 or [::1], and without API keys the "
                "service answers to these only; make a key with `duly keys create`",
            )
        if request.method in SAFE:
            return
        origin = request.headers.get("origin")
        if origin is None:
            sent_here = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        else:
            sent_here = origin in self._origins or origin in (f"http://{hosts[0]}", f"https://{hosts[0]}")
        if not sent_here:
            raise Problem(
                "cross-site",
                f"a web page of {origin or 'another site'} may not do this without an API key; "
                "allow it with --cors-origin if it is yours",
            )

    def _alarm(self) -> None:
        if time.monotonic() - self._alarmed_s < ALARM_S:
            return
        self._alarmed_s = time.monotonic()
        lost = " (all were revoked, or the server was emptied or replaced)" if self._keys.seen() else ""
        log.critical(
            "this service requires API keys and there is none%s: every request is answered with 401; "
            "make one with `duly keys create NAME --scope admin`",
            lost,
        )

    async def _key_of(self, request: Request) -> ApiKey:
        text, token = _credentials(request), _token(request)
        address = caller_of(_address(request))
        if not token and not text:
            self._keyless.take(address)
            raise Problem(
                "unauthenticated",
                "send Authorization: Bearer with an API key; see duly keys",
                headers=CHALLENGE,
            )
        wait_s = self._wrong.wait(address)
        if wait_s:
            raise _too_often("this address sent too many wrong API keys", wait_s)
        key = await self._found(request)
        if key is None:
            self._wrong.add(address)
            what = "stream token is not known, or its API key" if token else "API key is not known, or"
            raise Problem("unauthenticated", f"this {what} was revoked", headers=CHALLENGE)
        return key

    async def _found(self, request: Request) -> ApiKey | None:
        token = _token(request)
        find = streamtokens.key_of(self._keys, token) if token else self._keys.find(_credentials(request))
        return await find


def _token(request: Request) -> str | None:
    """
    The stream token that stands for a key, where a request carries none.
    """
    return None if "authorization" in request.headers else request.state.token


def _address(request: Request) -> str:
    client = request.scope.get("client")
    return client[0] if client else ""


def _comes_from_here(request: Request) -> bool:
    """
    Return whether this machine sent a request, and no proxy did for somebody else.
    """
    # The server may be another than `duly serve`, and listen where this service does not know.
    sent = [name for name, _ in request.scope["headers"]]
    return _FORWARDED.isdisjoint(sent) and is_loopback(_address(request))


def _credentials(request: Request) -> str:
    """
    The key that a request carries, "" if it has none.
    """
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if kind.lower() == "bearer" else ""


def _too_often(what: str, wait_s: float) -> Problem:
    detail = f"{what}; wait and send it again"
    return Problem("too-many-requests", detail, headers={"Retry-After": str(math.ceil(wait_s))})


def _refusal(key: ApiKey, scope: Scope, topic: str | None) -> str:
    if not key.has(scope):
        return f"key {key.name} has not the scope {scope}"
    if topic is not None:
        return f"key {key.name} has not the scope {scope} on topic {topic}"
    bound = ", ".join(key.topics)
    return f"key {key.name} is bound to topics ({bound}), and this concerns the whole queue: use another key"
