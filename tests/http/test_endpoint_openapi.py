"""
Async endpoints in the OpenAPI document of a FastAPI app.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, Field

from duly import Duly
from duly.http import async_endpoint


class Line(BaseModel):
    sku: str
    more: list[Line] = []


class Refund(BaseModel):
    amount: int = Field(gt=0)
    lines: list[Line] = []


class RefundStruct(msgspec.Struct):
    amount: int


@dataclass
class RefundData:
    amount: int


@pytest.fixture
def queue():
    return Duly("unix:///nowhere")


def document_of(queue, fn, path="/orders/{order_id:int}/refund", **options):
    api = FastAPI()
    async_endpoint(path, queue.handler("order.refund")(fn), to=api, queue=queue, **options)
    return api.openapi()


async def pydantic_model(order: Refund) -> dict[str, int]:
    """
    Give money back.

    It may take a while.
    """


async def struct(order: RefundStruct) -> None: ...
async def data(order: RefundData | None = None) -> None: ...
async def arguments(amount: int, *, lines: list[Line] | None = None) -> None: ...
async def nothing() -> None: ...


def body_of(document, method="post"):
    operation = document["paths"]["/orders/{order_id}/refund"][method]
    return operation.get("requestBody")


def pointers(value: Any):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from pointers(each)


def test_the_route_is_described_with_its_model_and_what_it_answers(queue):
    document = document_of(queue, pydantic_model, tags=["money"])
    assert {
        "/orders/{order_id}/refund",
        "/orders/{order_id}/refund/{job_id}",
        "/orders/{order_id}/refund/{job_id}/result",
    } == set(document["paths"])
    post = document["paths"]["/orders/{order_id}/refund"]["post"]
    assert ("Give money back", ["money"]) == (post["summary"], post["tags"])
    assert "It may take a while." in post["description"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert ("Refund", ["amount"]) == (schema["title"], schema["required"])
    assert {"exclusiveMinimum": 0, "title": "Amount", "type": "integer"} == schema["properties"]["amount"]
    line = schema["properties"]["lines"]["items"]
    assert "string" == line["properties"]["sku"]["type"]
    assert {"type": "object", "title": "Line"} == line["properties"]["more"]["items"], "told once"
    assert [
        ("order_id", "path", True, "integer"),
        ("X-Async-Request-Id", "header", False, "string"),
        ("Prefer", "header", False, "string"),
    ] == [(each["name"], each["in"], each["required"], each["schema"]["type"]) for each in post["parameters"]]
    assert {"200", "202", "400", "413", "415", "422", "503"} == set(post["responses"])
    accepted = post["responses"]["202"]
    assert {"Location", "Retry-After", "X-Async-Request-Id"} == set(accepted["headers"])
    assert "state_code" in accepted["content"]["application/json"]["schema"]["properties"]
    for status in ("400", "413", "415", "422", "503"):
        assert ["application/problem+json"] == list(post["responses"][status]["content"])


def test_status_and_result_are_described(queue):
    document = document_of(queue, pydantic_model, cancel=True)
    path = "/orders/{order_id}/refund/{job_id}"
    status, result = document["paths"][path]["get"], document["paths"][path + "/result"]["get"]
    cancelled = document["paths"][path]["delete"]
    for operation in (status, result):
        names = ["order_id", "job_id", "wait", "Prefer", "If-None-Match", "If-Match"]
        assert names == [each["name"] for each in operation["parameters"]]
    assert {"200", "304", "404", "412", "422", "503"} == set(status["responses"])
    assert {"200", "304", "404", "409", "410", "412", "422", "424", "503"} == set(result["responses"])
    assert {"200", "404", "409", "412", "422", "503"} == set(cancelled["responses"])
    returned = result["responses"]["200"]["content"]["application/json"]["schema"]
    assert {"type": "object", "additionalProperties": {"type": "integer"}} == returned
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("fn", [struct, data, arguments])
def test_any_kind_of_body_is_described(queue, fn):
    body = body_of(document_of(queue, fn))
    schema = body["content"]["application/json"]["schema"]
    assert (fn is not data) == body["required"]
    if fn is data:
        [schema] = [each for each in schema["anyOf"] if each != {"type": "null"}]
    assert "integer" == schema["properties"]["amount"]["type"]
    assert ["amount"] == schema["required"]
    if fn is arguments:
        assert schema["additionalProperties"] is False
        assert "sku" in str(schema["properties"]["lines"])


def test_no_body_is_described_where_there_is_none(queue):
    assert body_of(document_of(queue, nothing)) is None


@pytest.mark.parametrize("fn", [pydantic_model, struct, data, arguments, nothing])
def test_nothing_points_to_what_is_not_there(queue, fn):
    assert [] == list(pointers(document_of(queue, fn)))


def test_every_method_has_a_name_of_its_own_and_a_prefix_is_kept(queue):
    router = APIRouter(prefix="/v1")
    handler = queue.handler("order.refund")(struct)
    async_endpoint("/a", handler, to=router, queue=queue, methods=["POST", "PUT", "PATCH", "DELETE"])
    async_endpoint("/b", handler, to=router, queue=queue)
    api = FastAPI()
    api.include_router(router)
    document = api.openapi()  # a name that is used twice would be a warning, and an error here
    assert {"post", "put", "patch", "delete"} == set(document["paths"]["/v1/a"])
    assert {"/v1/a", "/v1/a/{job_id}", "/v1/a/{job_id}/result"} <= set(document["paths"])
    assert all("requestBody" in each for each in document["paths"]["/v1/a"].values())
