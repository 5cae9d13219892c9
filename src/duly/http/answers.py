"""
Answers: documents as responses, with the headers that belong to a job.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from duly.http.documents import retry_after, view_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

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


def job_answer(job: Job, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """
    A job, its revision as ETag, and while it has not ended, when to ask again.
    """
    more = {"ETag": etag_of(job.revision), **(headers or {})}
    if not job.state.ended:
        more["Retry-After"] = retry_after(job, int(time.time() * 1000))
    return answer(view_of(job), status, more)


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


def etag_of(revision: int) -> str:
    """
    What If-Match compares: the revision is another one after every replace, reschedule and requeue.
    """
    return f'"{revision}"'


def path_of(key: JobKey) -> str:
    """
    Where a job is.
    """
    return f"/v1/topics/{key.topic}/jobs/{key.id}"
