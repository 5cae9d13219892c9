"""
Problems: every error over HTTP, as one document (RFC 9457) with a type that programs can rely on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response

from duly.errors import (
    Conflict,
    DulyError,
    JobCancelled,
    JobExists,
    JobFailed,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
    StoreUnavailable,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

MEDIA_TYPE = "application/problem+json"

#: What each type begins with; the word behind it is stable.
TYPES = "urn:duly:problem:"

#: Every problem: its word, its status, its title.
PROBLEMS = {
    "malformed": (400, "The request cannot be read"),
    "unauthenticated": (401, "A valid API key is needed"),
    "forbidden": (403, "This API key does not allow it"),
    "not-found": (404, "There is no such thing"),
    "job-not-found": (404, "There is no such job"),
    "method-not-allowed": (405, "This method does not apply here"),
    "not-acceptable": (406, "No such representation"),
    "exists": (409, "A job with this id exists"),
    "conflict": (409, "The job is in another state"),
    "unfinished": (409, "The job has not ended"),
    "lease-lost": (409, "The lease is lost"),
    "cancelled": (410, "The job was cancelled"),
    "outdated": (412, "The job has changed since"),
    "too-large": (413, "The request is too large"),
    "unsupported": (415, "This media type is not understood"),
    "invalid": (422, "A value is wrong"),
    "key-reused": (422, "This key stands for another request"),
    "dead": (424, "The job is dead"),
    "too-many-requests": (429, "Too many requests"),
    "not-installed": (501, "A package is missing"),
    "stuck": (503, "A loop of the service makes no progress"),
    "not-ready": (503, "The service cannot run jobs through the queue"),
    "full": (503, "The topic is at its backlog limit"),
    "unavailable": (503, "The queue is not available"),
}


class Problem(Exception):
    """
    An answer that is not the one hoped for.
    """

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: object,
    ) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status, self.title = PROBLEMS[kind]
        self.detail = detail
        self.field = field
        self.headers = dict(headers or {})
        self.more = more

    def document(self) -> dict[str, object]:
        """
        What the client reads.
        """
        document: dict[str, object] = {
            "type": TYPES + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        if self.field is not None:
            document["field"] = self.field
        return document | self.more

    def response(self) -> Response:
        """
        The whole answer.
        """
        return Response(
            msgspec.json.encode(self.document()),
            status_code=self.status,
            media_type=MEDIA_TYPE,
            headers=self.headers,
        )


_OPTION = re.compile(r"^(\w+)(?:=|:| is | must | has | cannot )")


def problem_of(error: DulyError) -> Problem:
    """
    What an error of the queue is over HTTP.
    """
    match error:
        case UsageError():
            found = _OPTION.match(str(error))
            return Problem("invalid", str(error), field=found[1] if found else None)
        case JobExists():
            return Problem("exists", str(error))
        case JobNotFound():
            return Problem("job-not-found", str(error))
        case LeaseLost():
            return Problem("lease-lost", str(error))
        case Conflict():
            return Problem("conflict", str(error))
        case JobFailed():
            return Problem("dead", str(error))
        case JobCancelled():
            return Problem("cancelled", str(error))
        case QueueFull():
            return Problem("full", str(error), headers={"Retry-After": "5"})
        case StoreUnavailable() | OutcomeUnknown():
            # The message names a server that is none of the client's business.
            detail = (
                "the queue's server cannot be reached or refused the call; sending the same again is safe"
            )
            return Problem("unavailable", detail, headers={"Retry-After": "1"})
    return Problem("unavailable", "the queue cannot serve this now", headers={"Retry-After": "5"})
