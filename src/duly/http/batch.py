"""
Batches: any number of jobs in one request, read, stored and answered as they come.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from starlette.requests import ClientDisconnect

from duly.durations import say_ms
from duly.errors import DulyError, OutcomeUnknown
from duly.group import MAX_JOBS
from duly.http.answers import Lines
from duly.http.bodies import JSON, NDJSON, check_encoding, decode, media_type, read_body, too_large
from duly.http.conditions import check_list
from duly.http.documents import JobBody, JobRequest, new_job_of
from duly.http.idempotency import PARAMETER
from duly.http.keyedbatch import KeyedBatch
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.problems import Problem, fault_of, problem_of
from duly.http.refusals import ENDING_S, LATE, LINGERS, READ, REST, UNREAD_LIMIT
from duly.http.replies import may_reply_to
from duly.job import Job, JobKey, check_topic
from duly.newjob import NewJob

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from starlette.requests import Request

    from duly.handle import JobHandle
    from duly.http.service import Service
    from duly.http.spool import Spool

SLICE = 4 * MAX_JOBS  #: jobs that are held at once
TURN = 100  #: lines that are read or answered before others have their turn: a millisecond or two
LATE_S = 0.05  #: how long a line may wait for others to be stored with

LOST = (
    "the answer of the queue's server was lost, so it may have been stored or not; "
    "sending the same line again with its id or under the same Idempotency-Key is safe"
)

_line = msgspec.json.Decoder(JobRequest)
_array = msgspec.json.Decoder(list[msgspec.Raw])


class BatchLine(msgspec.Struct, omit_defaults=True):
    """
    What became of one job of a batch; one that is stopped is the last, and nothing from it on was stored.

    One that is unknown may have been stored or not: sending it again with its id or under the same
    Idempotency-Key is safe.
    """

    line: int
    outcome: Literal["created", "kept", "replaced", "refused", "unknown", "stopped"]
    id: str | None = None
    revision: int | None = None
    state: str | None = None
    due_at: str | None = None
    problem: dict[str, Any] | None = None
    stored: int | None = None  #: where it stopped: the lines that were stored
    unknown: int | None = None  #: and those that may have been


async def create_many(service: Service, request: Request) -> Lines:
    """
    Promise jobs, one outcome for each, in their order.
    """
    topic = check_topic(request.path_params["topic"])
    check_list(request)
    check_encoding(request)
    kind = media_type(request)
    if kind in JSON:
        body = await read_body(request, service.settings.batch_limit)
        items = decode(_array, body)
        answers = _of_array(service, request, topic, items, KeyedBatch.of(service, request))
    elif kind in NDJSON:
        answers = _of_lines(service, request, topic, KeyedBatch.of(service, request))
    else:
        said = request.headers.get("content-type") or "none"
        raise Problem(
            "unsupported",
            f"send application/x-ndjson or application/json, not {said}",
            headers={"Accept": ", ".join((*NDJSON, *JSON))},
        )
    # The first slice is stored before the answer begins: a server that is away is a 503 and no half answer.
    first = await anext(answers, b"")

    async def stream() -> AsyncIterator[bytes]:
        async with aclosing(answers):
            yield first
            async for part in answers:
                yield part

    return Lines(stream(), 202)


class Progress:
    """
    How far a batch has come: which lines are answered, and how many of them were stored or may have been.
    """

    def __init__(self, service: Service, keyed: KeyedBatch | None) -> None:
        self._service, self._keyed = service, keyed
        self._stored = self._unknown = 0
        self._lost: OutcomeUnknown | None = None  #: why of a whole slice nobody knows what became of it
        self.answered = 0  #: the last line that has an answer

    async def store(self, held: list[tuple[int, NewJob[Any] | Problem]], *, last: bool = False) -> bytes:
        """
        Store a slice, the *last* one if no more lines come, and return a line for each of its jobs.

        Raises:
            DulyError: It could not be stored.
        """
        slice_ = await _store(self._service, held, self._keyed, last=last)
        if slice_.lost is not None and not self.answered:
            raise slice_.lost
        self._stored += slice_.stored
        self._unknown += slice_.unknown
        self._lost = slice_.lost
        self.answered = held[-1][0]
        return slice_.answer

    def go_on(self) -> None:
        """
        Return if there is use in storing more, once the answer to a slice was passed on.

        Raises:
            OutcomeUnknown: The queue's server did not answer for a single job of it.
        """
        if self._lost is not None:
            raise self._lost

    async def end(self) -> None:
        """
        Note that no more lines come.
        """
        if self._keyed is not None:
            await self._keyed.end()

    def stop(self, error: Exception) -> bytes:
        """
        Return the last line of a batch that cannot go on: the status of its answer was sent before.

        Raises:
            Exception: *error* itself, where nothing was answered yet, so that it is the whole answer.
        """
        whole = not isinstance(error, Problem) or error.kind == "key-reused"
        if whole and not self.answered:
            raise error
        if not isinstance(error, Problem):
            error = problem_of(error) if isinstance(error, DulyError) else fault_of(error, "a batch")
        line = BatchLine(
            *(self.answered + 1, "stopped"),
            stored=self._stored,
            unknown=self._unknown,
            problem=error.document(),
        )
        return msgspec.json.encode(line) + b"\n"


async def _of_array(
    service: Service, request: Request, topic: str, items: list[msgspec.Raw], keyed: KeyedBatch | None
) -> AsyncGenerator[bytes, None]:
    progress = Progress(service, keyed)
    try:
        for at in range(0, len(items), SLICE):
            some = enumerate(items[at : at + SLICE], at + 1)
            held = [(number, _job(request, topic, bytes(each), keyed)) for number, each in some]
            yield await progress.store(held, last=at + SLICE >= len(items))
            progress.go_on()
        await progress.end()
    except Exception as error:  # noqa: BLE001  # told in the last line, or raised again
        yield progress.stop(error)


async def _of_lines(
    service: Service, request: Request, topic: str, keyed: KeyedBatch | None
) -> AsyncGenerator[bytes, None]:
    """
    Read and store beside the answer, so that a client may send everything before it reads any of it.
    """
    spool = service.spools.open(service.settings.spool_limit)
    intake = asyncio.create_task(Intake(service, request, topic, spool, keyed).run())
    try:
        async for part in spool.parts():
            yield part
        if intake.done() or not service.draining:  # otherwise it reads on, and the answer is whole
            await intake
    finally:
        intake.cancel()
        spool.close()


class Splitter:
    """
    Lines of a body as it comes in, and their numbers; one that is too long is dropped, and told.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left, self._skipping = b"", False
        self.number = 0  #: of the last line that has ended

    def split(self, part: bytes) -> Iterator[tuple[int, bytes | Problem]]:
        """
        The lines that end in the next *part* of the body.
        """
        *whole, left = (self._left + part).split(b"\n")
        for line in whole:
            self.number += 1
            if self._skipping:
                self._skipping = False
            elif len(line) > self._limit:
                yield self.number, too_large(self._limit)
            elif line.strip():
                yield self.number, line
        self._left = b"" if self._skipping else left
        if len(self._left) > self._limit:
            yield self.number + 1, too_large(self._limit)
            self._left, self._skipping = b"", True

    def rest(self) -> Iterator[tuple[int, bytes | Problem]]:
        """
        The last line, if no line break ends it.
        """
        if self._left.strip():
            self.number += 1
            yield self.number, self._left


