"""
The audit over HTTP: every change that a request makes is recorded, and admins read the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.audit import Actor, Audit, AuditRecord, Change
from duly.http.answers import answer
from duly.http.operations import Answer, Operation, Parameter, limit, read_limit

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service
    from duly.ids import Repeatable

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
    key, address = request.state.key, request.client.host if request.client else "unknown"
    details = dict(getattr(request.state, "audited", {}))
    if key is not None:
        by = Actor("key", key.name, key.id)
        details["address"] = address
    else:
        by = Actor("address", address)
    change = Change(
        action=operation.audit,
        topic=request.path_params.get("topic"),
        id=request.path_params.get("id"),
        details=details,
    )
    app = service.app
    call: Repeatable | None = getattr(request.state, "call", None)
    mark = None if call is None else call.nonce("audit").hex()
    # With a record changes are made while the queue is away, too: none of them waits for it once more.
    ask = None if app.settings.record is None else (await app.promises()).absence.ask
    await Audit(await app.store(), ask).note(by, "http", change, mark=mark)


async def list_(service: Service, request: Request) -> Response:
    """
    The newest records.
    """
    most = read_limit(request, MAX_PAGE)
    audit = Audit(await service.app.store())
    return answer(AuditPage(*await audit.newest(most, request.query_params.get("cursor") or None)))


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
            limit("records of a page", MAX_PAGE),
        ),
        answers={200: Answer("a page", AuditPage)},
        problems=("invalid",),
    ),
]
