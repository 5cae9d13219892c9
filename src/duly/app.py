"""
The app: handlers, and the way to and from the store.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

import msgspec

from duly.apikeys import KeyRing
from duly.backoff import wait_ms
from duly.batchhandler import BatchHandler
from duly.connection import Link
from duly.context import CURRENT
from duly.errors import DulyError, OutcomeUnknown, ServerUnsuitable, StoreUnavailable, UsageError
from duly.handle import JobHandle
from duly.handlers import Handlers
from duly.hooks import Hooks
from duly.job import JobKey, JobState, check_id, check_topic
from duly.middleware import Middleware, check_async
from duly.namespace import inspect, require
from duly.newjob import NewJob, at_least_one, new_job
from duly.remote.replies import RemoteReplies
from duly.remote.views import RemoteViews, needs_server
from duly.remote.waiting import RemoteWaiters
from duly.replies import Replies, StoreReplies
from duly.services.crew import Crew, run_together
from duly.services.worker import Worker
from duly.settings import Settings
from duly.store import Keeping, Store
from duly.sync.twin import SyncDuly
from duly.urls import parse_url
from duly.views import PAGE, Views
from duly.waiting import Waiters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, Unpack

    from opentelemetry.trace import TracerProvider

    from duly.backoff import Backoff, Seconds
    from duly.batchhandler import BatchFunction
    from duly.embedded.server import EmbeddedServer
    from duly.handlers import Decorator, RunIn
    from duly.job import Order
    from duly.middleware import AroundEnqueue, AroundHandler
    from duly.namespace import ServerFacts
    from duly.newjob import Options
    from duly.record.assembly import WholeRecord
    from duly.record.sessions import AnySession
    from duly.remote.store import RemoteStore

log = logging.getLogger("duly")

R = TypeVar("R")
Hook = TypeVar("Hook", bound="Callable[..., Any]")
AroundEnqueueT = TypeVar("AroundEnqueueT", bound="AroundEnqueue")
AroundHandlerT = TypeVar("AroundHandlerT", bound="AroundHandler")

DELIVERIES = 100  #: callbacks under way at once, at least: a dozen hosts that hang leave room for others
BATCH = 1000  #: jobs of one `enqueue_many` that go through middleware at once


class Duly:
    """
    Runs functions when they are due.

    Without a URL, jobs wait in an embedded Valkey under ``./.duly``.  With that of a `duly serve`, https://…,
    jobs are sent to it, looked at and steered; workers need the queue's own server.
    """

    def __init__(self, url: str | None = None, *, settings: Settings | None = None, **flags: Any) -> None:
        """
        Read settings: defaults, duly.toml, DULY_*, and what is said here.  Connects on first use.

        Raises:
            UsageError: A setting is unknown or wrong.
        """
        if settings is not None and (url is not None or flags):
            msg = "say either settings or single settings by name, not both"
            raise UsageError(msg)
        self.settings = settings or Settings.load(url=url, **flags)
        self.handlers = Handlers(self.settings.limits)
        self.hooks = Hooks()
        self.middleware = Middleware()
        self.facts: ServerFacts | None = None
        self.must_exist = False  #: refuse a namespace that is not there, instead of making it
        self._server: EmbeddedServer | None = None
        self._store: Store | RemoteStore | None = None
        self._record: WholeRecord | None = None
        self._unrecorded = False  #: the namespace was seen to have no record
        self._waiters: Waiters | RemoteWaiters | None = None
        self._now: Callable[[], int] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting: asyncio.Lock | None = None
        self.sync = SyncDuly(self._unconnected)  #: the blocking twin, for code without an event loop

    # -- handlers -----------------------------------------------------------------------------------------

    def handler(
        self,
        topic: str,
        *,
        max_attempts: int = 5,
        backoff: Backoff | None = None,
        ttr: Seconds = 300,
        concurrency: int | None = None,
        run_in: RunIn = "auto",
        max_crashes: int = 3,
    ) -> Decorator:
        """
        Make the decorated function the handler of *topic*.
        """
        more: dict[str, Any] = {} if backoff is None else {"backoff": backoff}
        return self.handlers.handler(
            topic,
            max_attempts=max_attempts,
            ttr=ttr,
            concurrency=concurrency,
            run_in=run_in,
            max_crashes=max_crashes,
            **more,
        )

    def batch_handler(
        self,
        topic: str,
        *,
        max_rows: int = 10_000,
        every: Seconds = 0,
        max_attempts: int = 5,
        backoff: Backoff | None = None,
        ttr: Seconds = 300,
    ) -> Callable[[BatchFunction], BatchHandler]:
        """
        Make the decorated function, DataFrame to DataFrame, the handler of batches of *topic*.

        Only `duly pipeline work` runs it, on Spark; workers of single jobs leave the topic alone.
        """
        more: dict[str, Any] = {} if backoff is None else {"backoff": backoff}

        def decorate(fn: BatchFunction) -> BatchHandler:
            handler = BatchHandler(
                fn,
                topic,
                max_rows=max_rows,
                every=every,
                max_attempts=max_attempts,
                ttr=ttr,
                limits=self.settings.limits,
                **more,
            )
            self.handlers.add_batch(handler)
            return handler

        return decorate

    def remove_handler(self, topic: str) -> None:
        """
        Stop taking jobs of *topic*; those that run go on.
        """
        self.handlers.remove(topic)

    def on_start(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job before its handler starts.
        """
        self.hooks.start.append(hook)
        return hook

    def on_success(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler returned, once that is stored.
        """
        self.hooks.success.append(hook)
        return hook

    def on_failure(self, hook: Hook) -> Hook:
        """
        Call *hook* with the job and what its handler raised, once that is stored.
        """
        self.hooks.failure.append(hook)
        return hook

    def on_timeout(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job that was stopped because it ran too long.
        """
        self.hooks.timeout.append(hook)
        return hook

    def on_lease_lost(self, hook: Hook) -> Hook:
        """
        Call *hook* with a job whose outcome here does not count any more.
        """
        self.hooks.lease_lost.append(hook)
        return hook

    # -- middleware ---------------------------------------------------------------------------------------

    def around_enqueue(self, fn: AroundEnqueueT) -> AroundEnqueueT:
        """
        Send every job through ``async fn(job, call_next)``, which returns ``await call_next(job)`` or raises.

        Raises:
            UsageError: It is no async function.
        """
        self.middleware.enqueue.append(check_async(fn, "around_enqueue"))
        return fn

    def around_handler(self, fn: AroundHandlerT) -> AroundHandlerT:
        """
        Run every handler through ``async fn(job, call_next)``; what it returns or raises is the answer.

        Raises:
            UsageError: It is no async function.
        """
        self.middleware.handler.append(check_async(fn, "around_handler"))
        return fn

    def inherit(self, *names: str) -> None:
        """
        Pass these entries of a job's context on to the jobs that its handler sends, beside the trace headers.
        """
        self.middleware.inherited.update(dict.fromkeys(names))

    def trace_with(self, provider: TracerProvider) -> None:
        """
        Make spans with this OpenTelemetry tracer provider, rather than with the one set up for the process.
        """
        from duly.telemetry import Telemetry  # noqa: PLC0415  # a package that need not be there

        self.middleware.telemetry = Telemetry(provider)

    # -- sending ------------------------------------------------------------------------------------------

    @overload
    async def enqueue(
        self, job: NewJob[R], *, session: AnySession | None = None, **options: Unpack[Options]
    ) -> JobHandle[R]: ...

    @overload
    async def enqueue(
        self,
        job: str,
        payload: object = None,
        *,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> JobHandle[Any]: ...

    async def enqueue(
        self,
        job: NewJob[R] | str,
        payload: object = None,
        *,
        session: AnySession | None = None,
        **options: Unpack[Options],
    ) -> JobHandle[R] | JobHandle[Any]:
        """
        Promise to run a job; by name for senders that lack the handler's code.

        With a *session* of SQLAlchemy on the record's database the promise is part of its transaction: its
        commit makes it, and a rollback leaves nothing of it.

        Raises:
            UsageError: Something about it is wrong; nothing was sent.
            JobExists, QueueFull: It was not accepted.
            StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        if isinstance(job, str):
            job = new_job(job, payload, self.settings.limits)
        if options:
            job = job.options(**options)
        job = self.middleware.inherit(job)
        if self.middleware.around_enqueue():
            return await self.middleware.send(job, partial(self._send, session=session))
        return await self._send(job, session=session)

    async def _send(self, job: NewJob[Any], *, session: AnySession | None = None) -> JobHandle[Any]:
        order = self._order(job)
        try:
            if session is None:
                placed = await (await self.queue()).enqueue(order)
            else:
                placed = await (await self.promises()).enqueue(order, session=session)
        except OutcomeUnknown as error:
            if job.id is not None:
                raise
            # Without it, the same call would make another job beside the one that may be there.
            msg = f"{error}, with id={order.key.id!r}, which it was given"
            raise OutcomeUnknown(msg) from error
        if self.hooks.meter is not None:
            self.hooks.meter.enqueued(placed.key.topic, placed.word)
        return JobHandle(self, placed.key, placed)

    async def enqueue_many(
        self, jobs: Iterable[NewJob[Any]], *, session: AnySession | None = None
    ) -> list[JobHandle[Any] | DulyError]:
        """
        Promise any number of jobs; one outcome for each, in their order.  A wrong one is an outcome, too.

        *jobs* may be made on the way: they are taken as they are sent, a few hundred at a time.
        With a *session* they are part of its transaction, see `enqueue`.
        """
        if CURRENT.get(None) is not None:
            jobs = map(self.middleware.inherit, jobs)
        if self.middleware.around_enqueue():
            return await self._send_many_through(jobs, session)
        outcomes: list[Any] = []
        positions: list[int] = []

        def orders() -> Iterator[Order]:
            # One at a time, so that the next ones are made while the server works on those before.
            for job in jobs:
                try:
                    order = self._order(job)
                except UsageError as error:
                    outcomes.append(error)
                else:
                    positions.append(len(outcomes))
                    outcomes.append(None)
                    yield order

        if session is None:
            answers = await (await self.queue()).enqueue_many(orders())
        else:
            answers = await (await self.promises()).enqueue_many(orders(), session=session)
        for position, answer in zip(positions, answers, strict=True):
            outcomes[position] = (
                answer if isinstance(answer, DulyError) else JobHandle(self, answer.key, answer)
            )
        if self.hooks.meter is not None:
            sent = Counter(
                (answer.key.topic, answer.word) for answer in answers if not isinstance(answer, DulyError)
            )
            for (topic, word), count in sent.items():
                self.hooks.meter.enqueued(topic, word, count)
        return outcomes

    async def _send_many_through(
        self, jobs: Iterable[NewJob[Any]], session: AnySession | None
    ) -> list[JobHandle[Any] | DulyError]:
        """
        Send each job through the middleware, many at once: they leave together all the same.
        """
        outcomes: list[JobHandle[Any] | DulyError] = []
        if session is not None:
            # A session does one thing at a time.
            return [await self._send_through(job, session) for job in jobs]
        ahead = iter(jobs)
        while batch := list(islice(ahead, BATCH)):
            outcomes += await asyncio.gather(*(self._send_through(job) for job in batch))
        return outcomes

    async def _send_through(
        self, job: NewJob[Any], session: AnySession | None = None
    ) -> JobHandle[Any] | DulyError:
        try:
            return await self.middleware.send(job, partial(self._send, session=session))
        except DulyError as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever it was refused with, the others are sent
            refusal = UsageError(f"{job.topic}: refused by middleware: {type(error).__name__}: {error}")
            refusal.__cause__ = error
            return refusal

    def _order(self, job: NewJob[Any]) -> Order:
        handler = self.handlers.get(job.topic)
        if (
            job.max_crashes is None
            and handler is not None
            and handler.max_crashes != self._default_max_crashes
        ):
            job = job.options(max_crashes=handler.max_crashes)
        return job.order(self.handlers.limits)

    _default_max_crashes = 3

    def job(self, topic: str, id_: str) -> JobHandle[Any]:
        """
        A handle on a job that was sent earlier, maybe by somebody else.
        """
        return JobHandle(self, JobKey(check_topic(topic), check_id(id_)))

    def replies(self, name: str, *, wait: Seconds | None = None) -> Replies:
        """
        What becomes of jobs that were sent with ``reply_to=name``: ``async for reply in app.replies(name)``.

        A reply is acked when the loop asks for the next one; `Reply.ack` does it earlier.  One that was not
        acked comes again after 30 s.  Without *wait* it goes on for ever, else until none came for so long.

        Raises:
            UsageError: No queue can be called so.
        """
        wait_s = None if wait is None else wait_ms(wait, "wait") / 1000
        return Replies(self.reply_queue, check_topic(name, "reply queue"), wait_s)

    async def reply_queue(self) -> StoreReplies | RemoteReplies:
        """
        Where replies are taken and acked, a call for each.
        """
        queue, waiters = await self.queue(), await self.waiters()
        if isinstance(waiters, Waiters):
            return StoreReplies(cast("Store", queue), waiters)
        return RemoteReplies(waiters.link)

    def read_result(self, topic: str, value: Any) -> Any:
        """
        Turn a result into what its handler says it returns, where that is known here.
        """
        handler = self.handlers.get(topic)
        if handler is None:
            return value
        kind = handler.binding.returns()
        if kind is None:
            return value
        try:
            return msgspec.convert(value, kind)
        except (msgspec.ValidationError, TypeError):
            return value

    # -- topics -------------------------------------------------------------------------------------------

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* start; running ones finish, due ones wait.
        """
        await (await self.queue()).pause(check_topic(topic))

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* start again; the time it was paused is not lateness.
        """
        await (await self.queue()).resume(check_topic(topic))

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait, with `QueueFull`; None lifts the limit.

        Raises:
            UsageError: The limit is not a whole number of 1 or more.
        """
        if backlog is not None:
            at_least_one(backlog, "backlog", 2**53)
        await (await self.queue()).limit(check_topic(topic), backlog)

    async def callback(self, topic: str, url: str | None) -> None:
        """
        Have the jobs of *topic* delivered to *url* instead of run by workers; None ends that.

        Raises:
            UsageError: It is no URL that callbacks may have.
        """
        found = None if url is None else parse_url(url).url
        await (await self.store()).set_callback(check_topic(topic), found)

    async def purge(self, topic: str) -> int:
        """
        Cancel every job of *topic* that waits, scheduled or ready; how many that were.
        """
        check_topic(topic)
        queue, views = await self.queue(), await self.views()
        purged = 0
        for state in (JobState.scheduled, JobState.ready):
            cursor: str | None = None
            while True:
                page = await views.page(state, topic, cursor=cursor, limit=PAGE)
                ended = await queue.cancel([job.key for job in page.jobs], reason="purged")
                purged += sum(each is JobState.cancelled for each in ended)
                if page.cursor is None:
                    break
                cursor = page.cursor
        return purged

    # -- working ------------------------------------------------------------------------------------------

    async def work(
        self,
        *,
        concurrency: int | None = None,
        topics: Sequence[str] | None = None,
        stop: asyncio.Event | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        callbacks: bool = False,
    ) -> None:
        """
        Run jobs in this process until cancelled or *stop* is set; then drain.

        With *tracebacks* those of failures are logged and kept: they may quote what a job was given.
        With *callbacks* it delivers those as well, see `deliver`.

        Raises:
            UsageError: There is no handler, or the URL is that of an HTTP service.
        """
        self._need_server()
        chosen = list(topics) if topics is not None else None
        for topic in chosen or ():
            if self.handlers.get(topic) is None:
                known = ", ".join(self.handlers.topics()) or "none"
                msg = f"there is no handler of topic {topic}; known are {known}"
                raise UsageError(msg)
        if not self.handlers.topics():
            msg = "there is no handler: decorate a function with @app.handler(topic)"
            if self.handlers.batches():
                msg = "there are only batch handlers, which Spark runs: use `duly pipeline work`"
            raise UsageError(msg)
        self._need_time("app.work()")
        self._need_server()
        await self.queue()
        self.middleware.look_for_telemetry()
        settings = self.settings
        if concurrency is not None:
            settings = replace(settings, concurrency=concurrency)
        crew = self.crew(settings, topics=chosen, stalled=stalled, tracebacks=tracebacks)
        if callbacks:
            await run_together([crew, self._deliverers(None, stalled)], stop or asyncio.Event())
        else:
            await crew.run(stop or asyncio.Event())

    async def deliver(
        self,
        *,
        concurrency: int | None = None,
        stop: asyncio.Event | None = None,
        stalled: Callable[[list[str]], None] | None = None,
    ) -> None:
        """
        Deliver callbacks from this process, of whatever topic, until cancelled or *stop* is set; then drain.

        Raises:
            UsageError: There is no secret to sign with, or another setting of callbacks is wrong.
        """
        self._need_time("app.deliver()")
        self._need_server()
        await self.queue()
        self.middleware.look_for_telemetry()
        await self._deliverers(concurrency, stalled).run(stop or asyncio.Event())

    def _deliverers(self, concurrency: int | None, stalled: Callable[[list[str]], None] | None) -> Crew:
        from duly.callbacks.deliver import Deliverer  # noqa: PLC0415  # packages that need not be there
        from duly.callbacks.queue import CallbackHandlers, CallbackStore, Called  # noqa: PLC0415  # as above

        called = Called(self.settings.namespace)
        crew = Crew(
            lambda: self.make_store(partial(CallbackStore, called)),
            CallbackHandlers(called, Deliverer.of(self.settings), self.settings.limits),
            self.hooks,
            replace(self.settings, concurrency=concurrency or max(DELIVERIES, self.settings.concurrency)),
            stalled=stalled,
            middleware=self.middleware,
            outcomes=None if self._record is None else self._record.outcomes(),
            upkeep=None if self._record is None else self._record.upkeep,
        )
        called.store = cast("CallbackStore", crew.store)
        return crew

    def _need_time(self, what: str) -> None:
        if self._now is not None:
            msg = (
                f"{what} waits for time to pass, and the clock of this test stands still: "
                'use `await duly.drain()`, or a test bed with clock="server"'
            )
            raise UsageError(msg)

    def crew(
        self,
        settings: Settings,
        *,
        topics: list[str] | None = None,
        stalled: Callable[[list[str]], None] | None = None,
        tracebacks: bool = False,
        worker: type[Worker] = Worker,
    ) -> Crew:
        """
        A worker for the handlers of this app, and the duties beside it; none of them has begun.
        """
        crew = Crew(
            self.make_store,
            self.handlers,
            self.hooks,
            settings,
            topics=topics,
            stalled=stalled,
            tracebacks=tracebacks,
            middleware=self.middleware,
            worker=worker,
            outcomes=None if self._record is None else self._record.outcomes(),
            upkeep=None if self._record is None else self._record.upkeep,
        )
        if self.hooks.meter is not None:
            self.hooks.meter.working(crew)
        return crew

    # -- connecting ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """
        Connect.
        """
        await self.queue()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def store(self) -> Store:
        """
        The connected store.

        Raises:
            UsageError: The URL is that of an HTTP service.
            StoreUnavailable: The server cannot be reached or started.
            ServerUnsuitable, LayoutMismatch: It does not fit.
        """
        self._need_server()
        backend = await self._backend()
        assert isinstance(backend, Store)  # noqa: S101  # the URL says so
        return backend

    async def queue(self) -> Store | RemoteStore | WholeRecord:
        """
        What takes jobs and moves them: the record if there is one, else the connected store, or the HTTP
        service that the URL names.

        Raises:
            StoreUnavailable: It cannot be reached or started.
            ServerUnsuitable, LayoutMismatch: It does not fit.
        """
        backend = await self._backend()
        if self._record is not None:
            await self._record.agreed()
        elif isinstance(backend, Store):
            await self._need_no_record(backend)
        return self._record or backend

    async def _need_no_record(self, store: Store) -> None:
        """
        Refuse to move jobs behind the back of a record.
        """
        if self._unrecorded:
            return
        if await store.link.call("HGET", store.keys[0].fixed["meta"], "record"):
            raise ServerUnsuitable(store.needs_record())
        self._unrecorded = True

    async def record(self) -> WholeRecord:
        """
        The connected record, compared with the queue.

        Raises:
            UsageError: There is none.
            StoreUnavailable, RecordUnavailable: Server or database cannot be reached.
            ServerUnsuitable, LayoutMismatch: One of them does not fit.
        """
        record = await self.promises()
        await record.agreed()
        return record

    async def promises(self) -> WholeRecord:
        """
        The connected record for who writes rows in a transaction of its own, and nothing besides.

        Raises:
            UsageError: There is none.
            StoreUnavailable, RecordUnavailable: Server or database cannot be reached.
            ServerUnsuitable, LayoutMismatch: One of them does not fit.
        """
        await self._backend()
        if self._record is None:
            raise UsageError("there is no record: Duly(…, record='postgresql://…'), or DULY_RECORD")
        return self._record

    async def _backend(self) -> Store | RemoteStore:
        loop = asyncio.get_running_loop()
        if self._store is not None and self._loop is loop:
            return self._store
        if self._connecting is None or self._loop is not loop:
            self._loop, self._connecting = loop, asyncio.Lock()
            self._store = self._record = self._waiters = None
            self._unrecorded = False
        async with self._connecting:
            if self._store is None:
                store = await self._connect()
                if isinstance(store, Store) and self.settings.record is not None:
                    self._record = await self._open_record(store, self.settings.record)
                self._store = store
        return self._store

    async def _open_record(self, store: Store, url: str) -> WholeRecord:
        settings = self.settings
        record: WholeRecord | None = None
        try:
            from duly.record.assembly import WholeRecord  # noqa: PLC0415  # packages that need not be there

            record = WholeRecord(url, store, horizon_ms=settings.horizon_ms, keep_ms=settings.record_keep_ms)
            await record.open()
        except BaseException as error:
            if record is not None:
                await record.aclose()
            await store.link.aclose()
            if isinstance(error, ImportError):
                raise UsageError(f"a record needs {error.name}: pip install 'duly[record]'") from error
            raise
        return record

    async def _connect(self) -> Store | RemoteStore:
        if self.settings.remote:
            return await self._connect_remote()
        if self.settings.url is None and self._server is None:
            from duly.embedded.server import EmbeddedServer  # noqa: PLC0415  # only who has no server needs one

            server = EmbeddedServer(self.settings.data, self.settings.durability)
            await asyncio.to_thread(server.start)
            self._server = server
        store = self.make_store()
        try:
            self.facts = await inspect(store.link)
            for warning in self.facts.warnings:
                log.warning("%s", warning)
            if self.must_exist:
                await require(store.link, self.settings.namespace)
            await store.create()
        except BaseException:
            await store.link.aclose()
            raise
        return store

    async def _connect_remote(self) -> RemoteStore:
        # Only who has no server needs a client of HTTP.
        from duly.remote.link import RemoteLink  # noqa: PLC0415  # only for HTTP
        from duly.remote.store import RemoteStore  # noqa: PLC0415  # likewise

        settings = self.settings
        link = RemoteLink(
            settings.url or "", api_key=settings.api_key, timeout_s=settings.socket_timeout_ms / 1000
        )
        try:
            await link.look()
        except BaseException:
            await link.aclose()
            raise
        return RemoteStore(link)

    def _need_server(self) -> None:
        if self.settings.remote:
            raise needs_server(self.settings.url or "")

    def _unconnected(self) -> Self:
        """
        The same app, handlers and settings, with no connections yet.
        """
        other = copy.copy(self)
        vars(other).update(
            _server=None, _store=None, _record=None, _waiters=None, _loop=None, _connecting=None
        )
        del other.sync  # whose loop holds the copy: it would never be without a user
        return other

    def make_store(self, kind: Callable[..., Store] = Store) -> Store:
        """
        A store with connections of its own, for another thread or task.

        Raises:
            UsageError: The URL is that of an HTTP service.
        """
        self._need_server()
        settings = self.settings
        server = self._server

        link = Link(
            server.url if server is not None else settings.url or "",
            ensure=None if server is None else _ensure(server),
            timeout_s=settings.socket_timeout_ms / 1000,
        )
        store = kind(
            link,
            namespace=settings.namespace,
            shards=settings.shards,
            lease_ms=settings.lease_ms,
            max_crashes=self._default_max_crashes,
            max_events=(settings.events_rows, settings.events_bytes),
            keeping=Keeping(
                done_ms=settings.keep_succeeded_ms,
                done_bytes=settings.keep_succeeded_bytes,
                dead_ms=settings.keep_dead_ms,
                dead_bytes=settings.keep_dead_bytes,
            ),
            now=self._now,
        )
        if self._record is not None:
            store.agree, store.generation = self._record.guard.agree, self._record.generation
        return store

    async def views(self) -> Views:
        """
        Read-only questions to the store.
        """
        backend = await self._backend()
        if self._record is not None:
            return self._record.views()
        return Views(backend) if isinstance(backend, Store) else RemoteViews(backend.link)

    async def key_ring(self) -> KeyRing:
        """
        The API keys of the namespace.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
        """
        store = await self.store()
        return KeyRing(store, keeper=None if self._record is None else self._record.keys)

    async def waiters(self) -> Waiters | RemoteWaiters:
        """
        Who waits for jobs to end.
        """
        backend = await self._backend()
        if self._waiters is None:
            elsewhere = None if self._record is None else self._record.views().get
            self._waiters = (
                Waiters(backend, elsewhere) if isinstance(backend, Store) else RemoteWaiters(backend.link)
            )
        return self._waiters

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """
        The event loop in which it is connected, None if it is not.
        """
        return self._loop if self._store is not None else None

    def redirect(self, settings: Settings, now: Callable[[], int] | None = None) -> None:
        """
        Use other settings, and for tests another clock, from the next call on.

        Raises:
            UsageError: It is connected.
        """
        if self._store is not None and self._loop is not None and not self._loop.is_closed():
            msg = "the app is connected: close it first, with `await app.aclose()`"
            raise UsageError(msg)
        # What is left of a loop that was closed under it went with that loop.
        self._store = self._record = self._waiters = self._loop = self._connecting = None
        if self._server is not None:
            self._server.close()
            self._server = None
        self.settings, self._now = settings, now
        with suppress(
            UsageError
        ):  # on a thread that runs a loop it ends by itself, when nobody uses it any more
            self.sync.close()
        self.sync = SyncDuly(self._unconnected)

    async def reconnect(self) -> None:
        """
        Connect anew and check the server again, for instance after it was emptied.
        """
        await self._disconnect()
        await self.queue()

    async def aclose(self) -> None:
        """
        Close connections; the embedded server ends when its last user has gone.
        """
        if self._waiters is not None:
            await self._waiters.aclose()
            self._waiters = None
        await self._disconnect()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)
            self._server = None

    async def _disconnect(self) -> None:
        if self._record is not None:
            await self._record.aclose()
            self._record = None
        if self._store is not None:
            await self._store.link.aclose()
            self._store = None


def _ensure(server: EmbeddedServer) -> Callable[[], Awaitable[None]]:
    async def ensure() -> None:
        try:
            await asyncio.to_thread(server.ensure)
        except (StoreUnavailable, UsageError) as error:
            # The call that found no server goes on trying, and tells its caller in the end.
            log.warning("%s", error)

    return ensure