class Intake:
    """
    A batch by lines: read to its end, stored as it comes, and answered into a spool.
    """

    def __init__(
        self, service: Service, request: Request, topic: str, spool: Spool, keyed: KeyedBatch | None
    ) -> None:
        self._service, self._request, self._topic, self._spool = service, request, topic, spool
        self._keyed = keyed
        self._body = request.stream()
        self._part: asyncio.Task[bytes | None] | None = None  #: the next of the body
        self._late: asyncio.Future[Problem] = asyncio.get_running_loop().create_future()
        if LINGERS in request.scope.get("extensions", {}):
            request.scope["extensions"][LINGERS][LATE] = self._stop_late
        self._lines = Splitter(service.settings.body_limit)
        self._held: list[tuple[int, NewJob[Any] | Problem]] = []
        self._held_s = 0.0  #: since when the first of them waits
        self._progress = Progress(service, keyed)

    async def run(self) -> None:
        """
        Read, store and answer everything; once something cannot be answered, read on and store nothing.

        The last line comes when all was read, or when the service ends, which reads on for a moment.

        Raises:
            DulyError: Not even the first lines could be stored.
        """
        try:
            await self._end()
        finally:
            self._spool.end()
            if self._part is not None:
                self._part.cancel()

    def _stop_late(self, problem: Problem) -> None:
        """
        Let the answer end with *problem*: the rest of the body does not come in time.
        """
        if not self._late.done():
            self._late.set_result(problem)

    async def _end(self) -> None:
        try:
            await self._take()
        except Exception as error:  # noqa: BLE001  # told in the last line, or raised again
            last = self._progress.stop(error)
            await self._read_on()
            self._spool.end(last)
            if self._service.draining:
                # Who sends everything before it reads takes the answer only then; it may not fit between.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._read_on(ending=True), ENDING_S)

    async def _take(self) -> None:
        try:
            while True:
                wait_s = max(self._held_s + LATE_S - time.monotonic(), 0) if self._held else None
                if await self._comes(wait_s):
                    part = await self._next()
                    await self._hold(self._lines.rest() if part is None else self._lines.split(part))
                    if part is None:
                        await self._store(last=True)
                        await self._progress.end()
                        return
                if self._held and time.monotonic() - self._held_s >= LATE_S:
                    await self._store()
                if self._service.draining:
                    await self._store()
                    raise Problem("unavailable", "the service ends; send the other lines again")
                if self._late.done():
                    await self._store()
                    raise self._late.result()
        except ClientDisconnect:
            # These lines have come, whoever is there to read what became of them.
            rest: bytes = self._request.scope.get("extensions", {}).get(LINGERS, {}).get(REST, b"")
            await self._hold(self._lines.split(rest))
            await self._store()

    async def _read_on(self, *, ending: bool = False) -> None:
        """
        Throw away what still comes: until it is late, or the service ends; when it is *ending*, within a
        bound of bytes.
        """
        size = 0
        with suppress(ClientDisconnect):
            while size <= UNREAD_LIMIT if ending else not (self._service.draining or self._late.done()):
                if ending or await self._comes(None):
                    part = await self._next()
                    if part is None:
                        return
                    size += len(part)

    async def _comes(self, wait_s: float | None) -> bool:
        """
        Wait for the next part of the body, not longer than *wait_s*, nor once it is late or the service ends.
        """
        if self._part is None:
            self._part = asyncio.create_task(self._read())
        events = [each for each in (self._part, self._service.ending, self._late) if each is not None]
        await asyncio.wait(events, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        return self._part.done()

    async def _next(self) -> bytes | None:
        """
        The next part of the body, None at its end.

        Raises:
            ClientDisconnect: The client has gone before.
        """
        part, self._part = self._part, None
        return await (part or self._read())

    async def _read(self) -> bytes | None:
        part = await anext(self._body, None)
        if part is None:
            self._request.scope[READ] = True
        return part

    async def _hold(self, lines: Iterator[tuple[int, bytes | Problem]]) -> None:
        for number, line in lines:
            if not self._held:
                self._held_s = time.monotonic()
            self._held.append((number, _job(self._request, self._topic, line, self._keyed)))
            if len(self._held) >= SLICE:
                await self._store()
            elif len(self._held) % TURN == 0:
                await asyncio.sleep(0)

    async def _store(self, *, last: bool = False) -> None:
        """
        Store what is held; *last*, if the body has ended with it.

        Raises:
            Problem: There is no room for the answers, or the key was revoked.
            DulyError: The queue is not there any more.
        """
        if not self._held:
            return
        await self._service.access.confirm(self._request)
        if self._spool.full:
            raise Problem(
                "too-large",
                "too many answers of this batch wait to be read, and no more are kept: read them while you "
                "send, or send fewer lines; from this line on nothing was stored",
            )
        held, self._held = self._held, []
        await self._spool.put(await self._progress.store(held, last=last))
        self._progress.go_on()


def _job(
    request: Request, topic: str, line: bytes | Problem, keyed: KeyedBatch | None
) -> NewJob[Any] | Problem:
    job = _described(request, topic, line)
    return job if keyed is None else keyed.take(line, job)


def _described(request: Request, topic: str, line: bytes | Problem) -> NewJob[Any] | Problem:
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
    except Exception as error:  # noqa: BLE001  # whatever is wrong with a line, the others are stored
        return fault_of(error, "a line of a batch")


class _Slice(NamedTuple):
    """
    What became of some lines.
    """

    answer: bytes  #: a line for each
    stored: int
    unknown: int
    lost: OutcomeUnknown | None  #: if it is not known of any job that was sent


async def _store(
    service: Service, held: list[tuple[int, NewJob[Any] | Problem]], keyed: KeyedBatch | None, *, last: bool
) -> _Slice:
    """
    Store jobs; *last*, if no more of the batch follow.

    Raises:
        DulyError: None of them was stored.
    """
    known = {} if keyed is None else await keyed.known(held, last=last)
    told = [known.get(at, job) for at, (_, job) in enumerate(held)]
    good = [job for job in told if isinstance(job, NewJob)]
    lost: OutcomeUnknown | None = None
    sent: list[JobHandle[Any] | DulyError] = []
    try:
        sent = await service.app.enqueue_many(good) if good else []
    except OutcomeUnknown as error:
        lost, sent = error, [error] * len(good)
    answers = iter(sent)
    outcomes = [next(answers) if isinstance(job, NewJob) else job for job in told]
    if keyed is not None:
        await keyed.stored(outcomes)
    lines, stored, unknown = [], 0, 0
    for (number, job), outcome in zip(held, outcomes, strict=True):
        line = _said(number, job, outcome)
        stored += line.outcome not in ("refused", "unknown")
        unknown += line.outcome == "unknown"
        lines.append(msgspec.json.encode(line))
        if len(lines) % TURN == 0:
            await asyncio.sleep(0)
    return _Slice(b"\n".join(lines) + b"\n", stored, unknown, lost)


def _said(
    line: int, job: NewJob[Any] | Problem, answer: JobHandle[Any] | DulyError | Problem | Job | JobKey
) -> BatchLine:
    if isinstance(answer, JobKey):  # stored by the request before this one, and gone by now
        return BatchLine(line, "kept", answer.id)
    if isinstance(answer, Job):
        due_at = say_ms(answer.due_ms)
        return BatchLine(line, "kept", answer.id, answer.revision, answer.state.name, due_at)
    word: Literal["refused", "unknown"] = "refused"
    if isinstance(answer, OutcomeUnknown):
        word, answer = "unknown", Problem("outcome-unknown", LOST)
    elif isinstance(answer, DulyError):
        answer = problem_of(answer)
    if isinstance(answer, Problem):
        return BatchLine(line, word, None if isinstance(job, Problem) else job.id, problem=answer.document())
    placed = answer.placed
    assert placed is not None  # noqa: S101  # it was just sent
    due_at = say_ms(placed.due_ms)
    return BatchLine(line, placed.word, placed.key.id, placed.revision, placed.state.name, due_at)  # type: ignore[arg-type]  # an enqueue has no other words


OPERATIONS = [
    Operation(
        name="createJobs",
        method="POST",
        path="/v1/topics/{topic}/jobs:batch",
        about="Promise any number of jobs: a JSON array, or a line for each. Each has an outcome of its own, "
        "a line in the answer, in their order; a wrong one does not keep the others from being stored. Lines "
        "are stored as they come; where the last answer is `stopped`, nothing from that line on was stored, "
        "and it says how many were before. A line that is `unknown` may have been stored or not: sending the "
        "same line again with its id or under the same Idempotency-Key is safe.",
        run=create_many,
        scope="enqueue",
        parameters=(TOPIC, PARAMETER),
        body=list[JobBody],
        body_media=("application/json", "application/x-ndjson"),
        answers={202: Answer("a line for each job", BatchLine, media="application/x-ndjson")},
        problems=("too-large", "unsupported", "invalid", "key-reused", "keys-full", "outdated"),
    ),
]
