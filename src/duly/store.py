"""
The queue as a set of atomic transitions: one method per script.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, get_args

from duly.bulk import Bulk
from duly.codec import ASKING
from duly.errors import (
    Conflict,
    DulyError,
    JobExists,
    JobNotFound,
    LeaseLost,
    OutcomeUnknown,
    QueueFull,
    ServerUnsuitable,
    StoreUnavailable,
)
from duly.group import MAX_JOBS, Group, chunks
from duly.ids import new_nonce, new_request
from duly.job import JobKey, JobState, Lease, Order, Placed, shard_of
from duly.keys import ShardKeys
from duly.namespace import create
from duly.records import Terms, lease_of, options_of, worker_id
from duly.scripts import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from duly.connection import Link
    from duly.job import Accepted

log = logging.getLogger("duly.store")

Answer = TypeVar("Answer")
Ending = Literal["ack", "retry", "bury", "release"]
Thawed = Literal["created", "kept", "cancelled", "moved"]
ENDINGS: tuple[Ending, ...] = get_args(Ending)

#: How enqueue.lua is told of a job: a byte for lane, options and what to do where the id is taken; its time.
SPEC = Struct(">BQ")
#: How hydrate.lua is: a byte for state, lane and options; its time, revision, attempts and crashes.
PROMISE = Struct(">BQQHH")
HAS_OPTIONS, FROM_NOW = 32, 64
ON_CONFLICT = {"keep": 0, "replace": 1, "raise": 2}
ASKS_FOR_REPLY = 4
PROMISED_REPLY = 64  #: the same for hydrate.lua and thaw.lua

MAX_COUNT = 0xFFFF  #: of the runs and crashes that a record counts
MAX_MS = 0xFFFFFFFE  #: largest number of milliseconds that a record holds for a duration
DUE_TOPICS = 64  #: topics whose streams a promote names unasked
PER_CALL = 128  #: jobs in one promote, claim or finish: about 2 ms of the server's time
CLAIM_BYTES = 1024 * 1024
FORGET_WORKERS_MS = 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """
    How long and how much of ended jobs is kept.  Bytes are for the namespace, not for each shard.
    """

    done_ms: int = 24 * 3_600_000
    dead_ms: int = 14 * 24 * 3_600_000
    done_bytes: int = 256 * 1024 * 1024
    dead_bytes: int = 256 * 1024 * 1024


class Want(NamedTuple):
    """
    What a worker can take of one topic.
    """

    topic: str
    free: int
    ttr_ms: int


class Look(NamedTuple):
    """
    What a promote or claim saw of its shard.
    """

    now_ms: int
    moved: int
    next_due_ms: int | None
    next_lease_ms: int | None
    rank: int  #: of the asking timer: 0 leads, 1 and 2 stand by, 3 only scans
    peers: int  #: other timers that hold a slot: other processes that work
    unnamed: tuple[str, ...]  #: topics with due jobs whose streams the call did not name
    micros: int = 0  #: beyond now_ms


class Claimed(NamedTuple):
    """
    Leases, and what the claim saw besides.
    """

    leases: list[Lease]
    look: Look


class Recovered(NamedTuple):
    """
    What a recover did.
    """

    now_ms: int
    recovered: int
    buried: int
    next_lease_ms: int | None


class Promise(NamedTuple):
    """
    A job as its row in the record has it.
    """

    order: Order  #: with its due_ms
    revision: int
    request: bytes  #: of the call that made the revision
    attempts: int = 0
    crashes: int = 0
    cancelled: bool = False


class Hydrated(NamedTuple):
    """
    What became of a promise: whose revision stands in the store now.
    """

    key: JobKey
    word: Literal["created", "replaced", "kept"]
    revision: int
    state: JobState


class Finish(NamedTuple):
    """
    How one run ended: the arguments that ack, retry and bury share, then their own.
    """

    lease: Lease
    lateness_ms: int
    own: tuple[Any, ...]


class Store:
    """
    The queue as a set of atomic transitions, one method per script.

    A method made its transition or raised.
    """

    def __init__(
        self,
        link: Link,
        *,
        namespace: str = "duly",
        shards: int = 1,
        keeping: Keeping | None = None,
        lease_ms: int = 15_000,
        grace_ms: int = 5_000,
        max_crashes: int = 3,
        max_events: tuple[int, int] = (1_000_000, 256 * 1024 * 1024),
        now: Callable[[], int] | None = None,
    ) -> None:
        self.link = link
        self.namespace = namespace
        self.shards = shards
        self.keys = [ShardKeys(namespace, shard) for shard in range(shards)]
        self.keeping = keeping or Keeping()
        self.lease_ms = lease_ms
        self.grace_ms = grace_ms
        self.max_crashes = max_crashes
        self.max_events = max_events  #: rows and bytes, per shard
        #: compares the queue with its record, for a server that may have lost a part of its past
        self.agree: Callable[[], Awaitable[None]] | None = None
        self.generation: Callable[[], int | None] = lambda: None  #: the one that was agreed on
        self._now = now
        self._fixed: dict[tuple[str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._due_topics: list[OrderedDict[str, None]] = [OrderedDict() for _ in range(shards)]
        self._enqueues = [self._enqueue_group(shard) for shard in range(shards)]
        self._finishes = {
            (verb, shard): self._finish_group(verb, shard) for verb in ENDINGS for shard in range(shards)
        }

    async def create(self) -> None:
        """
        Make the namespace, or check that it is as this client thinks.

        Raises:
            LayoutMismatch: It is not.
        """
        rows, size = self.max_events
        clock: Literal["server", "test"] = "test" if self._now else "server"
        await create(
            self.link, self.namespace, self.shards, clock=clock, max_event_rows=rows, max_event_bytes=size
        )

    # -- enqueue ------------------------------------------------------------------------------------------

    async def enqueue(self, order: Order) -> Placed:
        """
        Accept one job; calls that are under way together share a script call.

        Raises:
            JobExists: Its id is taken and ``on_conflict`` is "raise".
            QueueFull: Its topic is at the backlog limit.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        answer = await self._enqueues[self._shard(order.key)].ask((order, new_request()))
        if isinstance(answer, DulyError):
            raise answer
        return answer

    async def enqueue_many(self, orders: Iterable[Order]) -> list[Placed | DulyError]:
        """
        Accept any number of jobs; the answer holds one outcome for each, in their order.

        Raises:
            StoreUnavailable, OutcomeUnknown: What became of every single one, so that it is not overlooked.
        """
        bulk = Bulk(self._enqueue, self.shards)
        try:
            for order in orders:
                await bulk.add(self._shard(order.key), order, new_request())
            answers = await bulk.finish()
        except BaseException:
            bulk.cancel()
            raise
        return _unless_all_failed(answers)

    def _enqueue_group(self, shard: int) -> Group[tuple[Order, bytes], Placed | DulyError]:
        async def send(batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
            return await self._enqueue(shard, batch)

        return Group(send, key=_order_key, size=_order_size, halves=True)

    async def _enqueue(self, shard: int, batch: list[tuple[Order, bytes]]) -> list[Placed | DulyError]:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, request in batch:
            key = order.key
            topics[key.topic] = None
            options = options_of(order)
            spec = order.lane << 3 | ON_CONFLICT[order.on_conflict]
            if order.envelope.startswith(ASKING):
                spec |= ASKS_FOR_REPLY
            if options:
                spec |= HAS_OPTIONS
            if order.due_ms is None:
                head = SPEC.pack(spec | FROM_NOW, order.delay_ms or 0)
            else:
                head = SPEC.pack(spec, order.due_ms)
            rest += (key.member, head, b"".join((request, options, order.envelope, order.payload)))
        now_ms, revision, answers = await self._run(
            "enqueue", shard, topics, {"nonce": new_nonce(), "topic_count": len(topics)}, (*topics, *rest)
        )
        placed: list[Placed | DulyError] = []
        for (order, _), answer in zip(batch, answers, strict=True):
            if type(answer) is int:
                state = JobState.ready if answer <= now_ms else JobState.scheduled
                placed.append(Placed(order.key, "created", revision, answer, state))
                revision += 1
            else:
                placed.append(_placed(order.key, answer))
        return placed

    # -- what a record promised ---------------------------------------------------------------------------

    async def hydrate(
        self, promises: Iterable[Promise], *, generation: int | None = None
    ) -> list[Hydrated | DulyError]:
        """
        Take over jobs from their rows; one outcome for each, in their order.

        A job is made where there is none, and replaces one of a lower revision in whatever state: a
        run of that is told to stop.  One of an equal or higher revision is kept.  No limit refuses it.

        With a *generation* only a queue takes them that was found sound, and in that one: rows that were read
        before a loss may have ended since.

        Raises:
            StoreUnavailable, OutcomeUnknown: What became of every single one.  The same call again is safe.
        """
        bulk = Bulk(partial(self._hydrate, generation="" if generation is None else generation), self.shards)
        try:
            for promise in promises:
                await bulk.add(self._shard(promise.order.key), promise.order, promise)
            answers = await bulk.finish()
        except BaseException:
            bulk.cancel()
            raise
        return _unless_all_failed(answers)

    async def _hydrate(
        self, shard: int, batch: list[tuple[Order, Promise]], generation: int | str
    ) -> list[Hydrated | DulyError]:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, promise in batch:
            topics[order.key.topic] = None
            options = options_of(order)
            mark = order.lane << 3 | (JobState.cancelled if promise.cancelled else JobState.scheduled)
            if options:
                mark |= HAS_OPTIONS
            asks = order.envelope.startswith(ASKING)
            if asks:
                mark |= PROMISED_REPLY
            counts = min(promise.attempts, MAX_COUNT), min(promise.crashes, MAX_COUNT)
            head = PROMISE.pack(mark, order.due_ms or 0, promise.revision, *counts)
            # Of one that is cancelled only who wants to be told of it matters.
            body = (
                (order.envelope if asks else b"",) if promise.cancelled else (order.envelope, order.payload)
            )
            rest += (order.key.member, head, b"".join((promise.request, options, *body)))
        fixed = {
            "nonce": new_nonce(),
            "keep_ms": self.keeping.done_ms,
            "generation": generation,
            "topic_count": len(topics),
        }
        words = await self._run("hydrate", shard, topics, fixed, (*topics, *rest))
        return [_hydrated(order.key, word) for (order, _), word in zip(batch, words, strict=True)]

    async def forget(self, past: Iterable[tuple[JobKey, int]]) -> list[bool]:
        """
        Let go of jobs in whatever state, up to a revision each; False where there was none, or a later one.

        For those whose rows say that they are over.  A run of one is told to stop.
        """
        pairs = list(past)
        highest: dict[JobKey, int] = {}
        for key, revision in pairs:
            highest[key] = max(revision, highest.get(key, 0))

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            rest: list[Any] = []
            for key in batch:
                rest += (key.member, highest[key])
            fixed = {"nonce": new_nonce(), "topic_count": len(topics)}
            words: list[bytes] = await self._run("forget", shard, topics, fixed, (*topics, *rest))
            return words

        keys = list(highest)
        said = dict(zip(keys, await self._scatter(keys, send), strict=True))
        return [said[key] == b"forgotten" for key, _ in pairs]

    # -- far-future jobs ----------------------------------------------------------------------------------

    async def thaw(self, orders: Iterable[Order], number: int, *, early: bool = False) -> list[Thawed]:
        """
        Take jobs from their table of far-future jobs in pass *number*; one word for each, in their order.

        A job that is here already, or was taken by an earlier attempt at the same pass, is kept.  What was
        cancelled or rescheduled meanwhile is not taken, or is due then.  With *early*, only the latter.

        Raises:
            Conflict: A later pass has begun.
            StoreUnavailable, OutcomeUnknown: Some may not be taken.  The same call again is safe.
        """

        async def send(shard: int, batch: list[tuple[Order, bytes]]) -> list[Any]:
            words = await self._thaw(shard, batch, number, early=early)
            if words == b"over":
                return [Conflict(f"pass {number} is over: another hydrate has begun a later one")] * len(
                    batch
                )
            return [word.decode() for word in words]

        bulk = Bulk(send, self.shards)
        try:
            for order in orders:
                await bulk.add(self._shard(order.key), order, new_request())
            answers: list[Any] = await bulk.finish()
        except BaseException:
            bulk.cancel()
            raise
        for answer in answers:
            if isinstance(answer, DulyError):
                raise answer
        return answers

    async def _thaw(self, shard: int, batch: list[tuple[Order, bytes]], number: int, *, early: bool) -> Any:
        topics: dict[str, None] = {}
        rest: list[Any] = []
        for order, request in batch:
            topics[order.key.topic] = None
            options = options_of(order)
            asks = PROMISED_REPLY if order.envelope.startswith(ASKING) else 0
            head = SPEC.pack(order.lane << 3 | (HAS_OPTIONS if options else 0) | asks, order.due_ms or 0)
            rest += (order.key.member, head, b"".join((request, options, order.envelope, order.payload)))
        fixed = {
            "nonce": new_nonce(),
            "pass": number,
            "early": "1" if early else "0",
            "topic_count": len(topics),
        }
        return await self._run("thaw", shard, topics, fixed, (*topics, *rest))

    async def settle(self, number: int, forget: Sequence[tuple[JobKey, bytes]] = ()) -> int:
        """
        End pass *number*, which is committed, and forget changes for which no far-future job was found.
        """
        by_shard: dict[int, list[Any]] = {shard: [] for shard in range(self.shards)}
        for key, change in forget:
            by_shard[self._shard(key)] += (key.member, change)
        forgotten = 0
        for shard, changes in by_shard.items():
            # Once at least, for the end of the pass.
            for at in range(0, len(changes) or 1, 2 * MAX_JOBS):
                part = changes[at : at + 2 * MAX_JOBS]
                forgotten += await self._run("settle", shard, (), {"pass": number}, part, now=False)
        return forgotten

    # -- the way to a worker ------------------------------------------------------------------------------

    async def promote(
        self,
        shard: int,
        topics: Iterable[str] = (),
        *,
        timer: str = "",
        role: str = "auto",
        limit: int = PER_CALL,
    ) -> Look:
        """
        Move up to *limit* due jobs to their ready streams, whatever their topics.
        """
        known = self._due_topics[shard]
        self._remember(shard, topics)
        moved = 0
        while True:
            names = tuple(known)
            answer = await self._run(
                "promote",
                shard,
                names,
                {
                    "nonce": new_nonce(),
                    "limit": limit,
                    "keep_ms": self.keeping.done_ms,
                    "name": timer,
                    "role": role,
                },
                names,
            )
            moved += answer[1]
            look = Look(
                answer[0],
                moved,
                _ms(answer[2]),
                _ms(answer[3]),
                answer[4],
                answer[5],
                tuple(name.decode() for name in answer[6]),
                answer[7],
            )
            # Every key of a script is declared: topics it met and could not name are named in the next call.
            if not look.unnamed or moved >= limit:
                return look
            self._remember(shard, look.unnamed)

    async def claim(
        self,
        shard: int,
        wants: Sequence[Want],
        *,
        worker: str,
        number: int,
        limit: int = PER_CALL,
        suspects: int = 1,
        callbacks: bool = False,
        timer: str = "",
        role: str = "auto",
        lease_ms: int | None = None,
    ) -> Claimed:
        """
        Lease ready jobs: at most the free slots of each topic, at most *limit* together.

        At most *suspects* of them have a crash behind them.
        With *callbacks* those that are to be delivered, and no others; without, all others.
        With *lease_ms* the leases have that length, and no grace beyond the time to run.
        The same worker and number again, after a lost reply, brings the same leases.
        """
        length_ms, grace_ms = (self.lease_ms, self.grace_ms) if lease_ms is None else (lease_ms, 0)
        args: list[Any] = []
        for want in wants:
            args += want
        fixed = {
            "nonce": new_nonce(),
            "worker": worker,
            "worker_id": worker_id(worker),
            "number": number,
            "again": "0",
            "lease_ms": length_ms,
            "grace_ms": grace_ms,
            "limit": min(limit, PER_CALL),
            "max_bytes": CLAIM_BYTES,
            "suspects": int(suspects),
            "callbacks": "1" if callbacks else "0",
            "keep_ms": self.keeping.done_ms,
            "name": timer,
            "role": role,
            "generation": self.generation() or "",
        }
        topics = [want.topic for want in wants]
        answer = await self._run("claim", shard, topics, fixed, args, again={"again": "1"})
        now_ms, next_due, next_lease, rank, peers, unnamed, resumed, leased, long, micros = answer
        behind = tuple(name.decode() for name in unnamed)
        look = Look(now_ms, 0, _ms(next_due), _ms(next_lease), rank, peers, behind, micros)
        if not leased:
            return Claimed([], look)
        terms = Terms(shard, now_ms, length_ms, grace_ms)
        about = {
            want.topic.encode(): (want.ttr_ms, int(paused))
            for want, paused in zip(wants, resumed, strict=True)
        }
        apart = dict(zip(long[::2], long[1::2], strict=True))
        leases = []
        for at in range(0, len(leased), 2):
            member = leased[at]
            ttr_ms, resumed_ms = about[member[: member.index(b"/")]]
            body = apart.get(member, b"") if apart else b""
            leases.append(lease_of(member, leased[at + 1], body, ttr_ms, resumed_ms, terms))
        return Claimed(leases, look)

    async def wait(self, topics: Iterable[str], seconds: float) -> bool:
        """
        Wait until work may be ready for one of *topics*, at most *seconds*; True if something said so.
        """
        names = tuple(topics)
        keys = [self.keys[shard].wake(topic) for shard in range(self.shards) for topic in names]
        # The server's own time limit is only a bound: it is coarse, and nothing depends on when it ends.
        reply = await self.link.call("BLPOP", *keys, max(seconds, 0.01), timeout_s=seconds + 5)
        return reply is not None

    # -- while a job runs ---------------------------------------------------------------------------------

    async def extend(self, shard: int, leases: Sequence[Lease], *, lease_ms: int | None = None) -> list[bool]:
        """
        Prolong leases, none past its time to run; False for each that is lost.

        With *lease_ms* they have that length from now, and no grace beyond the time to run.
        """
        length_ms, grace_ms = (self.lease_ms, self.grace_ms) if lease_ms is None else (lease_ms, 0)
        held: list[bool] = []
        for at in range(0, len(leases), PER_CALL):
            args: list[Any] = []
            for lease in leases[at : at + PER_CALL]:
                args += (lease.key.member, lease.fence_bytes, lease.ttr_ms)
            _, words = await self._run(
                "extend", shard, (), {"lease_ms": length_ms, "grace_ms": grace_ms}, args
            )
            held += [word == b"ok" for word in words]
        return held

    async def progress(self, lease: Lease, value: bytes) -> None:
        """
        Note how far a running job has come.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        word = await self._run(
            "progress",
            lease.shard,
            (),
            {"member": lease.key.member, "fence": lease.fence_bytes, "value": value},
            now=False,
        )
        _held(lease, word)

    async def ack(self, lease: Lease, result: bytes = b"", *, lateness_ms: int = 0) -> None:
        """
        Finish the job that *lease* is for.

        Raises:
            LeaseLost: The lease ran out and the job may run elsewhere, or it was cancelled or replaced.
            JobNotFound: The job was pruned meanwhile.
        """
        await self._finish("ack", Finish(lease, lateness_ms, (result,)))

    async def retry(
        self,
        lease: Lease,
        delay_ms: int,
        error: bytes = b"",
        reason: str = "",
        *,
        counted: bool = True,
        lateness_ms: int = 0,
    ) -> None:
        """
        Schedule the job again; an uncounted retry is a snooze.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        own = (delay_ms, "1" if counted else "0", error, reason)
        await self._finish("retry", Finish(lease, lateness_ms, own))

    async def bury(self, lease: Lease, error: bytes = b"", reason: str = "", *, lateness_ms: int = 0) -> None:
        """
        End the job as dead.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        await self._finish("bury", Finish(lease, lateness_ms, (error, reason)))

    async def release(self, lease: Lease) -> None:
        """
        Give the job back, uncounted, ready at once.

        Raises:
            LeaseLost, JobNotFound: See `ack`.
        """
        await self._finish("release", Finish(lease, 0, ()))

    async def _finish(self, verb: Ending, finish: Finish) -> None:
        _held(finish.lease, await self._finishes[verb, finish.lease.shard].add(finish))

    def _finish_group(self, verb: Ending, shard: int) -> Group[Finish, bytes]:
        async def send(batch: list[Finish]) -> list[bytes]:
            return await self.finish(verb, shard, batch)

        return Group(send, key=_finish_key, size=_finish_size, max_jobs=PER_CALL)

    async def finish(self, verb: Ending, shard: int, batch: Sequence[Finish]) -> list[bytes]:
        """
        End the runs of some jobs, all different: for each the word ok, lost or gone.
        """
        topics = dict.fromkeys([finish.lease.key.topic for finish in batch])
        rest: list[Any] = []
        for lease, lateness_ms, own in batch:
            late_ms = min(max(lateness_ms, 0), MAX_MS)
            match verb:
                case "ack":
                    rest += (lease.key.member, lease.fence_bytes, late_ms.to_bytes(4, "big") + own[0])
                case "release":
                    rest += (lease.key.member, lease.fence_bytes)
                case _:
                    rest += (lease.key.member, lease.fence_bytes, late_ms, *own)
        fixed: dict[str, Any] = {"nonce": new_nonce(), "topic_count": len(topics)}
        if verb == "ack":
            fixed["keep_ms"] = self.keeping.done_ms
        elif verb == "bury":
            fixed["keep_ms"] = self.keeping.dead_ms
        words: list[bytes] = await self._run(verb, shard, topics, fixed, (*topics, *rest))
        return words

    async def recover(self, shard: int, topics: Iterable[str] = (), *, counted: bool = True) -> Recovered:
        """
        Take back jobs whose lease ran out without an answer.
        """
        self._remember(shard, topics)
        recovered = buried = 0
        while True:
            names = tuple(self._due_topics[shard])
            fixed = {
                "nonce": new_nonce(),
                "limit": PER_CALL,
                "max_crashes": self.max_crashes,
                "counted": "1" if counted else "0",
                "keep_ms": self.keeping.dead_ms,
            }
            now_ms, back, dead, next_lease, unnamed = await self._run("recover", shard, names, fixed, names)
            recovered += back
            buried += dead
            if not unnamed:
                return Recovered(now_ms, recovered, buried, _ms(next_lease))
            self._remember(shard, [name.decode() for name in unnamed])

    # -- what people ask for ------------------------------------------------------------------------------

    async def cancel(
        self, keys: Sequence[JobKey], *, reason: str = "cancelled"
    ) -> list[JobState | Accepted | None]:
        """
        End jobs that have not ended; the answer is the state each is in now, None where there is no job.

        It is "accepted" where the job may wait in a table of far-future jobs, never to come from there.
        """

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            fixed = {
                "nonce": new_nonce(),
                "keep_ms": self.keeping.done_ms,
                "reason": reason,
                "topic_count": len(topics),
            }
            words: list[bytes] = await self._run(
                "cancel", shard, topics, fixed, (*topics, *(key.member for key in batch))
            )
            return words

        words = await self._scatter(keys, send)
        return [_cancelled(word) for word in words]

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

        The word is "accepted" where the job may wait in a table of far-future jobs.

        Raises:
            JobNotFound: There is no such job.
            Conflict: It runs or has ended, or *revision* does not stand any more.
        """
        when = f"+{delay_ms or 0}" if due_ms is None else due_ms
        words = await self._run(
            "reschedule",
            self._shard(key),
            (key.topic,),
            {"nonce": new_nonce(), "topic_count": 1},
            (key.topic, key.member, new_request(), when, "" if revision is None else revision),
        )
        return _moved(key, words[0], "rescheduled")

    async def requeue(self, keys: Sequence[JobKey]) -> list[Placed | DulyError]:
        """
        Run ended jobs again; one outcome for each, `Conflict` where it has not ended.
        """

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            rest: list[Any] = []
            for key in batch:
                rest += (key.member, new_request())
            fixed = {"nonce": new_nonce(), "topic_count": len(topics)}
            words: list[bytes] = await self._run("requeue", shard, topics, fixed, (*topics, *rest))
            return words

        outcomes: list[Placed | DulyError] = []
        for key, word in zip(keys, await self._scatter(keys, send), strict=True):
            try:
                outcomes.append(_moved(key, word, "requeued"))
            except DulyError as error:
                outcomes.append(error)
        return outcomes

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* be claimed.
        """
        for shard in range(self.shards):
            await self._run("pause", shard, (), {"nonce": new_nonce(), "topic": topic})

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* be claimed again.
        """
        for shard in range(self.shards):
            await self._run("resume", shard, (topic,), {"nonce": new_nonce(), "topic": topic})

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait; None lifts the limit.
        """
        for keys in self.keys:
            if backlog is None:
                await self.link.call("HDEL", keys.fixed["topics"], f"{topic}:limit")
            else:
                share = max(1, -(-backlog // self.shards))
                await self.link.call("HSET", keys.fixed["topics"], f"{topic}:limit", share)

    async def set_callback(self, topic: str, url: str | None) -> None:
        """
        Have jobs of *topic* delivered to *url*, those that wait as well; None lets workers run them again.
        """
        for keys in self.keys:
            if url is None:
                await self.link.call("HDEL", keys.fixed["topics"], f"{topic}:callback")
            else:
                await self.link.call("HSET", keys.fixed["topics"], f"{topic}:callback", url)
                await self.link.call("LPUSH", keys.fixed["callbacks"], topic)

    async def prune(self, shard: int, *, limit: int = PER_CALL) -> tuple[int, bool]:
        """
        Forget ended jobs past their time or beyond the bytes; how many, and whether there is more.
        """
        pruned, more = await self._run(
            "prune",
            shard,
            (),
            {
                "nonce": new_nonce(),
                "limit": limit,
                "max_done_bytes": self.keeping.done_bytes // self.shards,
                "max_dead_bytes": self.keeping.dead_bytes // self.shards,
            },
        )
        return pruned, more == b"1"

    async def reply_take(
        self, shard: int, name: str, limit: int, *, lease_ms: int
    ) -> tuple[int, list[tuple[int, bytes, bytes, bytes]]]:
        """
        Lease replies of the queue *name*, oldest first.

        The answer is how many were dropped unread, and of each its number, member, head and outcome.
        """
        fixed = {"name": name, "limit": limit, "max_bytes": CLAIM_BYTES, "lease_ms": lease_ms}
        dropped, taken = await self._run("reply_take", shard, (), fixed)
        return dropped, list(zip(*(taken[at::4] for at in range(4)), strict=True))

    async def reply_ack(self, shard: int, name: str, numbers: Sequence[int]) -> int:
        """
        Forget replies of the queue *name*; how many of them were still there.
        """
        gone: int = await self._run("reply_ack", shard, (), {"name": name}, numbers, now=False)
        return gone

    async def beat(self, worker: str, about: bytes) -> None:
        """
        Say that a worker lives, or with nothing to say about it, that it has gone.
        """
        # Every shard holds the last claim of a worker; only the first tells of the worker itself.
        for shard in range(self.shards):
            await self._run(
                "beat", shard, (), {"worker": worker, "about": about, "forget_ms": FORGET_WORKERS_MS}
            )

    async def audit(self, shard: int, members: Sequence[str]) -> tuple[int, list[tuple[int, int]]]:
        """
        Put some jobs back to where their records say they are.

        The answer is how much was mended, and state and weight of each job, state -1 where there is none.
        """
        topics = dict.fromkeys(JobKey.of(member).topic for member in members)
        fixed = {"nonce": new_nonce(), "keep_ms": self.keeping.done_ms, "member_count": len(members)}
        mended, _, words = await self._run("audit", shard, topics, fixed, (*members, *topics))
        return mended, [(int(state), int(weight)) for state, weight in (word.split() for word in words)]

    async def approve(self, record_id: str, generation: int, server_id: str) -> None:
        """
        Let jobs be claimed: the queue, on this server, agrees with its record.
        """
        for shard in range(self.shards):
            fixed = {"record_id": record_id, "generation": generation, "server_id": server_id}
            await self._run("approve", shard, (), fixed)

    def needs_record(self) -> str:
        """
        What to say to who would move jobs behind the back of the record.
        """
        return (
            f"namespace {self.namespace!r} at {self.link.place} has a record: its jobs are sent, moved and "
            "run only together with it. Say record=URL, set DULY_RECORD, or write it into duly.toml"
        )

    async def pace(self, run: str, jobs: int, rate: float) -> float:
        """
        How many seconds to wait before *jobs* of a run leave, so that all its processes together keep to
        *rate* jobs a second.
        """
        takes_us = max(1, round(jobs * 1_000_000 / rate))
        wait_us = await self._run("pace", 0, (), {"run": run, "takes_us": takes_us}, now=False)
        return int(wait_us) / 1_000_000

    # -- the call itself ----------------------------------------------------------------------------------

    async def _run(  # the shape of every script call
        self,
        name: str,
        shard: int,
        topics: Iterable[str],
        fixed: dict[str, Any],
        rest: Sequence[Any] = (),
        *,
        again: dict[str, Any] | None = None,
        now: bool = True,
    ) -> Any:
        """
        Run a script: keys and arguments in the order that its header declares.
        """
        plan = self._fixed.get((name, shard))
        if plan is None:
            script = load(name)
            known = self.keys[shard].fixed
            plan = self._fixed[name, shard] = (
                tuple(known[key] for key in script.keys if not key.endswith("...")),
                tuple(arg for arg in script.args if not arg.endswith("...")),
            )
        keys = list(plan[0])
        lanes = self.keys[shard].lanes
        for topic in topics:
            keys += lanes(topic)
        if now:
            fixed["now_ms"] = self._now() if self._now else ""
        args = [*(fixed[arg] for arg in plan[1]), *rest]
        replay = [*((fixed | again)[arg] for arg in plan[1]), *rest] if again else None
        try:
            return await self.link.run(name, keys, args, again=replay)
        except (StoreUnavailable, OutcomeUnknown) as error:
            await self._mend(error, name)
            if name == "claim":
                at = plan[1].index("generation")
                args[at] = self.generation() or ""
                if replay:
                    replay[at] = args[at]
            return await self.link.run(name, keys, replay or args, again=replay)

    async def _mend(self, error: StoreUnavailable | OutcomeUnknown, name: str) -> None:
        """
        Do what the server asks for before it takes a call.

        Raises:
            StoreUnavailable, OutcomeUnknown: It asked for nothing that can be done here.
            ServerUnsuitable: It asked for the record, and there is none here.
        """
        if "NONAMESPACE" in str(error):
            # No traceback: it is the server that failed.
            lost = "its jobs are lost" if self.agree is None else "its jobs come back from the record"
            log.critical("%s; making namespace %r anew, %s", error, self.namespace, lost)
            await self.create()
        elif not unsound(error) or name == "hydrate":
            # Rows that are brought are locked; after a comparison they are to be read again.
            raise error
        elif self.agree is None:
            raise ServerUnsuitable(self.needs_record()) from error
        else:
            await self.agree()

    def now_ms(self, server_ms: int) -> int:
        """
        The time that counts here: the server's, or that of a test clock.
        """
        return self._now() if self._now else server_ms

    def _shard(self, key: JobKey) -> int:
        return shard_of(key.topic, key.id, self.shards)

    def _remember(self, shard: int, topics: Iterable[str]) -> None:
        known = self._due_topics[shard]
        for topic in topics:
            known[topic] = None
            known.move_to_end(topic)
        while len(known) > DUE_TOPICS:
            known.popitem(last=False)

    async def _scatter(self, keys: Sequence[JobKey], send: Callable[[int, list[JobKey]], Any]) -> list[bytes]:
        """
        Send each key to its shard in batches, and put the words back into the order of the keys.
        """
        by_shard: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            by_shard.setdefault(self._shard(key), []).append(position)
        words: list[bytes] = [b""] * len(keys)
        for shard, positions in by_shard.items():
            at = 0
            for batch in chunks([keys[position] for position in positions], key=hash, size=len):
                for word in await send(shard, batch):
                    words[positions[at]] = word
                    at += 1
        return words


def _unless_all_failed(answers: list[Answer | DulyError]) -> list[Answer | DulyError]:
    failed = [each for each in answers if isinstance(each, StoreUnavailable | OutcomeUnknown)]
    if failed and len(failed) == len(answers):
        raise failed[0]
    return answers


def _order_key(item: tuple[Order, bytes]) -> JobKey:
    return item[0].key


def _order_size(item: tuple[Order, bytes]) -> int:
    return len(item[0].payload) + len(item[0].envelope)


def _finish_key(finish: Finish) -> JobKey:
    return finish.lease.key


def _finish_size(finish: Finish) -> int:
    return sum(len(part) for part in finish.own if isinstance(part, bytes))


def _ms(text: bytes) -> int | None:
    return int(float(text)) if text else None


def _held(lease: Lease, word: bytes) -> None:
    match word:
        case b"ok":
            return
        case b"lost":
            msg = f"the lease on {lease.key} is lost: it ran out, or the job was cancelled or replaced"
            raise LeaseLost(msg)
        case _:
            msg = f"{lease.key} is gone"
            raise JobNotFound(msg)


def _placed(key: JobKey, answer: bytes) -> Placed | DulyError:
    word, revision, due_ms, state = answer.decode().split(" ")
    match word:
        case "exists":
            return JobExists(f"{key} exists already, {JobState(int(state)).name}")
        case "full":
            return QueueFull(f"topic {key.topic} is at its backlog limit; {key} was not stored")
    return Placed(key, word, int(revision), int(float(due_ms)), JobState(int(state)))  # type: ignore[arg-type]  # one of its words


def unsound(error: DulyError) -> bool:
    """
    Whether the queue was not compared with its record since it may have lost something.
    """
    return "UNSOUND" in str(error)


def _hydrated(key: JobKey, answer: bytes) -> Hydrated:
    word, revision, state = answer.decode().split(" ")
    return Hydrated(key, word, int(revision), JobState(int(state)))  # type: ignore[arg-type]  # as the script says


def _cancelled(word: bytes) -> JobState | Accepted | None:
    match word:
        case b"gone":
            return None
        case b"accepted":
            return "accepted"
    return JobState(int(word.split()[0]))


def _moved(key: JobKey, answer: bytes, word: Literal["rescheduled", "requeued"]) -> Placed:
    said, revision, due_ms, state = answer.decode().split(" ")
    match said:
        case "gone":
            msg = f"there is no job {key}"
            raise JobNotFound(msg)
        case "conflict":
            msg = f"{key} is {JobState(int(state)).name} at revision {revision}: it cannot be {word}"
            raise Conflict(msg)
        case "accepted":
            return Placed(key, "accepted", 0, int(float(due_ms)), JobState.scheduled)
    return Placed(key, word, int(revision), int(float(due_ms)), JobState(int(state)))
