"""
The app, blocking: every method runs its async namesake on a loop of the twin's own.
"""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from duly.errors import Unsupported
from duly.extras import needed
from duly.forks import importing
from duly.handle import JobHandle, KnownJob
from duly.mistakes import checked_jobs
from duly.sync.follower import SyncFollower
from duly.sync.greenlets import begin_loop, prepare_loop
from duly.sync.keyring import SyncKeyRing
from duly.sync.loopthread import forbid_running_loop
from duly.sync.quarantine import SyncQuarantine
from duly.sync.replies import SyncReplies
from duly.views import PAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType
    from typing import Never, Self, Unpack

    from duly.app import Duly
    from duly.audit import AuditRecord
    from duly.durations import Seconds
    from duly.errors import DulyError
    from duly.glance import StatsDocument
    from duly.handlers import Handler
    from duly.job import Accepted, Job, JobKey, JobState, Placed
    from duly.newjob import NewJob, Options, ResultReader
    from duly.record.sessions import AnySession, Elsewhere
    from duly.sync.loopthread import LoopThread
    from duly.views import Page, Stats, Views

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: Where to find what the twin does not offer, beside the app's own coroutine
_WAYS = {
    "aclose": "close the twin with app.sync.close()",
    "redirect": "call app.redirect(…), which renews app.sync as well",
    "crew": "a worker is not part of it: run `duly work`, or asyncio.run(app.work())",
    "make_store": "a store is awaited: use app.make_store() on an event loop",
    "record": "jobs of the record are reached by its verbs, with session=…, and `duly record` has the rest; "
    "await app.record() on an event loop",
}

_starting = threading.Lock()


def _refuse(name: str, *_: object, **__: object) -> Never:
    way = _WAYS.get(name, f"it is a part that has to be awaited: use await app.{name}() on an event loop")
    raise Unsupported(f"app.sync has no {name}(): {way}")


