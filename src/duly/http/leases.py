"""
Leases: how a worker over HTTP ends a run, or says that it goes on.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from duly.backoff import from_wire
from duly.codec import check_json
from duly.durations import say_time
from duly.errors import DulyError, JobNotFound, LeaseLost, UsageError
from duly.failure import reason_document, signature_of
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.claims import LEASE_S, LeaseTime, lease_ms
from duly.http.documents import NULL, seconds
from duly.http.grammar import Duration
from duly.http.operations import Answer, Operation, Parameter
from duly.http.problems import Problem
from duly.http.tokens import Token, read_token, topic_of
from duly.job import moment
from duly.outcome import Buried, Retry, RetryLater, outcome_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.requests import Request
    from starlette.responses import Response

    from duly.codec import Envelope
    from duly.defaults import Defaults
    from duly.handlers import Handler
    from duly.http.service import Service


class Failure(msgspec.Struct, forbid_unknown_fields=True):
    """
    What went wrong: a word for its kind, and a sentence.
    """

    type: str
    message: str = ""


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    What the job returned.
    """

    result: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)


class RetryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    When to run it again, by its backoff if that is not said, and why.
    """

    delay: Duration | None = None
    error: Failure | None = None


class BuryRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    Why it cannot succeed.
    """

    error: Failure | None = None


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    Nothing.
    """


class ExtendRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    How long from now the worker may fall silent.
    """

    lease: LeaseTime = LEASE_S


class LeaseAnswer(msgspec.Struct, omit_defaults=True):
    """
    What the job is now; of one that still runs, until when.
    """

    topic: str
    id: str
    state: Literal["ready", "scheduled", "running", "succeeded", "dead"]
    lease_until: str | None = None


_acks = msgspec.json.Decoder(AckRequest)
_retries = msgspec.json.Decoder(RetryRequest)
_buries = msgspec.json.Decoder(BuryRequest)
_releases = msgspec.json.Decoder(ReleaseRequest)
_extends = msgspec.json.Decoder(ExtendRequest)


async def ack(service: Service, request: Request) -> Response:
    """
    The job is done.
    """
    token = read_token(request.path_params["token"])
    said = await read_json(request, _acks, service.settings.body_limit, empty=b"{}")
    result, limit = bytes(said.result), service.app.settings.result_limit
    if len(result) > limit:
        detail = (
            f"result is {len(result)} bytes, the limit is {limit}; store it elsewhere and send a reference"
        )
        raise Problem("invalid", detail, field="result")
    check_json(result, "result")
    store = await service.app.store()
    # Of a run that returned nothing, nothing is kept.
    kept = b"" if result == b"null" else result
    lease = token.lease(store.shards)
    await _end(service, token, store.ack(lease, kept, lateness_ms=token.lateness_ms))
    return _answer(token, "succeeded")


async def retry(service: Service, request: Request) -> Response:
    """
    The attempt failed: run it again later, unless it was the last.
    """
    token = read_token(request.path_params["token"])
    said = await read_json(request, _retries, service.settings.body_limit, empty=b"{}")
    delay_s = seconds(said.delay, "delay")
    job = await (await service.app.views()).get(token.key)
    if job is None:
        raise _lost(service, token, JobNotFound(f"{token.key} is gone"))
    terms = service.app.handlers.get(token.key.topic) or service.app.settings.defaults
    match after_failure(token.attempt, job.envelope, terms, delay_s, said.error):
        case RetryLater(delay_ms, error, reason, _):
            store = await service.app.store()
            lease = token.lease(store.shards)
            call = store.retry(lease, delay_ms, error, reason, lateness_ms=token.lateness_ms)
            await _end(service, token, call)
            return _answer(token, "scheduled")
        case Buried(error, reason):
            return await _bury(service, token, error, reason)


def after_failure(
    attempt: int,
    envelope: Envelope | None,
    terms: Handler[..., Any] | Defaults,
    delay_s: float | None,
    failure: Failure | None,
) -> RetryLater | Buried:
    """
    Decide what becomes of a job after a failed attempt: by its own options, its handler, or the settings.

    The attempt is that of the token, so the same call again decides the same.
    """
    backoff = terms.backoff
    if envelope is not None and envelope.backoff:
        with suppress(UsageError):  # sent by a newer release, maybe: the handler's own is better than none
            backoff = from_wire(envelope.backoff)
    most = (envelope and envelope.max_attempts) or terms.max_attempts
    told = _told(failure, "retry")
    outcome = outcome_of(
        Retry(delay_s), attempt=attempt, max_attempts=most, backoff=backoff, encode_result=lambda _: b""
    )
    if isinstance(outcome, RetryLater):
        return RetryLater(outcome.delay_ms, *told, counted=True)
    return Buried(*told)


