"""
Health: whether the service makes progress, and whether the queue takes jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.http.answers import answer
from duly.http.operations import Answer, Operation
from duly.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service


class Health(msgspec.Struct):
    """
    A service whose loops come round, and how many seconds ago each did.
    """

    status: str
    loops: dict[str, float]


class Readiness(msgspec.Struct):
    """
    A service whose queue takes jobs.
    """

    status: str


async def healthz(service: Service, _request: Request) -> Response:
    """
    Whether every loop of the service makes progress; the server may be away.
    """
    stuck = service.duties.stuck(service.app.settings.stall_ms / 1000)
    if stuck:
        said = "; ".join(f"{name}: {what}" for name, what in stuck.items())
        raise Problem("stuck", f"restart the service: {said}", stuck=stuck)
    return answer(Health("ok", service.duties.ages()))


async def readyz(service: Service, _request: Request) -> Response:
    """
    Whether the queue takes jobs: every shard just took a write.
    """
    if service.draining:
        raise _not_ready("draining", "the service is about to end")
    sang = await service.canary.sing()
    if sang.reason:
        raise _not_ready(sang.reason, sang.detail)
    return answer(Readiness("ok"))


def _not_ready(reason: str, detail: str) -> Problem:
    return Problem("not-ready", detail, reason=reason, headers={"Retry-After": "1"})


OPERATIONS = [
    Operation(
        name="getHealth",
        method="GET",
        path="/healthz",
        about="Whether the service makes progress: its event loop and background loops. Restart it if not.",
        run=healthz,
        scope=None,
        limited=False,
        answers={200: Answer("every loop comes round", Health)},
        problems=("stuck",),
    ),
    Operation(
        name="getReadiness",
        method="GET",
        path="/readyz",
        about="Whether the queue takes jobs: every shard took a write a moment ago. "
        "Send no requests here if not; the reason is one word.",
        run=readyz,
        scope=None,
        limited=False,
        answers={200: Answer("the queue takes jobs", Readiness)},
        problems=("not-ready",),
    ),
]
