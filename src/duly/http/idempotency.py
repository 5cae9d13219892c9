"""
Idempotency-Key: a request that is sent again makes no second job, and another one under its key is refused.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import msgspec

from duly.http.problems import Problem

if TYPE_CHECKING:
    from starlette.requests import Request

    from duly.http.documents import JobRequest
    from duly.job import Job

HEADER = "idempotency-key"

#: Where a job's context keeps which request made it.
MARK = "duly.request"

#: Printable ASCII; blanks around a header belong to no value.
PATTERN = "^[!-~](?:[ -~]*[!-~])?$"
_KEY = re.compile(PATTERN)


def key_of(request: Request) -> str | None:
    """
    The key that a request carries.

    Raises:
        Problem: It is no key.
    """
    key = request.headers.get(HEADER)
    if key is None:
        return None
    if len(key) > 255 or not _KEY.fullmatch(key):
        raise Problem(
            "invalid", "Idempotency-Key must be 1 to 255 printable ASCII characters", field="Idempotency-Key"
        )
    return key


def marked(wanted: JobRequest, key: str) -> JobRequest:
    """
    The request with an id made from *key* unless it has one, and a mark of what it asks for.
    """
    mark = _mark(wanted)
    context = {**(wanted.context or {}), MARK: mark}
    id_ = wanted.id or f"key-{hashlib.sha256(key.encode()).hexdigest()[:40]}"
    return msgspec.structs.replace(wanted, id=id_, context=context)


def check(job: Job, sent: JobRequest) -> None:
    """
    Refuse a request whose key stands for another one.

    Raises:
        Problem: It does.
    """
    stored = (job.envelope.context or {}).get(MARK) if job.envelope else None
    if stored != (sent.context or {}).get(MARK):
        raise Problem(
            "key-reused",
            "this Idempotency-Key was used for another request; use a new one for each",
            field="Idempotency-Key",
        )


def _mark(wanted: JobRequest) -> str:
    return hashlib.sha256(msgspec.json.encode(wanted)).hexdigest()[:32]
