"""
An app under test: on a server for tests, in a namespace of its own, by a clock that the test moves.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from weakref import WeakSet

from duly.embedded.throwaway import throw_away_server
from duly.errors import UsageError
from duly.handlers import Handler
from duly.job import JobState
from duly.options import at_least_one
from duly.testing.aside import Aside
from duly.testing.clock import TestClock
from duly.testing.draining import Drained, drain
from duly.testing.matching import ANYTHING, listed, pattern
from duly.testing.snapshots import JobSnapshot, snapshot
from duly.testrun import TEST_RUN
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime
    from types import TracebackType
    from typing import Self

    from duly.app import Duly
    from duly.durations import Seconds
    from duly.handlers import NewJob
    from duly.store import Store
    from duly.testing.matching import Pattern

T = TypeVar("T")

_RUN = secrets.token_hex(4)  # another process with the same server counts from 1, too
_numbers = itertools.count(1)
_taken: WeakSet[Duly] = WeakSet()

DRAIN_LIMIT = 1_000


class TestBed:
    """
    Holds an app while a test lasts, and gives it back as it was.

    Only `drain` has to be awaited; in a plain test function, call ``bed.sync.drain()``.
    """

    __test__ = False  # not a test class, whatever its name suggests to pytest

    def __init__(
        self,
        app: Duly,
        url: str | None = None,
        *,
        clock: TestClock | Literal["server", "test"] = "test",
        record: str | None = None,
    ) -> None:
        """
        Prepare: use ``with`` or ``async with`` around the test.

        *url* is that of a server for tests; without one, a server is started that ends with this process.
        *record* is that of a database for tests; without one, the app has no record meanwhile.
        With ``clock="server"`` time passes by itself and ``app.work()`` works; `drain` does not.

        Raises:
            UsageError: It is no clock.
        """
        if not isinstance(clock, TestClock) and clock not in ("server", "test"):
            raise UsageError(f'clock must be "test", "server" or a TestClock, not {clock!r}')
        self.app = app
        self.namespace = f"test-{_RUN}-{next(_numbers)}"
        self.sync = SyncBed(self)  #: for plain test functions
        self._clock = TestClock() if clock == "test" else clock if isinstance(clock, TestClock) else None
        self._url = url
        self._record = record
        self._before = app.settings
        self._aside = Aside()
        self._store: Store | None = None

    @property
    def clock(self) -> TestClock:
        """
        The clock of the test, to be moved by ``clock.advance(hours=3)``.

        Raises:
            UsageError: The test runs by the server's clock.
        """
        if self._clock is None:
            raise UsageError('this test bed has clock="server": nobody can move that; use the test clock')
        return self._clock

    # -- around the test ----------------------------------------------------------------------------------

    def take(self) -> Self:
        """
        Take the app.

        Raises:
            UsageError: It is connected already, or in another test bed.
            StoreUnavailable, ServerUnsuitable: No URL was given, and no server can be started.
        """
        if self.app in _taken:
            raise UsageError("the app is in another test bed: one at a time")
        url = self._url
        if url is None:
            url = throw_away_server()
            TEST_RUN.add_server(url)
        self._before = self.app.configured
        settings = replace(self._before, url=url, namespace=self.namespace, record=self._record)
        self.app.redirect(settings, self._clock, in_test_bed=True)
        _taken.add(self.app)
        return self

    def give_back(self) -> None:
        """
        Disconnect the app, give it its own settings, and forget the jobs of the test.
        """
        try:
            self.disconnect()
            self._aside.run(self._forget())
        finally:
            self._aside.close()
            self.sync.close()
            self.app.redirect(self._before)
            _taken.discard(self.app)

    def __enter__(self) -> Self:
        if _running_loop() is not None:
            raise UsageError("inside an async function, say `async with` instead of `with`")
        return self.take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    async def __aenter__(self) -> Self:
        return self.take()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.app.aclose()
        self.give_back()

    def disconnect(self) -> None:
        """
        Close the app's connections, in whichever loop they are; who is inside that loop awaits aclose().
        """
        while (loop := self.app.loop) is not None:
            if not loop.is_running():
                # The loop of an async test, between the test and the end of the loop.
                loop.run_until_complete(self.app.aclose())
            else:
                # That of another thread.
                asyncio.run_coroutine_threadsafe(self.app.aclose(), loop).result()

    async def _forget(self) -> None:
        """
        Remove what the test has stored: the server may be one that is kept.
        """
        store = await self._look()
        for keys in store.keys:
            fields = await store.link.call("HKEYS", keys.fixed["topics"])
            topics = {name.decode().partition(":")[0] for name in fields}
            await store.link.call("UNLINK", *keys.fixed.values(), *itertools.chain(*map(keys.lanes, topics)))
        await store.link.aclose()

    async def _look(self) -> Store:
        """
        A store on the loop beside the test: the app's own is bound to whichever loop the test runs in.
        """
        if self._store is None:
            self._store = self.app.make_store()
            await self._store.create()
        return self._store

    # -- running ------------------------------------------------------------------------------------------

    async def drain(
        self, *, limit: int = DRAIN_LIMIT, concurrency: int | None = None, raises: bool = False
    ) -> Drained:
        """
        Run everything that is due now, with the app's own handlers, here; what ran, and how it ended.

        What handlers enqueue for now runs, too.  Retries and delayed jobs wait until the clock moves.
        With *raises*, what a handler raised unplanned is raised here, once all have run.

        Raises:
            UsageError: The clock is the server's, there is no handler, or *limit* runs were not enough.
        """
        if self._clock is None:
            raise UsageError(
                'drain() runs what is due now, and with clock="server" now does not stand still: '
                "use the test clock, or `app.work()`"
            )
        at_least_one(limit, "limit", 2**31)
        settings = self.app.settings
        if concurrency is not None:
            settings = replace(settings, concurrency=at_least_one(concurrency, "concurrency"))
        drained = await drain(self.app, settings, limit)
        if raises and drained.errors:
            ran = next(each for each in drained if each.error is drained.errors[0])
            drained.errors[0].add_note(f"raised by {ran}")
            raise drained.errors[0]
        return drained

    # -- looking ------------------------------------------------------------------------------------------

    def jobs(
        self, what: Handler[..., Any] | str | None = None, *, state: JobState | str | None = None
    ) -> list[JobSnapshot]:
        """
        The jobs of this test, ended ones too, in the order in which they were enqueued.

        Raises:
            UsageError: There is no such state.
        """
        topic = what.topic if isinstance(what, Handler) else what
        return self._aside.run(self._jobs(topic, _states(state)))

    async def _jobs(self, topic: str | None, states: list[JobState]) -> list[JobSnapshot]:
        views = Views(await self._look())
        found = {job.key: job for state in states async for job in views.each(state, topic)}
        return [snapshot(job, self._now_ms()) for job in sorted(found.values(), key=lambda job: job.revision)]

    def _now_ms(self) -> int:
        return 0 if self._clock is None else self._clock()

    def assert_enqueued(
        self,
        what: Handler[..., Any] | NewJob[Any] | str,
        payload: Any = ANYTHING,
        *,
        delay: Seconds | None = None,
        due_at: datetime | None = None,
        id: str | None = None,
        count: int | None = None,
    ) -> list[JobSnapshot]:
        """
        Assert that such a job waits, or exactly *count* of them; those are the answer.

        *what* is a handler, a topic, or ``handler.job(…)`` for exactly these arguments.  *payload* names
        some of the arguments, or is a function that judges them.  *delay* counts from the clock's now.

        Raises:
            AssertionError: None does, or another number; the message shows what waits instead.
            UsageError: It does not say which jobs are meant.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        meant = self._pattern(what, payload, delay, due_at, id)
        jobs = self.jobs()
        found = self._meant(meant, jobs)
        if count is None and not found:
            raise AssertionError(f"no {meant} waits. {self._instead(meant, jobs)}")
        if count is not None and len(found) != count:
            raise AssertionError(f"{len(found)} times, not {count}: {meant}. {self._instead(meant, jobs)}")
        return found

    def assert_not_enqueued(
        self,
        what: Handler[..., Any] | NewJob[Any] | str,
        payload: Any = ANYTHING,
        *,
        delay: Seconds | None = None,
        due_at: datetime | None = None,
        id: str | None = None,
    ) -> None:
        """
        Assert that no such job waits.

        Raises:
            AssertionError: One does; the message shows it.
            UsageError: It does not say which jobs are meant.
        """
        __tracebackhide__ = True  # pytest then shows the line of the test
        meant = self._pattern(what, payload, delay, due_at, id)
        found = self._meant(meant, self.jobs())
        if found:
            raise AssertionError(f"there should be no {meant}, and there is:\n{listed(found)}")

    def _pattern(
        self, what: Any, payload: Any, delay: Seconds | None, due_at: datetime | None, id_: str | None
    ) -> Pattern:
        meant = pattern(what, payload, delay=delay, due_at=due_at, id_=id_)
        if meant.delay_ms is not None and self._clock is None:
            raise UsageError('with clock="server" a delay shrinks while one looks: say due_at instead')
        return meant

    def _meant(self, meant: Pattern, jobs: list[JobSnapshot]) -> list[JobSnapshot]:
        now_ms = self._now_ms()
        return [
            job for job in jobs if job.waits and job.topic == meant.topic and not meant.misses(job, now_ms)
        ]

    def _instead(self, meant: Pattern, jobs: list[JobSnapshot]) -> str:
        if not jobs:
            return "Nothing was enqueued in this test."
        parts, now_ms = [], self._now_ms()
        for title, some in (
            ("What waits:", [job for job in jobs if job.waits]),
            ("What has ended:", [job for job in jobs if not job.waits]),
        ):
            if some:
                parts.append(f"{title}\n{listed(some, meant, now_ms)}")
        return "\n".join(parts)