def _renew_lock() -> None:
    # Whoever held it when the process was forked does not exist in the child.
    global _starting  # noqa: PLW0603  # it guards all twins of the process
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class SyncDuly:
    """
    The blocking twin of an app, as ``app.sync``.

    It has connections of its own, so the app may be used on an event loop at the same time.  Any number of
    threads may call it.  A forked child gets a loop and connections of its own on first use.
    """

    def __init__(self, fork: Callable[[], Duly]) -> None:
        """
        Prepare; *fork* makes a copy of the app that is not connected.
        """
        self._fork = fork
        self._app: Duly | None = None
        self._thread: LoopThread | None = None

    # -- sending ------------------------------------------------------------------------------------------

    @overload
    def enqueue(
        self, job: NewJob[R], *, session: AnySession | None = None, **options: Unpack[Options]
    ) -> SyncJobHandle[R]: ...

    @overload
    def enqueue(
        self,
        job: str,
        payload: object = None,
        *,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> SyncJobHandle[Any]: ...

    def enqueue(
        self,
        job: NewJob[R] | str,
        payload: object = None,
        *more: object,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> SyncJobHandle[R] | SyncJobHandle[Any]:
        """
        Promise to run a job; see `Duly.enqueue`.
        """
        # Which overload it is decides the app: what it takes is what we were given.
        send = cast("Callable[..., Coroutine[Any, Any, JobHandle[Any]]]", self.here().enqueue)
        handle = self.run_with(session, lambda given: send(job, payload, *more, session=given, **options))
        return SyncJobHandle(self, handle.key, handle.placed, handle.reader)

    def enqueue_awaited(self, job: NewJob[R]) -> SyncJobHandle[R]:
        """
        Promise to run a job for a caller that waits for its end; see `Duly.enqueue_awaited`.
        """
        handle = self.run(self.here().enqueue_awaited(job))
        return SyncJobHandle(self, handle.key, handle.placed, handle.reader)

    def enqueue_many(
        self, jobs: Iterable[NewJob[R]], *, session: AnySession | None = None
    ) -> list[SyncJobHandle[R] | DulyError]:
        """
        Promise any number of jobs; see `Duly.enqueue_many`.
        """
        # Listed here: what makes them may block, and may use the twin itself.
        listed = list(checked_jobs(jobs))
        outcomes = self.run_with(session, lambda given: self.here().enqueue_many(listed, session=given))
        return [
            outcome
            if isinstance(outcome, Exception)
            else SyncJobHandle(self, outcome.key, outcome.placed, outcome.reader)
            for outcome in outcomes
        ]

    @overload
    def job(self, topic: Handler[..., R], id_: str) -> SyncJobHandle[R]: ...

    @overload
    def job(self, topic: str, id_: str) -> SyncJobHandle[Any]: ...

    def job(self, topic: Handler[..., Any] | str, id_: str) -> SyncJobHandle[Any]:
        """
        A handle on a job that was sent earlier, maybe by somebody else; see `Duly.job`.
        """
        handle = self.here().job(topic, id_)
        return SyncJobHandle(self, handle.key, reader=handle.reader)

    def replies(self, name: str, *, wait: Seconds | None = None) -> SyncReplies:
        """
        What becomes of jobs that were sent with ``reply_to=name``; see `Duly.replies`.
        """
        return SyncReplies(self, self.here().replies(name, wait=wait))

    def events(
        self,
        *,
        topics: str | Iterable[str] | None = None,
        verbs: str | Iterable[str] | None = None,
        since: str | None = None,
        wait: Seconds | None = None,
    ) -> SyncFollower:
        """
        What happens to jobs, as it happens; see `Duly.events`.
        """
        return SyncFollower(self, self.here().events(topics=topics, verbs=verbs, since=since, wait=wait))

    # -- topics -------------------------------------------------------------------------------------------

    def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* start; see `Duly.pause`.
        """
        self.run(self.here().pause(topic))

    def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* start again; see `Duly.resume`.
        """
        self.run(self.here().resume(topic))

    def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait; see `Duly.limit`.
        """
        self.run(self.here().limit(topic, backlog))

    def callback(self, topic: str, url: str | None) -> None:
        """
        Have the jobs of *topic* delivered to *url*; see `Duly.callback`.
        """
        self.run(self.here().callback(topic, url))

    def purge(self, topic: str, *, state: JobState | None = None) -> int:
        """
        Cancel every job of *topic* that waits; see `Duly.purge`.
        """
        return self.run(self.here().purge(topic, state=state))

    def purge_some(self, topic: str, state: JobState, cursor: str | None = None) -> tuple[int, str | None]:
        """
        Cancel a bounded number of jobs of *topic* that wait; see `Duly.purge_some`.
        """
        return self.run(self.here().purge_some(topic, state, cursor))

    # -- oversight ----------------------------------------------------------------------------------------

    def stats(self) -> StatsDocument:
        """
        The queue at a glance; see `Duly.stats`.
        """
        return self.run(self.here().stats())

    def audit(self, limit: int = 50) -> list[AuditRecord]:
        """
        Who changed what by hand, the newest first; see `Duly.audit`.
        """
        return self.run(self.here().audit(limit))

    def quarantine(self) -> SyncQuarantine:
        """
        The stored jobs that cannot be read; see `Duly.quarantine`.
        """
        return SyncQuarantine(self)

    def views(self) -> SyncViews:
        """
        Read-only questions to the store.
        """
        return SyncViews(self)

    def key_ring(self) -> SyncKeyRing:
        """
        The API keys of the namespace; see `Duly.key_ring`.
        """
        return SyncKeyRing(self)

    # -- what blocks for good -----------------------------------------------------------------------------

    def work(self, **_: object) -> Never:
        """
        Refuse: a worker is not part of the twin.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported("app.sync has no worker: run `duly work`, or asyncio.run(app.work())")

    def deliver(self, **_: object) -> Never:
        """
        Refuse: delivering callbacks is not part of the twin.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(
            "app.sync delivers no callbacks: run `duly work --callbacks`, or asyncio.run(app.deliver())"
        )

    # -- the rest of the app ------------------------------------------------------------------------------

    @property
    def sync(self) -> Self:
        """
        The twin itself.
        """
        return self

    if not TYPE_CHECKING:  # to a type checker every attribute would be there

        def __getattr__(self, name: str) -> Any:
            """
            Find what the app has: what never waits, such as `handler` or `settings`, is the app's own.

            What is awaited and what is of no use without its loop is a function that raises `Unsupported`.
            """
            if name.startswith("_") or not hasattr(self.here(), name):
                msg = f"{type(self).__name__!r} object has no attribute {name!r}"
                raise AttributeError(msg, name=name, obj=self)
            found = getattr(self.here(), name)
            return partial(_refuse, name) if name in _WAYS or inspect.iscoroutinefunction(found) else found

    # -- connecting ---------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """
        Connect.
        """
        self.run(self.here().queue())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reconnect(self) -> None:
        """
        Connect anew and check the server again; see `Duly.reconnect`.
        """
        self.run(self.here().reconnect())

    def close(self) -> None:
        """
        Close connections and end the loop; what is called next opens them again.
        """
        thread, self._thread = self._thread, None
        if thread is not None:
            forbid_running_loop()
            thread.end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """
        Run *coroutine* on the twin's loop and wait for it.

        Raises:
            UsageError: This thread runs an event loop itself.
        """
        try:
            forbid_running_loop()
            thread = self.thread()
        except BaseException:
            coroutine.close()  # nobody will await it
            raise
        return thread.call(coroutine)

    def run_with(
        self, session: AnySession | None, make: Callable[[Elsewhere | None], Coroutine[Any, Any, T]]
    ) -> T:
        """
        Run what *make* makes on the twin's loop; what it does with *session* is done by this thread.

        A session belongs to the thread that uses it, and so does what it is connected by.
        """
        if session is None:
            return self.run(make(None))
        forbid_running_loop()
        with needed("a session"), importing():
            from duly.sync.errands import Errands  # noqa: PLC0415  # packages that need not be there

        thread = self.thread()
        errands = Errands(thread.new_queue())
        return thread.call(make(errands.with_(session)), errands.serve)

    def thread(self) -> LoopThread:
        """
        The thread with the twin's loop, started if need be.
        """
        thread = self._thread
        if thread is not None and thread.usable:
            return thread
        # Not under the lock: under gevent it may switch to another greenlet, which may want the lock.
        prepare_loop(remote=self.here().settings.remote)
        with _starting:
            thread = self._thread
            if thread is None or not thread.usable:
                thread = self._thread = begin_loop(self.here().aclose)
                # Should nobody close it.
                weakref.finalize(self, thread.ask_to_end).atexit = False
        return thread

    def here(self) -> Duly:
        """
        The app as it is used by this process.
        """
        if self._thread is not None and self._thread.pid != os.getpid():
            # The connections are the parent's.  Its loop's thread keeps them from being closed here.
            self._thread, self._app = None, None
        if self._app is None:
            self._app = self._fork()
        return self._app


class SyncJobHandle(KnownJob[R_co]):
    """
    The blocking twin of `JobHandle`.
    """

    def __init__(
        self,
        twin: SyncDuly,
        key: JobKey,
        placed: Placed | None = None,
        reader: ResultReader | None = None,
    ) -> None:
        super().__init__(key, placed, reader)
        self._twin = twin

    def get(self) -> Job:
        """
        The job as it is now; see `JobHandle.get`.
        """
        return self._twin.run(self._handle().get())

    def cancel(
        self, *, revision: int | None = None, session: AnySession | None = None
    ) -> JobState | Accepted:
        """
        End it, also while it runs; see `JobHandle.cancel`.
        """
        return self._twin.run_with(
            session, lambda given: self._handle().cancel(revision=revision, session=given)
        )

    def reschedule(
        self,
        *,
        delay: Seconds | None = None,
        due_at: datetime | None = None,
        revision: int | None = None,
        session: AnySession | None = None,
    ) -> Placed:
        """
        Give it another due time, if it has not started; see `JobHandle.reschedule`.
        """
        return self._twin.run_with(
            session,
            lambda given: self._handle().reschedule(
                delay=delay, due_at=due_at, revision=revision, session=given
            ),
        )

    def requeue(self, *, revision: int | None = None, session: AnySession | None = None) -> Placed:
        """
        Run it again now that it has ended; see `JobHandle.requeue`.
        """
        return self._twin.run_with(
            session, lambda given: self._handle().requeue(revision=revision, session=given)
        )

    def result(self, timeout: Seconds | None = None) -> R_co:
        """
        Wait until it has ended and return what its handler returned; see `JobHandle.result`.
        """
        return self._twin.run(self._handle().result(timeout))

    def _handle(self) -> JobHandle[R_co]:
        # Made anew, because a handle may come through a fork, into a process with connections of its own.
        return JobHandle(self._twin.here(), self.key, self.placed, self.reader)


class SyncViews:
    """
    The blocking twin of `Views`.
    """

    def __init__(self, twin: SyncDuly) -> None:
        self._twin = twin

    def get(self, key: JobKey) -> Job | None:
        """
        The job as it is now, None if there is none.
        """
        return self._twin.run(self._views().get(key))

    def get_many(self, keys: Sequence[JobKey]) -> list[Job | None]:
        """
        Jobs as they are now, each at one moment.
        """
        return self._twin.run(self._views().get_many(keys))

    def page(
        self, state: JobState, topic: str | None = None, *, cursor: str | None = None, limit: int = 100
    ) -> Page:
        """
        Jobs in one state, a page at a time; see `Views.page`.
        """
        return self._twin.run(self._views().page(state, topic, cursor=cursor, limit=limit))

    def each(self, state: JobState, topic: str | None = None) -> Iterator[Job]:
        """
        All jobs in one state, page by page.
        """
        cursor: str | None = None
        while True:
            page = self.page(state, topic, cursor=cursor, limit=PAGE)
            yield from page.jobs
            if page.cursor is None:
                return
            cursor = page.cursor

    def peek(self, topic: str, limit: int = 10) -> list[Job]:
        """
        The jobs of *topic* that would be claimed next, without claiming them.
        """
        return self._twin.run(self._views().peek(topic, limit))

    def topics(self) -> list[str]:
        """
        Every topic that has or had jobs.
        """
        return self._twin.run(self._views().topics())

    def stats(self) -> Stats:
        """
        Counters, workers and what is overdue.
        """
        return self._twin.run(self._views().stats())

    def workers(self, now_ms: int) -> list[dict[str, Any]]:
        """
        What workers say of themselves, and whether they were heard within a lease.
        """
        return self._twin.run(self._views().workers(now_ms))

    def now_ms(self) -> int:
        """
        The time by the server's clock.
        """
        return self._twin.run(self._views().now_ms())

    def newest(self) -> list[int]:
        """
        The newest number of each shard: a job with a higher revision was changed after this was asked.
        """
        return self._twin.run(self._views().newest())

    def replies_dropped(self) -> int:
        """
        How many replies nobody took in time, or before there were too many, ever.
        """
        return self._twin.run(self._views().replies_dropped())

    def waiting_since(self, topic: str) -> int | None:
        """
        When the ready job of *topic* was due that waits the longest, None if none waits.
        """
        return self._twin.run(self._views().waiting_since(topic))

    def due_counts(self, bounds: Sequence[int]) -> list[int]:
        """
        How many scheduled jobs are due from each of *bounds* on and before the next, in milliseconds.
        """
        return self._twin.run(self._views().due_counts(bounds))

    def changed(self, job: Job, newest: Sequence[int]) -> bool:
        """
        Return whether a job was sent or changed after `newest` was asked; its runs do not count.
        """
        return self._views().changed(job, newest)

    def shard_of(self, key: JobKey) -> int:
        """
        Return the number of the shard that a job is on.
        """
        return self._views().shard_of(key)

    def _views(self) -> Views:
        return self._twin.run(self._twin.here().views())
