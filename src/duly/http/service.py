"""
The service: operations on an app, as an ASGI application.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from duly.canary import Canary
from duly.durations import parse_duration
from duly.errors import DulyError, JobNotFound, RecordUnavailable, StoreUnavailable, UsageError
from duly.group import LATE_S, Group
from duly.http import audit
from duly.http.access import Access
from duly.http.bodies import client_gone
from duly.http.duties import Duties
from duly.http.live import Live
from duly.http.meter import OPERATION, Meter, metrics_of
from duly.http.problems import Problem, after_change, fault_of, problem_of
from duly.http.proxies import RootPath, check_proxies, check_root_path
from duly.http.request import ServiceRequest
from duly.http.settings import ServiceSettings
from duly.http.spool import Spools
from duly.http.workplace import Workplace
from duly.idempotency import entries_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from duly.apikeys import KeyRing
    from duly.app import Duly
    from duly.http.operations import Operation
    from duly.idempotency import Entries
    from duly.job import Job, JobKey

log = logging.getLogger("duly.http")

T = TypeVar("T")

READS = 100  #: jobs that are read in one call

_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d+(?:\.\d+)?)")


class Service:
    """
    What operations work with.
    """

    def __init__(self, app: Duly, settings: ServiceSettings | None = None) -> None:
        self.app = app
        self.settings = settings or ServiceSettings()
        self.root_path = check_root_path(self.settings.root_path or app.settings.root_path)
        self.proxies = check_proxies(self.settings.trusted_proxies or app.settings.trusted_proxies)
        self.keys: KeyRing
        self.access: Access
        self.entries: Entries
        self._reads: Group[JobKey, Job | DulyError | None] = Group(
            self._read, key=lambda key: key, size=lambda _: 0, max_jobs=READS, late_s=LATE_S
        )
        self.live: Live
        self.canary: Canary
        self.metrics = metrics_of(app)  #: None where the extra is not installed
        self.duties = Duties()
        self.draining = False
        self.ending: asyncio.Future[None] | None = None  #: done when it drains; None where it is not open
        self.spools: Spools
        self.workplace: Workplace

    async def open(self) -> None:
        """
        Connect.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
            StoreUnavailable: The server cannot be reached.
            ServerUnsuitable: It does not fit, or the queue has a record and the service has not.
        """
        store = await self.app.store()
        await self.app.queue()
        self.draining = False
        self.keys = await self.app.key_ring()
        self.ending = asyncio.get_running_loop().create_future()
        # A loopback address behind a proxy is public.
        require_keys = self.settings.require_keys or self.app.settings.require_keys or bool(self.proxies)
        self.access = Access(self.keys, store, self.settings, require_keys=require_keys)
        await self.access.begin()
        self.spools = Spools(self.settings.spool_total)
        self.canary = Canary(store)
        self.live = Live(store, most=self.settings.max_streams)
        self.duties.start("events", self.live)
        self.entries = await entries_of(self.app, self.settings.idempotency_s)
        if self.app.settings.record is not None:
            self.duties.keep(*(await self.app.record()).upkeep.loops())
        self.workplace = Workplace(self.app, store)
        self.workplace.open()

    def drain(self) -> None:
        """
        Let end what would go on for long: no more requests come.
        """
        self.draining = True
        if self.ending is not None and not self.ending.done():
            self.ending.set_result(None)
        self.workplace.end_polls()
        if self.duties.running:
            self.live.wake()

    async def aclose(self) -> None:
        """
        End what runs beside the requests.
        """
        self.drain()
        await self.duties.aclose()
        await self.workplace.aclose()
        self.spools.close()
        await self.access.aclose()

    async def job(self, key: JobKey) -> Job:
        """
        A job as it is now; who asks at the same time shares a call to the server.

        Raises:
            JobNotFound: It was pruned, or never was.
        """
        job = await self._reads.ask(key)
        if isinstance(job, DulyError):
            raise job
        if job is None:
            raise JobNotFound(f"there is no job {key}: it was pruned, or never was")
        return job

    async def _read(self, keys: list[JobKey]) -> list[Job | DulyError | None]:
        views = await self.app.views()
        try:
            return [*await views.get_many(keys)]
        except RecordUnavailable:
            raise
        except StoreUnavailable:
            if len(keys) == 1 or self.app.settings.record is None:
                raise
        # The queue is away, and one of the jobs has no row, which concerns only who asked for that.
        found: list[Job | DulyError | None] = []
        for key in keys:
            try:
                found.append(await views.get(key))
            except StoreUnavailable as error:
                found.append(error)
        return found

    async def patiently(self, call: Coroutine[Any, Any, T], wait_s: float, request: Request) -> T | None:
        """
        Return what *call* returns if that is in time: not once the service drains, nor once the client of
        *request*, whose body must have been read, has gone.

        Raises:
            Problem: The key of *request* was revoked meanwhile.
        """
        task = asyncio.create_task(call)
        gone = asyncio.create_task(client_gone(request.receive))
        try:
            await self.wait((task, gone), wait_s, request)
            if self.ending is not None:
                await self.access.confirm(request)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            gone.cancel()

    async def wait(self, events: Iterable[asyncio.Future[Any]], wait_s: float, request: Request) -> None:
        """
        Wait for one of *events*, for *wait_s* at most: not once the service drains, nor once the key of
        *request* was revoked.

        Raises:
            Problem: It was revoked meanwhile.
        """
        if self.ending is None:
            # Of an async endpoint, whose app guards it by its own means.
            await asyncio.wait(events, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return
        watch = asyncio.create_task(self.access.watch(request))
        watched = (*events, self.ending, watch)
        try:
            await asyncio.wait(watched, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
        finally:
            watch.cancel()

    def wait_s(self, request: Request, *, query: bool = True) -> float:
        """
        How long a client wants to wait: by `wait` in the *query* or `Prefer`, as far as is allowed.

        Raises:
            Problem: It is no number.
        """
        said = request.query_params.get("wait") if query and request.scope["query_string"] else None
        if said is None:
            preferred = _WAIT.search(request.headers.get("prefer", ""))
            return min(float(preferred[1]), self.settings.max_wait_s) if preferred else 0.0
        return min(read_wait(said), self.settings.max_wait_s)


def read_wait(said: str) -> float:
    """
    Read the query parameter wait: seconds, or a duration such as 1m30s.

    Raises:
        Problem: It is neither.
    """
    try:
        wait_s = float(said)  # as JSON writes a number, 1e1 too
    except ValueError:
        try:
            wait_s = parse_duration(said, "wait") / 1000
        except UsageError as error:
            raise Problem("invalid", str(error), field="wait") from None
    if not 0 <= wait_s < math.inf:
        raise Problem("invalid", f"wait={said!r} must be a number of seconds, zero or more", field="wait")
    return wait_s


def make_service(
    app: Duly, operations: Sequence[Operation], settings: ServiceSettings | None = None
) -> Starlette:
    """
    An ASGI application that serves *operations* on *app*.

    Raises:
        UsageError: A setting is wrong.
    """
    service = Service(app, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with app:
            await service.open()
            try:
                yield
            finally:
                await service.aclose()

    middleware = [Middleware(Meter, metrics=service.metrics)] if service.metrics else []
    if service.settings.cors_origins:
        middleware.append(
            Middleware(
                Cors,
                allow_origins=list(service.settings.cors_origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "Duly-Age",
                    "Idempotency-Key",
                    "If-Match",
                    "If-None-Match",
                    "Last-Event-ID",
                    "Prefer",
                ],
                expose_headers=["Duly-Outcome", "ETag", "Location", "Retry-After"],
            )
        )
    if service.root_path:
        middleware.insert(0, Middleware(RootPath, root=service.root_path))
    if service.proxies:
        middleware.insert(0, Middleware(_proxy_headers(), trusted_hosts=service.proxies))
    application = Application(routes=_routes(service, operations), middleware=middleware, lifespan=lifespan)
    # Elsewhere means to the name that the proxy calls us by, which clients may not be able to reach.
    application.router.redirect_slashes = False
    application.router.default = _nothing_there
    application.state.service = service
    return application


class Cors(CORSMiddleware):
    """
    Starlette's, whose refusals are problem documents as all others.
    """

    def preflight_response(self, request_headers: Headers) -> Response:
        """
        Tell a browser whether a page may send the request that it is about to send.
        """
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        wrong = bytes(response.body).decode().removeprefix("Disallowed CORS ")
        own = ("content-type", "content-length")
        headers = {name: value for name, value in response.headers.items() if name not in own}
        detail = f"pages of {request_headers['origin']} may not send this; not allowed: {wrong}"
        return Problem("cross-site", detail, headers=headers).response()


class Application(Starlette):
    """
    Starlette without the layers that turn exceptions into answers: endpoints answer for their own errors.

    A request costs a tenth less without them.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """
        Put the middleware around the router, and nothing else.
        """
        app: ASGIApp = self.router
        for each in reversed(self.user_middleware):
            app = each.cls(app, *each.args, **each.kwargs)
        return app


