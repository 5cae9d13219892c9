"""
Answers: documents as responses, with the headers that belong to a job.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from duly.http.access import may_read
from duly.http.conditions import Shown, etag_of
from duly.http.documents import receipt_of, retry_after, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from duly.job import Job, JobKey


def answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """
    A document that nobody may keep: the next look may see another state.
    """
    return Response(
        msgspec.json.encode(document),
        status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def shown_to(request: Request, topic: str) -> Shown:
    """
    Return how much of a job of *topic* the key may see.
    """
    return "all" if may_read(request, topic) else "receipt"


def job_answer(
    request: Request, job: Job, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """
    A job as far as the key may see it, its revision as ETag, and while it has not ended, when to ask again.
    """
    shown = shown_to(request, job.topic)
    more = {"ETag": etag_of(job, shown), **(headers or {})}
    if not job.state.ended:
        more["Retry-After"] = retry_after(job, int(time.time() * 1000))
    return answer(view_of(job) if shown == "all" else receipt_of(job), status, more)


def bare_result(job: Job, shown: Shown = "all") -> Response:
    """
    What a handler returned, as it is.
    """
    headers = {"Cache-Control": "no-store", "ETag": etag_of(job, shown)}
    return Response(job.outcome or b"null", media_type="application/json", headers=headers)


class Lines(Response):
    """
    Lines that are sent as they are made, also while the request is still read.

    Starlette's own streaming listens for a disconnect meanwhile, and would take parts of the request for it.
    """

    def __init__(self, parts: AsyncIterator[bytes], status: int) -> None:
        super().__init__(None, status, {"Cache-Control": "no-store"}, "application/x-ndjson")
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Send them.
        """
        del scope, receive
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def path_of(request: Request, key: JobKey) -> str:
    """
    Where a job is, for the client that sent *request*: without a host, which only the client knows.
    """
    return f"{request.scope.get('root_path', '')}/v1/topics/{key.topic}/jobs/{key.id}"