async def bury(service: Service, request: Request) -> Response:
    """
    The job cannot succeed.
    """
    token = read_token(request.path_params["token"])
    said = await read_json(request, _buries, service.settings.body_limit, empty=b"{}")
    return await _bury(service, token, *_told(said.error, "buried"))


async def _bury(service: Service, token: Token, error: bytes, reason: str) -> Response:
    store = await service.app.store()
    lease = token.lease(store.shards)
    await _end(service, token, store.bury(lease, error, reason, lateness_ms=token.lateness_ms))
    return _answer(token, "dead")


async def release(service: Service, request: Request) -> Response:
    """
    Somebody else may run the job; nothing is counted.
    """
    token = read_token(request.path_params["token"])
    await read_json(request, _releases, service.settings.body_limit, empty=b"{}")
    store = await service.app.store()
    await _end(service, token, store.release(token.lease(store.shards)))
    return _answer(token, "ready")


async def extend(service: Service, request: Request) -> Response:
    """
    The worker lives and goes on.
    """
    token = read_token(request.path_params["token"])
    said = await read_json(request, _extends, service.settings.body_limit, empty=b"{}")
    for_ms = lease_ms(said.lease)
    store, views = await service.app.store(), await service.app.views()
    # Asked before, so that the lease lasts at least as long as is told.
    now_ms = await views.now_ms()
    lease = token.lease(store.shards)
    [held] = await store.extend(lease.shard, [lease], lease_ms=for_ms)
    if not held:
        raise _lost(service, token, LeaseLost(f"the lease on {token.key} is lost"))
    service.workplace.roster.extended(token.fence, for_ms)
    until_ms = max(1, min(now_ms + for_ms, token.claimed_ms + token.ttr_ms))
    return _answer(token, "running", say_time(moment(until_ms)))  # type: ignore[arg-type]  # there is one


async def _end(service: Service, token: Token, call: Awaitable[None]) -> None:
    try:
        await call
    except (LeaseLost, JobNotFound) as error:
        raise _lost(service, token, error) from None
    service.workplace.roster.ended(token.fence)


def _lost(service: Service, token: Token, error: DulyError) -> Problem:
    """
    To a worker it is the same whether its job is another's, was cancelled or is gone: stop.
    """
    service.workplace.roster.ended(token.fence, lost=True)
    return Problem("lease-lost", f"{error}; stop, its outcome here does not count")


def _told(failure: Failure | None, otherwise: str) -> tuple[bytes, str]:
    kind, message = (failure.type, failure.message) if failure else (otherwise, "")
    return reason_document(kind, message), signature_of(kind, message)


def _answer(token: Token, state: Any, lease_until: str | None = None) -> Response:
    return answer(LeaseAnswer(token.key.topic, token.key.id, state, lease_until))


_TOKEN = Parameter(
    "token",
    "path",
    "the token of the lease, as the claim gave it",
    {"type": "string", "pattern": "^[A-Za-z0-9_-]+$", "maxLength": 700},
)


def _operation(verb: str, about: str, run: Any, body: Any) -> Operation:
    return Operation(
        name=f"{verb}Lease",
        method="POST",
        path=f"/v1/leases/{{token}}/{verb}",
        about=f"{about} The same again is answered alike; a lease that was lost is a 409.",
        run=run,
        scope="work",
        topic_of=topic_of,
        parameters=(_TOKEN,),
        body=body,
        body_required=False,
        answers={200: Answer("what became of the job", LeaseAnswer)},
        problems=("lease-lost", "too-large", "unsupported", "invalid"),
    )


OPERATIONS = [
    _operation("ack", "The job is done.", ack, AckRequest),
    _operation(
        "retry",
        "The attempt failed: the job runs again after delay, or its backoff. The last attempt buries it.",
        retry,
        RetryRequest,
    ),
    _operation("bury", "The job cannot succeed: it is dead.", bury, BuryRequest),
    _operation("release", "Give the job back, ready at once; nothing is counted.", release, ReleaseRequest),
    _operation(
        "extend",
        "Go on: the lease lasts so long from now, and not past the time to run.",
        extend,
        ExtendRequest,
    ),
]
