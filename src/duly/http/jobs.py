"""
Jobs: create, look at, reschedule, cancel, run again, list.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from duly.durations import say_time
from duly.errors import Conflict
from duly.http import cursors, idempotency
from duly.http.answers import answer, etag_of, job_answer, path_of
from duly.http.bodies import read_json
from duly.http.documents import (
    AcceptedView,
    JobBody,
    JobPage,
    JobRequest,
    JobView,
    Reschedule,
    RescheduleBody,
    new_job_of,
    seconds,
    time_of,
    view_of,
)
from duly.http.operations import JOB_ID, PREFER, TOPIC, WAIT, Answer, Operation, Parameter
from duly.http.problems import Problem
from duly.http.replies import may_reply_to
from duly.job import Job, JobKey, JobState, check_id, check_topic, moment

if TYPE_CHECKING:
    from starlette.requests import Request

    from duly.http.service import Service

MAX_PAGE = 1000

_requests = msgspec.json.Decoder(JobRequest)
_reschedules = msgspec.json.Decoder(Reschedule)
_REVISION = re.compile(r'"(\d{1,19})"')


async def create(service: Service, request: Request) -> Response:
    """
    Promise a job; 202, or 200 where the client waits and it ends in time.
    """
    key = idempotency.key_of(request)
    wanted = await read_json(request, _requests, service.settings.body_limit, empty=b"{}")
    wait_s = service.wait_s(request)
    may_reply_to(request, wanted.reply_to)
    if key is not None:
        wanted = idempotency.marked(wanted, key)
    job = new_job_of(request.path_params["topic"], wanted)
    handle = await service.app.enqueue(job)
    placed = handle.placed
    assert placed is not None  # noqa: S101  # it was just sent
    # The outcome is not in the document: that is the same, however often a job was sent.
    headers = {"Location": path_of(handle.key), "Duly-Outcome": placed.word}
    if wait_s:
        await ended(service, handle.key, wait_s)
    elif placed.created:
        # Told without asking for it again, and with the payload as it came.
        made = msgspec.structs.replace(job, payload=b"").placed(placed, service.app.settings.limits)
        view = msgspec.structs.replace(view_of(made), payload=wanted.payload)
        return answer(view, 202, headers | {"ETag": etag_of(placed.revision)})
    stored = await service.job(handle.key)
    if key is not None and not handle.created:
        idempotency.check(stored, wanted)
    return job_answer(stored, 200 if wait_s and stored.state.ended else 202, headers)


async def ended(service: Service, key: JobKey, wait_s: float) -> None:
    """
    Wait until a job has ended, or for as long as was asked for, or until the service is about to end.

    Raises:
        JobNotFound: There is no such job.
    """
    waiters = await service.app.waiters()
    await service.patiently(waiters.ended(key), wait_s)


def job_key(request: Request) -> JobKey:
    """
    The job that the path names.

    Raises:
        UsageError: No job can be called so.
    """
    return JobKey(check_topic(request.path_params["topic"]), check_id(request.path_params["id"]))


async def _get(service: Service, key: JobKey, wait_s: float = 0.0) -> Job:
    job = await service.job(key)
    if wait_s and not job.state.ended:
        await ended(service, key, wait_s)
        job = await service.job(key)
    return job


async def show(service: Service, request: Request) -> Response:
    """
    A job as it is now, or once it has ended.
    """
    return job_answer(await _get(service, job_key(request), service.wait_s(request)))


async def result(service: Service, request: Request) -> Response:
    """
    What the handler returned, as it is.
    """
    job = await _get(service, job_key(request), service.wait_s(request))
    match job.state:
        case JobState.succeeded:
            return Response(
                job.outcome or b"null", media_type="application/json", headers={"Cache-Control": "no-store"}
            )
        case JobState.dead:
            raise Problem("dead", f"{job.key} is dead", error=view_of(job).error)
        case JobState.cancelled:
            raise Problem("cancelled", f"{job.key} was cancelled", error=view_of(job).error)
    problem = Problem("unfinished", f"{job.key} is {job.state.name}", state=job.state.name)
    problem.headers = {"Retry-After": job_answer(job).headers["retry-after"]}
    raise problem


async def reschedule(service: Service, request: Request) -> Response:
    """
    Another due time for a job that has not started.
    """
    key = job_key(request)
    wanted = await read_json(request, _reschedules, service.settings.body_limit)
    delay = None if wanted.delay is msgspec.UNSET else wanted.delay
    due_at = None if wanted.due_at is msgspec.UNSET else wanted.due_at
    if (delay is None) == (due_at is None):
        raise Problem("invalid", "say either delay or due_at", field="delay")
    revision, delay_s = _wanted_revision(request), seconds(delay, "delay")
    request.state.audited = {"delay_s": delay_s, "due_at": due_at}
    try:
        placed = await service.app.job(*key).reschedule(
            delay=delay_s, due_at=time_of(due_at, "due_at"), revision=revision
        )
    except Conflict:
        job = await _get(service, key)
        if revision is not None and job.revision != revision:
            detail = f"{key} is at revision {job.revision} now; look at it again"
            raise Problem("outdated", detail, headers={"ETag": etag_of(job.revision)}) from None
        raise
    if placed.word == "accepted":
        due = moment(placed.due_ms)
        view = AcceptedView(topic=key.topic, id=key.id, due_at=say_time(due) if due else None)
        return answer(view, 202)
    return job_answer(await _get(service, key))


def _wanted_revision(request: Request) -> int | None:
    said = request.headers.get("if-match")
    if said is None or said.strip() == "*":
        return None
    match = _REVISION.fullmatch(said.strip())
    if not match:
        # An ETag that is none of ours matches nothing.
        raise Problem("outdated", f"If-Match: {said} is not the ETag of a job here", field="If-Match")
    return int(match[1])


async def cancel(service: Service, request: Request) -> Response:
    """
    End a job, also while it runs.
    """
    key = job_key(request)
    state = await service.app.job(*key).cancel()
    if state == "accepted":
        return answer(AcceptedView(topic=key.topic, id=key.id), 202)
    if state is not JobState.cancelled:
        raise Problem("conflict", f"{key} had ended before, {state.name}", state=state.name)
    return job_answer(await _get(service, key))


async def requeue(service: Service, request: Request) -> Response:
    """
    Run a job again that has ended.
    """
    key = job_key(request)
    await service.app.job(*key).requeue()
    return job_answer(await _get(service, key), 202)


async def list_(service: Service, request: Request) -> Response:
    """
    Jobs of a topic in one state or in any, page by page.
    """
    topic = check_topic(request.path_params["topic"])
    limit = _limit(request)
    states, cursor = _place(request)
    views = await service.app.views()
    page = await views.page(states[0], topic, cursor=cursor, limit=limit)
    following = None
    if page.cursor is not None:
        following = cursors.write(states[0], page.cursor)
    elif len(states) > 1:
        following = cursors.write(states[1], "")
    return answer(JobPage([view_of(job) for job in page.jobs], following))


def _limit(request: Request) -> int:
    said = request.query_params.get("limit", "100")
    if not said.isascii() or not said.isdigit() or not 1 <= int(said[:9]) <= MAX_PAGE:
        raise Problem("invalid", f"limit={said!r} must be a number from 1 to {MAX_PAGE}", field="limit")
    return int(said)


def _place(request: Request) -> tuple[list[JobState], str | None]:
    """
    The states to go through, and where to go on in the first of them.
    """
    said, cursor = request.query_params.get("state"), request.query_params.get("cursor")
    names = [state.name for state in JobState]
    if said is not None and said not in names:
        raise Problem("invalid", f"state={said!r} must be one of {', '.join(names)}", field="state")
    states = [JobState[said]] if said else list(JobState)
    if cursor is None:
        return states, None
    found = cursors.read(cursor)
    if found is None or found[0] not in states:
        raise Problem("invalid", "cursor is not one that a page of this list gave", field="cursor")
    state, place = found
    return states[states.index(state) :], place or None


_JOB = Answer("the job", JobView, headers=("ETag", "Retry-After"))
_ACCEPTED = Answer(
    "it is not in the queue: if it waits in the table of far-future jobs, this is done before it comes",
    AcceptedView,
)
_STATE = {"type": "string", "enum": [state.name for state in JobState]}

OPERATIONS = [
    Operation(
        name="createJob",
        method="POST",
        path="/v1/topics/{topic}/jobs",
        about="Promise a job. The same id, or the same Idempotency-Key, gives the same job.",
        run=create,
        scope="enqueue",
        parameters=(
            TOPIC,
            WAIT,
            PREFER,
            Parameter(
                "Idempotency-Key",
                "header",
                "makes sending the same again safe",
                {"type": "string", "pattern": idempotency.PATTERN, "maxLength": 255},
            ),
        ),
        body=JobBody,
        body_required=False,
        answers={
            202: Answer(
                "accepted: it is stored, and will run when it is due",
                JobView,
                headers=("Location", "ETag", "Duly-Outcome"),
            ),
            200: Answer(
                "it has ended already, while the client waited",
                JobView,
                headers=("Location", "ETag", "Duly-Outcome"),
            ),
        },
        problems=("exists", "too-large", "unsupported", "invalid", "key-reused", "full"),
    ),
    Operation(
        name="listJobs",
        method="GET",
        path="/v1/topics/{topic}/jobs",
        about="Jobs of a topic, page by page. A page may be short, or empty, and still have a cursor.",
        run=list_,
        scope="read",
        parameters=(
            TOPIC,
            Parameter("state", "query", "only jobs in this state", _STATE),
            Parameter("cursor", "query", "where the last page ended; taken from it", cursors.SCHEMA),
            Parameter(
                "limit", "query", "jobs of a page", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}
            ),
        ),
        answers={200: Answer("a page", JobPage)},
        problems=("invalid",),
    ),
    Operation(
        name="getJob",
        method="GET",
        path="/v1/topics/{topic}/jobs/{id}",
        about="A job as it is now; with wait, once it has ended, if that is in time.",
        run=show,
        scope="read",
        parameters=(TOPIC, JOB_ID, WAIT, PREFER),
        answers={200: _JOB},
        problems=("job-not-found", "invalid"),
    ),
    Operation(
        name="rescheduleJob",
        method="PATCH",
        path="/v1/topics/{topic}/jobs/{id}",
        about="Give a job that has not started another due time; with If-Match, if nobody else did.",
        run=reschedule,
        scope="enqueue",
        audit="reschedule",
        parameters=(TOPIC, JOB_ID, Parameter("If-Match", "header", "the ETag that the job must still have")),
        body=RescheduleBody,
        answers={200: _JOB, 202: _ACCEPTED},
        problems=("job-not-found", "conflict", "outdated", "too-large", "unsupported", "invalid"),
    ),
    Operation(
        name="cancelJob",
        method="DELETE",
        path="/v1/topics/{topic}/jobs/{id}",
        about="End a job, also while it runs: its worker is told to stop, what it returns does not count.",
        run=cancel,
        scope="enqueue",
        audit="cancel",
        parameters=(TOPIC, JOB_ID),
        answers={200: _JOB, 202: _ACCEPTED},
        problems=("job-not-found", "conflict", "invalid"),
    ),
    Operation(
        name="getResult",
        method="GET",
        path="/v1/topics/{topic}/jobs/{id}/result",
        about="What the handler returned.",
        run=result,
        scope="read",
        parameters=(TOPIC, JOB_ID, WAIT, PREFER),
        answers={200: Answer("the result, as the handler returned it", Any)},
        problems=("job-not-found", "unfinished", "cancelled", "dead", "invalid"),
    ),
    Operation(
        name="requeueJob",
        method="POST",
        path="/v1/topics/{topic}/jobs/{id}/requeue",
        about="Run a job again that has ended.",
        run=requeue,
        scope="enqueue",
        audit="requeue",
        parameters=(TOPIC, JOB_ID),
        answers={202: _JOB},
        problems=("job-not-found", "conflict", "invalid"),
    ),
]
