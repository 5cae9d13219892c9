"""
A worker of any language: what it says to the service of a queue, call by call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from duly import LeaseLost
from tests.contract.kit import SOON_S

if TYPE_CHECKING:
    from typing import Self

CONFLICT = 409


class Worker:
    """
    Claims jobs and ends their runs by the calls of the service.
    """

    def __init__(self, url: str, name: str = "w1") -> None:
        self.name = name
        self._client = httpx.AsyncClient(base_url=url, timeout=2 * SOON_S)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def claim(self, topic: str, limit: int = 1, wait: float = SOON_S, **more: Any) -> list[Any]:
        """
        Claim jobs of a topic, waiting for the first.
        """
        body = {"worker": self.name, "limit": limit, "wait": wait} | more
        answer = await self._client.post(f"/v1/topics/{topic}/claim", json=body)
        found: list[Any] = answer.raise_for_status().json()["jobs"]
        return found

    async def end(self, job: Any, verb: str, **body: Any) -> dict[str, Any]:
        """
        Ack, retry, bury, release or extend.

        Raises:
            LeaseLost: The run is not this worker's any more.
        """
        answer = await self._client.post(f"/v1/leases/{job['token']}/{verb}", json=body)
        if answer.status_code == CONFLICT:
            raise LeaseLost(answer.json()["detail"])
        said: dict[str, Any] = answer.raise_for_status().json()
        return said
