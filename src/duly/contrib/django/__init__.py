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
from duly.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Never, Unpack

    from duly.job import JobKey
    from duly.newjob import NewJob, Options

    app: Duly  #: as the setting DULY describes it; made when it is first imported


@functools.cache
def get_app() -> Duly:
    """
    The app of this project.

    With wrong settings it takes handlers, so that ``manage.py check`` can say what is wrong, and raises a
    `UsageError` as soon as it is used.
    """
    try:
        made = Duly(settings=load_settings())
    except UsageError as error:
        made = Misconfigured(error)
    wrap_handlers(made, _fresh_connections, _fresh_connections_async)
    return made


def load_settings() -> Settings:
    """
    Read the setting DULY, and what it leaves out from the environment and duly.toml.

    Raises:
        UsageError: It is no dict, or one of its entries is unknown or wrong.
    """
    from django.conf import settings  # noqa: PLC0415  # as everything of Django: not before it is set up

    said: Any = getattr(settings, "DULY", {})
    if not isinstance(said, dict):
        raise UsageError(f'the setting DULY must be a dict such as {{"url": "redis://…"}}, not {said!r}')
    if wrong := [key for key in said if not isinstance(key, str)]:
        raise UsageError(f"the setting DULY has names of settings as its keys, not {wrong[0]!r}")
    return Settings.load(**said)


class Misconfigured(Duly):
    """
    The app of a project with wrong settings: it connects to nothing.
    """

    def __init__(self, error: UsageError) -> None:
        super().__init__(settings=Settings())
        self.error = error

    async def _connect(self) -> Never:
        raise self.error

    def make_store(self, *_: object, **__: object) -> Never:
        """
        Refuse: the settings do not say which store is meant.

        Raises:
            UsageError: Always.
        """
        raise self.error


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
        job = new_job(job, payload, queue.settings.limits, queue.codec)
    job = job.options(**options)
    # Known to the caller before the job is there, and the same however often it is sent.
    job = job.options(id=new_id() if job.id is None else job.id)
    key = job.order(queue.settings.limits).key  # whatever is wrong is told here, not after the commit
    transaction.on_commit(functools.partial(queue.sync.enqueue, job), using=using)
    return key


async def aenqueue_on_commit(
    job: NewJob[Any] | str, payload: object = None, *, using: str | None = None, **options: Unpack[Options]
) -> JobKey:
    """
    Do what `enqueue_on_commit` does, in the thread in which async code has its transactions.

    Raises:
        UsageError: Something about it is wrong.
        DulyError: There is no transaction, and it was not accepted.
    """
    from asgiref.sync import sync_to_async  # noqa: PLC0415  # as above

    return await sync_to_async(enqueue_on_commit)(job, payload, using=using, **options)


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
