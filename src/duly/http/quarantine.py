"""
Jobs in quarantine over HTTP: stored jobs that cannot be read, for admins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from duly.errors import JobNotFound
from duly.http import idempotency
from duly.http.answers import answer
from duly.http.jobs import job_key
from duly.http.operations import JOB_ID, TOPIC, Answer, Operation, Parameter, limit, read_limit
from duly.http.repeats import Repeats
from duly.job import shard_of
from duly.quarantine import QuarantinedContent, QuarantinedDocument, quarantine_page, quarantined_content

if TYPE_CHECKING:
    from starlette.requests import Request

    from duly.http.service import Service

MAX_PAGE = 1000
THERE, ABSENT = b"there", b"absent"  #: how a request to drop a job was answered


class QuarantinePage(msgspec.Struct):
    """
    Some jobs in quarantine, and where to go on; null at the end.
    """

    jobs: list[QuarantinedDocument]
    cursor: str | None


async def list_(service: Service, request: Request) -> Response:
    """
    Jobs in quarantine, page by page.
    """
    most = read_limit(request, MAX_PAGE)
    store = await service.app.store()
    page = await quarantine_page(store, request.query_params.get("cursor"), most)
    return answer(QuarantinePage(*page))


async def show(service: Service, request: Request) -> Response:
    """
    What is stored of one job in quarantine.
    """
    return answer(await quarantined_content(await service.app.store(), job_key(request)))


async def drop(service: Service, request: Request) -> Response:
    """
    Remove one job from quarantine.
    """
    key, store = job_key(request), await service.app.store()
    repeats = Repeats(store, request, idempotency.call_of(request, "drop"))
    first = await repeats.begin()
    if first is not None and first.answer:
        there = first.answer == THERE
    else:
        [there] = await store.drop(shard_of(*key, store.shards), [key.member])
        await repeats.end(THERE if there else ABSENT)
    if not there:
        raise JobNotFound(f"{key} is not in quarantine")
    return Response(status_code=204)


OPERATIONS = [
    Operation(
        name="listQuarantine",
        method="GET",
        path="/v1/quarantine",
        about="Stored jobs that cannot be read, page by page. A page may be empty and still have a cursor.",
        run=list_,
        scope="admin",
        parameters=(
            Parameter(
                "cursor",
                "query",
                "where the last page ended; empty for the first",
                {"type": "string", "pattern": r"^([0-9]{1,4}:[0-9]{1,20})?$"},
            ),
            limit("jobs of a page, about", MAX_PAGE),
        ),
        answers={200: Answer("a page", QuarantinePage)},
        problems=("invalid",),
    ),
    Operation(
        name="getQuarantinedJob",
        method="GET",
        path="/v1/quarantine/{topic}/{id}",
        about="What is stored of a job in quarantine, and what may still be true of it.",
        run=show,
        scope="admin",
        parameters=(TOPIC, JOB_ID),
        answers={200: Answer("the job", QuarantinedContent)},
        problems=("job-not-found", "invalid"),
    ),
    Operation(
        name="dropQuarantinedJob",
        method="DELETE",
        path="/v1/quarantine/{topic}/{id}",
        about="Remove a job from quarantine, for good.",
        run=drop,
        scope="admin",
        audit="drop",
        parameters=(TOPIC, JOB_ID, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers={204: Answer("it is gone")},
        problems=("job-not-found", "invalid"),
    ),
]
