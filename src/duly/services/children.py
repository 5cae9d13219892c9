"""
Child processes for functions that need a process of their own: one call at a time, killed when over time.

What crosses the pipe is JSON, as everywhere.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import inspect
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from duly.codec import Unreadable, decode
from duly.context import CURRENT, CurrentJob
from duly.errors import Unsupported
from duly.failure import error_document, signature, traceback_of
from duly.job import JobKey, Lane, Lease
from duly.outcome import Bury, Retry, Snooze, Unstorable
from duly.sentry import run_context

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection

    from duly.handlers import Handler
    from duly.newjob import Limits

START_S = 60.0  #: how long a child may take to import what its handler needs

_spawn = multiprocessing.get_context("spawn")


class ChildCrashed(Exception):
    """
    The child process ended without an answer.
    """


class ChildNotStarted(Exception):
    """
    The child process ended before it could take a call.
    """


class ChildError(Exception):
    """
    What a handler raised in a child process, as far as JSON carries it.
    """

    def __init__(self, document: bytes, signature: str, traceback: str, *, is_final: bool) -> None:
        super().__init__(signature)
        self.is_final = is_final  #: its result cannot be stored, and another run would return the same
        self.document = document
        self.signature = signature
        self.traceback = traceback
        self.__cause__ = ChildTraceback(traceback)


class ChildTraceback(Exception):
    """
    The traceback of what was raised in a child process, as text: frames do not leave their process.
    """


class Call(msgspec.Struct):
    """
    One run, as the child needs to know it.
    """

    topic: str
    id: str
    revision: int
    token: int
    nonce: bytes
    attempt: int
    crashes: int
    due_ms: int
    claimed_ms: int
    remaining_s: float
    payload: bytes
    context: dict[str, Any]


class Answer(msgspec.Struct, omit_defaults=True):
    """
    What the child has to say: progress, a result, one that cannot be stored, a planned ending, or an error.
    """

    kind: str
    value: Any = None
    result: msgspec.Raw = msgspec.Raw(b"")
    error: bytes = b""
    signature: str = ""
    traceback: str = ""


_calls = msgspec.json.Decoder(Call)
_answers = msgspec.json.Decoder(Answer)


class Child:
    """
    A child process that runs the handler of one topic.
    """

    def __init__(self, handler: Handler[..., Any]) -> None:
        self.topic = handler.topic
        self._binding = handler.binding
        self._pipe, theirs = _spawn.Pipe()
        fn = handler.fn
        self._process = _spawn.Process(
            target=_serve, args=(fn.__module__, fn.__qualname__, theirs, handler.limits), daemon=True
        )
        self._process.start()
        theirs.close()
        self.calls = 0

    def wait_until_ready(self) -> None:
        """
        Return when it can take a call: what it imports may take longer than a job may run.  Blocks.

        Raises:
            ChildNotStarted: It ended instead.
        """
        try:
            if not self._pipe.poll(START_S):
                self.kill()
            self._pipe.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(1)
            code = self._process.exitcode
            raise ChildNotStarted(
                f"the child process of {self.topic} did not start: exit code {code}"
            ) from error

    def run(self, call: Call, report: Callable[[Any], None]) -> Any:
        """
        Run one job and return or raise what the handler did.  Blocks.

        Raises:
            ChildCrashed: The process ended meanwhile.
        """
        self.calls += 1
        try:
            self._pipe.send_bytes(msgspec.json.encode(call))
            while True:
                answer = _answers.decode(self._pipe.recv_bytes())
                match answer.kind:
                    case "progress":
                        report(answer.value)
                    case "result":
                        return self._result(bytes(answer.result))
                    case "snooze":
                        return Snooze(answer.value / 1000)
                    case "retry":
                        delay_ms, reason = answer.value
                        return Retry(None if delay_ms is None else delay_ms / 1000, reason)
                    case "bury":
                        return Bury(answer.value)
                    case _:
                        break
        except (EOFError, OSError) as error:
            self._process.join(1)
            raise ChildCrashed(f"the child process ended with exit code {self._process.exitcode}") from error
        except BaseException:
            # It still runs, and what it says next would be taken for the answer to another call.
            self.kill()
            raise
        is_final = answer.kind == "unstorable"
        raise ChildError(answer.error, answer.signature, answer.traceback, is_final=is_final)

    def _result(self, data: bytes) -> Any:
        try:
            return self._binding.decode_result(data)
        except Unreadable:
            # JSON already, and not what the handler says it returns: as it came from the function.
            return decode(data)

    @property
    def alive(self) -> bool:
        """
        Whether it can take another call.
        """
        return self._process.is_alive()

    def kill(self) -> None:
        """
        End the process at once.
        """
        self._process.kill()


class Children:
    """
    Children by handler, kept for the next job.  Not by topic: that may get another handler while we run.
    """

    def __init__(self) -> None:
        self._idle: dict[Handler[..., Any], list[Child]] = {}
        self._all: set[Child] = set()
        self._lock = threading.Lock()
        self._starting = threading.Lock()  #: held while a process starts, so that none slips past `close`
        self._closed = False

    def waiting(self, handler: Handler[..., Any]) -> Child | None:
        """
        A child that was kept, if one is there.
        """
        with self._lock:
            waiting = self._idle.setdefault(handler, [])
            while waiting:
                child = waiting.pop()
                if child.alive:
                    return child
                self._all.discard(child)
        return None

    def start(self, handler: Handler[..., Any]) -> Child:
        """
        A new child, ready to take a call.  Blocks.

        Raises:
            ChildNotStarted: It did not start.
            UsageError: It could not find the handler.
        """
        handler.check_found()
        with self._starting:
            if self._closed:
                msg = f"the child process of {handler.topic} was not started: the worker ends"
                raise ChildNotStarted(msg)
            child = Child(handler)
            with self._lock:
                if not self._all:
                    # Should nobody close us: what is there when the interpreter ends would be waited for.
                    atexit.register(self.close)
                self._all.add(child)
        try:
            child.wait_until_ready()
        except ChildNotStarted:
            # From now on what has to run isolated runs alone on the worker, where that is possible.
            handler.isolates = handler.run_in == "process"
            with self._lock:
                self._all.discard(child)
            raise
        return child

    def give_back(self, handler: Handler[..., Any], child: Child) -> None:
        """
        Keep a child for the next job of its handler, unless that runs in processes only where it must.
        """
        with self._lock:
            if child.alive and not self._closed and handler.run_in == "process":
                self._idle.setdefault(handler, []).append(child)
            else:
                child.kill()
                self._all.discard(child)

    def close(self) -> None:
        """
        End all children, and start no more.
        """
        with self._starting, self._lock:
            self._closed = True
            for child in self._all:
                child.kill()
            self._all.clear()
            self._idle.clear()
        atexit.unregister(self.close)


def call_of(lease: Lease, context: dict[str, Any]) -> Call:
    """
    Describe a lease to a child.
    """
    return Call(
        lease.key.topic,
        lease.key.id,
        lease.revision,
        lease.token,
        lease.nonce,
        lease.attempt,
        lease.crashes,
        lease.due_ms,
        lease.claimed_ms,
        lease.ttr_ms / 1000,
        lease.payload,
        context,
    )


def _serve(module: str, qualname: str, pipe: Connection, limits: Limits) -> None:
    """
    The child: run one call after the other until the pipe closes, as it does when the parent dies.
    """
    # A terminal or a supervisor signals the whole group; the parent drains and decides when a child ends.
    # Not ignored, because that would be inherited by programs that a handler starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    handler: Handler[..., Any] = found
    pipe.send_bytes(b"ready")
    while True:
        try:
            call = _calls.decode(pipe.recv_bytes())
        except (EOFError, OSError):
            return

        def report(value: object) -> None:
            data = handler.binding.codec.encode(value, what="progress", limit=limits.context)
            pipe.send_bytes(msgspec.json.encode(Answer("progress", msgspec.Raw(data))))

        lease = Lease(
            JobKey(call.topic, call.id),
            0,
            Lane.normal,
            call.revision,
            call.token,
            call.nonce,
            call.attempt,
            call.crashes,
            call.due_ms,
            call.claimed_ms,
            0,
            int(call.remaining_s * 1000),
            call.due_ms,
            call.payload,
        )
        deadline_s = time.monotonic() + call.remaining_s
        job = CurrentJob(lease, call.context, deadline_s, report, partial(_refuse_transaction, handler))
        # Nothing that one run has set is there in the next.
        answer = msgspec.json.encode(run_context(lease).run(_run, handler, lease.payload, job))
        try:
            pipe.send_bytes(answer)
        except OSError:
            return


def _refuse_transaction(handler: Handler[..., Any], job: CurrentJob) -> NoReturn:
    if handler.run_in == "process":
        why = 'a handler with run_in="process" has no way to the record of its worker'
    else:
        why = "a job that has crashed runs in a process of its own, which has no way to the record"
    raise Unsupported(f'{job.topic}/{job.id}: {why}: for current_job().transaction() say run_in="thread"')


def _end_with_parent() -> None:
    """
    Do not work on for a worker that is gone: its lease is lost with it.
    """
    if parent := multiprocessing.parent_process():
        wait([parent.sentinel])
        os._exit(1)


def _run(handler: Handler[..., Any], payload: bytes, job: CurrentJob) -> Answer:
    CURRENT.set(job)
    if "opentelemetry.trace" in sys.modules:
        from duly.telemetry import continue_trace  # noqa: PLC0415  # a package that need not be there

        continue_trace(job.context, handler.registry.propagator if handler.registry else None)
    return _answer(handler, payload)


def _answer(handler: Handler[..., Any], payload: bytes) -> Answer:
    try:
        args, kwargs = handler.bind(payload)
        result = handler.entry(*args, **kwargs)
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except (Snooze, Retry, Bury) as planned:
        result = planned
    except Unstorable as error:
        return _failure(error.why, "unstorable")
    except BaseException as error:  # noqa: BLE001  # the parent decides what becomes of it
        return _failure(error)
    match result:
        case Snooze():
            return Answer("snooze", result.delay_ms)
        case Retry():
            return Answer("retry", [result.delay_ms, result.reason])
        case Bury():
            return Answer("bury", result.reason)
    try:
        return Answer("result", result=msgspec.Raw(handler.encode_result(result) or b"null"))
    except Exception as error:  # noqa: BLE001  # encoders are users' code, too
        return _failure(error, "unstorable")


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _failure(error: BaseException, kind: str = "error") -> Answer:
    text = traceback_of(error).encode(errors="replace").decode()
    return Answer(kind, error=error_document(error), signature=signature(error), traceback=text)
