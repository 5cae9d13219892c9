"""
The verbs of producers over HTTP: what `Store` does for them, one request for each.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from duly.bulk import in_bulk, unless_all_failed
from duly.errors import DulyError, OutcomeUnknown, ServerUnsuitable, Unsupported
from duly.ids import new_id
from duly.job import JobKey, JobState, Order, Placed
from duly.remote.answers import (
    AcceptedAnswer,
    BatchLine,
    JobAnswer,
    OutcomeAnswer,
    OutcomesAnswer,
    PurgedAnswer,
    accepted_of,
    error_of,
    ms_of,
    placed_of,
)
from duly.remote.orders import body_of, span, time_text
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from duly.job import Accepted
    from duly.remote.link import RemoteLink, Reply

T = TypeVar("T")

PURGES_FOR_S = 5.0  #: longer than the service takes for one call to purge
ACCEPTED = 202  #: how the service answers where the job may wait in a table of far-future jobs
CHANGED_SINCE = 204  #: how it answers that it cancelled a job that others have changed since
STEP = 100  #: requests for single jobs that are made at once
AT_ONCE = 1000  #: jobs that one request cancels or requeues, at most

job_answers = msgspec.json.Decoder(JobAnswer)
_accepted_answers = msgspec.json.Decoder(AcceptedAnswer)
_outcomes = msgspec.json.Decoder(OutcomesAnswer)
_purged = msgspec.json.Decoder(PurgedAnswer)
_batch_lines = msgspec.json.Decoder(BatchLine)


def needs_server(place: str) -> Unsupported:
    """
    The refusal of what the service does not offer.
    """
    return Unsupported(
        f"{place} is a queue's HTTP service, which has no such call: workers, API keys, `duly top` and "
        "pipelines need the queue's own server, a redis:// URL; a worker may also use the service's own calls"
    )


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

    if not TYPE_CHECKING:  # to a type checker every attribute would be there

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(Store, name):
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg, name=name, obj=self)
            raise needs_server(self.link.place)

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(self, order: Order) -> Placed:
        """
        Accept one job.

        Raises:
            JobExists: Its id is taken and ``on_conflict`` is "raise".
            QueueFull: Its topic is at the backlog limit.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        reply = await self.link.call(
            "POST", f"/v1/topics/{order.key.topic}/jobs", body=body_of(order), headers=_once([order])
        )
        if reply.problem is not None:
            raise error_of(reply.problem, self.link.place)
        outcome = reply.headers.get("duly-outcome", "created")
        # Under a key the first answer comes again.
        word = _word(outcome, reply) if order.on_conflict == "keep" else outcome
        return placed_of(self.link.decode(job_answers, reply), word)

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
            headers=_once(orders),
        )
        if reply.problem is not None:
            raise error_of(reply.problem, self.link.place)
        try:
            lines = _batch_lines.decode_lines(reply.body)
        except msgspec.DecodeError as error:
            raise ServerUnsuitable(f"{self.link.place} answers a batch in other words: {error}") from error
        if lines and lines[-1].outcome == "stopped":
            # Those before it are answered for; what became of the others is what it says.
            last = lines.pop()
            lines += [last] * (len(orders) - len(lines))
        if len(lines) != len(orders):
            raise OutcomeUnknown(
                f"{self.link.place} answered for {len(lines)} of {len(orders)} jobs; calling again is safe"
            )
        return [self._told(order, line, reply) for order, line in zip(orders, lines, strict=True)]

    def _told(self, order: Order, line: BatchLine, reply: Reply) -> Placed | DulyError:
        if line.outcome == "unknown" or (line.outcome == "stopped" and line.problem is None):
            detail = "its answer was lost" if line.problem is None else line.problem.detail
            return OutcomeUnknown(f"{order.key}: {detail}")
        if line.problem is not None:
            return error_of(line.problem, self.link.place)
        word: Any = _word(line.outcome, reply)
        return Placed(order.key, word, line.revision, ms_of(line.due_at), JobState[line.state])

    # -- what people ask for ------------------------------------------------------------------------------

    async def cancel(
        self, keys: Sequence[JobKey], *, reason: str = "cancelled", revision: int | None = None
    ) -> list[JobState | Accepted | None]:
        """
        End jobs that have not ended; the answer is the state each is in now, None where there is no job.

        Of the *reason* the service is not told: it has one of its own.
        With a *revision* only that one is ended.
        """
        del reason
        if revision is not None:
            return await _each(keys, partial(self._cancel, revision=revision))
        states: list[JobState | Accepted | None] = []
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            told = await self._at_once(some, "cancel") if len(some) > 1 else None
            states += await _each(some, self._cancel) if told is None else map(self._cancelled, told)
        return states

    async def _cancel(self, key: JobKey, revision: int | None = None) -> JobState | Accepted | None:
        reply = await self.link.call("DELETE", path_of(key), headers=change_headers(revision), aged=True)
        problem = reply.problem
        if reply.status == CHANGED_SINCE:
            return JobState.cancelled
        if reply.status == ACCEPTED:
            return "accepted"
        if problem is None:
            return JobState[self.link.decode(job_answers, reply).state]
        if problem.kind == "job-not-found":
            return None
        if problem.kind == "conflict" and problem.state in JobState.__members__:
            return JobState[problem.state or ""]
        self._check_replayed(reply, "cancelled")
        raise error_of(problem, self.link.place)

    @staticmethod
    def _check_replayed(reply: Reply, word: str) -> None:
        """
        Tell a change of our own, whose answer was lost, from one of somebody else's.

        Raises:
            OutcomeUnknown: It may be either.
        """
        if reply.problem is not None and reply.problem.kind == "outdated" and reply.replayed:
            raise OutcomeUnknown(
                f"{reply.problem.detail}: an answer was lost, so this call may have {word} it"
            )

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
            headers=change_headers(revision),
            aged=True,
        )
        if reply.problem is not None:
            self._check_replayed(reply, "rescheduled")
            raise error_of(reply.problem, self.link.place)
        if reply.status == ACCEPTED:
            return accepted_of(key, self.link.decode(_accepted_answers, reply))
        return placed_of(self.link.decode(job_answers, reply), "rescheduled")

    async def requeue(
        self, keys: Sequence[JobKey], *, revision: int | None = None
    ) -> list[Placed | DulyError]:
        """
        Run ended jobs again; one outcome for each, `Conflict` where it has not ended.

        With a *revision* only that one is run again.
        """
        if revision is not None:
            return await _each(keys, partial(self._requeue, revision=revision))
        outcomes: list[Placed | DulyError] = []
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            try:
                told = await self._at_once(some, "requeue") if len(some) > 1 else None
            except OutcomeUnknown as error:
                outcomes += [_unknown(error, key) for key in some]
                continue
            if told is None:
                outcomes += await _each(some, self._requeue)
            else:
                outcomes += [self._requeued(key, each) for key, each in zip(some, told, strict=True)]
        return outcomes

    async def _requeue(self, key: JobKey, revision: int | None = None) -> Placed | DulyError:
        try:
            reply = await self.link.call(
                "POST", f"{path_of(key)}/requeue", headers=change_headers(revision), aged=True
            )
        except OutcomeUnknown as error:
            return _unknown(error, key)
        if reply.problem is not None:
            return error_of(reply.problem, self.link.place)
        return placed_of(self.link.decode(job_answers, reply), "requeued")

    async def _at_once(
        self, keys: Sequence[JobKey], verb: Literal["cancel", "requeue"]
    ) -> list[OutcomeAnswer] | None:
        """
        Do something to up to a thousand jobs in one request; None where the service has no such call.
        """
        names = [{"topic": key.topic, "id": key.id} for key in keys]
        body = msgspec.json.encode({"jobs": names})
        reply = await self.link.call(
            "POST", f"/v1/jobs:{verb}", body=body, headers=change_headers(), aged=True
        )
        if reply.problem is not None:
            if reply.problem.kind in ("not-found", "method-not-allowed"):
                return None
            raise error_of(reply.problem, self.link.place)
        told = self.link.decode(_outcomes, reply).jobs
        if len(told) != len(names):
            raise OutcomeUnknown(f"{self.link.place} answered for {len(told)} of {len(names)} jobs")
        return told

    def _cancelled(self, told: OutcomeAnswer) -> JobState | Accepted | None:
        if told.outcome == "accepted":
            return "accepted"
        if told.problem is not None:
            if told.problem.kind == "job-not-found":
                return None
            raise error_of(told.problem, self.link.place)
        return JobState[told.state or "cancelled"]

    def _requeued(self, key: JobKey, told: OutcomeAnswer) -> Placed | DulyError:
        if told.problem is not None:
            return error_of(told.problem, self.link.place)
        return Placed(
            key, "requeued", told.revision or 0, ms_of(told.due_at), JobState[told.state or "ready"]
        )

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

    async def set_callback(self, topic: str, url: str | None) -> None:
        """
        Have jobs of *topic* delivered to *url*, those that wait as well; None lets workers run them again.
        """
        if url is None:
            await self._steer("DELETE", topic, "callback")
        else:
            await self._steer("PUT", topic, "callback", msgspec.json.encode({"url": url}))

    async def purge(self, topic: str, state: JobState, cursor: str | None) -> tuple[int, str | None]:
        """
        Cancel some jobs of *topic* that wait in one state; how many, and where to go on.

        A call whose answer was lost is sent again: it is answered as it was, or goes on where it was cut off.
        """
        where = {"state": state.name, "cursor": cursor}
        body = msgspec.json.encode(where)
        reply = await self.link.call(
            "POST",
            f"/v1/topics/{topic}/purge",
            body=body,
            headers=change_headers(),
            wait_s=PURGES_FOR_S,
            aged=True,
        )
        if reply.problem is not None:
            raise error_of(reply.problem, self.link.place, where)
        answer = self.link.decode(_purged, reply)
        return answer.purged, answer.cursor

    async def _steer(self, method: str, topic: str, verb: str, body: bytes | None = None) -> None:
        reply = await self.link.call(
            method, f"/v1/topics/{topic}/{verb}", body=body, headers=change_headers(), aged=True
        )
        if reply.problem is None:
            return
        if reply.problem.kind in ("not-found", "method-not-allowed"):
            command = "set" if verb in ("limit", "callback") else verb
            raise Unsupported(
                f"the service at {self.link.place} cannot {verb} topics: use `duly topics {command}`, or an "
                "app with a redis:// URL, where the queue's own server can be reached"
            )
        raise error_of(reply.problem, self.link.place)


def _unknown(error: OutcomeUnknown, key: JobKey) -> OutcomeUnknown:
    return OutcomeUnknown(f"{error}; look at {key} before you requeue it again")


def _word(outcome: str, reply: Reply) -> str:
    # Where a reply was lost, what is there now is most likely ours.
    return "created" if outcome == "kept" and reply.replayed else outcome


def _once(orders: Sequence[Order]) -> dict[str, str] | None:
    """
    What tells a call that is sent again from another one, where the ids of its jobs do not.

    One that keeps what is there needs nothing: sent again, it finds its job.
    """
    if all(order.on_conflict == "keep" for order in orders):
        return None
    return {"Idempotency-Key": new_id()}


def change_headers(revision: int | None = None) -> dict[str, str]:
    """
    What a change of what is there says: the revision that must stand, and what tells it from another one.
    """
    told = {"Idempotency-Key": new_id()}
    return told if revision is None else {**told, "If-Match": f'"{revision}"'}


async def _each(keys: Sequence[JobKey], one: Callable[[JobKey], Awaitable[T]]) -> list[T]:
    answers: list[T] = []
    for at in range(0, len(keys), STEP):
        answers += await asyncio.gather(*(one(key) for key in keys[at : at + STEP]))
    return answers
