"""
A backend for Django's tasks: `django.tasks` of Django 6, or the package django-tasks before it.

``TASKS = {"default": {"BACKEND": "duly.contrib.django.tasks.DulyBackend"}}``
"""

from __future__ import annotations

import json
import os
import socket
from asyncio import CancelledError
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone
from django.utils.module_loading import import_string

from duly.codec import check_depth, decode
from duly.context import current_job
from duly.contrib.django import get_app
from duly.errors import JobNotFound, UsageError
from duly.failure import error_document
from duly.ids import new_id
from duly.job import JobKey, JobState, check_topic, moment
from duly.outcome import Planned, Unstorable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from duly.job import Job


def _package() -> str:
    """
    Name the package of tasks that this project uses.
    """
    is_built_in = find_spec("django.tasks") is not None
    if find_spec("django_tasks") and ("django_tasks" in settings.INSTALLED_APPS or not is_built_in):
        return "django_tasks"
    if is_built_in:
        return "django.tasks"
    raise ImproperlyConfigured("a backend for tasks needs Django 6, or the package django-tasks")


_base: Any = import_module(f"{_package()}.base")
_signals: Any = import_module(f"{_package()}.signals")
_exceptions: Any = import_module(f"{_package()}.exceptions")
_normalize_json: Callable[[Any], Any] = import_string(
    f"{'django.utils.json' if _package() == 'django.tasks' else 'django_tasks.utils'}.normalize_json"
)
_BaseTaskBackend: Any = import_module(f"{_package()}.backends.base").BaseTaskBackend

OPTIONS = ("backoff", "concurrency", "max_attempts", "retain", "ttr")  #: what OPTIONS of a backend may say

_STATUS = {
    JobState.scheduled: "READY",
    JobState.ready: "READY",
    JobState.running: "RUNNING",
    JobState.succeeded: "SUCCESSFUL",
    JobState.dead: "FAILED",
    JobState.cancelled: "FAILED",
}


def task_backends() -> Any:
    """
    Return the backends of this project by alias.
    """
    return import_module(_package()).task_backends


