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
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route

from duly.canary import Canary
from duly.errors import DulyError, JobNotFound
from duly.group import LATE_S, Group
from duly.http import audit
from duly.http.access import Access
from duly.http.duties import Duties
from duly.http.live import Live
from duly.http.meter import Meter, metrics_of
from duly.http.problems import Problem, problem_of
from duly.http.settings import ServiceSettings
from duly.http.workplace import Workplace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from starlette.responses import Response
    from starlette.types import Receive, Scope, Send

    from duly.apikeys import KeyRing
    from duly.app import Duly
    from duly.http.operations import Operation
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
        self.keys: KeyRing
        self.access: Access
        self._reads: Group[JobKey, Job | None] = Group(
            self._read, key=lambda key: key, size=lambda _: 0, max_jobs=READS, late_s=LATE_S
        )
        self.live: Live
        self.canary: Canary
        self.metrics = metrics_of(app)  #: None where the extra is not installed
        self.duties = Duties()
        self.draining = False
        self._ending: asyncio.Future[None] | None = None  #: done when it drains; None where it is not open
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
        self._ending = asyncio.get_running_loop().create_future()
        self.access = Access(self.keys, rate=self.settings.rate, burst=self.settings.burst)
        self.canary = Canary(store)
        self.live = Live(store, most=self.settings.max_streams)
        self.duties.start("events", self.live)
        if self.app.settings.record is not None:
            self.duties.keep(*(await self.app.record()).upkeep.loops())
        self.workplace = Workplace(self.app, store)
        self.workplace.open()

    def drain(self) -> None:
        """
        Let end what would go on for long: no more requests come.
        """
        self.draining = True
        if self._ending is not None and not self._ending.done():
            self._ending.set_result(None)
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

    async def job(self, key: JobKey) -> Job:
        """
        A job as it is now; who asks at the same time shares a call to the server.

        Raises:
            JobNotFound: It was pruned, or never was.
        """
        job = await self._reads.ask(key)
        if job is None:
            raise JobNotFound(f"there is no job {key}: it was pruned, or never was")
        return job

    async def _read(self, keys: list[JobKey]) -> list[Job | None]:
        return await (await self.app.views()).get_many(keys)

    async def patiently(
        self, call: Coroutine[Any, Any, T], wait_s: float, gone: asyncio.Future[None] | None = None
    ) -> T | None:
        """
        What *call* returns if that is in time: not once the service drains, nor once *gone* is done.
        """
        task = asyncio.create_task(call)
        events = [each for each in (task, self._ending, gone) if each is not None]
        try:
            await asyncio.wait(events, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    def wait_s(self, request: Request, *, query: bool = True) -> float:
        """
        How long a client wants to wait: by `wait` in the *query* or `Prefer`, as far as is allowed.

        Raises:
            Problem: It is no number.
        """
        said = request.query_params.get("wait") if query else None
        if said is None:
            preferred = _WAIT.search(request.headers.get("prefer", ""))
            return min(float(preferred[1]), self.settings.max_wait_s) if preferred else 0.0
        try:
            wait_s = float(said)
        except ValueError:
            wait_s = math.nan
        if not 0 <= wait_s < math.inf:
            raise Problem("invalid", f"wait={said!r} must be a number of seconds", field="wait")
        return min(wait_s, self.settings.max_wait_s)


def make_service(
    app: Duly, operations: Sequence[Operation], settings: ServiceSettings | None = None
) -> Starlette:
    """
    An ASGI application that serves *operations* on *app*.
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
                CORSMiddleware,
                allow_origins=list(service.settings.cors_origins),
                allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "Idempotency-Key",
                    "If-Match",
                    "Last-Event-ID",
                    "Prefer",
                ],
                expose_headers=["Duly-Outcome", "ETag", "Location", "Retry-After"],
            )
        )
    starlette = Starlette(
        routes=_routes(service, operations),
        middleware=middleware,
        exception_handlers={
            HTTPException: _http_error,
            Exception: _fault,
        },
        lifespan=lifespan,
    )
    starlette.state.service = service
    return starlette


def _routes(service: Service, operations: Sequence[Operation]) -> list[Route]:
    """
    One route for each path, so that another method is answered with 405 and what is allowed.
    """
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [Route(path, Endpoint(service, found), methods=list(found)) for path, found in by_path.items()]


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
        request = Request(scope, receive, send)
        operation = self._found["GET" if request.method == "HEAD" else request.method]
        try:
            request.state.operation = operation.name
            request.state.key = await self._service.access.check(
                request,
                operation.scope,
                operation.topic_of(request),
                of_topics=operation.of_topics,
                limited=operation.limited,
            )
            response = await operation.run(self._service, request)
            if operation.audit is not None and response.status_code < 400:
                await audit.note(self._service, request, operation)
        except Problem as problem:
            response = problem.response()
        except DulyError as error:
            response = problem_of(error).response()
            if response.status_code >= 500:
                log.warning("%s: %s", type(error).__name__, error)
        except ClientDisconnect:
            return  # in the middle of its request: nobody is left to be answered
        await response(scope, receive, send)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # registered for it
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        detail = f"{request.method} does not apply to {request.url.path}; it allows {allowed}"
        return Problem("method-not-allowed", detail, headers=error.headers).response()
    if error.status_code == 404:
        return Problem("not-found", f"there is nothing at {request.url.path}").response()
    return Problem("malformed", str(error.detail)).response()


async def _fault(request: Request, error: Exception) -> Response:
    # A fault of ours: logged with its traceback, and told without.
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Problem(
        "unavailable", "the service failed; its log says why", headers={"Retry-After": "5"}
    ).response()
