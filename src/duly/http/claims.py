"""
Claims: workers in any language ask for jobs, wait for them, and are given leases.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
from starlette.responses import Response

from duly.durations import parse_duration
from duly.http.bodies import client_gone, read_json
from duly.http.grammar import DurationText
from duly.http.handing import Ask, LeasedJob
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.problems import Problem
from duly.job import check_topic
from duly.store import PER_CALL

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from duly.http.handing import Claims
    from duly.http.service import Service
    from duly.job import Lease

LEASE_S = 60  #: where the worker does not say
MAX_LEASE_MS = 86_400_000
MAX_CLAIM_WAIT_S = 3600
#: How long a worker may fall silent.
LeaseTime = Annotated[float, msgspec.Meta(ge=1, le=MAX_LEASE_MS // 1000)] | DurationText

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:@-]*$"


class ClaimRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """
    Who asks, for how many jobs, how long it waits for the first, and how long it may fall silent.
    """

    worker: Annotated[str, msgspec.Meta(pattern=_NAME, max_length=100)]
    #: A whole number, which in JSON may be written 5.0, too.
    limit: Annotated[float, msgspec.Meta(ge=1, le=PER_CALL, multiple_of=1)] = 1
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_CLAIM_WAIT_S)] | DurationText = 0
    lease: LeaseTime = LEASE_S
    #: The same again brings the jobs of an answer that got lost, if it is the worker's last claim.
    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None


class ClaimAnswer(msgspec.Struct):
    """
    The jobs that were claimed; none if there was nothing in time.
    """

    jobs: list[LeasedJob]


_requests = msgspec.json.Decoder(ClaimRequest)


def lease_ms(said: float | str) -> int:
    """
    How long a worker may fall silent, in milliseconds.

    Raises:
        Problem: It is shorter than a second, or longer than a day.
    """
    ms = parse_duration(said, "lease")
    if not 1_000 <= ms <= MAX_LEASE_MS:
        raise Problem("invalid", f"lease={said!r} must be from 1 s to 1 day", field="lease")
    return ms


class Delivery(Response):
    """
    An answer with jobs: where nobody is there to read it, they are given back.
    """

    def __init__(
        self, claims: Claims, leases: list[Lease], gone: asyncio.Task[None], body: bytes, media_type: str
    ) -> None:
        super().__init__(body, media_type=media_type, headers={"Cache-Control": "no-store"})
        self._claims, self._leases, self._gone = claims, leases, gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Send it, if there is somebody.
        """
        delivered = False
        try:
            delivered = not self._gone.done()
            await super().__call__(scope, receive, send)
        except BaseException:
            delivered = False
            raise
        finally:
            self._gone.cancel()
            if self._leases and not delivered:
                self._claims.spawn(self._claims.give_back(self._leases))


async def _claim(
    service: Service, request: Request
) -> tuple[list[LeasedJob], list[Lease], asyncio.Task[None]]:
    topic = check_topic(request.path_params["topic"])
    wanted = await read_json(request, _requests, service.settings.body_limit)
    if not re.fullmatch(_NAME[1:-1], wanted.worker):
        raise Problem("invalid", f"worker={wanted.worker!r} is no name", field="worker")
    ask = Ask(
        topic,
        int(wanted.limit),
        lease_ms(wanted.lease),
        min(parse_duration(wanted.wait, "wait") / 1000, service.settings.max_wait_s),
        wanted.request_id,
        request.state.key.id if request.state.key else "",
    )
    claims, roster = service.workplace.claims, service.workplace.roster
    host = request.client.host if request.client else ""
    worker = await roster.claims(wanted.worker, topic, host, ask.limit)
    gone = asyncio.create_task(client_gone(request.receive))
    try:
        leases = await claims.take(worker, ask, gone, partial(service.wait, request=request))
        try:
            await service.access.confirm(request)
        except Problem:
            claims.spawn(claims.give_back(leases))
            raise
    except BaseException:
        gone.cancel()
        raise
    views = [claims.view(lease) for lease in leases]
    kept = [(view, lease) for view, lease in zip(views, leases, strict=True) if view is not None]
    return [view for view, _ in kept], [lease for _, lease in kept], gone


async def claim(service: Service, request: Request) -> Response:
    """
    Give jobs to a worker.
    """
    jobs, leases, gone = await _claim(service, request)
    return Delivery(
        service.workplace.claims, leases, gone, msgspec.json.encode(ClaimAnswer(jobs)), "application/json"
    )


async def claim_lines(service: Service, request: Request) -> Response:
    """
    The same for shells: a line for each job.
    """
    jobs, leases, gone = await _claim(service, request)
    lines = [
        b"\t".join(
            # In JSON without white space between values there is neither a tab nor a line break.
            (
                job.token.encode(),
                job.id.encode(),
                b"%d" % job.attempt,
                msgspec.json.format(job.payload, indent=-1),
            )
        )
        + b"\n"
        for job in jobs
    ]
    return Delivery(service.workplace.claims, leases, gone, b"".join(lines), "text/tab-separated-values")


OPERATIONS = [
    Operation(
        name="claimJobs",
        method="POST",
        path="/v1/topics/{topic}/claim",
        about="Lease jobs that are ready to a worker, or wait until there is one. A client that has gone "
        "before the answer gives its jobs back, uncounted. One whose answer got lost sends the same again, "
        "with the same request_id, and gets the same jobs.",
        run=claim,
        scope="work",
        parameters=(TOPIC,),
        body=ClaimRequest,
        answers={200: Answer("the jobs", ClaimAnswer)},
        problems=("too-large", "unsupported", "invalid"),
    ),
    Operation(
        name="claimLines",
        method="POST",
        path="/v1/topics/{topic}/claim:lines",
        about="Lease jobs as claim does, answered for shells: a line for each job, of token, id, attempt and "
        "payload, with a tab between them; no line if there was nothing in time.",
        run=claim_lines,
        scope="work",
        parameters=(TOPIC,),
        body=ClaimRequest,
        answers={200: Answer("the jobs", str, media="text/tab-separated-values")},
        problems=("too-large", "unsupported", "invalid"),
    ),
]
