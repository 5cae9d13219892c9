import asyncio
import os

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from duly import Duly, current_job
from duly.contrib.fastapi import lifespan
from duly.http import async_endpoint, current_request

PAID = {"o-7": 4900, "o-8": 1200}  # cents, by order
BANK_S = float(os.environ.get("BANK_S", "2"))  # how long a transfer takes

queue = Duly()
api = FastAPI(title="Shop", lifespan=lifespan(queue))


class Refund(BaseModel):
    amount: int = Field(gt=0, description="cents")
    reason: str = ""


@queue.handler("order.refund", ttr=120)
async def refund(wanted: Refund) -> dict[str, str | int]:
    """
    Pay an order back.
    """
    order = current_request().route["order_id"]
    await current_job().progress("sent to the bank")
    # A worker may die here, and the job run again: current_job().id is what the bank should know it by.
    await asyncio.sleep(BANK_S)
    return {"order": order, "refunded": wanted.amount}


async def check(request: Request, wanted: Refund) -> JSONResponse | None:
    paid = PAID.get(request.path_params["order_id"])
    if paid is None:
        return JSONResponse({"detail": "no such order"}, status_code=404)
    if wanted.amount > paid:
        return JSONResponse({"detail": f"only {paid} were paid"}, status_code=409)
    return None


async_endpoint("/orders/{order_id}/refund", refund, to=api, queue=queue, validate=check, cancel=True)
