"""
An endpoint that refunds orders, with models of three kinds, and a client of its app.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec
from pydantic import BaseModel, Field

from duly import Bury
from duly.http import current_request
from duly.job import JobState

ID = "X-Async-Request-Id"
REFUND = "/orders/{order_id}/refund"


@asynccontextmanager
async def served(api, **client):
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(api), base_url="http://shop", timeout=30, **client
        ) as client_,
    ):
        yield client_


async def stored(queue):
    views = await queue.views()
    return [job for state in JobState async for job in views.each(state)]


class Refund(BaseModel):
    amount: int = Field(gt=0)
    reason: str = ""


class RefundStruct(msgspec.Struct, forbid_unknown_fields=True):
    amount: int
    reason: str = ""


@dataclass
class RefundData:
    amount: int
    reason: str = ""


MODELS = [Refund, RefundStruct, RefundData]


def refunding(queue, model=Refund):
    async def refund(order: Refund) -> dict[str, Any]:
        """
        Give money back.

        In a while.
        """
        asked = current_request()
        if order.reason == "bad":
            raise Bury("no such order")
        return {"order": asked.route["order_id"], "amount": order.amount, "kind": type(order).__name__}

    refund.__annotations__["order"] = model
    return queue.handler("refund")(refund)
