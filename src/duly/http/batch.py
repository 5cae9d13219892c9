"""
Batches: any number of jobs in one request, read, stored and answered as they come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from duly.durations import say_time
from duly.errors import DulyError
from duly.group import MAX_JOBS
from duly.http.answers import Lines
from duly.http.bodies import JSON, NDJSON, decode, media_type, read_body, too_large
from duly.http.documents import JobBody, JobRequest, new_job_of
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.problems import Problem, problem_of
from duly.http.replies import may_reply_to
from duly.job import check_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request

    from duly.handle import JobHandle
    from duly.http.service import Service
    from duly.newjob import NewJob

SLICE = 4 * MAX_JOBS  #: jobs that are held at once

_line = msgspec.json.Decoder(JobRequest)
_array = msgspec.json.Decoder(list[msgspec.Raw])


class BatchLine(msgspec.Struct, omit_defaults=True):
    """
    What became of one job of a batch.
    """

    line: int
    outcome: Literal["created", "kept", "replaced", "refused"]
    id: str | None = None
    revision: int | None = None
    state: str | None = None
    due_at: str | None = None
    problem: dict[str, Any] | None = None


async def create_many(service: Service, request: Request) -> Lines:
    """
    Promise jobs, one outcome for each, in their order.
    """
    topic = check_topic(request.path_params["topic"])
    kind = media_type(request)
    if kind in JSON:
        body = await read_body(request, service.settings.batch_limit)
        lines = _each(decode(_array, body))
    elif kind in NDJSON:
        lines = _lines(request, service.settings.body_limit)
    else:
        said = request.headers.get("content-type") or "none"
        raise Problem(
            "unsupported",
            f"send application/x-ndjson or application/json, not {said}",
            headers={"Accept": ", ".join((*NDJSON, *JSON))},
        )
    # The first slice is stored before the answer begins: a server that is away is a 503 and no half answer.
    answers = _outcomes(service, request, topic, lines)
    first = await anext(answers, b"")

    async def stream() -> AsyncIterator[bytes]:
        yield first
        async for part in answers:
            yield part

    return Lines(stream(), 202)


async def _each(items: list[msgspec.Raw]) -> AsyncIterator[tuple[int, bytes | Problem]]:
    for number, item in enumerate(items, 1):
        yield number, bytes(item)


async def _lines(request: Request, limit: int) -> AsyncIterator[tuple[int, bytes | Problem]]:
    """
    Lines of a body as they come in, and their numbers; one that is too long is dropped, and told.
    """
    left, skipping, number = b"", False, 0
    async for part in request.stream():
        *whole, left = (left + part).split(b"\n")
        for line in whole:
            number += 1
            if skipping:
                skipping = False
            elif len(line) > limit:
                yield number, too_large(limit)
            elif line.strip():
                yield number, line
        if skipping:
            left = b""
        elif len(left) > limit:
            yield number + 1, too_large(limit)
            left, skipping = b"", True
    if left.strip() and not skipping:
        yield number + 1, left


async def _outcomes(
    service: Service, request: Request, topic: str, lines: AsyncIterator[tuple[int, bytes | Problem]]
) -> AsyncIterator[bytes]:
    held: list[tuple[int, NewJob[Any] | Problem]] = []
    async for number, line in lines:
        held.append((number, _job(request, topic, line)))
        if len(held) >= SLICE:
            yield await _store(service, held)
            held = []
    if held:
        yield await _store(service, held)


def _job(request: Request, topic: str, line: bytes | Problem) -> NewJob[Any] | Problem:
    if isinstance(line, Problem):
        return line
    try:
        wanted = decode(_line, line)
        may_reply_to(request, wanted.reply_to)
        return new_job_of(topic, wanted)
    except Problem as problem:
        return problem
    except DulyError as error:
        return problem_of(error)


async def _store(service: Service, held: list[tuple[int, NewJob[Any] | Problem]]) -> bytes:
    good = [job for _, job in held if not isinstance(job, Problem)]
    answers = iter(await service.app.enqueue_many(good)) if good else iter(())
    lines = []
    for number, job in held:
        said = job if isinstance(job, Problem) else next(answers)
        lines.append(msgspec.json.encode(_said(number, job, said)))
    return b"\n".join(lines) + b"\n"


def _said(line: int, job: NewJob[Any] | Problem, answer: JobHandle[Any] | DulyError | Problem) -> BatchLine:
    if isinstance(answer, DulyError):
        answer = problem_of(answer)
    if isinstance(answer, Problem):
        return BatchLine(
            line, "refused", None if isinstance(job, Problem) else job.id, problem=answer.document()
        )
    placed = answer.placed
    assert placed is not None  # noqa: S101  # it was just sent
    due_at = say_time(answer.due_at) if answer.due_at else None
    return BatchLine(line, placed.word, answer.id, placed.revision, placed.state.name, due_at)  # type: ignore[arg-type]  # an enqueue has no other words


OPERATIONS = [
    Operation(
        name="createJobs",
        method="POST",
        path="/v1/topics/{topic}/jobs:batch",
        about="Promise any number of jobs: a JSON array, or a line for each. Each has an outcome of its own, "
        "a line in the answer, in their order; a wrong one does not keep the others from being stored.",
        run=create_many,
        scope="enqueue",
        parameters=(TOPIC,),
        body=list[JobBody],
        body_media=("application/json", "application/x-ndjson"),
        answers={202: Answer("a line for each job", BatchLine, media="application/x-ndjson")},
        problems=("too-large", "unsupported", "invalid"),
    ),
]
