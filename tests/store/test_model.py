"""
The store and a model of it, driven by the same random steps, must agree after every one of them.

The steps include what goes wrong in life: replies lost and calls replayed, tokens that are long void,
scripts flushed, the server killed and started again, indexes damaged and audited.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from duly.errors import Conflict, JobExists, JobNotFound, LeaseLost, QueueFull
from duly.feed import Feed
from duly.ids import new_request
from duly.job import JobKey, JobState, Lane, Order
from duly.namespace import create
from duly.records import HALF
from duly.services.auditor import Auditor
from duly.store import Keeping, Promise, Store, Want
from duly.testing import TestClock
from tests.servers import Server, binary
from tests.store import snapshot
from tests.store.kit import LossyLink
from tests.store.model import (
    DEAD_MS,
    DONE_MS,
    GRACE_MS,
    LANES,
    LEASE_MS,
    ROOM_MS,
    TTR_MS,
    Model,
    Told,
)

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from duly.job import Lease
    from tests.store.model import Row

TOPICS = ("mail", "slow")


class Long(bytes):
    """
    A payload that is kept apart from its record, and short in a falsifying example.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"LONG[{len(self)}]"


PAYLOADS = (b"1", b"22", Long(b'"' + b"x" * 1500 + b'"'))
ERRORS = (b"", b'{"type":"Boom"}')
LEASED = 8  #: where a claim's answer has its leases
_namespaces = itertools.count(1)
_chance = random.Random()  #: of claims: the same in each run of an example

_INDEX = {
    JobState.scheduled: "due",
    JobState.running: "leases",
    JobState.succeeded: "done",
    JobState.cancelled: "done",
    JobState.dead: "dead",
}

keys = st.builds(JobKey, st.sampled_from(TOPICS), st.sampled_from(["a", "b", "c"]))
delays = st.sampled_from([0, 1, 700, 20_000])


@st.composite
def orders(draw: st.DrawFn) -> Order:
    delay_ms = draw(st.none() | delays)
    due_ms = draw(st.sampled_from([1, 1_000_000, 1_002_000, 1_030_000])) if delay_ms is None else None
    return Order(
        draw(keys),
        draw(st.sampled_from(PAYLOADS)),
        delay_ms,
        due_ms,
        draw(st.sampled_from(LANES)),
        expires_ms=draw(st.sampled_from([0, 0, 0, 1_001_000, 1_040_000])),
        ttr_ms=draw(st.sampled_from([0, 0, 4_000])),
        retain_s=draw(st.sampled_from([None, None, 0, 30, 90])),
        max_crashes=draw(st.sampled_from([0, 0, 1])),
        envelope=draw(st.sampled_from([b"", b"", b'{"max_attempts":2}', b'{"reply_to":"inbox"}'])),
        on_conflict=draw(st.sampled_from(["keep", "replace", "replace", "raise"])),
        awaited=draw(st.sampled_from([False, False, True])),
    )


