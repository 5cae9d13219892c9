"""
Access: which key a request carries, what it may do, and how often.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from duly.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from duly.apikeys import ApiKey, KeyRing, Scope

CALLERS = 10_000  #: whose buckets are remembered


class Buckets:
    """
    A bucket of tokens for each caller: *rate* come in each second, *burst* fit in, a request takes one.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._callers: OrderedDict[str, tuple[float, float]] = OrderedDict()

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


class Access:
    """
    The gate in front of every operation.
    """

    def __init__(self, keys: KeyRing, *, rate: float | None, burst: int) -> None:
        self._keys = keys
        self._buckets = Buckets(rate, burst) if rate else None

    async def check(
        self,
        request: Request,
        scope: Scope | None,
        topic: str | None = None,
        *,
        of_topics: bool = False,
        limited: bool = True,
    ) -> ApiKey | None:
        """
        Let a request pass; the answer is its key, None where no keys are set up.

        Raises:
            Problem: It has no valid key (401), one that does not allow it (403), or comes too often (429).
        """
        key = None
        if scope is not None and await self._keys.any():
            key = await self._key_of(request)
            if not (key.has(scope) if of_topics else key.allows(scope, topic)):
                on = f" on topic {topic}" if topic and key.topics else ""
                raise Problem("forbidden", f"key {key.name} has not the scope {scope}{on}")
        if self._buckets is not None and limited:
            caller = key.id if key else (request.client.host if request.client else "")
            wait_s = self._buckets.take(caller)
            if wait_s:
                raise Problem(
                    "too-many-requests",
                    "this caller sends more than its rate; wait and send it again",
                    headers={"Retry-After": str(math.ceil(wait_s))},
                )
        return key

    async def still(self, request: Request, key: ApiKey | None) -> bool:
        """
        Whether a request that goes on for long is still allowed: its key may have been revoked meanwhile.
        """
        if not await self._keys.any():
            return True
        try:
            return key is not None and await self._key_of(request) == key
        except Problem:
            return False

    async def _key_of(self, request: Request) -> ApiKey:
        challenge = {"WWW-Authenticate": "Bearer"}
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not text.strip():
            raise Problem(
                "unauthenticated",
                "send Authorization: Bearer with an API key; see duly keys",
                headers=challenge,
            )
        key = await self._keys.find(text.strip())
        if key is None:
            raise Problem("unauthenticated", "this API key is not known, or was revoked", headers=challenge)
        return key
