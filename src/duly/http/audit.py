"""
The audit over HTTP: every change that a request makes is recorded, and admins read the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.audit import Actor, Audit, AuditRecord, Change
from duly.http.answers import answer
from duly.http.operations import Answer, Operation, Parameter
from duly.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service

MAX_PAGE = 1000


class AuditPage(msgspec.Struct):
    """
    Some records, the newest first, and where to go on; null at the end.
    """

    records: list[AuditRecord]
    cursor: str | None


async def note(service: Service, request: Request, operation: Operation) -> None:
    """
    Record what a request has changed.
    """
    assert operation.audit is not None  # noqa: S101  # asked before
    key = request.state.key
    if key is not None:
        by = Actor("key", key.name, key.id)
    else:
        by = Actor("address", request.client.host if request.client else "unknown")
    change = Change(
        action=operation.audit,
        topic=request.path_params.get("topic"),
        id=request.path_params.get("id"),
        details=getattr(request.state, "audited", {}),
    )
    await Audit(await service.app.store()).note(by, "http", change)


async def list_(service: Service, request: Request) -> Response:
    """
    The newest records.
    """
    said = request.query_params.get("limit", "100")
    if not said.isascii() or not said.isdigit() or not 1 <= int(said[:9]) <= MAX_PAGE:
        raise Problem("invalid", f"limit={said!r} must be a number from 1 to {MAX_PAGE}", field="limit")
    audit = Audit(await service.app.store())
    return answer(AuditPage(*await audit.newest(int(said), request.query_params.get("cursor") or None)))


OPERATIONS = [
    Operation(
        name="listAudit",
        method="GET",
        path="/v1/audit",
        about="Who changed what by hand: pauses, limits, cancellations, keys. The newest first.",
        run=list_,
        scope="admin",
        parameters=(
            Parameter(
                "cursor",
                "query",
                "where the last page ended; empty for the newest",
                {"type": "string", "pattern": r"^([0-9]{1,19}-[0-9]{1,19})?$"},
            ),
            Parameter(
                "limit", "query", "records of a page", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
            ),
        ),
        answers={200: Answer("a page", AuditPage)},
        problems=("invalid",),
    ),
]
