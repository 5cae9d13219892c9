"""
What a type checker must accept and refuse of the helpers for tests.  Checked, not run.
"""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from duly import Duly
from duly.testing import Drained, JobSnapshot, Ran, TestBed, real_queue

app = Duly()


@app.handler("mail")
async def mail(user: int) -> str:
    return str(user)


@app.handler("print")
def print_(page: int) -> None: ...


@real_queue()
async def an_integration_test(user: int) -> str:
    return str(user)


async def a_test_of_a_user(duly: TestBed) -> None:
    assert_type(await duly.drain(raises=True), Drained)
    assert_type(duly.sync.drain(), Drained)
    assert_type((await duly.drain())[0], Ran)
    assert_type(duly.assert_enqueued(mail, {"user": 1}, delay=timedelta(hours=1)), list[JobSnapshot])
    assert_type(duly.assert_enqueued(print_.job(1), count=1), list[JobSnapshot])
    assert_type(duly.jobs(mail), list[JobSnapshot])
    assert_type(duly.clock.advance(hours=3), int)
    assert_type(duly.sync.run(mail(1)), str)
    duly.assert_not_enqueued("mail", id="a")
    duly.assert_enqueued(mail, dealy=1)  # type: ignore[call-arg]
    duly.assert_enqueued(17)  # type: ignore[arg-type]
    TestBed(app, "redis://localhost", clock="wall")  # type: ignore[arg-type]
    TestBed(app, record="sqlite:///record.db")
    with real_queue():
        assert_type(await an_integration_test(1), str)
