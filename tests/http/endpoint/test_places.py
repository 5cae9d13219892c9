"""
Where endpoints and their status may be: paths, mounts, proxies, routers.
"""

from __future__ import annotations

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException
from starlette.routing import Mount, Router

from duly.contrib.fastapi import lifespan
from duly.http import async_endpoint
from tests.http.conftest import problem
from tests.http.endpoint.kit import ID, REFUND, Refund, refunding, served, stored


async def test_a_status_shows_only_jobs_of_its_own_path(make, queue):
    refund = refunding(queue)
    api = make(lifespan=lifespan(queue))
    async_endpoint(REFUND, refund, to=api, queue=queue, cancel=True)
    async_endpoint("/admin/refunds", refund, to=api, queue=queue, cancel=True)
    async with served(api) as client:
        await client.post("/orders/7/refund", json={"amount": 5}, headers={ID: "theirs"})
        await queue.enqueue(refund.job(Refund(amount=1)), id="inner")
        for path in (
            "/orders/8/refund/theirs",
            "/admin/refunds/theirs",
            "/orders/7/refund/inner",
            "/orders/7/refund/none",
            "/orders/7/refund/a b",
        ):
            problem(await client.get(path), 404, "job-not-found")
            problem(await client.get(path + "/result"), 404, "job-not-found")
            problem(await client.delete(path), 404, "job-not-found")
        assert 200 == (await client.get("/orders/7/refund/theirs")).status_code


async def test_the_status_may_be_elsewhere(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint(
        "/orders/{order_id:int}/refund",
        refunding(queue),
        to=api,
        queue=queue,
        status_path="/refunds/{order_id:int}/{job_id}",
    )
    async with served(api) as client:
        accepted = await client.post("/orders/007/refund", json={"amount": 5}, headers={ID: "r"})
        assert "/refunds/7/r" == accepted.headers["location"]
        assert "r" == (await client.get("/refunds/7/r")).json()["id"]
        problem(await client.get("/refunds/8/r"), 404, "job-not-found")


@pytest.mark.parametrize("status_path", [None, "/jobs/{job_id}"])
async def test_it_may_be_mounted_below_another_path(queue, status_path):
    refund = refunding(queue)
    below = {"starlette": Router(), "fastapi": APIRouter()}
    for router in below.values():
        async_endpoint(REFUND, refund, to=router, queue=queue, status_path=status_path)
    api = FastAPI(lifespan=lifespan(queue))
    api.include_router(below["fastapi"], prefix="/v1")
    sub = FastAPI()
    async_endpoint(REFUND, refund, to=sub, queue=queue, status_path=status_path)
    api.mount("/sub", sub)
    api.router.routes.append(Mount("/star", below["starlette"]))
    async with served(api) as client:
        for prefix in ("/v1", "/sub", "/star"):
            accepted = await client.post(f"{prefix}/orders/7/refund", json={"amount": 5})
            assert 202 == accepted.status_code, accepted.text
            id_ = accepted.json()["id"]
            place = f"/jobs/{id_}" if status_path else f"/orders/7/refund/{id_}"
            assert prefix + place == accepted.headers["location"]
            assert id_ == (await client.get(accepted.headers["location"])).json()["id"]


async def test_the_root_path_of_a_proxy_is_part_of_the_location(make, queue):
    api = make(lifespan=lifespan(queue))
    async_endpoint("/hook", "hook", to=api, queue=queue)
    async with (
        api.router.lifespan_context(api),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(api, root_path="/shop"), base_url="http://shop"
        ) as client,
    ):
        accepted = await client.post("/hook", headers={ID: "h"})
        assert "/shop/hook/h" == accepted.headers["location"]


async def test_the_queue_is_opened_on_first_use_where_no_lifespan_does(make, queue):
    api = make()
    async_endpoint(REFUND, refunding(queue), to=api, queue=queue)
    transport = httpx.ASGITransport(api)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert queue.loop is None
        assert 202 == (await client.post("/orders/7/refund", json={"amount": 5})).status_code
        assert queue.loop is not None
    await queue.aclose()


async def test_dependencies_of_fastapi_guard_all_routes(queue):
    def guard():
        raise HTTPException(401, "who are you?")

    router = APIRouter(dependencies=[Depends(guard)])
    async_endpoint(REFUND, refunding(queue), to=router, queue=queue, cancel=True)
    api = FastAPI(lifespan=lifespan(queue))
    api.include_router(router)
    async with served(api) as client:
        answers = [
            await client.post("/orders/7/refund", json={"amount": 5}),
            await client.get("/orders/7/refund/r"),
            await client.get("/orders/7/refund/r/result"),
            await client.delete("/orders/7/refund/r"),
        ]
        assert [401] * 4 == [each.status_code for each in answers]
        assert [] == await stored(queue)
