"""
What tests of the contract share.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from duly import Unsupported, UsageError
from duly.newjob import Limits, new_job
from duly.records import read
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from duly import Job, JobState, NewJob
    from duly.views import TopicStats

FAR = datetime(2199, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
#: Values that no list gives as a cursor.  `str.isdigit()` is true of "²", which `int()` refuses.
WRONG_CURSORS = (
    0,
    True,
    1.5,
    float("nan"),
    b"x",
    [],
    {},
    object(),
    "",
    "x y",
    "nonsense",
    "9" * 5_000,
    "²:",
    "0:x",
)
AWAITED = 1  #: the mark of a stored job whose result somebody waits for
SOON_S = 60.0  #: for what happens at once, on a machine that is busy


def new(topic: str, payload: object = None, **options: Any) -> NewJob[Any]:
    """
    Describe a job by name.
    """
    return new_job(topic, payload, Limits()).options(**options)


def nested(levels: int) -> Any:
    """
    Make a value of so many levels.
    """
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def reaches(handle: Any, state: JobState) -> Job:
    """
    Wait until a job is in a state, and return it as it is then.
    """

    async def there() -> Job:
        job: Job = await handle.get()
        assert state is job.state
        return job

    found: Job = await eventually(there, SOON_S)
    return found


async def are_awaited(app: Any, handles: Iterable[Any]) -> None:
    """
    Wait until the server knows of each job that somebody waits for its result; *app* is on that server.
    """
    keys = [handle.key for handle in handles]
    store = await app.store()

    async def check() -> None:
        for key, (record, *_) in zip(keys, await store.get(keys), strict=True):
            assert read(record).head.marks & AWAITED, key

    await eventually(check, SOON_S)


async def refusal(call: Awaitable[Any]) -> str:
    """
    Return the sentence by which a call is refused.

    Raises:
        Unsupported: The face has no such call at all, which says nothing of its arguments.
    """
    try:
        await call
    except Unsupported:
        raise
    except UsageError as error:
        return str(error)
    raise AssertionError("it was not refused")


async def listed(found: Any) -> list[Any]:
    """
    Everything that an asynchronous iterator gives.
    """
    return [each async for each in found]


async def stats_of(queue: Any, topic: str) -> TopicStats:
    """
    What the queue's statistics say of a topic.
    """
    found = (await (await queue.views()).stats()).topics
    about: TopicStats = next(each for each in found if each.topic == topic)
    return about
