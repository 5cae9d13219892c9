"""
The API: every operation, and the service made of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from duly.http import (
    audit,
    batch,
    bulk,
    claims,
    events,
    health,
    jobs,
    leases,
    meter,
    quarantine,
    replies,
    stats,
    topics,
)
from duly.http.openapi import document
from duly.http.operations import Answer, Operation
from duly.http.service import make_service

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request

    from duly.app import Duly
    from duly.http.service import Service
    from duly.http.settings import ServiceSettings


async def _openapi(_service: Service, request: Request) -> Response:
    described = document(OPERATIONS, request.scope.get("root_path", ""))
    return Response(msgspec.json.encode(described), media_type="application/json")


OPERATIONS: list[Operation] = [
    *jobs.OPERATIONS,
    *batch.OPERATIONS,
    *bulk.OPERATIONS,
    *claims.OPERATIONS,
    *leases.OPERATIONS,
    *replies.OPERATIONS,
    *stats.OPERATIONS,
    *topics.OPERATIONS,
    *quarantine.OPERATIONS,
    *audit.OPERATIONS,
    *events.OPERATIONS,
    *meter.OPERATIONS,
    *health.OPERATIONS,
    Operation(
        name="getOpenApi",
        method="GET",
        path="/openapi.json",
        about="This description.",
        run=_openapi,
        scope=None,
        answers={200: Answer("OpenAPI 3.1", dict)},
    ),
]


def api(app: Duly, settings: ServiceSettings | None = None) -> Starlette:
    """
    The service as an ASGI application.
    """
    return make_service(app, OPERATIONS, settings)
