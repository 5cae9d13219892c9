"""
Conditional requests (RFC 9110, section 13): what If-Match and If-None-Match ask of a job.

A tag is the revision of a job, which every change by a user makes anew, and a digest of what changes without
one: its state, its attempts, its progress.  The digest is made of nothing that the caller is not shown: who
knows all the rest could try results or errors until the digest fits.  If-Match is about changes, so it
compares revisions: the server checks a revision in the same step in which it changes the job, and could not
check a state, which moves by itself, so two clients could both be told that theirs held.  If-None-Match is
about documents, so it compares whole tags.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from starlette.responses import Response

from duly.http.problems import Problem
from duly.job import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from duly.job import Job

ANY = "*"

#: What a caller is shown of a job: everything, what an async endpoint answers, or a receipt.
Shown = Literal["all", "answer", "receipt"]

#: One entity tag of a list, whose elements may be empty (RFC 9110, section 5.6.1).
_TAG = re.compile(r'[\s,]*(W/)?("[\x21\x23-\x7e\x80-\xff]*")[ \t]*(?=,|$)')
_OURS = re.compile(r'"([0-9]{1,19})(?:-[0-9a-f]{8})?"')


def etag_of(job: Job, shown: Shown) -> str:
    """
    Return the tag of a job as it is now, for a caller who is shown so much of it.
    """
    changing: tuple[object, ...] = (job.state.value, job.due_ms, job.started_ms, job.ended_ms)
    if shown != "receipt":
        # An error is not shown to callers of an async endpoint; that it is another one follows from the rest.
        outcome = job.outcome if shown == "all" or job.state is JobState.succeeded else b""
        changing += (job.attempts, job.progress, outcome, job.result_gone)
    if shown == "all":
        changing += (job.crashes, job.lease_ms, job.worker)
    return f'"{job.revision}-{zlib.crc32(repr(changing).encode()):08x}"'


@dataclass(frozen=True, slots=True)
class Conditions:
    """
    What a request asks of the job that it is about.
    """

    revisions: frozenset[int] | None  #: of If-Match: one of these must stand; None for any
    others: frozenset[str]  #: of If-None-Match: none of these tags may be the job's, `*` for any tag
    shown: Shown = "all"  #: to the caller

    @property
    def revision(self) -> int | None:
        """
        The one revision that must stand, where that is all there is to know before a change.
        """
        return next(iter(self.revisions)) if self.revisions and len(self.revisions) == 1 else None

    @property
    def need_look(self) -> bool:
        """
        Whether the job has to be looked at before it is changed.
        """
        return bool(self.others) or (self.revisions is not None and len(self.revisions) != 1)

    def tag_of(self, job: Job) -> str:
        """
        Return the tag that *job* has for the caller.
        """
        return etag_of(job, self.shown)

    def check(self, job: Job) -> None:
        """
        Refuse a change of *job* as it is now.

        Raises:
            Problem: A condition does not hold.
        """
        self.check_revision(job)
        if self.met(job):
            detail = f"{job.key} has a tag that If-None-Match names"
            raise Problem("outdated", detail, field="If-None-Match", headers={"ETag": self.tag_of(job)})

    def check_revision(self, job: Job) -> None:
        """
        Refuse a request for another revision than that of *job* as it is now.

        Raises:
            Problem: If-Match does not hold.
        """
        if self.revisions is not None and job.revision not in self.revisions:
            detail = f"{job.key} is at revision {job.revision} now; look at it again"
            raise Problem("outdated", detail, field="If-Match", headers={"ETag": self.tag_of(job)})

    def met(self, job: Job) -> bool:
        """
        Return whether *job* is one that If-None-Match names.
        """
        return bool(self.others) and (ANY in self.others or self.tag_of(job) in self.others)


_NONE = Conditions(None, frozenset())


def conditions_of(request: Request, shown: Shown) -> Conditions:
    """
    Read the conditions of a request by a caller who is *shown* so much.

    A tag that is none of ours matches nothing, nor does an empty If-Match.
    """
    if "if-match" not in request.headers and "if-none-match" not in request.headers:
        return _NONE
    wanted = _values(request, "if-match")
    revisions: frozenset[int] | None = None
    if wanted is not None and not _is_any(wanted):
        ours = [_OURS.fullmatch(tag) for weak, tag in _tags(wanted) if not weak]
        revisions = frozenset(int(each[1]) for each in ours if each)
    others = _values(request, "if-none-match") or ""
    if _is_any(others):
        return Conditions(revisions, frozenset({ANY}), shown)
    return Conditions(revisions, frozenset(tag for _, tag in _tags(others)), shown)


def conditional(request: Request, job: Job, response: Response, shown: Shown) -> Response:
    """
    Return the *response* that shows *job*, or a 304 in its place if the client has that already.

    Raises:
        Problem: If-Match names other revisions.
    """
    conditions = conditions_of(request, shown)
    conditions.check_revision(job)
    if not conditions.met(job):
        return response
    kept = ("etag", "cache-control", "retry-after")
    headers = {name: response.headers[name] for name in kept if name in response.headers}
    return Response(status_code=304, headers=headers)


def check_list(request: Request, *, one: bool = False) -> None:
    """
    Refuse conditions of a request to the list of jobs; If-None-Match may be about *one* new job.

    Raises:
        Problem: There is one that does not hold, or says nothing.
    """
    if "if-match" in request.headers:
        raise Problem(
            "outdated",
            "If-Match does not hold for a list of jobs, which has no tag; change a job by its own path",
            field="If-Match",
        )
    if not one and "if-none-match" in request.headers:
        raise Problem(
            "invalid",
            "If-None-Match is about one job; say on_conflict for each job of a batch",
            field="If-None-Match",
        )


def only_new(request: Request) -> bool:
    """
    Return whether a job is to be made only where there is none: `If-None-Match: *`.
    """
    return _is_any(_values(request, "if-none-match") or "")


def _values(request: Request, name: str) -> str | None:
    """
    Return what headers of a *name* say together, None where there is none.
    """
    found = request.headers.getlist(name)
    return ", ".join(found) if found else None


def _is_any(text: str) -> bool:
    return text.strip(" \t,") == ANY


def _tags(text: str) -> Sequence[tuple[str, str]]:
    """
    Read a list of tags; what comes behind one that cannot be read is passed over.
    """
    found, at = [], 0
    while match := _TAG.match(text, at):
        found.append((match[1] or "", match[2]))
        at = match.end()
    return found
