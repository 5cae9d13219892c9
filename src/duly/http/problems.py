"""
Problems: every error over HTTP, as one document (RFC 9457) with a type that programs can rely on.
"""

from __future__ import annotations

import logging
import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from duly.connection import OutOfMemory
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
    RecordUnavailable,
    ResultGone,
    StoreUnavailable,
    UsageError,
)
from duly.http.refusals import Refusal
from duly.idempotency import KeyReused, KeysFull
from duly.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.responses import Response

log = logging.getLogger("duly.http")

MEDIA_TYPE = "application/problem+json"

#: What each type begins with; the word behind it is stable.
TYPES = "urn:duly:problem:"

#: Every problem: its word, its status, its title.
PROBLEMS = {
    "malformed": (400, "The request cannot be read"),
    "unauthenticated": (401, "A valid API key is needed"),
    "forbidden": (403, "This API key does not allow it"),
    "cross-site": (403, "A web page of another site sent this request"),
    "not-found": (404, "There is no such thing"),
    "job-not-found": (404, "There is no such job"),
    "method-not-allowed": (405, "This method does not apply here"),
    "not-acceptable": (406, "No such representation"),
    "timeout": (408, "The request did not come in time"),
    "exists": (409, "A job with this id exists"),
    "conflict": (409, "The job is in another state"),
    "unfinished": (409, "The job has not ended"),
    "lease-lost": (409, "The lease is lost"),
    "cancelled": (410, "The job was cancelled"),
    "result-gone": (410, "The result was not kept"),
    "outdated": (412, "A condition of the request does not hold"),
    "too-large": (413, "The request is too large"),
    "unsupported": (415, "This media type is not understood"),
    "misdirected": (421, "The service has another name"),
    "invalid": (422, "A value is wrong"),
    "key-reused": (422, "This key stands for another request"),
    "dead": (424, "The job is dead"),
    "too-many-requests": (429, "Too many requests"),
    "headers-too-large": (431, "The headers are too large"),
    "fault": (500, "The service has a fault"),
    "not-installed": (501, "A package is missing"),
    "stuck": (503, "A loop of the service makes no progress"),
    "not-ready": (503, "The service cannot run jobs through the queue"),
    "full": (503, "The topic is at its backlog limit"),
    "keys-full": (503, "No room to keep another request under a key"),
    "busy": (503, "The service has no connection left"),
    "unavailable": (503, "The queue is not available, and nothing was changed"),
    "record-unavailable": (503, "The record is not available"),
    "out-of-memory": (503, "The queue is at its memory limit, and nothing was changed"),
    "outcome-unknown": (503, "Nobody knows whether it was done"),
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
        return Refusal(
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
        case KeyReused():
            return Problem("key-reused", str(error), field="Idempotency-Key")
        case KeysFull():
            return Problem(
                "keys-full", str(error), headers={"Retry-After": str(max(1, math.ceil(error.wait_s)))}
            )
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
        case ResultGone():
            return Problem("result-gone", str(error))
        case QueueFull():
            return Problem("full", str(error), headers={"Retry-After": "5"})
        # The messages name servers that are none of the client's business.
        case OutOfMemory():
            detail = "the queue's server is at its memory limit and refused the call; nothing was changed"
            return Problem("out-of-memory", detail, headers={"Retry-After": "5"})
        case RecordUnavailable():
            detail = (
                "the record cannot be reached or refused the call; nothing was changed, but that a cancel "
                "may have ended what the queue has of the job"
            )
            return Problem("record-unavailable", detail, headers={"Retry-After": "1"})
        case StoreUnavailable():
            detail = "the queue's server cannot be reached or refused the call; nothing was changed"
            return Problem("unavailable", detail, headers={"Retry-After": "1"})
        case OutcomeUnknown():
            detail = "it may have been done, and nobody knows; sending the same again is safe"
            return Problem("outcome-unknown", detail, headers={"Retry-After": "1"})
    return fault_of(error)


@contextmanager
def after_change() -> Iterator[None]:
    """
    Say of a server that goes away once something was changed that the outcome is unknown.
    """
    try:
        yield
    except StoreUnavailable as error:
        raise OutcomeUnknown(f"something was changed, and what came of it cannot be told: {error}") from error


def fault_of(error: Exception, where: str = "") -> Problem:
    """
    Log what sending the same again does not mend, and say under which id.

    The message of the error is for the log only: it may quote what is none of the client's business.
    """
    reference = new_id()
    log.error("fault %s%s: %s", reference, f" at {where}" if where else "", error, exc_info=error)
    detail = f"the service failed, and sending the same again does not help; its log says why at {reference}"
    return Problem("fault", detail, reference=reference)