class DulyBackend(_BaseTaskBackend):
    """
    Sends tasks as jobs, one topic for each queue, and runs them in workers of duly.

    Async tasks have a topic of their own: they run on the event loop, plain ones in threads.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._problem: str | None = None
        try:
            self._add_handlers()
        except UsageError as error:
            # For `manage.py check`: tasks make their backend when their module is imported.
            self._problem = f"TASKS[{alias!r}]: {error}"

    def _add_handlers(self) -> None:
        """
        Let workers of this project take the queues of this backend.

        Raises:
            UsageError: A queue or an option is wrong.
        """
        if unknown := sorted(set(self.options) - set(OPTIONS)):
            raise UsageError(f"unknown option {unknown[0]}; known are {', '.join(OPTIONS)}")
        if not self.queues:
            raise UsageError("QUEUES is empty: name the queues, so that workers know what to take")
        # As with the backends of Django, a task that fails has failed, unless the project says otherwise.
        options = {"max_attempts": 1} | self.options
        options.pop("retain", None)
        handlers = get_app().handlers
        for queue in sorted(self.queues):
            for name, run in _handlers_of(self).items():
                topic = check_topic(f"{name}.{self.alias}.{queue}", "topic for a queue of tasks")
                # Each thread makes a backend of its own; the first one is enough for workers.
                if handlers.get(topic) is None:
                    handlers.handler(topic, **options)(run)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """
        Send a task.

        Raises:
            TypeError, ValueError: An argument is not what Django takes for JSON.
            UsageError: It is too large, or the backend is set up wrongly.
            QueueFull, StoreUnavailable, OutcomeUnknown: See `duly.errors`.
        """
        self.validate_task(task)
        if self._problem is not None:
            raise UsageError(self._problem)
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)
        payload = {
            "task": task.module_path,
            "args": _as_json(args),  # refuses what Django does not take for an argument
            "kwargs": _as_json(kwargs),
            "priority": task.priority,
            "enqueued_at": datetime.now(UTC).isoformat(),
            "run_after": run_after and run_after.isoformat(),
        }
        topic = f"{'atask' if iscoroutinefunction(task.func) else 'task'}.{self.alias}.{task.queue_name}"
        key = JobKey(topic, new_id())
        result = self._result(key, payload, "READY")
        get_app().sync.enqueue(
            topic,
            payload,
            id=key.id,
            due_at=run_after,
            priority="high" if task.priority > 0 else "low" if task.priority < 0 else "normal",
            retain=self.options.get("retain"),
        )
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """
        Look a task up.

        Raises:
            TaskResultDoesNotExist: There is none, its result was not kept, or its function is gone.
        """
        key = JobKey.of(result_id)
        if not key.topic.startswith((f"task.{self.alias}.", f"atask.{self.alias}.")):
            raise _exceptions.TaskResultDoesNotExist(result_id)
        try:
            return self._result_of(get_app().sync.job(*key).get())
        except (JobNotFound, UsageError, ImportError) as error:
            raise _exceptions.TaskResultDoesNotExist(result_id) from error

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """
        Say what is wrong with the settings of this backend.
        """
        if self._problem is not None:
            yield checks.Error(self._problem, obj="settings.TASKS", id="duly.E002")

    # -- in the worker ------------------------------------------------------------------------------------

    def run(self, payload: dict[str, Any]) -> Any:
        """
        Run a plain task, for the job that runs here.
        """
        result = self._started(payload)
        try:
            answer = result.task.call(*_context(result), *payload["args"], **payload["kwargs"])
            answer = self._stored(answer)
        except BaseException as error:
            self._failed(result, error)
            raise
        return self._finished(result, answer)

    async def arun(self, payload: dict[str, Any]) -> Any:
        """
        Run an async task, for the job that runs here.
        """
        result = self._started(payload)
        try:
            answer = await result.task.acall(*_context(result), *payload["args"], **payload["kwargs"])
            answer = self._stored(answer)
        except BaseException as error:
            self._failed(result, error)
            raise
        return self._finished(result, answer)

    def _started(self, payload: dict[str, Any]) -> Any:
        job = current_job()
        # The last one is this process; of those before, only their number is known.
        workers = [""] * (job.attempt - 1) + [f"{socket.gethostname()}-{os.getpid()}"]
        started_at = moment(job.claimed_ms)
        result = self._result(
            JobKey(job.topic, job.id),
            payload,
            "RUNNING",
            started_at=started_at,
            last_attempted_at=started_at,
            worker_ids=workers,
        )
        _signals.task_started.send(type(self), task_result=result)
        return result

    def _failed(self, result: Any, error: BaseException) -> None:
        if _is_given_up():
            return
        is_last = current_job().attempt >= self.options.get("max_attempts", 1)
        if isinstance(error, Unstorable):
            error, is_last = error.why, True
        elif isinstance(error, CancelledError) and current_job().cancelled:
            error = TimeoutError("ran longer than its time to run")
        if isinstance(error, Planned) or not is_last:
            return  # it runs again, or was ended by the task itself
        self._end(result, "FAILED")
        result.errors.append(_task_error(decode(error_document(error, traceback=True))))
        _signals.task_finished.send(type(self), task_result=result)

    def _finished(self, result: Any, answer: Any) -> Any:
        if not isinstance(answer, Planned) and not _is_given_up():
            self._end(result, "SUCCESSFUL")
            object.__setattr__(result, "_return_value", answer)
            _signals.task_finished.send(type(self), task_result=result)
        return answer

    @staticmethod
    def _stored(answer: Any) -> Any:
        """
        Return what of a return value is stored, as Django's own backends store it.

        Raises:
            Unstorable: Django does not take it for JSON, or it is too large.
        """
        if isinstance(answer, Planned):
            return answer
        try:
            answer = _as_json(answer)
            handler = get_app().handlers.get(current_job().topic)
            if handler is not None:
                handler.encode_result(answer)  # before task_finished says that the task was successful
        except (TypeError, ValueError, UsageError) as error:
            raise Unstorable(error) from error
        return answer

    @staticmethod
    def _end(result: Any, status: str) -> None:
        object.__setattr__(result, "status", _base.TaskResultStatus[status])
        object.__setattr__(result, "finished_at", timezone.now())

    # -- results ------------------------------------------------------------------------------------------

    def _result_of(self, job: Job) -> Any:
        ran = job.attempts + (job.state is JobState.running)
        result = self._result(
            job.key,
            decode(job.payload),
            _STATUS[job.state],
            started_at=job.started_at,
            last_attempted_at=job.started_at,
            finished_at=job.finished_at,
            worker_ids=[""] * (ran - 1) + [job.worker] * bool(ran),
        )
        if job.state is JobState.succeeded:
            if job.result_gone:
                raise JobNotFound(f"the result of {job.key} was not kept: see the option retain")
            object.__setattr__(result, "_return_value", decode(job.outcome) if job.outcome else None)
        elif job.outcome:
            result.errors.append(_task_error(decode(job.outcome)))
        return result

    def _result(self, key: JobKey, payload: dict[str, Any], status: str, **more: Any) -> Any:
        task = import_string(payload["task"])
        if not isinstance(task, _base.Task):
            raise ImportError(f"{payload['task']} is no task")  # noqa: TRY004  # what it was is not there
        run_after = payload["run_after"]
        unknown = dict.fromkeys(("started_at", "last_attempted_at", "finished_at"))
        return _base.TaskResult(
            task=task.using(
                backend=self.alias,
                queue_name=key.topic.removeprefix("a").removeprefix(f"task.{self.alias}."),
                priority=payload["priority"],
                run_after=run_after and datetime.fromisoformat(run_after),
            ),
            id=key.member,
            status=_base.TaskResultStatus[status],
            enqueued_at=datetime.fromisoformat(payload["enqueued_at"]),
            args=payload["args"],
            kwargs=payload["kwargs"],
            backend=self.alias,
            errors=[],
            **{"worker_ids": []} | unknown | more,
        )


def _is_given_up() -> bool:
    """
    Return whether the worker has stopped this run, so that its outcome does not count: it drains, or the
    lease was lost.

    What is stopped because its time to run is over has failed.
    """
    job = current_job()
    return job.cancelled and job.remaining() > 0


def _handlers_of(backend: DulyBackend) -> dict[str, Callable[..., Any]]:
    """
    Make the functions that run tasks, by the beginning of their topics.
    """

    def run_task(task: str, args: list[Any], kwargs: dict[str, Any], **about: Any) -> Any:
        return backend.run({"task": task, "args": args, "kwargs": kwargs, **about})

    async def run_async_task(task: str, args: list[Any], kwargs: dict[str, Any], **about: Any) -> Any:
        return await backend.arun({"task": task, "args": args, "kwargs": kwargs, **about})

    return {"task": run_task, "atask": run_async_task}


def _as_json(value: Any) -> Any:
    """
    Return what is read again of a value that Django takes for JSON: tuples are lists, and keys are texts.

    Raises:
        TypeError: Django does not take it.
        UsageError: It is nested more deeply than Django reads, or than a payload may be.
    """
    try:
        text = json.dumps(_normalize_json(value))
        check_depth(text.encode())
        return json.loads(text)
    except (RecursionError, UsageError):
        # Which of the two comes first depends on the stack that this Python has.
        raise UsageError("a value is nested too deeply: make it flatter") from None


def _context(result: Any) -> tuple[Any, ...]:
    return (_base.TaskContext(task_result=result),) if result.task.takes_context else ()


def _task_error(document: dict[str, Any]) -> Any:
    """
    Describe a failure as Django does: by the path of a class, and as text.
    """
    name, message = str(document.get("type", "")), str(document.get("message", ""))
    path = name if "." in name else f"builtins.{name}"
    try:
        is_class = issubclass(import_string(path), BaseException)
    except (ImportError, TypeError):
        is_class = False
    return _base.TaskError(
        # An end without an exception, such as a crash or a cancellation, has a word of its own.
        exception_class_path=path if is_class else "duly.errors.JobFailed",
        traceback=document.get("traceback") or f"{name}: {message}",
    )
