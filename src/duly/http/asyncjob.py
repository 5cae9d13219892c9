"""
A job as an async endpoint shows it: what a caller may know, and nothing of the machinery behind it.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec
from starlette.routing import compile_path

from duly.documents import job_document, public_error_of
from duly.errors import UsageError
from duly.http.answers import answer, bare_result
from duly.http.conditions import etag_of
from duly.http.documents import retry_after
from duly.http.problems import Problem
from duly.job import Job, JobState

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

JOB_ID = "job_id"  #: how the path of a status calls the job

#: The states as numbers, as asynchronous endpoints have always told them.
StateCode = Literal[100, 200, 300, 400, 500, 600]
STATE_CODES: dict[JobState, StateCode] = {
    JobState.ready: 100,
    JobState.scheduled: 200,
    JobState.running: 300,
    JobState.succeeded: 400,
    JobState.dead: 500,
    JobState.cancelled: 600,
}


class AsyncJob(msgspec.Struct, frozen=True, kw_only=True):
    """
    A request that is answered later.
    """

    id: str
    state: str
    state_code: StateCode
    attempts: int
    max_attempts: int | None
    due_at: str | None
    scheduled_for: str | None
    created_at: str | None
    updated_at: str | None
    started_at: str | None
    finished_at: str | None
    ttr: float | None
    expires: str | None
    backoff: dict[str, Any] | None
    retain: float | None
    callback: str | None
    progress: Any
    result: Any
    result_gone: bool  #: it has completed, and its result was not kept
    error: dict[str, Any] | None

    @classmethod
    def of(cls, job: Job, *, show_errors: bool = False) -> AsyncJob:
        """
        Describe a job; tracebacks, payload and context are left out.

        Of an error, callers are told the type and a reference, with *show_errors* the message instead.
        """
        told = job_document(job)
        error = public_error_of(job)
        if show_errors and told.error is not None:
            error = {name: value for name, value in told.error.items() if name != "traceback"}
        said: dict[str, Any] = {name: getattr(told, name, None) for name in cls.__struct_fields__}
        # What follows the path of a callback is often a secret of its receiver.
        said["callback"] = (job.callback or "").partition("?")[0] or None
        return cls(**said | {"state_code": STATE_CODES[job.state], "error": error})


def job_response(job: Job, status: int, *, show_errors: bool) -> Response:
    """
    A job, and while it has not ended, when to ask again.
    """
    headers = {"ETag": etag_of(job, "answer")}
    if not job.state.ended:
        headers["Retry-After"] = retry_after(job, int(time.time() * 1000))
    return answer(AsyncJob.of(job, show_errors=show_errors), status, headers)


def result_response(job: Job, *, show_errors: bool) -> Response:
    """
    What the handler returned.

    Raises:
        Problem: It has not returned, or never will.
    """
    match job.state:
        case JobState.succeeded if job.result_gone:
            detail = f"the result of job {job.id} was not kept: nobody was waiting for it when the job ended"
            raise Problem("result-gone", detail)
        case JobState.succeeded:
            return bare_result(job, "answer")
        case JobState.dead:
            error = AsyncJob.of(job, show_errors=show_errors).error
            raise Problem("dead", f"job {job.id} is dead", error=error)
        case JobState.cancelled:
            error = AsyncJob.of(job, show_errors=show_errors).error
            raise Problem("cancelled", f"job {job.id} was cancelled", error=error)
    raise Problem(
        "unfinished",
        f"job {job.id} is {job.state.name}",
        headers={"Retry-After": retry_after(job, int(time.time() * 1000))},
        state=job.state.name,
    )


class Places:
    """
    Where the endpoint is, and where its jobs are.
    """

    def __init__(self, path: str, status_path: str | None) -> None:
        """
        Read both paths.

        Raises:
            UsageError: One is no path, or the status cannot be found by it.
        """
        if not path.startswith("/"):
            raise UsageError(f"path={path!r} must begin with a slash")
        self.path = path
        if JOB_ID in re.findall(r"{(\w+)", path):
            raise UsageError(f"path={path!r} has {{{JOB_ID}}}, which is the name of the job; use another")
        self.status_path = status_path or f"{path.rstrip('/')}/{{{JOB_ID}}}"
        self.result_path = f"{self.status_path.rstrip('/')}/result"
        self._beside = status_path is None
        try:
            regex, _, self.converters = compile_path(path)
            _, self._status, self.status_converters = compile_path(self.status_path)
        except (ValueError, AssertionError) as error:
            raise UsageError(f"{path!r} cannot be served: {error}") from None
        # Somebody else may have put something in front of the path: a mount, a router with a prefix.
        self._own = re.compile(regex.pattern.removeprefix("^"))
        unknown = self.status_converters.keys() - self.converters.keys() - {JOB_ID}
        if JOB_ID not in self.status_converters or unknown or not self.status_path.startswith("/"):
            raise UsageError(
                f"status_path={status_path!r} must begin with a slash, have {{{JOB_ID}}}, "
                f"and beside it only values of the path {path!r}"
            )

    def status_of(self, request: Request, id_: str) -> str:
        """
        Where the job is that *request* made.
        """
        asked = request.scope["path"]
        root = request.scope.get("root_path", "")
        if not asked.startswith(root):  # a proxy in front took it off
            asked = root.rstrip("/") + asked
        if self._beside:
            return quote(f"{asked.rstrip('/')}/{id_}", safe=_SAFE)
        found = self._own.search(asked)
        before = asked[: found.start()] if found else ""
        values = {
            name: self.converters[name].to_string(request.path_params[name])
            for name in self.status_converters
            if name != JOB_ID
        }
        return quote(before + self._status.format(**values, **{JOB_ID: id_}), safe=_SAFE)


_SAFE = "/:@=+~,;!$&'()*"