class SyncBed:
    """
    A test bed for plain test functions: the same without `await`.
    """

    def __init__(self, bed: TestBed) -> None:
        self._bed = bed
        self._runner: asyncio.Runner | None = None

    def drain(
        self, *, limit: int = DRAIN_LIMIT, concurrency: int | None = None, raises: bool = False
    ) -> Drained:
        """
        Do what `TestBed.drain` does, and return when it is done.
        """
        return self.run(self._bed.drain(limit=limit, concurrency=concurrency, raises=raises))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """
        Run a coroutine of the code under test to its end, for instance ``app.enqueue(…)``.

        Raises:
            UsageError: The caller is async itself.
        """
        if _running_loop() is not None:
            coroutine.close()
            raise UsageError("this is an async test: `await` instead of going through .sync")
        if self._runner is None:
            # One loop for the whole test: the app's connections are bound to it.
            self._runner = asyncio.Runner()
        # By itself, it would keep the context variables of its first call for all later ones.
        return self._runner.run(coroutine, context=contextvars.copy_context())

    def close(self) -> None:
        """
        End the loop.
        """
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _states(state: JobState | str | None) -> list[JobState]:
    if state is None:
        return list(JobState)
    try:
        return [state if isinstance(state, JobState) else JobState[state]]
    except (KeyError, TypeError):
        raise UsageError(f"state={state!r} must be one of {', '.join(JobState.__members__)}") from None
