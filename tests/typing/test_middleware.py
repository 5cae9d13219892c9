"""
What a type checker must see of middleware, and must refuse.  Checked, not run.
"""

from typing import Any, assert_type

from duly import CurrentJob, Duly, JobHandle, NewJob
from duly.middleware import Call, Send

app = Duly("redis://localhost")


@app.around_enqueue
async def tag(job: NewJob[Any], call_next: Send) -> JobHandle[Any]:
    return await call_next(job.options(context={"tenant": "acme"}))


@app.around_handler
async def measure(job: CurrentJob, call_next: Call) -> object:
    assert_type(job.attempt, int)
    return await call_next()


def middleware_is_async_and_takes_two() -> None:
    @app.around_enqueue  # type: ignore[type-var]
    def plain(job: NewJob[Any], call_next: Send) -> None: ...

    @app.around_enqueue  # type: ignore[type-var]
    async def forgetful(job: NewJob[Any], call_next: Send) -> None: ...

    @app.around_handler  # type: ignore[type-var]
    async def alone(job: CurrentJob) -> object: ...


async def only_jobs_are_sent_on(job: NewJob[Any], call_next: Send) -> JobHandle[Any]:
    return await call_next("greet")  # type: ignore[arg-type]
