"""
Django: an app made from the settings, jobs that are sent once the transaction is committed.
"""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from duly.app import Duly
from duly.contrib.wrapping import wrap_handlers
from duly.errors import UsageError
from duly.ids import new_id
from duly.newjob import new_job

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Unpack

    from duly.job import JobKey
    from duly.newjob import NewJob, Options

    app: Duly  #: as the setting DULY describes it; made when it is first imported


@functools.cache
def get_app() -> Duly:
    """
    The app of this project.

    Raises:
        UsageError: The setting DULY is no dict, or one of its entries is unknown or wrong.
    """
    from django.conf import settings  # noqa: PLC0415  # as everything of Django: not before it is set up

    said: Any = getattr(settings, "DULY", {})
    if not isinstance(said, dict):
        raise UsageError(f'the setting DULY must be a dict such as {{"url": "redis://…"}}, not {said!r}')
    made = Duly(**said)
    wrap_handlers(made, _fresh_connections, _fresh_connections_async)
    return made


def __getattr__(name: str) -> Any:
    if name == "app":
        return get_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def enqueue_on_commit(
    job: NewJob[Any] | str, payload: object = None, *, using: str | None = None, **options: Unpack[Options]
) -> JobKey:
    """
    Send a job once the transaction is committed, or now if there is none; nothing if it is rolled back.

    Raises:
        UsageError: Something about it is wrong.
        DulyError: There is no transaction, and it was not accepted.
    """
    from django.db import transaction  # noqa: PLC0415  # as above

    queue = get_app()
    if isinstance(job, str):
        job = new_job(job, payload, queue.settings.limits)
    job = job.options(**options)
    # Known to the caller before the job is there, and the same however often it is sent.
    job = job.options(id=new_id() if job.id is None else job.id)
    key = job.order(queue.settings.limits).key  # whatever is wrong is told here, not after the commit
    transaction.on_commit(functools.partial(queue.sync.enqueue, job), using=using)
    return key


@contextmanager
def _fresh_connections() -> Iterator[None]:
    """
    Do for a handler what Django does for a request: use no connection that is broken or too old.
    """
    from django.db import close_old_connections  # noqa: PLC0415  # as above

    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


@asynccontextmanager
async def _fresh_connections_async() -> AsyncIterator[None]:
    from asgiref.sync import sync_to_async  # noqa: PLC0415  # as above
    from django.db import close_old_connections  # noqa: PLC0415  # as above

    # In the thread that async handlers talk to the database in.
    close = sync_to_async(close_old_connections)
    await close()
    try:
        yield
    finally:
        await close()
