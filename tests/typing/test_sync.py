"""
What a type checker must see of apps, async and blocking, and must refuse.  Checked, not run.
"""

from datetime import timedelta
from typing import Any, assert_type

from duly import Duly, DulyError, JobHandle, JobState
from duly.job import Accepted, Job, Placed
from duly.sync.twin import SyncDuly, SyncJobHandle

app = Duly("redis://localhost")


@app.handler("payment.check", max_attempts=3)
async def check(payment: str, *, strict: bool = False) -> dict[str, int]:
    return {payment: int(strict)}


@app.handler("image.shrink")
def shrink(path: str) -> float:
    return 0.5


async def a_handle_knows_its_result() -> None:
    job = await app.enqueue(check.job("p-1", strict=True), delay=timedelta(hours=3))
    assert_type(job, JobHandle[dict[str, int]])
    assert_type(await job.result(timeout="5s"), dict[str, int])
    assert_type(await (await app.enqueue(shrink.job("a.png"))).result(), float)
    assert_type(await app.enqueue("payment.check", {"payment": "p-1"}), JobHandle[Any])
    assert_type(await app.enqueue_many([check.job("a")]), list[JobHandle[dict[str, int]] | DulyError])
    assert_type(app.job(check, "p-1"), JobHandle[dict[str, int]])
    assert_type(await app.job(shrink, "p-1").result(), float)
    assert_type(app.job("payment.check", "p-1"), JobHandle[Any])


async def a_reply_is_read_as_a_handler_says() -> None:
    async for reply in app.replies("answers"):
        assert_type(reply.result_of(check), dict[str, int] | None)
    for told in app.sync.replies("answers"):
        assert_type(told.result_of(shrink), float | None)


def the_twin_knows_it_too() -> None:
    assert_type(app.sync, SyncDuly)
    assert_type(app.sync.enqueue(check.job("x")).result(timeout="1m30s"), dict[str, int])
    assert_type(app.sync.enqueue(shrink.job("a.png")).result(), float)
    assert_type(app.sync.enqueue("payment.check", {"payment": "p-1"}), SyncJobHandle[Any])
    assert_type(app.sync.enqueue_many([check.job("a")]), list[SyncJobHandle[dict[str, int]] | DulyError])
    assert_type(app.sync.job(check, "p-1").result(), dict[str, int])
    job = app.sync.job("payment.check", "p-1")
    assert_type(job.get(), Job)
    assert_type(job.cancel(), JobState | Accepted)
    assert_type(job.reschedule(delay="1h30m"), Placed)
    assert_type(job.requeue(), Placed)
    assert_type(app.sync.purge("payment.check"), int)
    assert_type(app.sync.views().peek("payment.check"), list[Job])
    with app.sync as twin:
        assert_type(twin, SyncDuly)


async def wrong_calls_are_errors() -> None:
    await app.enqueue(check.job(7))  # type: ignore[arg-type]
    await app.enqueue(check.job("x"), dealy=3)  # type: ignore[call-overload]
    await app.enqueue(check.job("x"), delay=b"3h")  # type: ignore[call-overload]
    await app.enqueue(check.job("x"), priority="urgent")  # type: ignore[call-overload]
    await app.enqueue(check)  # type: ignore[call-overload]
    await app.limit("payment.check", "many")  # type: ignore[arg-type]
    app.handler("a", run_in="moon")  # type: ignore[arg-type]


def wrong_blocking_calls_are_errors() -> None:
    app.sync.enqueue(check.job(7))  # type: ignore[arg-type]
    app.sync.enqueue(check.job("x", strikt=True))  # type: ignore[call-arg]
    app.sync.enqueue(check.job("x"), dealy=3)  # type: ignore[call-overload]
    app.sync.enqueue(check.job("x"), due_at="tomorrow")  # type: ignore[call-overload]
    app.sync.enqueue(check)  # type: ignore[call-overload]
    app.sync.enqueue_many([check])  # type: ignore[arg-type]
    app.sync.enqueue(check.job("x")).result(timeout=b"5")  # type: ignore[arg-type]
    app.sync.job("payment.check", 7)  # type: ignore[call-overload]
