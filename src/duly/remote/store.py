"""
The verbs of producers over HTTP: what `Store` does for them, one request for each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from duly.bulk import in_bulk, unless_all_failed
from duly.errors import DulyError, OutcomeUnknown, ServerUnsuitable, UsageError
from duly.job import JobKey, JobState, Order, Placed
from duly.remote.answers import (
    AcceptedAnswer,
    BatchLine,
    JobAnswer,
    accepted_of,
    error_of,
    ms_of,
    placed_of,
)
from duly.remote.orders import body_of, span, time_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from duly.job import Accepted
    from duly.remote.answers import Problem
    from duly.remote.link import RemoteLink, Reply

T = TypeVar("T")

ACCEPTED = 202  #: how the service answers where the job may wait in a table of far-future jobs
STEP = 100  #: requests for single jobs that are made at once

job_answers = msgspec.json.Decoder(JobAnswer)
_accepted_answers = msgspec.json.Decoder(AcceptedAnswer)
_batch_lines = msgspec.json.Decoder(BatchLine)


def path_of(key: JobKey) -> str:
    """
    Where a job is.
    """
    return f"/v1/topics/{key.topic}/jobs/{key.id}"


class RemoteStore:
    """
    What producers ask of a store.

    A method made its transition or raised, and what was sent twice has the same id both times.
    """

    def __init__(self, link: RemoteLink) -> None:
        self.link = link

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(self, order: Order) -> Placed:
        """
        Accept one job.

        Raises:
            JobExists: Its id is taken and ``on_conflict`` is "raise".
            QueueFull: Its topic is at the backlog limit.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        reply = await self.link.call("POST", f"/v1/topics/{order.key.topic}/jobs", body=body_of(order))
        if reply.problem is not None:
            raise self._refusal(order, reply.problem, replayed=reply.replayed)
        outcome = reply.headers.get("duly-outcome", "created")
        return placed_of(self.link.decode(job_answers, reply), _word(outcome, reply))

    async def enqueue_many(self, orders: Iterable[Order]) -> list[Placed | DulyError]:
        """
        Accept any number of jobs; the answer holds one outcome for each, in their order.

        Raises:
            StoreUnavailable, OutcomeUnknown, ServerUnsuitable: What became of every single one.
        """
        return unless_all_failed(await in_bulk(self._send, 1, ((0, order, b"") for order in orders)))

    async def _send(self, _: int, batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        """
        Send one slice: a request for each of its topics, which the path names.
        """
        topics: dict[str, list[int]] = {}
        for position, (order, _request) in enumerate(batch):
            topics.setdefault(order.key.topic, []).append(position)
        answers: list[Any] = [None] * len(batch)

        async def one(topic: str, positions: list[int]) -> None:
            orders = [batch[position][0] for position in positions]
            try:
                told = await self._send_topic(topic, orders)
            except DulyError as error:
                # Other topics may have been accepted: the jobs of this one are told, the others keep theirs.
                told = [error] * len(orders)
            for position, answer in zip(positions, told, strict=True):
                answers[position] = answer

        await asyncio.gather(*(one(topic, positions) for topic, positions in topics.items()))
        return answers

    async def _send_topic(self, topic: str, orders: list[Order]) -> list[Placed | DulyError]:
        reply = await self.link.call(
            "POST",
            f"/v1/topics/{topic}/jobs:batch",
            body=b"\n".join(map(body_of, orders)),
            media="application/x-ndjson",
        )
        if reply.problem is not None:
            raise error_of(reply.problem, self.link.place)
        try:
            lines = _batch_lines.decode_lines(reply.body)
        except msgspec.DecodeError as error:
            raise ServerUnsuitable(f"{self.link.place} answers a batch in other words: {error}") from error
        if len(lines) != len(orders):
            raise OutcomeUnknown(
                f"{self.link.place} answered for {len(lines)} of {len(orders)} jobs; calling again is safe"
            )
        return [self._told(order, line, reply) for order, line in zip(orders, lines, strict=True)]

    def _told(self, order: Order, line: BatchLine, reply: Reply) -> Placed | DulyError:
        if line.problem is not None:
            return self._refusal(order, line.problem, replayed=reply.replayed)
        word: Any = _word(line.outcome, reply)
        return Placed(order.key, word, line.revision, ms_of(line.due_at), JobState[line.state])

    def _refusal(self, order: Order, problem: Problem, *, replayed: bool) -> DulyError:
        if problem.kind == "exists" and replayed:
            return OutcomeUnknown(
                f"{order.key} exists: an answer was lost, so by this call or by another one; look at the job"
            )
        return error_of(problem, self.link.place)

    # -- what people ask for ------------------------------------------------------------------------------

    async def cancel(
        self, keys: Sequence[JobKey], *, reason: str = "cancelled"
    ) -> list[JobState | Accepted | None]:
        """
        End jobs that have not ended; the answer is the state each is in now, None where there is no job.

        Of the *reason* the service is not told: it has one of its own.
        """
        del reason

        async def one(key: JobKey) -> JobState | Accepted | None:
            reply = await self.link.call("DELETE", path_of(key))
            problem = reply.problem
            if reply.status == ACCEPTED:
                return "accepted"
            if problem is None:
                return JobState[self.link.decode(job_answers, reply).state]
            if problem.kind == "job-not-found":
                return None
            if problem.kind == "conflict" and problem.state in JobState.__members__:
                return JobState[problem.state or ""]
            raise error_of(problem, self.link.place)

        return await _each(keys, one)

    async def reschedule(
        self,
        key: JobKey,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        revision: int | None = None,
    ) -> Placed:
        """
        Give a job that has not started another due time.

        Raises:
            JobNotFound: There is no such job.
            Conflict: It runs or has ended, or *revision* does not stand any more.
        """
        when = {"delay": span(delay_ms or 0)} if due_ms is None else {"due_at": time_text(due_ms)}
        reply = await self.link.call(
            "PATCH",
            path_of(key),
            body=msgspec.json.encode(when),
            headers=None if revision is None else {"If-Match": f'"{revision}"'},
        )
        if reply.problem is not None:
            if reply.problem.kind == "outdated" and reply.replayed:
                raise OutcomeUnknown(
                    f"{reply.problem.detail}: an answer was lost, so this call may have rescheduled it"
                )
            raise error_of(reply.problem, self.link.place)
        if reply.status == ACCEPTED:
            return accepted_of(key, self.link.decode(_accepted_answers, reply))
        return placed_of(self.link.decode(job_answers, reply), "rescheduled")

    async def requeue(self, keys: Sequence[JobKey]) -> list[Placed | DulyError]:
        """
        Run ended jobs again; one outcome for each, `Conflict` where it has not ended.
        """

        async def one(key: JobKey) -> Placed | DulyError:
            try:
                # Not sent again once it may have run: the job may have ended by then, and would run again.
                reply = await self.link.call("POST", f"{path_of(key)}/requeue", replay=False)
            except OutcomeUnknown as error:
                return OutcomeUnknown(f"{error}; look at {key} before you requeue it again")
            if reply.problem is not None:
                return error_of(reply.problem, self.link.place)
            return placed_of(self.link.decode(job_answers, reply), "requeued")

        return await _each(keys, one)

    # -- topics -------------------------------------------------------------------------------------------

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* be claimed.
        """
        await self._steer("POST", topic, "pause")

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* be claimed again.
        """
        await self._steer("POST", topic, "resume")

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait; None lifts the limit.
        """
        await self._steer("PUT", topic, "limit", msgspec.json.encode({"limit": backlog}))

    async def _steer(self, method: str, topic: str, verb: str, body: bytes | None = None) -> None:
        reply = await self.link.call(method, f"/v1/topics/{topic}/{verb}", body=body)
        if reply.problem is None:
            return
        if reply.problem.kind in ("not-found", "method-not-allowed"):
            command = "set" if verb == "limit" else verb
            raise UsageError(
                f"the service at {self.link.place} cannot {verb} topics: use `duly topics {command}`, or an "
                "app with a redis:// URL, where the queue's own server can be reached"
            )
        raise error_of(reply.problem, self.link.place)


def _word(outcome: str, reply: Reply) -> str:
    # Where a reply was lost, what is there now is most likely ours.
    return "created" if outcome == "kept" and reply.replayed else outcome


async def _each(keys: Sequence[JobKey], one: Callable[[JobKey], Awaitable[T]]) -> list[T]:
    answers: list[T] = []
    for at in range(0, len(keys), STEP):
        answers += await asyncio.gather(*(one(key) for key in keys[at : at + STEP]))
    return answers