def _proxy_headers() -> Any:
    # Imported late: the service runs in other servers as well, which know their proxies themselves.
    from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware  # noqa: PLC0415  # as above

    return ProxyHeadersMiddleware


def _routes(service: Service, operations: Sequence[Operation]) -> list[Route]:
    """
    One route for each path, so that another method is answered with 405 and what is allowed.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, Endpoint(service, found)) for path, found in by_path.items()]


class Endpoint:
    """
    The operations of one path, as an ASGI application: by method, behind the gate, errors as problems.
    """

    def __init__(self, service: Service, found: dict[str, Operation]) -> None:
        self._service = service
        self._found = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Answer one request.
        """
        request = ServiceRequest(scope, receive, send)
        operation = self._found.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            await self._not_allowed(request).response()(scope, receive, send)
            return
        response: Response | None = None
        try:
            response = await self._answer(request, operation)
            if response is not None:
                await response(scope, receive, send)
        except asyncio.CancelledError:
            if not self._service.draining:
                raise
            # uvicorn would log where it was cancelled, which is no fault.
            log.warning("%s was cut off: the service ends", operation.name)
            if response is None:
                detail = "the service ends; send it again"
                kind = "unavailable" if request.method in ("GET", "HEAD") else "outcome-unknown"
                await Problem(kind, detail, headers={"Retry-After": "1"}).response()(scope, receive, send)
        except Exception as error:  # noqa: BLE001  # the answer has begun: the server cuts it off when this returns
            fault_of(error, _place(request))

    def _not_allowed(self, request: Request) -> Problem:
        allowed = ", ".join(sorted({*self._found, *(["HEAD"] if "GET" in self._found else [])}))
        detail = f"{request.method} does not apply to {request.url.path}; it allows {allowed}"
        return Problem("method-not-allowed", detail, headers={"Allow": allowed})

    async def _answer(self, request: Request, operation: Operation) -> Response | None:
        """
        Make the answer to a request, None if nobody is left to read it.
        """
        try:
            request.scope[OPERATION] = operation.name
            request.state.key = await self._service.access.check(
                request,
                operation.scope,
                operation.topic_of(request),
                of_topics=operation.of_topics,
                limited=operation.limited,
                by_token=operation.by_token,
            )
            response = await operation.run(self._service, request)
            changed = response.status_code < 400 and getattr(request.state, "changed", True)
            if operation.audit is not None and changed:
                with after_change():
                    await audit.note(self._service, request, operation)
            return response
        except Problem as problem:
            return problem.response()
        except DulyError as error:
            told = problem_of(error)
            response = told.response()
            if told.status == 503:
                log.warning("%s: %s", type(error).__name__, error)
            return response
        except ClientDisconnect:
            return None  # in the middle of its request: nobody is left to be answered
        except Exception as error:  # noqa: BLE001  # logged with its traceback, and told without
            return fault_of(error, _place(request)).response()


async def _nothing_there(scope: Scope, receive: Receive, send: Send) -> None:
    path = Request(scope).url.path
    hint = "; try it without the slash at the end" if path.endswith("/") else ""
    await Problem("not-found", f"there is nothing at {path}{hint}").response()(scope, receive, send)


def _place(request: Request) -> str:
    return f"{request.method} {request.url.path}"
