"""
Jobs: create, look at, reschedule, cancel, run again, list.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from starlette.responses import Response

from duly.documents import result_gone
from duly.durations import parse_duration, say_time
from duly.errors import Conflict, DulyError, JobExists, JobNotFound, StoreUnavailable
from duly.http import cursors, idempotency
from duly.http.answers import answer, bare_result, job_answer, path_of, shown_to
from duly.http.bodies import read_json
from duly.http.conditions import check_list, conditional, conditions_of, etag_of, only_new
from duly.http.documents import (
    AcceptedView,
    BasicPage,
    JobBody,
    JobPage,
    JobReceipt,
    JobRequest,
    JobView,
    Reschedule,
    RescheduleBody,
    new_job_of,
    receipt_of,
    retry_after,
    seconds,
    summary_of,
    time_of,
    view_of,
)
from duly.http.operations import (
    JOB_ID,
    PREFER,
    TOPIC,
    WAIT,
    Answer,
    Operation,
    Parameter,
    limit,
    read_limit,
)
from duly.http.problems import Problem, after_change
from duly.http.replies import may_reply_to
from duly.job import Job, JobKey, JobState, check_id, check_topic, moment
from duly.options import due_at_ms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from duly.apikeys import ApiKey
    from duly.app import Duly
    from duly.http.conditions import Shown
    from duly.http.service import Service
    from duly.ids import Repeatable
    from duly.job import Accepted, Placed
    from duly.newjob import NewJob
    from duly.record.assembly import WholeRecord
    from duly.store import Store

log = logging.getLogger("duly.http")

T = TypeVar("T")

MAX_PAGE = 1000
LOOKS = 100  #: at topics and shards, that one page of a key that is bound to topics takes
FIRST = 20  #: jobs of a page that are read before it is known how large they are

_requests = msgspec.json.Decoder(JobRequest)
_reschedules = msgspec.json.Decoder(Reschedule)


async def create(service: Service, request: Request) -> Response:
    """
    Promise a job; 202, or 200 where the client waits and it ends in time.
    """
    key = idempotency.key_of(request)
    check_list(request, one=True)
    wanted = await read_json(request, _requests, service.settings.body_limit, empty=b"{}")
    wait_s = service.wait_s(request)
    may_reply_to(request, wanted.reply_to)
    only = only_new(request)
    if only:
        wanted = msgspec.structs.replace(wanted, on_conflict="raise")
    job = new_job_of(request.path_params["topic"], wanted)
    call = None
    if key is not None:
        job.order(service.app.handlers.limits)  # what is wrong with it is said before the key stands for it
        name = idempotency.entry_name(request, key)
        digest = idempotency.digest_said(**msgspec.structs.asdict(wanted))
        call = await idempotency.Call.begin(service.entries, name, digest)
        if call.entry.refused is not None:
            raise _there(JobExists(call.entry.refused), only=only)
        if call.entry.placed is not None:
            first = call.entry.placed
            with after_change():
                return await _told(service, request, job, wanted.payload, first, wait_s, again=True)
        job = call.job(job)
    if not only and job.id is not None and "if-none-match" in request.headers:
        there = await (await service.app.views()).get(JobKey(job.topic, job.id))
        if there is not None:
            # A tag that the job does not have now it never has again, so nothing can come in between.
            conditions_of(request, shown_to(request, job.topic)).check(there)
    try:
        # One who waits is to have the result, however short it is kept.
        handle = await (service.app.enqueue_awaited(job) if wait_s else service.app.enqueue(job))
    except JobExists as error:
        if call is not None:
            await call.keep(error)
        raise _there(error, only=only) from None
    placed = handle.placed
    assert placed is not None  # noqa: S101  # it was just sent
    with after_change():
        if call is not None:
            await call.keep(placed)
        return await _told(service, request, job, wanted.payload, placed, wait_s)


async def _told(
    service: Service,
    request: Request,
    job: NewJob[Any],
    payload: msgspec.Raw,
    placed: Placed,
    wait_s: float,
    *,
    again: bool = False,
) -> Response:
    """
    Answer with the job that was made, or the one that was there; *again*, also if it is gone by now.
    """
    # The outcome is not in the document: that is the same, however often a job was sent.
    headers = {"Location": path_of(request, placed.key), "Duly-Outcome": placed.word}
    if wait_s or not placed.created:
        try:
            if wait_s:
                await ended(service, request, placed.key, wait_s)
            stored = await service.job(placed.key)
        except JobNotFound:
            if not again:
                raise
        else:
            status = 200 if wait_s and stored.state.ended else 202
            return job_answer(request, stored, status, headers)
    # Told without asking for it again, and with the payload as it came.
    views = await service.app.views()
    made = msgspec.structs.replace(job, payload=b"").placed(placed, service.app.settings.limits)
    if placed.word == "replaced" and (stored_now := await views.get(placed.key)) is not None:
        # When its id was accepted first is known to the queue alone, and stays.
        made = replace(made, created_ms=stored_now.created_ms)
    made = views.resolve(made)
    shown = shown_to(request, made.topic)
    if placed.created and shown == "all":
        view: JobView | JobReceipt = view_of(made, payload=payload)
    else:
        view = receipt_of(made)
    return answer(view, 202, headers | {"ETag": etag_of(made, shown)})


def _there(error: JobExists, *, only: bool) -> JobExists | Problem:
    """
    What is told of a job that is there already, by the condition of the request or by its policy.
    """
    return Problem("outdated", str(error), field="If-None-Match") if only else error


async def ended(service: Service, request: Request, key: JobKey, wait_s: float) -> None:
    """
    Wait until a job has ended, for as long as was asked for at most; not once the service drains, nor once
    the client has gone.

    Raises:
        JobNotFound: There is no such job.
        Problem: The key of the request was revoked meanwhile.
    """
    waiters = await service.app.waiters()
    try:
        await service.patiently(waiters.ended(key), wait_s, request)
    except StoreUnavailable as error:
        # Of what is promised a record may still tell, to which the caller goes next.
        log.debug("waiting for %s ends early: %s", key, error)


def job_key(request: Request) -> JobKey:
    """
    The job that the path names.

    Raises:
        UsageError: No job can be called so.
    """
    return JobKey(check_topic(request.path_params["topic"]), check_id(request.path_params["id"]))


async def _waited(service: Service, request: Request) -> Job:
    key, wait_s = job_key(request), service.wait_s(request)
    job = await service.job(key)
    if wait_s and not job.state.ended:
        await ended(service, request, key, wait_s)
        job = await service.job(key)
    return job


async def show(service: Service, request: Request) -> Response:
    """
    A job as it is now, or once it has ended.
    """
    job = await _waited(service, request)
    return conditional(request, job, job_answer(request, job), shown_to(request, job.topic))


async def result(service: Service, request: Request) -> Response:
    """
    What the handler returned, as it is.
    """
    job = await _waited(service, request)
    match job.state:
        case JobState.succeeded if job.result_gone:
            raise Problem("result-gone", result_gone(job.key))
        case JobState.succeeded:
            return conditional(request, job, bare_result(job), "all")
        case JobState.dead:
            raise Problem("dead", f"{job.key} is dead", error=view_of(job).error)
        case JobState.cancelled:
            raise Problem("cancelled", f"{job.key} was cancelled", error=view_of(job).error)
    problem = Problem("unfinished", f"{job.key} is {job.state.name}", state=job.state.name)
    problem.headers = {"Retry-After": retry_after(job, int(time.time() * 1000))}
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
    delay_s = seconds(delay, "delay")
    request.state.audited = {"delay_s": delay_s, "due_at": due_at}
    delay_ms = None if delay_s is None else parse_duration(delay_s, "delay")
    due = time_of(due_at, "due_at")
    due_ms = None if due is None else due_at_ms(due)

    async def change(revision: int | None, call: Repeatable | None) -> Placed:
        queue = await queue_for(service, call)
        return await queue.reschedule(key, delay_ms=delay_ms, due_ms=due_ms, revision=revision)

    call = idempotency.call_of(request, "reschedule", [delay, due_at])
    placed = await if_it_holds(service.app, key, request, change, call)
    if placed.word == "accepted":
        then = moment(placed.due_ms)
        view = AcceptedView(topic=key.topic, id=key.id, due_at=say_time(then) if then else None)
        return answer(view, 202)
    return await _changed(service, request, placed, 200)


async def _changed(service: Service, request: Request, placed: Placed, status: int) -> Response:
    """
    Answer with a job that was changed, or if others have changed it since, with how the change left it.
    """
    with after_change():
        job = await (await service.app.views()).get(placed.key)
    # A cancel makes no revision.
    if job is not None and job.revision <= placed.revision and job.state is not JobState.cancelled:
        return job_answer(request, job, status)
    left = JobReceipt(
        topic=placed.key.topic,
        id=placed.key.id,
        state=placed.state.name,
        revision=placed.revision,
        due_at=say_time(then) if (then := moment(placed.due_ms)) else None,
        scheduled_for=None,
        created_at=None,
        updated_at=None,
        started_at=None,
        finished_at=None,
    )
    return answer(left, status, {"ETag": f'"{placed.revision}"'})


async def queue_for(service: Service, call: Repeatable | None) -> Store | WholeRecord:
    """
    What moves jobs, for a call that may be sent again.
    """
    queue = cast("Store | WholeRecord", await service.app.queue())
    return queue.repeatable(call)


async def if_it_holds(
    app: Duly,
    key: JobKey,
    request: Request,
    change: Callable[[int | None, Repeatable | None], Awaitable[T]],
    call: Repeatable | None = None,
    *,
    shown: Shown | None = None,
) -> T:
    """
    Change a job at the revision that the conditions of the request ask for; the server checks that it stands.

    What asks for it again as the same *call* changes nothing more.  What the caller is *shown* of the job
    follows from its key, if it is not said.

    Raises:
        Problem: A condition does not hold.
        JobNotFound: There is no such job.
    """
    conditions = conditions_of(request, shown or shown_to(request, key.topic))
    while True:
        revision = conditions.revision
        if conditions.need_look:
            job = await app.job(*key).get()
            conditions.check(job)
            revision = job.revision
        try:
            return await change(revision, call)
        except Conflict:
            if revision is None:
                raise
            job = await app.job(*key).get()
            if job.revision == revision:
                raise
            conditions.check(job)  # of several, another one may stand now
            call = call and call.next()


async def cancel(service: Service, request: Request) -> Response:
    """
    End a job, also while it runs.
    """
    key = job_key(request)

    async def change(revision: int | None, call: Repeatable | None) -> JobState | Accepted:
        [state] = await (await queue_for(service, call)).cancel([key], revision=revision)
        if state is None:
            raise JobNotFound(f"there is no job {key}: it was pruned, or never was")
        return state

    call = idempotency.call_of(request, "cancel")
    state = await if_it_holds(service.app, key, request, change, call)
    if state == "accepted":
        return answer(AcceptedView(topic=key.topic, id=key.id), 202)
    if state is not JobState.cancelled:
        raise Problem("conflict", f"{key} had ended before, {state.name}", state=state.name)
    with after_change():
        job = await (await service.app.views()).get(key)
    if job is None or job.state is not JobState.cancelled:
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    return job_answer(request, job)


async def requeue(service: Service, request: Request) -> Response:
    """
    Run a job again that has ended.
    """
    key = job_key(request)

    async def change(revision: int | None, call: Repeatable | None) -> Placed:
        [answered] = await (await queue_for(service, call)).requeue([key], revision=revision)
        if isinstance(answered, DulyError):
            raise answered
        return answered

    call = idempotency.call_of(request, "requeue")
    placed = await if_it_holds(service.app, key, request, change, call)
    return await _changed(service, request, placed, 202)


async def list_(service: Service, request: Request) -> Response:
    """
    Jobs of a topic in one state or in any, page by page.
    """
    return await _page(service, request, check_topic(request.path_params["topic"]))


async def list_all(service: Service, request: Request) -> Response:
    """
    Jobs of every topic that the key sees.
    """
    return await _page(service, request, None)


async def _page(service: Service, request: Request, topic: str | None) -> Response:
    limit, with_places = read_limit(request, MAX_PAGE), _word(request, "places", ("false", "true")) == "true"
    tell = summary_of if _word(request, "view", ("full", "basic")) == "basic" else view_of
    key, views = request.state.key, await service.app.views()
    # A place among the jobs of all topics would tell a key that is bound to some of those of others.
    is_bound = topic is None and key is not None and bool(key.topics)
    states, start = _place(request, topic, key if is_bound else None)
    topics: list[str | None] = [topic]
    cursor = None if start is None else start.place or None
    if is_bound:
        first = "" if start is None else start.topic or ""
        topics = [name for name in await views.topics() if key.sees(name) and name >= first]
        if topics[:1] != [first]:
            cursor = None
    bound = service.settings.page_limit
    found: list[msgspec.Raw] = []
    places: list[str] = []
    size, left, step, looks, at = 0, limit, min(limit, FIRST), 0, 0
    following: str | None = None
    while following is None and at < len(topics):
        # Few at a time: how large jobs are is known when they have been read.
        page, named = await views.page(states[0], topics[at], cursor=cursor, limit=step), topics[at]
        for job, place in zip(page.jobs, page.places, strict=True):
            told = msgspec.json.encode(tell(job))
            size += len(told)
            if size > bound and found:
                following = places[-1]
                break
            found.append(msgspec.Raw(told))
            places.append(cursors.write(states[0], place, named))
        cursor, left, looks = page.cursor, left - len(page.jobs), looks + 1
        at += cursor is None
        if following is not None or at == len(topics):
            break
        if left <= 0 or (looks >= LOOKS if is_bound else len(page.jobs) < step):
            following = cursors.write(states[0], cursor or "", topics[at])
        if page.jobs:
            read = sum(len(job.payload) + len(job.outcome) for job in page.jobs)
            step = bound * len(page.jobs) // max(read, 1)
        step = max(1, min(left, step))
    if following is None and len(states) > 1:
        following = cursors.write(states[1], "", topic)
    return answer(JobPage(cast("list[JobView]", found), following, places if with_places else []))


def _word(request: Request, name: str, words: tuple[str, ...]) -> str:
    said = request.query_params.get(name, words[0])
    if said not in words:
        raise Problem("invalid", f"{name}={said!r} must be {' or '.join(words)}", field=name)
    return said


def _place(
    request: Request, topic: str | None, bound: ApiKey | None
) -> tuple[list[JobState], cursors.Cursor | None]:
    """
    The states to go through, and where to go on in the first of them: in *topic*, or for a *bound* key, in
    which one.
    """
    said, cursor = request.query_params.get("state"), request.query_params.get("cursor")
    names = [state.name for state in JobState]
    if said is not None and said not in names:
        raise Problem("invalid", f"state={said!r} must be one of {', '.join(names)}", field="state")
    states = [JobState[said]] if said else list(JobState)
    if cursor is None:
        return states, None
    found = cursors.read(cursor)
    if found is None or found.state not in states or not _is_for(topic, bound, found):
        raise Problem("invalid", "cursor is not one that a page of this list gave", field="cursor")
    return states[states.index(found.state) :], found


def _is_for(topic: str | None, bound: ApiKey | None, cursor: cursors.Cursor) -> bool:
    if bound is None:
        return cursor.topic == topic
    return not cursor.place if cursor.topic is None else bound.sees(cursor.topic)


_JOB = Answer("the job", JobView, headers=("ETag", "Retry-After"))
_CHANGED = Answer(
    "the job; what it carries is left out without the scope read, and where others have changed it since",
    JobView,
    headers=("ETag", "Retry-After"),
    unread=JobReceipt,
)
_ACCEPTED = Answer(
    "it is not in the queue: if it waits in the table of far-future jobs, this is done before it comes",
    AcceptedView,
)
_LISTED = Answer("a page; with view=basic, payload and result are left out", JobPage, unread=BasicPage)
_STATE = {"type": "string", "enum": [state.name for state in JobState]}
_PAGE = (
    Parameter("state", "query", "only jobs in this state", _STATE),
    Parameter("cursor", "query", "where the last page ended; taken from it", cursors.SCHEMA),
    limit("jobs of a page", MAX_PAGE),
    Parameter(
        "places",
        "query",
        "true: with a cursor behind each job",
        {"type": "string", "enum": ["true", "false"]},
    ),
    Parameter(
        "view",
        "query",
        "basic: without payload and result",
        {"type": "string", "enum": ["full", "basic"]},
    ),
)

_STEPS = ("getJob", "getResult", "rescheduleJob", "cancelJob", "requeueJob")
IF_MATCH = Parameter("If-Match", "header", "tags of which the job must still have one; * for any")
IF_NONE_MATCH = Parameter("If-None-Match", "header", "tags of which the job may have none; * for any")

OPERATIONS = [
    Operation(
        name="createJob",
        method="POST",
        path="/v1/topics/{topic}/jobs",
        about="Promise a job. The same id gives the same job, and the same Idempotency-Key the same answer.",
        run=create,
        scope="enqueue",
        parameters=(
            TOPIC,
            WAIT,
            PREFER,
            idempotency.PARAMETER,
            Parameter(
                "If-None-Match",
                "header",
                "* makes the job only if there is none with its id; tags, only if that has none of them",
            ),
        ),
        body=JobBody,
        body_required=False,
        answers={
            202: Answer(
                "accepted: it is stored, and will run when it is due; without the scope read, what the job "
                "carries is left out",
                JobView,
                headers=("Location", "ETag", "Duly-Outcome"),
                links=_STEPS,
                unread=JobReceipt,
            ),
            200: Answer(
                "it has ended already, while the client waited",
                JobView,
                headers=("Location", "ETag", "Duly-Outcome"),
                links=_STEPS,
                unread=JobReceipt,
            ),
        },
        problems=(
            "exists",
            "outdated",
            "too-large",
            "unsupported",
            "invalid",
            "key-reused",
            "full",
            "keys-full",
        ),
    ),
    Operation(
        name="listJobs",
        method="GET",
        path="/v1/topics/{topic}/jobs",
        about="Jobs of a topic, page by page. A page may be short, or empty, and still have a cursor: it "
        "ends, too, when its jobs are large together.",
        run=list_,
        scope="read",
        parameters=(TOPIC, *_PAGE),
        answers={200: _LISTED},
        problems=("invalid",),
    ),
    Operation(
        name="listAllJobs",
        method="GET",
        path="/v1/jobs",
        about="Jobs of every topic, page by page; a key that is bound to topics sees those, topic by topic. "
        "A page may be short, or empty, and still have a cursor: it ends, too, when its jobs are large "
        "together.",
        run=list_all,
        scope="read",
        of_topics=True,
        parameters=_PAGE,
        answers={200: _LISTED},
        problems=("invalid",),
    ),
    Operation(
        name="getJob",
        method="GET",
        path="/v1/topics/{topic}/jobs/{id}",
        about="A job as it is now; with wait, once it has ended, if that is in time.",
        run=show,
        scope="read",
        parameters=(TOPIC, JOB_ID, WAIT, PREFER, IF_NONE_MATCH, IF_MATCH),
        answers={
            200: _JOB,
            304: Answer("it still has a tag that If-None-Match names", headers=("ETag", "Retry-After")),
        },
        problems=("job-not-found", "outdated", "invalid"),
    ),
    Operation(
        name="rescheduleJob",
        method="PATCH",
        path="/v1/topics/{topic}/jobs/{id}",
        about="Give a job that has not started another due time; with If-Match, if nobody else did.",
        run=reschedule,
        scope="enqueue",
        audit="reschedule",
        parameters=(TOPIC, JOB_ID, IF_MATCH, IF_NONE_MATCH, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        body=RescheduleBody,
        answers={200: _CHANGED, 202: _ACCEPTED},
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
        parameters=(TOPIC, JOB_ID, IF_MATCH, IF_NONE_MATCH, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers={
            200: _CHANGED,
            202: _ACCEPTED,
            204: Answer("it was cancelled, and others have changed it since, or it is gone"),
        },
        problems=("job-not-found", "conflict", "outdated", "invalid"),
    ),
    Operation(
        name="getResult",
        method="GET",
        path="/v1/topics/{topic}/jobs/{id}/result",
        about="What the handler returned.",
        run=result,
        scope="read",
        parameters=(TOPIC, JOB_ID, WAIT, PREFER, IF_NONE_MATCH, IF_MATCH),
        answers={
            200: Answer("the result, as the handler returned it", Any, headers=("ETag",)),
            304: Answer("it still has a tag that If-None-Match names", headers=("ETag",)),
        },
        problems=("job-not-found", "unfinished", "cancelled", "result-gone", "dead", "outdated", "invalid"),
    ),
    Operation(
        name="requeueJob",
        method="POST",
        path="/v1/topics/{topic}/jobs/{id}/requeue",
        about="Run a job again that has ended.",
        run=requeue,
        scope="enqueue",
        audit="requeue",
        parameters=(TOPIC, JOB_ID, IF_MATCH, IF_NONE_MATCH, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers={202: _CHANGED},
        problems=("job-not-found", "conflict", "outdated", "invalid"),
    ),
]
