"""
What the service knows of a call that failed, its client raises: as a call of the queue itself does.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly, OutcomeUnknown, RecordUnavailable, StoreUnavailable
from duly.bulk import unless_all_failed
from duly.connection import OutOfMemory
from duly.http.api import api
from duly.http.problems import problem_of
from duly.remote.answers import Problem, error_of
from duly.views import Views
from tests.http.remote.kit import serving
from tests.servers import Server, binary

FAILURES = [
    (StoreUnavailable("away"), "unavailable", StoreUnavailable),
    (OutOfMemory("full"), "out-of-memory", StoreUnavailable),
    (RecordUnavailable("away"), "record-unavailable", RecordUnavailable),
    (OutcomeUnknown("lost"), "outcome-unknown", OutcomeUnknown),
]


@pytest.fixture
def own_server():
    server = Server(binary("valkey")).start()
    yield server
    server.stop()


@pytest.fixture
async def failing(app, url, monkeypatch):
    """
    A producer of a service whose queue fails as it is told to; it counts the calls.
    """
    calls = []

    async with Duly(url) as remote:
        link = (await remote.queue()).link
        monkeypatch.setattr(link, "patience_s", 0.2)

        def fail(error, at="enqueue"):
            async def failed(*_, **__):
                calls.append(error)
                raise error

            monkeypatch.setattr(app, at, failed)
            return calls

        yield remote, fail


@pytest.mark.parametrize(("error", "kind", "expected"), FAILURES)
async def test_each_failure_is_of_the_class_that_it_has_without_a_service(failing, error, kind, expected):
    remote, fail = failing
    fail(error)
    with pytest.raises((StoreUnavailable, OutcomeUnknown)) as caught:
        await remote.enqueue("mail")
    assert expected is type(caught.value)


@pytest.mark.parametrize(("error", "kind", "expected"), FAILURES)
def test_each_failure_has_a_type_of_its_own_and_says_when_to_come_back(error, kind, expected):
    told = problem_of(error)
    assert (503, kind) == (told.status, told.kind)
    assert int(told.headers["Retry-After"]) >= 1
    read = error_of(Problem(f"urn:duly:problem:{kind}", told.detail, status=503), "here")
    assert expected is type(read)


async def test_a_memory_limit_is_told_at_once_and_by_its_name(failing):
    remote, fail = failing
    calls = fail(OutOfMemory("full"))
    with pytest.raises(StoreUnavailable, match=r"at its memory limit.*nothing was changed"):
        await remote.enqueue("mail")
    assert 1 == len(calls)


async def test_what_may_pass_is_tried_again(failing):
    remote, fail = failing
    (await remote.queue()).link.patience_s = 1.5
    calls = fail(StoreUnavailable("away"))
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await remote.enqueue("mail")
    assert 2 <= len(calls)


@pytest.mark.parametrize("verb", ["reschedule", "cancel", "pause"])
async def test_a_queue_that_goes_away_after_a_change_leaves_its_outcome_unknown(
    failing, app, monkeypatch, verb
):
    remote, _ = failing
    await app.enqueue("mail", id="a", delay=60)

    async def away(*_, **__):
        raise StoreUnavailable("away")

    monkeypatch.setattr(Views, "get", away)
    monkeypatch.setattr(Views, "stats", away)
    job = remote.job("mail", "a")
    with pytest.raises(OutcomeUnknown):
        match verb:
            case "reschedule":
                await job.reschedule(delay=90)
            case "cancel":
                await job.cancel()
            case "pause":
                await remote.pause("mail")


def test_jobs_of_which_one_is_unknown_are_not_all_unchanged():
    with pytest.raises(OutcomeUnknown):
        unless_all_failed([StoreUnavailable("away"), OutcomeUnknown("lost")])


async def test_a_full_server_refuses_the_same_way_directly_and_over_http(own_server, namespace):
    app = Duly(own_server.url, namespace=namespace)
    async with app, serving(api(app)) as url, Duly(url) as remote:
        await app.enqueue("mail", id="before")
        link = (await app.store()).link
        await link.call("CONFIG", "SET", "maxmemory", "1")
        for queue in (app, remote):
            with pytest.raises(StoreUnavailable, match=r"at its memory limit.*othing was changed"):
                await asyncio.wait_for(queue.enqueue("mail"), 60)
