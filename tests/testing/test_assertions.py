"""
assert_enqueued finds what was meant, and says what was there instead.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import pytest

from duly import UsageError


@pytest.fixture
def app(duly):
    return duly.app


@pytest.fixture
def welcome(app):
    @app.handler("mail.welcome")
    async def welcome(user: int, *, locale: str = "en") -> None: ...

    return welcome


async def test_a_job_is_found_by_handler_topic_and_arguments(duly, app, welcome):
    await app.enqueue(welcome.job(42, locale="de"), id="u42", context={"tenant": "acme"}, priority="high")
    for found in (
        duly.assert_enqueued(welcome),
        duly.assert_enqueued("mail.welcome"),
        duly.assert_enqueued(welcome, {"user": 42}),
        duly.assert_enqueued(welcome, {"user": ANY, "locale": "de"}),
        duly.assert_enqueued(welcome, lambda payload: payload["user"] > 40),
        duly.assert_enqueued(welcome, id="u42", count=1),
        duly.assert_enqueued(welcome.job(42, locale="de")),
        duly.assert_enqueued(welcome.job(42, locale="de").options(id="u42", priority="high")),
        duly.assert_enqueued(welcome.job(42, locale="de").options(context={"tenant": "acme"})),
    ):
        [job] = found
        assert ("mail.welcome", "u42", "ready", {"user": 42, "locale": "de"}, {"tenant": "acme"}) == (
            job.topic,
            job.id,
            job.state,
            job.payload,
            job.context,
        )


@pytest.mark.parametrize(
    ("meant", "why"),
    [
        (lambda welcome: (welcome, {"user": 1}), "user is 42, not 1"),
        (lambda welcome: (welcome, {"age": 1}), "there is no age"),
        (lambda welcome: (welcome, [42]), "its payload is {'user': 42, 'locale': 'de'}"),
        (lambda welcome: (welcome, lambda payload: False), "the function says no to its payload"),
        (lambda welcome: (welcome.job(42),), "its payload is {'user': 42, 'locale': 'de'}"),
        (lambda welcome: (welcome.job(42, locale="de").options(id="x"),), "its id is u42, not x"),
        (
            lambda welcome: (welcome.job(42, locale="de").options(priority="low"),),
            "its priority is 'normal', not 'low'",
        ),
    ],
)
async def test_a_failure_says_what_differs(duly, app, welcome, meant, why):
    await app.enqueue(welcome.job(42, locale="de"), id="u42", delay=60)
    with pytest.raises(AssertionError) as caught:
        duly.assert_enqueued(*meant(welcome))
    [line] = [line for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert f"  mail.welcome/u42  due in 0:01:00  {{'user': 42, 'locale': 'de'}}   <- {why}" == line
    duly.assert_not_enqueued(*meant(welcome))


async def test_delay_and_due_time_are_exact_and_count_from_the_clock(duly, app, welcome):
    await app.enqueue(welcome.job(1), delay=timedelta(hours=2))
    duly.assert_enqueued(welcome, delay=7200)
    duly.clock.advance(hours=1)
    duly.assert_enqueued(welcome, delay=timedelta(hours=1))
    duly.assert_enqueued(welcome, due_at=duly.clock.now + timedelta(hours=1))
    for wrong in ({"delay": 3599.999}, {"due_at": duly.clock.now}):
        duly.assert_not_enqueued(welcome, **wrong)
        with pytest.raises(AssertionError, match=r"due (in 1:00:00|at .*), not "):
            duly.assert_enqueued(welcome, **wrong)


async def test_what_is_past_due_has_a_due_time_too(duly, app, welcome):
    past = datetime(2020, 1, 1, tzinfo=UTC)
    await app.enqueue(welcome.job(1), due_at=past)
    [job] = duly.assert_enqueued(welcome, due_at=past)
    assert timedelta() == job.delay


async def test_a_count_is_exact(duly, app, welcome):
    for user in (1, 2):
        await app.enqueue(welcome.job(user))
    duly.assert_enqueued(welcome, count=2)
    duly.assert_enqueued(welcome, {"user": 3}, count=0)
    with pytest.raises(AssertionError, match=r"2 times, not 1: job of mail.welcome. What waits:"):
        duly.assert_enqueued(welcome, count=1)


async def test_what_ended_is_not_enqueued_any_more_and_is_shown_as_ended(duly, app, welcome):
    cancelled = await app.enqueue(welcome.job(1), id="u1", delay=5)
    await cancelled.cancel()
    await app.enqueue(welcome.job(2), id="u2")
    await duly.drain()
    duly.assert_not_enqueued(welcome)
    with pytest.raises(AssertionError) as caught:
        duly.assert_enqueued(welcome)
    assert [
        "no job of mail.welcome waits. What has ended:",
        "  mail.welcome/u1  cancelled  {'user': 1}  cancelled",
        "  mail.welcome/u2  succeeded  {'user': 2}  after 1 attempt",
    ] == str(caught.value).splitlines()


async def test_a_job_that_should_not_be_there_is_shown(duly, app, welcome):
    await app.enqueue(welcome.job(1), id="u1")
    with pytest.raises(
        AssertionError, match=r"(?s)no job of mail.welcome with {'user': 1}, and .*welcome/u1  ready"
    ):
        duly.assert_not_enqueued(welcome, {"user": 1})


async def test_with_nothing_enqueued_the_message_says_so(duly, welcome):
    with pytest.raises(
        AssertionError, match=r"^no job of mail.welcome waits. Nothing was enqueued in this test.$"
    ):
        duly.assert_enqueued(welcome)


async def test_a_long_list_is_cut_with_the_nearest_first(duly, app, welcome):
    for number in range(30):
        await app.enqueue("other", {"number": number, "text": "x" * 1_000})
    await app.enqueue_many([welcome.job(1) for _ in range(2)])
    with pytest.raises(AssertionError) as caught:
        duly.assert_enqueued(welcome, {"user": 2})
    lines = str(caught.value).splitlines()
    assert (22, "  and 12 more") == (len(lines), lines[-1])
    assert all(line.startswith("  mail.welcome/") for line in lines[1:3])
    assert max(map(len, lines)) < 400


async def test_jobs_are_listed_in_the_order_of_enqueueing(duly, app, welcome):
    for user in (3, 1, 2):
        await app.enqueue(welcome.job(user), delay=user)
    await app.enqueue("other", 5)
    assert [3, 1, 2] == [job.payload["user"] for job in duly.jobs(welcome)]
    assert [5] == [job.payload for job in duly.jobs(state="ready")]
    assert 4 == len(duly.jobs())
    with pytest.raises(UsageError, match="must be one of scheduled, ready"):
        duly.jobs(state="waiting")


@pytest.mark.parametrize(
    ("wrong", "options", "message"),
    [
        (lambda welcome: (42,), {}, "a handler, handler.job(…) or the name of a topic, not 42"),
        (lambda welcome: ("no topic!",), {}, "invalid topic"),
        (lambda welcome: (welcome.job(1), {"user": 1}), {}, "not both"),
        (lambda welcome: (welcome,), {"delay": 1, "due_at": datetime.now(UTC)}, "either delay or due_at"),
        (lambda welcome: (welcome,), {"delay": -1}, "zero or more"),
        (lambda welcome: (welcome,), {"id": "no id!"}, "invalid job id"),
    ],
)
def test_an_assertion_that_means_nothing_is_refused(duly, welcome, wrong, options, message):
    for check in (duly.assert_enqueued, duly.assert_not_enqueued):
        with pytest.raises(UsageError) as caught:
            check(*wrong(welcome), **options)
        assert message in str(caught.value)


async def test_by_the_clock_of_the_server_a_delay_cannot_be_asserted(duly_for, duly_app):
    bed = duly_for(duly_app, clock="server")
    await duly_app.enqueue("mail", {}, delay=60)
    bed.assert_enqueued("mail", count=1)
    with pytest.raises(UsageError, match="say due_at instead"):
        bed.assert_enqueued("mail", delay=60)