class StoreMachine(RuleBasedStateMachine):
    """
    Every verb, in any order, on a server of its own.
    """

    leases = Bundle("leases")

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.server = server
        self.loop = loop
        self.clock = TestClock(1_000_000)
        self.model = Model(self.clock)
        self.told = Told()
        self.offset: Any = None
        self.running: dict[int, Lease] = {}
        self.restarts = 0

    @initialize(plain=st.booleans(), seed=st.integers(0, 1_000))
    def begin(self, plain: bool, seed: int) -> None:
        self.plain = plain  # no priorities, and no callbacks
        _chance.seed(seed)
        self.link = LossyLink(self.server.url)
        namespace = f"m{next(_namespaces)}"
        self.do(create(self.link, namespace, 1, clock="test"))
        self.store = Store(
            self.link,
            namespace=namespace,
            keeping=Keeping(done_ms=DONE_MS, dead_ms=DEAD_MS),
            lease_ms=LEASE_MS,
            grace_ms=GRACE_MS,
            now=self.clock,
        )
        self.client = snapshot.client_of(self.server.socket)

    def do(self, coroutine: Coroutine[Any, Any, Any], *, again: bool = False) -> Any:
        """
        Run a call; *again* loses its first reply, and then sending it once more must change nothing.
        """
        before = []
        self.link.lose, self.link.between = again, lambda: before.append(self.look())
        try:
            answer = self.loop.run_until_complete(coroutine)
        finally:
            self.link.lose, self.link.between = False, None
        # A claim that got nothing may be tried again: there is nothing to bring a second time.
        if before and not (self.link.last[0] == "claim" and not self.link.lost[LEASED]):
            assert before[-1] == self.look()
        return answer

    def look(self) -> snapshot.Snapshot:
        return snapshot.take(self.client, self.store.keys[0], TOPICS)

    # -- verbs --------------------------------------------------------------------------------------------

    @rule(asked=st.lists(orders(), min_size=1, max_size=3), again=st.booleans())
    def enqueue(self, asked: list[Order], again: bool) -> None:
        expected = []
        asked = list(map(self._of_lane, asked))
        for order in asked:
            word, row = self.model.enqueue(order)
            expected.append((word, row and (row.due, row.state), row))
        answers = self.do(self.store.enqueue_many(asked), again=again)
        self.model.grow(*(answer.revision for answer in answers if getattr(answer, "created", False)))
        for (word, about, row), answer in zip(expected, answers, strict=True):
            if word in ("exists", "full"):
                assert {"exists": JobExists, "full": QueueFull}[word] is type(answer)
                continue
            assert (word, about) == (answer.word, (answer.due_ms, answer.state))
            if answer.created:
                row.revision = answer.revision
            assert row.revision == answer.revision

    @rule(key=keys)
    def enqueue_plain(self, key: JobKey) -> None:
        self._enqueue(Order(key, b"1", on_conflict="replace"))

    @rule(order=orders())
    def enqueue_alone(self, order: Order) -> None:
        self._enqueue(self._of_lane(order))

    def _of_lane(self, order: Order) -> Order:
        return msgspec.structs.replace(order, lane=Lane.normal) if self.plain else order

    def _enqueue(self, order: Order) -> None:
        word, row = self.model.enqueue(order)
        try:
            answer = self.do(self.store.enqueue(order))
        except JobExists:
            assert "exists" == word
        except QueueFull:
            assert "full" == word
        else:
            assert word == answer.word
            if answer.created:
                row.revision = answer.revision
                self.model.grow(answer.revision)

    @rule(again=st.booleans())
    def promote(self, again: bool) -> None:
        expected = self.model.promote(TOPICS)
        moved = self._promote(again=again)
        assert again or expected == moved

    def _promote(self, *, again: bool = False) -> int:
        """
        What a timer does: one call need not come to all topics.
        """
        moved = 0
        while True:
            seen = self.do(self.store.promote(0), again=again)
            moved += seen.moved
            if not seen.more and not seen.unnamed:
                return moved

    @rule(
        target=leases,
        topics=st.sampled_from([TOPICS, TOPICS, ("mail",), ("slow",)]),
        free=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        limit=st.integers(1, 6),
        worker=st.sampled_from(["w1", "w1", "w2"]),
        half=st.sampled_from(["", "", "0", "1"]),
        alone=st.booleans(),
        own=st.sampled_from([(False, False), (False, False), (True, False), (True, True)]),
        wait_s=st.sampled_from([0, 0, 5]),
        callbacks=st.booleans(),
        again=st.booleans(),
    )
    def claim_some(
        self, topics: tuple[str, ...], free: tuple[int, int], limit: int, own: tuple[bool, bool], **how: Any
    ) -> Any:
        return self._claim(topics, free, limit, own=own, **how)

    def _claim(
        self,
        topics: tuple[str, ...],
        free: tuple[int, int],
        limit: int,
        *,
        own: tuple[bool, bool] = (False, False),
        worker: str = "w1",
        half: str = "",
        alone: bool = True,
        wait_s: int = 0,
        callbacks: bool = False,
        again: bool = False,
    ) -> Any:
        wants = [
            Want(topic, slots, TTR_MS, slots if own_process else None)
            for topic, slots, own_process in zip(topics, free, own, strict=False)
        ]
        before, due = self.look(), self.model.due(topics)
        isolated = [want for want in wants if self._to_isolate(want, callbacks)]
        claimed = self.do(
            self.store.claim(
                0,
                wants,
                worker=worker,
                limit=limit,
                half=half,
                alone=alone,
                wait_s=wait_s,
                callbacks=callbacks,
            ),
            again=again,
        )
        taken = claimed.leases
        assert len(taken) <= limit
        left, promoted = self._follow_due(due, {lease.key for lease in taken})
        for lease in taken:
            self.model.claimed(lease, callbacks=callbacks)
            self.running[lease.token] = lease
        self._expire_met()
        self._check_isolation(wants, taken, alone=alone)
        self._check_lines(before, taken, worker)
        for want in wants:
            if not self._is_full(want, wants, taken, limit) and self._is_open(want.topic, callbacks):
                # It could have taken more: it has looked at all that was due, and left nothing for no reason.
                assert not [row for row in left if row.order.key.topic == want.topic]
                self._check_rest(want, taken, promoted, worker, alone=alone, callbacks=callbacks)
        self._check_room(claimed.room, isolated, worker, certain=not (again or alone or taken))
        if self.model.room[0] == worker and self._alone(wants, taken):
            self.model.room = ("", 0)
        for want in wants:
            self.model.waiting[want.topic, worker] = self.model.now + wait_s * 1000
        return multiple(*taken)

    def _is_open(self, topic: str, callbacks: bool) -> bool:
        return topic not in self.model.paused and (callbacks or topic not in self.model.called)

    def _to_isolate(self, want: Want, callbacks: bool) -> list[Row]:
        if want.processes is not None or not self._is_open(want.topic, callbacks):
            return []
        ready = self.model.in_state(JobState.ready, want.topic)
        return [
            row for row in ready if row.lane is Lane.isolated and self.model.is_for(row, callbacks=callbacks)
        ]

    def _follow_due(self, due: list[Row], taken: set[JobKey]) -> tuple[list[Row], list[Row]]:
        """
        What became of the jobs that were due: those that stay so, and those that wait in their lanes now.

        Which ones a claim comes to is its own affair; whatever it did must be allowed.
        """
        jobs, left, promoted = self.look().jobs, [], []
        for row in due:
            match jobs[row.order.key.member].state:
                case JobState.scheduled:
                    left.append(row)
                case JobState.cancelled:
                    assert row.is_late(self.model.now)
                    self.model.end(row, JobState.cancelled, b'{"type":"expired"}')
                case state:
                    assert (JobState.running if row.order.key in taken else JobState.ready) is state
                    self.model.make_ready(row)
                    if row.order.key not in taken:
                        promoted.append(row)
        for row in left:
            topic = row.order.key.topic
            straight = [one.due for one in due if one.order.key in taken and one.order.key.topic == topic]
            assert max(straight, default=0) <= row.due, "what is due waits in its order"
        return left, promoted

    def _is_full(self, want: Want, wants: list[Want], taken: list[Lease], limit: int) -> bool:
        mine = sum(lease.key.topic == want.topic for lease in taken)
        assert mine <= want.free
        return mine == want.free or len(taken) == limit or bool(self._alone(wants, taken))

    def _alone(self, wants: list[Want], taken: list[Lease]) -> list[Lease]:
        """
        The leases of jobs that run isolated in a worker that has nothing else to do.
        """
        own = {want.topic for want in wants if want.processes is not None}
        return [lease for lease in taken if lease.lane is Lane.isolated and lease.key.topic not in own]

    def _check_isolation(self, wants: list[Want], taken: list[Lease], *, alone: bool) -> None:
        if self._alone(wants, taken):
            assert (alone, 1) == (True, len(taken)), "an isolated job runs beside no other"

    def _check_lines(self, before: snapshot.Snapshot, taken: list[Lease], worker: str) -> None:
        """
        Whatever is taken from a line is the first of it.
        """
        members = {lease.key.member for lease in taken}
        for (topic, lane), stream in before.streams.items():
            if lane is not Lane.suspect or not self.model.others_wait(topic, worker):
                line = [m for m in stream.values() if self.model.rows[JobKey.of(m)].state.name != "cancelled"]
                got = [member for member in line if member in members]
                assert got == line[: len(got)], (topic, lane)

    def _check_rest(
        self,
        want: Want,
        taken: list[Lease],
        promoted: list[Row],
        worker: str,
        *,
        alone: bool,
        callbacks: bool,
    ) -> None:
        """
        A claim leaves nothing that it may take, but what is for others, or hidden behind what is too late.
        """
        for row in self.model.in_state(JobState.ready, want.topic):
            may_isolate = want.processes is not None or (alone and not taken)
            assert (
                self._met_late
                or row.is_late(self.model.now)
                or not self.model.is_for(row, callbacks=callbacks)
                or self.model.is_left_to_others(row, worker)
                or (row.lane is Lane.isolated and not may_isolate)
                # Its lane was looked into before it was made ready.
                or (row.crashes and row in promoted)
            ), row

    def _check_room(self, room: bool, isolated: list[Want], worker: str, *, certain: bool) -> None:
        """
        One worker at a time is asked to make room for what has to run isolated.
        """
        holder, until = self.model.room
        is_free = holder == worker or until <= self.model.now
        if room:
            assert (True, True) == (is_free, bool(isolated))
            self.model.room = (worker, self.model.now + ROOM_MS)
        elif certain and not self._met_late:
            assert not (is_free and isolated)

    @rule(
        target=leases,
        topic=st.sampled_from(TOPICS),
        limit=st.integers(1, 2),
        ready=st.integers(0, 1),
        expires=st.sampled_from([0, 0, 2]),
        again=st.booleans(),
    )
    def claim_what_falls_due(self, topic: str, limit: int, ready: int, expires: int, again: bool) -> Any:
        for at, id_ in enumerate("abc"):
            late_ms = self.model.now + expires if expires and at < limit else 0
            wait = Order(JobKey(topic, id_), b"1", max(0, at + 1 - ready), expires_ms=late_ms)
            self._enqueue(msgspec.structs.replace(wait, on_conflict="replace"))
        self.clock.advance(ms=5)
        return self._claim((topic,), (3, 3), limit, again=again)

    @rule(target=leases, callbacks=st.booleans(), again=st.booleans())
    def claim_all(self, callbacks: bool, again: bool) -> Any:
        return self._claim(TOPICS, (3, 3), 6, callbacks=callbacks, again=again)

    @rule(target=leases, callbacks=st.booleans(), worker=st.sampled_from(["w1", "w2"]))
    def claim_beside_other_runs(self, callbacks: bool, worker: str) -> Any:
        return self._claim(TOPICS, (3, 3), 6, alone=False, callbacks=callbacks, worker=worker, wait_s=5)

    def _expire_met(self) -> None:
        """
        Cancel the ready jobs that are too late and that a claim came across; which ones is its own affair.
        """
        jobs = self.look().jobs
        self._met_late = False
        for row in self.model.in_state(JobState.ready):
            if row.is_late(self.model.now):
                self._met_late = True
                if jobs[row.order.key.member].state is JobState.cancelled:
                    self.model.end(row, JobState.cancelled, b'{"type":"expired"}')

    @precondition(lambda self: self.model.in_state(JobState.running))
    @rule(
        at=st.integers(0, 5),
        verb=st.sampled_from(["ack", "ack", "retry", "snooze", "bury", "release", "progress", "extend"]),
        delay_ms=delays,
        text=st.sampled_from(ERRORS),
        again=st.booleans(),
    )
    def end_a_run(self, at: int, verb: str, delay_ms: int, text: bytes, again: bool) -> None:
        held = [self.running[row.token] for row in self.model.in_state(JobState.running)]
        self._speak(held[at % len(held)], verb, delay_ms, text, again)

    @rule(
        lease=leases,
        verb=st.sampled_from(["ack", "retry", "snooze", "bury", "release", "progress", "extend"]),
        again=st.booleans(),
    )
    def speak_with_any_token(self, lease: Lease, verb: str, again: bool) -> None:
        self._speak(lease, verb, 0, b"", again)

    @precondition(lambda self: self._void())
    @rule(
        at=st.integers(0, 5),
        verb=st.sampled_from(["ack", "retry", "bury", "release", "progress", "extend"]),
        again=st.booleans(),
    )
    def speak_for_a_run_of_another(self, at: int, verb: str, again: bool) -> None:
        void = self._void()
        self._speak(void[at % len(void)], verb, 0, b"", again)

    def _void(self) -> list[Lease]:
        """
        Tokens of earlier runs of jobs that run now.
        """
        now = {row.order.key: row.token for row in self.model.in_state(JobState.running)}
        return [lease for lease in self.running.values() if now.get(lease.key, lease.token) != lease.token]

    def _speak(self, lease: Lease, verb: str, delay_ms: int, text: bytes, again: bool) -> None:
        store, model = self.store, self.model
        expected = model.held(lease, "retry" if verb == "snooze" else verb)
        row: Row | None = model.rows.get(lease.key)
        calls = {
            "ack": lambda: store.ack(lease, text, lateness_ms=7),
            "retry": lambda: store.retry(lease, delay_ms, text, "Boom"),
            "snooze": lambda: store.retry(lease, delay_ms, text, counted=False),
            "bury": lambda: store.bury(lease, text, "Bad"),
            "release": lambda: store.release(lease),
            "progress": lambda: store.progress(lease, b"0.5"),
            "extend": lambda: store.extend(0, [lease]),
        }
        try:
            answer = self.do(calls[verb](), again=again)
        except LeaseLost:
            assert "lost" == expected
        except JobNotFound:
            assert "gone" == expected
        else:
            if verb == "extend":
                assert [expected == "run"] == answer
            else:
                assert expected in ("run", "ok")
        if expected == "run":
            match verb:
                case "ack":
                    model.ack(row, text)
                case "retry" | "snooze":
                    model.retry(row, delay_ms, text, counted=verb == "retry")
                case "bury":
                    model.bury(row, text)
                case "release":
                    model.release(row)
                case "progress":
                    row.progress = b"0.5"
                case "extend":
                    model.extend(row)

    @rule(counted=st.booleans(), again=st.booleans())
    def recover(self, counted: bool, again: bool) -> None:
        lost = [row for row in self.model.in_state(JobState.running) if row.lease <= self.model.now]
        expected = self.model.recover(counted=counted)
        answer = self.do(self.store.recover(0, counted=counted), again=again)
        assert again or expected == (answer.recovered, answer.buried)
        if counted:
            jobs = self.look().jobs
            back = [row.order.key.member for row in lost if row.state is JobState.ready]
            second = sum(bool(jobs[member].marks & HALF) for member in back)
            assert abs(len(back) - 2 * second) <= 1, "halves of what crashed together"

    @rule(named=st.lists(keys, min_size=1, max_size=3), again=st.booleans())
    def cancel(self, named: list[JobKey], again: bool) -> None:
        expected = [self.model.cancel(key) for key in named]
        assert expected == self.do(self.store.cancel(named), again=again)

    @rule(key=keys, delay_ms=delays, revision=st.sampled_from([None, None, 1]), again=st.booleans())
    def reschedule(self, key: JobKey, delay_ms: int, revision: int | None, again: bool) -> None:
        expected = self.model.reschedule(key, self.model.now + delay_ms, revision)
        try:
            placed = self.do(self.store.reschedule(key, delay_ms=delay_ms, revision=revision), again=again)
        except JobNotFound:
            assert "gone" == expected
        except Conflict:
            assert "conflict" == expected
        else:
            assert "ok" == expected
            row = self.model.rows[key]
            assert (row.due, row.state) == (placed.due_ms, placed.state)
            row.revision = placed.revision
            self.model.grow(placed.revision)

    @rule(key=keys, least_ms=delays, revision=st.sampled_from([None, None, 1]), back=st.booleans())
    def hold(self, key: JobKey, least_ms: int, revision: int | None, back: bool) -> None:
        row = self.model.rows.get(key)
        before = row and (row.revision, row.due, row.state)
        expected = self.model.hold(key, least_ms, revision)
        held = self.do(self.store.hold(key, least_ms=least_ms, revision=revision))
        if held is None:
            assert "gone" == expected
            return
        assert (expected == "ok", before) == (held.waits, (held.revision, held.due_ms, held.state))
        if held.waits and back:
            self.do(self.store.let_go(held))
            self.model.wait_until(row, held.due_ms)

    @rule(named=st.lists(keys, min_size=1, max_size=3, unique=True), again=st.booleans())
    def requeue(self, named: list[JobKey], again: bool) -> None:
        expected = [self.model.requeue(key) for key in named]
        answers = self.do(self.store.requeue(named), again=again)
        for key, word, answer in zip(named, expected, answers, strict=True):
            if word == "ok":
                self.model.rows[key].revision = answer.revision
                self.model.grow(answer.revision)
            else:
                assert {"gone": JobNotFound, "conflict": Conflict}[word] is type(answer)

    @rule(
        order=orders(),
        ahead=st.sampled_from([-1, 0, 1, 50, 50]),
        counts=st.tuples(st.sampled_from([0, 0, 2]), st.sampled_from([0, 0, 1])),
        cancelled=st.booleans(),
        again=st.booleans(),
    )
    def hydrate(
        self, order: Order, ahead: int, counts: tuple[int, int], cancelled: bool, again: bool
    ) -> None:
        old = self.model.rows.get(order.key)
        # Never ahead of the numbers that the store itself gives out: here both of them do.
        revision = min(old.revision + ahead, self.model.last_number) if old else self.model.last_number // 2
        revision = max(revision, 1)
        due_ms = order.due_ms or self.model.now
        order = msgspec.structs.replace(self._of_lane(order), due_ms=due_ms, delay_ms=None)
        promise = Promise(order, revision, new_request(), *counts, cancelled=cancelled)
        word = self.model.hydrate(promise)
        [answer] = self.do(self.store.hydrate([promise]), again=again)
        row = self.model.rows[order.key]
        assert ("kept" if again else word, row.revision, row.state) == answer[1:]

    @rule(key=keys, ahead=st.sampled_from([-1, 0, 1]), again=st.booleans())
    def forget(self, key: JobKey, ahead: int, again: bool) -> None:
        revision = self.model.rows[key].revision + ahead if key in self.model.rows else 1
        forgotten = self.model.forget(key, revision)
        assert [forgotten and not again] == self.do(self.store.forget([(key, revision)]), again=again)

    @rule(again=st.booleans())
    def prune(self, again: bool) -> None:
        pruned = self.do(self.store.prune(0), again=again)
        expected = self.model.prune()
        assert again or (expected, False) == pruned

    @rule(
        topic=st.sampled_from(TOPICS),
        what=st.sampled_from(
            ["pause", "resume", "resume", "limit 1", "limit 2", "limit", "limit", "call", "uncall"]
        ),
        again=st.booleans(),
    )
    def set_topic(self, topic: str, what: str, again: bool) -> None:
        verb, _, number = what.partition(" ")
        match verb:
            case "pause":
                self.model.paused.add(topic)
                self.do(self.store.pause(topic), again=again)
            case "resume":
                self.model.paused.discard(topic)
                self.do(self.store.resume(topic), again=again)
            case "call":
                self.model.called.add(topic)
                self.do(self.store.set_callback(topic, "https://example.com/"))
            case "uncall":
                self.model.called.discard(topic)
                self.do(self.store.set_callback(topic, None))
            case _:
                self.model.limits[topic] = int(number or 1_000_000)
                self.do(self.store.limit(topic, int(number) if number else None))

    @rule(key=keys)
    def watch(self, key: JobKey) -> None:
        fixed = self.store.keys[0].fixed
        names = [fixed["jobs"], fixed["outcomes"], self.store.keys[0].due(key.topic)]
        answer = self.do(self.link.run("watch", names, [key.member]))
        row = self.model.rows.get(key)
        if row is None:
            assert [] == answer
            return
        assert [row.state, row.revision] == answer[:2]
        assert ([row.outcome, int(row.gone)] if row.state.ended else []) == answer[2:]
        if not row.state.ended:
            row.timed = row.awaited = True

    @rule(limit=st.integers(1, 3), again=st.booleans())
    def read_replies(self, limit: int, again: bool) -> None:
        _, taken, _ = self.do(self.store.reply_take(0, "inbox", limit, lease_ms=LEASE_MS))
        assert len(taken) <= limit
        told = self.look().replies
        mine = [told[f"inbox {number:016d}"] for number, *_ in taken]
        numbers = [number for number, *_ in taken]
        acked = self.do(self.store.reply_ack(0, "inbox", numbers), again=again)
        assert (0 if again else len(taken)) == acked
        for reply in mine:
            self.model.replies.remove(reply)

    # -- life ---------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 700, 1_000, 4_000, 16_000, 61_000, 101_000]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @precondition(lambda self: self.restarts < 1)
    @rule(what=st.sampled_from(["flush", "restart"]))
    def disturb(self, what: str) -> None:
        if what == "flush":
            self.do(self.link.call("FUNCTION", "FLUSH"))
            return
        self.restarts += 1
        self.server.kill()
        self.server.start()
        self.client.close()
        self.client = snapshot.client_of(self.server.socket)

    @rule(data=st.data(), kinds=st.lists(st.integers(0, 11), min_size=1, max_size=3))
    def damage_and_audit(self, data: st.DataObject, kinds: list[int]) -> None:
        for kind in kinds:
            self._damage(kind, data)
        auditor = Auditor(self.store)
        # What is put back in the first pass may show in the counters of the second.
        passes = [self.do(auditor.run_pass()) for _ in range(4)]
        assert 0 == passes[-1]
        for row in self.model.in_state(JobState.ready):
            if row.is_late(self.model.now):
                # A claim finds it, too, but a topic may have none.
                self.model.end(row, JobState.cancelled, b'{"type":"expired"}')

    def _damage(self, kind: int, data: st.DataObject) -> None:
        model, fixed = self.model, self.store.keys[0].fixed
        rows = sorted(model.rows.values(), key=lambda row: row.order.key)
        if kind == 0:
            index = data.draw(st.sampled_from(["due", "leases", "done", "dead"]))
            key = data.draw(
                st.sampled_from([JobKey("mail", "none"), JobKey("slow", "a"), JobKey("mail", "a")])
            )
            if key not in model.rows or _INDEX.get(model.rows[key].state) != index:
                self.client.zadd(self._index(index, key.topic), {key.member: 5})
                if index == "due" and key.topic not in {row.order.key.topic for row in rows}:
                    # Nothing else would tell of that topic.
                    self.client.zadd(fixed["next_due"], {key.topic: 5})
        elif kind == 1:
            self.client.hincrby(fixed["topics"], f"mail:{data.draw(st.sampled_from(list(JobState))).name}", 3)
        elif kind == 2:
            self.client.hset(fixed["meta"], data.draw(st.sampled_from(["done_bytes", "dead_bytes"])), 77)
        elif kind == 3:
            wrong = data.draw(st.sampled_from([None, 5, 10**12]))
            if wrong is None:
                self.client.delete(fixed["next_due"])
            elif self.client.zscore(fixed["next_due"], "mail") is not None:
                self.client.zadd(fixed["next_due"], {"mail": wrong})
        elif kind == 4:
            self.client.delete(fixed["ready_topics"])
        elif kind == 5:
            self.client.hdel(fixed["topics"], *(f"{topic}:lanes" for topic in TOPICS))
        elif kind == 6 and rows:
            row = rows[data.draw(st.integers(0, len(rows) - 1))]
            left = self.client.hget(fixed["jobs"], row.order.key.member)[: data.draw(st.integers(0, 14))]
            self.client.hset(fixed["jobs"], row.order.key.member, left)
            model.quarantine(row, left)
        elif rows:
            row = rows[data.draw(st.integers(0, len(rows) - 1))]
            member = row.order.key.member
            stream = self.store.keys[0].stream(row.order.key.topic, row.lane)
            entry = f"{snapshot.job_of(self.client.hget(fixed['jobs'], member)).entry}-0"
            match row.state:
                case JobState.scheduled:
                    self.client.zrem(self._index("due", row.order.key.topic), member)
                    # Only `due` knows when a job's first run is due; lost, it can only be now.
                    row.due = row.due if row.timed else model.now
                case JobState.ready if kind < 10:
                    self.client.xdel(stream, entry)
                case JobState.ready:
                    self.client.delete(stream)
                case JobState.running:
                    self.client.zrem(fixed["leases"], member)
                    row.lease = model.now
                case _:
                    self.client.zrem(fixed[_INDEX[row.state]], member)
                    row.keep = model.now + DONE_MS

    def _index(self, name: str, topic: str) -> str:
        keys = self.store.keys[0]
        return keys.due(topic) if name == "due" else keys.fixed[name]

    # -- what must be true --------------------------------------------------------------------------------

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        shard = self.look()
        snapshot.check(shard)
        assert {key.member for key in self.model.rows} == shard.jobs.keys()
        assert sorted(self.model.replies) == sorted(shard.replies.values())
        assert self.model.aside == shard.quarantine
        for key, row in self.model.rows.items():
            job, member = shard.jobs[key.member], key.member
            assert (row.state, row.revision, row.order.lane) == (job.state, job.revision, job.lane), key
            assert (row.attempts, row.crashes, row.token) == (job.attempts, job.crashes, job.token), key
            assert row.outcome == shard.outcomes.get(member, b""), key
            assert row.progress == shard.progress.get(member, b""), key
            self._check_body(row, shard)
            if row.state is JobState.scheduled:
                assert row.due == shard.due[member], key
                self._check_lane(key.topic, row.order.lane)
            if row.state is JobState.ready:
                assert (row.due, key) == (job.due_ms, key)
                self._check_lane(key.topic, row.lane)
            if row.state is JobState.running:
                assert row.lease == shard.leases[member], key
            if row.state.ended:
                assert row.keep == (shard.dead if row.state is JobState.dead else shard.done)[member], key

    def _check_lane(self, topic: str, lane: Lane) -> None:
        """
        Claims look only into lanes that are known to be used.
        """
        used = self.client.hget(self.store.keys[0].fixed["topics"], f"{topic}:lanes") or b""
        assert lane is Lane.normal or b"%d" % lane in used

    def _check_body(self, row: Row, shard: snapshot.Snapshot) -> None:
        member = row.order.key.member
        job = shard.jobs[member]
        stored = shard.bodies.get(member, b"") if job.apart else job.body
        assert row.order.envelope + (b"" if row.stub else row.order.payload) == stored, member

    @invariant()
    def the_events_tell_the_same_story(self) -> None:
        if not hasattr(self, "store"):
            return
        self.offset, events = self.do(Feed(self.store).read(0, self.offset, 1000))
        for event in events:
            self.told.hear(event)
        assert {key: (row.state, row.revision) for key, row in self.model.rows.items()} == self.told.states

    def teardown(self) -> None:
        """
        Whatever happened, what was accepted comes to an end.
        """
        if not hasattr(self, "store"):
            return
        try:
            for topic in TOPICS:
                self.do(self.store.resume(topic))
            wants = [Want(topic, 10, TTR_MS) for topic in TOPICS]
            for _ in range(4):
                self.clock.advance(s=100)
                self.do(self.store.recover(0))
                self._promote()
                # What has to run isolated comes alone.
                for callbacks in [False, True] * 7:
                    claim = self.store.claim(0, wants, worker=f"w{callbacks}", callbacks=callbacks)
                    for lease in self.do(claim).leases:
                        self.do(self.store.ack(lease))
            shard = self.look()
            snapshot.check(shard)
            assert set() == {member for member, job in shard.jobs.items() if not job.state.ended}
        finally:
            self.do(self.link.aclose())
            self.client.close()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_the_store_behaves_as_its_model(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duly.store.claims.new_nonce", lambda: _chance.randbytes(8))
    long = request.config.getoption("--long")
    server = Server(binary(kind), appendfsync="always").start()
    loop = asyncio.new_event_loop()
    try:
        run_state_machine_as_test(
            lambda: StoreMachine(server, loop),
            settings=settings(
                max_examples=500 if long else 80,
                stateful_step_count=60 if long else 40,
                deadline=None,
                database=None,
                print_blob=True,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        loop.close()
        server.stop()
