"""
Metrics of the service: requests counted as they are answered, and GET /metrics.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from duly.extras import install
from duly.http.operations import Answer, Operation
from duly.http.problems import PROBLEMS, Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from duly.app import Duly
    from duly.http.service import Service
    from duly.metrics import Metrics

#: What has no operation: a path or a method that does not exist.  The path itself is never a label.
NONE = "none"

OPERATION = "duly.operation"  #: where a scope says which one it is about


def metrics_of(app: Duly) -> Metrics | None:
    """
    The metrics of an app, made if need be; None where the extra is not installed.
    """
    if app.hooks.meter is not None:
        return app.hooks.meter
    try:
        from duly.metrics import Metrics  # noqa: PLC0415  # a package that need not be there
    except ModuleNotFoundError:
        return None
    return Metrics(app)


class Meter:
    """
    Counts every request by its operation and status.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Pass a request on, and count it when its answer begins.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, answered = time.perf_counter(), False

        def count(status: int) -> None:
            self._metrics.served(scope.get(OPERATION, NONE), status, time.perf_counter() - began_s)

        async def counting(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start" and not answered:
                answered = True
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, counting)
        except Exception:
            if not answered:
                count(PROBLEMS["fault"][0])  # as it will be answered
            raise


async def scrape(service: Service, _request: Request) -> Response:
    """
    What Prometheus reads.
    """
    metrics = service.metrics
    if metrics is None:
        raise Problem(
            "not-installed", f"metrics need prometheus-client: {install('server', 'metrics')} and restart"
        )
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest  # noqa: PLC0415  # as above

    await metrics.refresh()
    text = await asyncio.to_thread(generate_latest, metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})


OPERATIONS = [
    Operation(
        name="getMetrics",
        method="GET",
        path="/metrics",
        about="Metrics in the text format of Prometheus: how the queue stands, and what this service does. "
        "Needs a key that sees every topic.",
        run=scrape,
        scope="read",
        answers={200: Answer("metrics", str, media="text/plain")},
        problems=("not-installed",),
    ),
]
