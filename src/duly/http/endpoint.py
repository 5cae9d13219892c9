"""
Async endpoints: a route of your own app that answers at once, and a worker that does what was asked for.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from duly.durations import parse_duration
from duly.errors import DulyError, JobExists, JobNotFound, ServerUnsuitable, UsageError
from duly.handlers import Handler
from duly.http import idempotency
from duly.http.asyncjob import JOB_ID, Places, job_response, result_response
from duly.http.bodies import media_type, read_body, too_large
from duly.http.captured import REQUEST, HeaderRule, capture, route_values
from duly.http.conditions import conditional
from duly.http.endpointdocs import Described
from duly.http.jobs import ended, if_it_holds
from duly.http.problems import Problem, after_change, problem_of
from duly.http.refusals import read_on
from duly.http.requestbody import RequestBody
from duly.http.service import Service
from duly.http.settings import ServiceSettings
from duly.idempotency import ASYNC_CALLERS, KeyReused, entries_of, name_of
from duly.ids import new_id
from duly.job import ID, Job, JobState, check_topic
from duly.mistakes import needs_handler
from duly.newjob import NewJob

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from starlette.applications import Starlette
    from starlette.routing import Router

    from duly.app import Duly
    from duly.durations import Seconds
    from duly.http.captured import AsyncRequest
    from duly.job import Placed
    from duly.newjob import Options

log = logging.getLogger("duly.http")

HEADER = "X-Async-Request-Id"
METHODS = ("POST", "PUT", "PATCH", "DELETE")

#: Given the request and its body; a response ends the request, None lets it be queued.
Validate: TypeAlias = "Callable[[Request, Any], Response | Awaitable[Response | None] | None]"
#: Given the request and its body; what to say about the job.
OptionsOf: TypeAlias = "Callable[[Request, Any], Mapping[str, Any] | Awaitable[Mapping[str, Any]]]"
#: Given the request and its job, or its problem; None means the usual answer.
AnswerJob: TypeAlias = "Callable[[Request, Job], Response | Awaitable[Response | None] | None]"
AnswerProblem: TypeAlias = "Callable[[Request, Problem], Response | Awaitable[Response | None] | None]"


@needs_handler
def async_endpoint(
    path: str,
    handler: Handler[..., Any] | str,
    *,
    to: Starlette | Router,
    queue: Duly,
    methods: Sequence[str] = ("POST",),
    validate: Validate | None = None,
    options: Options | OptionsOf | None = None,
    status_path: str | None = None,
    cancel: bool = False,
    allow_headers: Iterable[str] | None = None,
    deny_headers: Iterable[str] = (),
    submitted: AnswerJob | None = None,
    status: AnswerJob | None = None,
    error: AnswerProblem | None = None,
    show_errors: bool = False,
    body_limit: int | None = None,
    max_wait: Seconds = 60,
    tags: Sequence[str] = (),
) -> None:
    """
    Add a route to an app or a router of Starlette or FastAPI that queues what is asked for and answers 202.

    The body is the payload of the job; *handler*, or who works on that topic elsewhere, runs it.  Beside it
    come a route for the status of a job and one for its result, with *cancel* also one to cancel it.  These
    tell the type of an error and a reference; with *show_errors* they tell its message instead.

    Raises:
        UsageError: Something does not fit together; the message says what.
    """
    topic = handler.topic if isinstance(handler, Handler) else _topic(handler)
    known = queue.handlers.get(topic)
    if isinstance(handler, Handler) and known is not handler:
        raise UsageError(f"{handler!r} is no handler of this queue; use one made by its @queue.handler")
    if known is not None:
        known.binding.check_types()  # those of the body are checked here, too
    chosen = [method.upper() for method in methods]
    if not chosen or isinstance(methods, str) or not set(chosen) <= set(METHODS):
        raise UsageError(f"methods={methods!r} must be some of {', '.join(METHODS)}")
    if options is not None and not callable(options):
        NewJob(topic, b"").options(**options)  # knows what there is
    endpoint = AsyncEndpoint(
        queue,
        topic,
        Places(path, status_path),
        RequestBody(known.binding if known is not None else None),
        HeaderRule(allow_headers, deny_headers),
        validate=validate,
        options=options,
        submitted=submitted,
        status=status,
        error=error,
        show_errors=show_errors,
        body_limit=body_limit or queue.settings.limits.payload,
        max_wait_s=parse_duration(max_wait, "max_wait") / 1000,
    )
    endpoint.add(to, chosen, Described(topic, known, endpoint.places, endpoint.body, tags), cancel=cancel)


def _topic(handler: object) -> str:
    if not isinstance(handler, str):
        raise UsageError(
            f"{handler!r} is no handler; decorate it with @queue.handler(topic), or name a topic"
        )
    return check_topic(handler)


class AsyncEndpoint:
    """
    One endpoint: what its routes do.
    """

    def __init__(
        self,
        queue: Duly,
        topic: str,
        places: Places,
        body: RequestBody,
        headers: HeaderRule,
        *,
        validate: Validate | None,
        options: Options | OptionsOf | None,
        submitted: AnswerJob | None,
        status: AnswerJob | None,
        error: AnswerProblem | None,
        show_errors: bool,
        body_limit: int,
        max_wait_s: float,
    ) -> None:
        self.queue, self.topic, self.places, self.body, self.headers = queue, topic, places, body, headers
        self._validate, self._options = validate, options
        self._submitted, self._status, self._error = submitted, status, error
        self._show_errors = show_errors
        self._body_limit = body_limit
        self._service = Service(queue, ServiceSettings(max_wait_s=max_wait_s))

    def add(self, to: Any, methods: Sequence[str], described: Described, *, cancel: bool) -> None:
        """
        Add the routes.

        Raises:
            UsageError: *to* takes no routes, or has one where the status would be.
        """
        name = self.topic
        routes: list[tuple[str, str, str, Callable[[Request], Awaitable[Response]]]] = [
            *((method, self.places.path, "submit", self.submit) for method in methods),
            ("GET", self.places.status_path, "status", self.status),
            ("GET", self.places.result_path, "result", self.result),
        ]
        if cancel:
            routes.append(("DELETE", self.places.status_path, "cancel", self.cancel))
        self._check_free(to, routes)
        for method, path, what, run in routes:
            if hasattr(to, "add_api_route"):  # FastAPI, which describes what it serves
                more = described.of(method, what)
                to.add_api_route(path, self._endpoint(run), methods=[method], name=f"{name}.{what}", **more)
            else:
                to.add_route(path, self._endpoint(run), methods=[method], name=f"{name}.{what}")

    @staticmethod
    def _check_free(to: Any, routes: Sequence[tuple[str, str, str, Any]]) -> None:
        if not hasattr(to, "add_route"):
            raise UsageError(f"to={to!r} must be an app or a router of Starlette or FastAPI")
        taken = {
            (method, getattr(route, "path", None))
            for route in to.routes
            for method in getattr(route, "methods", None) or ()
        }
        for method, path, what, _ in routes:
            if (method, path) in taken:
                hint = "" if what == "submit" else "; say another status_path"
                raise UsageError(f"there is a route for {method} {path} already{hint}")

    def _endpoint(
        self, run: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                response = await run(request)
            except Problem as problem:
                response = await self._told(request, problem)
            except DulyError as error:
                told = problem_of(error)
                if told.status == 503:
                    log.warning("%s: %s", type(error).__name__, error)
                response = await self._told(request, told)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody is there to read it
            if (asked := getattr(request.state, "async_request_id", None)) is not None:
                response.headers.setdefault(HEADER, asked)
            return response

        return endpoint

    async def _told(self, request: Request, problem: Problem) -> Response:
        own = await _call(self._error, request, problem)
        if own is None:
            return problem.response()
        # An answer of the app's own does not read on by itself.
        await read_on(request.scope, request.receive)
        return own

    # -- submitting ---------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        """
        Check a request and queue it; 202, or 200 where the caller prefers to wait and it ends in time.
        """
        asked_id, is_given = _request_id(request)
        request.state.async_request_id = asked_id
        body = await read_body(request, self._body_limit)
        if body and not _is_json(media_type(request)):
            said = request.headers.get("content-type") or "none"
            raise Problem(
                "unsupported", f"send application/json, not {said}", headers={"Accept": "application/json"}
            )
        payload, said, value = self.body.read(body)
        if len(payload) > self.queue.settings.limits.payload:
            raise too_large(self.queue.settings.limits.payload)
        refusal = await _call(self._validate, request, value)
        if refusal is not None:
            return refusal
        asked = capture(request, self.places.path, asked_id, self.headers)
        job = await self._job(request, asked, payload, value)
        await self._connect()
        # Not by the query: that is the handler's own.
        wait_s = self._service.wait_s(request, query=False)
        # What nobody has named cannot be sent again.
        call = await self._call(asked, said, job) if is_given else None
        placed = await self._placed(job, call, awaited=wait_s > 0)
        again = call is not None and call.entry.answered
        with after_change():
            stored = await self._stored(placed, job, asked, look=again or placed.word != "created")
        if wait_s and not stored.state.ended:
            try:
                await ended(self._service, request, stored.key, wait_s)
            except JobNotFound:
                wait_s = 0  # it has ended, and is gone: its first answer is all that is known
            with after_change():
                stored = await self._stored(placed, job, asked)
        status = 200 if wait_s and stored.state.ended else 202
        response = await _call(self._submitted, request, stored) or self._described(stored, status)
        response.headers.setdefault("Location", self.places.status_of(request, stored.id))
        return response

    async def _job(self, request: Request, asked: AsyncRequest, payload: bytes, value: object) -> NewJob[Any]:
        chosen = await _result(self._options, request, value) if callable(self._options) else self._options
        options: Mapping[str, Any] = chosen or {}
        context = {**(options.get("context") or {}), REQUEST: msgspec.to_builtins(asked)}
        limit = self.queue.settings.limits.context
        if len(msgspec.json.encode(context[REQUEST])) > limit:
            raise Problem("too-large", f"path, query and headers together may be {limit} bytes")
        try:
            return NewJob(self.topic, payload).options(**{"id": asked.id, **options, "context": context})
        except UsageError as error:  # no such option: a fault of the endpoint, not of the request
            raise TypeError(f"options of {self.places.path}: {error}") from error

    async def _call(self, asked: AsyncRequest, said: object, job: NewJob[Any]) -> idempotency.Call:
        """
        Reserve the id of a request for its job, or find what is known of it.

        Raises:
            Problem: It stands for another request.
            KeysFull: There is no room for another one.
        """
        job.order(self.queue.settings.limits)  # what is wrong with it is said before the id stands for it
        # Callers whom the options keep apart may use the same id for requests of their own.
        name = name_of(ASYNC_CALLERS, "async", self.topic, asked.id, job.id or "")
        digest = idempotency.digest_said(
            method=asked.method, path=asked.path, query=asked.query, repeated=asked.repeated, body=said
        )
        try:
            return await idempotency.Call.begin(await entries_of(self.queue), name, digest)
        except KeyReused:
            raise _reused() from None

    async def _placed(self, job: NewJob[Any], call: idempotency.Call | None, *, awaited: bool) -> Placed:
        """
        Queue a job; for a request that was answered before, the first answer.

        Raises:
            JobExists: Its id is taken, or was when the request came first.
        """
        if call is not None:
            if call.entry.refused is not None:
                raise JobExists(call.entry.refused)
            if call.entry.placed is not None:
                return call.entry.placed
            job = call.job(job)
        try:
            # One who waits is to have the result, however short it is kept.
            handle = await (self.queue.enqueue_awaited(job) if awaited else self.queue.enqueue(job))
        except JobExists as error:
            if call is not None:
                await call.keep(error)
            raise
        placed = handle.placed
        assert placed is not None  # noqa: S101  # it was just sent
        if call is not None:
            with after_change():
                await call.keep(placed)
        return placed

    async def _stored(
        self, placed: Placed, sent: NewJob[Any], asked: AsyncRequest, *, look: bool = True
    ) -> Job:
        """
        The job that was made, or the one that was there; as it was when it was made, if it is gone, or
        nobody is to *look*.

        Raises:
            Problem: That was made by another request.
        """
        views = await self.queue.views()
        job = await views.get(placed.key) if look else None
        if job is None:
            return views.resolve(sent.placed(placed, self.queue.settings.limits))
        if not placed.created and not _made_by(job, asked, sent.payload):
            raise _reused()
        return job

    async def _connect(self) -> None:
        """
        Open the queue if nobody has.
        """
        try:
            await self.queue.store()
        except UsageError:
            # About the settings of this service: nothing that its caller has said wrongly, and nothing that
            # waiting mends.  The message may quote an address with its password, so it is not logged.
            told = ServerUnsuitable(
                "the queue cannot be opened: a setting is wrong, `duly doctor` says which"
            )
            raise told from None

    # -- asking -------------------------------------------------------------------------------------------

    async def status(self, request: Request) -> Response:
        """
        A job as it is now, or once it has ended.
        """
        job = await self._waited(request)
        own = await _call(self._status, request, job)
        return own or conditional(request, job, self._described(job), "answer")

    async def result(self, request: Request) -> Response:
        """
        What the handler returned.
        """
        job = await self._waited(request)
        response = result_response(job, show_errors=self._show_errors)
        return conditional(request, job, response, "answer")

    async def cancel(self, request: Request) -> Response:
        """
        End a job, also while it runs.
        """
        job = await self._found(request)
        handle = self.queue.job(*job.key)
        state = await if_it_holds(
            self.queue, job.key, request, lambda revision, _: handle.cancel(revision=revision), shown="answer"
        )
        if state != "accepted" and state is not JobState.cancelled:
            raise Problem("conflict", f"job {job.id} had ended before, {state.name}", state=state.name)
        with after_change():
            job = await self._found(request)
        return await _call(self._status, request, job) or self._described(job)

    def _described(self, job: Job, status: int = 200) -> Response:
        return job_response(job, status, show_errors=self._show_errors)

    async def _waited(self, request: Request) -> Job:
        wait_s = self._service.wait_s(request)
        job = await self._found(request)
        if wait_s and not job.state.ended:
            await ended(self._service, request, job.key, wait_s)
            job = await self._found(request)
        return job

    async def _found(self, request: Request) -> Job:
        """
        The job that the path names, if this endpoint made it for that path.
        """
        values = route_values(request.path_params)
        id_ = str(values.pop(JOB_ID))
        if ID.fullmatch(id_) and id_ not in (".", ".."):
            await self._connect()
            job = await (await self.queue.views()).get(self.queue.job(self.topic, id_).key)
            made_by = _context(job).get(REQUEST) if job is not None else None
            if job is not None and isinstance(made_by, dict) and made_by.get("endpoint") == self.places.path:
                route = made_by.get("route") or {}
                if all(route.get(name) == value for name, value in values.items()):
                    request.state.async_request_id = made_by.get("id")
                    return job
        raise Problem("job-not-found", f"there is no job {id_} here: it was pruned, or never was")


def _context(job: Job) -> Mapping[str, Any]:
    return (job.envelope.context or {}) if job.envelope else {}


def _made_by(job: Job, asked: AsyncRequest, payload: bytes) -> bool:
    """
    Return whether a job that was there is one of the same request, by whatever id that came.
    """
    made_by = _context(job).get(REQUEST)
    told = ("method", "path", "query", "repeated")
    return (
        isinstance(made_by, dict)
        and [made_by.get(name) for name in told] == [getattr(asked, name) for name in told]
        and msgspec.json.decode(job.payload or b"null") == msgspec.json.decode(payload or b"null")
    )


def _reused() -> Problem:
    return Problem("key-reused", f"this {HEADER} was used for another request; use a new one", field=HEADER)


def _request_id(request: Request) -> tuple[str, bool]:
    """
    The id of a request, and whether its sender has given it.
    """
    said = idempotency.one_header(request, HEADER)
    if said is None:
        return new_id(), False
    if not ID.fullmatch(said) or said in (".", ".."):
        raise Problem(
            "invalid",
            f"{HEADER} must be 1 to 200 of the characters A-Z a-z 0-9 . _ ~ : @ = + -",
            field=HEADER,
        )
    return said, True


def _is_json(kind: str) -> bool:
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def _result(hook: Callable[..., Any], *args: Any) -> Any:
    """
    Call what a user wrote: async, or plain in a thread, as Starlette does.
    """
    if inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(getattr(hook, "__call__", None)):  # noqa: B004  # an object may be called like one
        return await hook(*args)
    found = await run_in_threadpool(hook, *args)
    return await found if inspect.isawaitable(found) else found


async def _call(hook: Callable[..., Any] | None, *args: Any) -> Response | None:
    """
    The response that a hook of the user's made, None if it made none.

    Raises:
        TypeError: It made something else.
    """
    made = None if hook is None else await _result(hook, *args)
    if made is not None and not isinstance(made, Response):
        raise TypeError(f"{hook!r} must return a Response or None, not {type(made).__name__}")
    return made
