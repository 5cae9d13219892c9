"""
The blocking twin: the same verbs with the same answers, from any thread and beside an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from duly import (
    Conflict,
    Duly,
    JobFailed,
    JobNotFound,
    JobState,
    QueueFull,
    Reply,
    ResultGone,
    Unsupported,
    UsageError,
    current_job,
)
from duly.apikeys import KeyRing
from duly.follower import Follower
from duly.handle import JobHandle
from duly.quarantine import Quarantine
from duly.replies import Replies
from duly.sync.follower import SyncFollower
from duly.sync.keyring import SyncKeyRing
from duly.sync.quarantine import SyncQuarantine
from duly.sync.replies import SyncReplies, SyncReply
from duly.sync.twin import SyncDuly, SyncJobHandle, SyncViews
from duly.views import Views
from tests.shards import ids_on, one_id_on_each
from tests.sync.conftest import working


def test_a_job_is_sent_and_its_result_comes_back(app):
    @app.handler("double")
    async def double(number: int) -> int:
        return 2 * number

    with working(app):
        job = app.sync.enqueue(double.job(7), id="seven")
        assert 14 == job.result(timeout=30)
        assert 16 == app.sync.enqueue("double", 8).result(timeout=30)
        assert 14 == app.sync.job("double", "seven").result(timeout=30)
    assert ("double", "seven", True) == (job.topic, job.id, job.created)
    assert JobState.succeeded == job.get().state


def test_a_result_is_there_or_said_to_be_gone(app):
    @app.handler("double")
    async def double(number: int) -> int | None:
        return 2 * number if number else None

    with working(app):
        kept, gone, none = (
            app.sync.enqueue(double.job(number), retain=retain) for number, retain in ((7, 1), (7, 0), (0, 0))
        )
        assert 14 == kept.result(timeout=30)
        deadline = time.monotonic() + 30
        while not all(job.get().state.ended for job in (gone, none)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert None is none.result(timeout=30)
        with pytest.raises(ResultGone, match="retain=60"):
            gone.result(timeout=30)


def test_a_handle_moves_its_job(app):
    job = app.sync.enqueue("greet", {"name": "Ada"}, delay=3600, id="a")
    assert JobState.scheduled == job.get().state
    assert "rescheduled" == job.reschedule(delay=7200).word
    with pytest.raises(Conflict):
        job.requeue()
    assert JobState.cancelled == job.cancel()
    assert "requeued" == job.requeue().word
    assert JobState.ready == job.get().state
    assert not app.sync.enqueue("greet", id="a").created
    with pytest.raises(JobNotFound):
        app.sync.job("greet", "nobody").get()


def test_many_are_sent_with_one_outcome_each(app):
    @app.handler("greet")
    async def greet(name: str) -> None: ...

    good, bad = app.sync.enqueue_many(job for job in (greet.job("a"), greet.job("b").options(delay=-1)))
    assert isinstance(good, SyncJobHandle)
    assert isinstance(bad, UsageError)
    assert JobState.ready == good.get().state


def test_topics_are_paused_limited_and_purged(app):
    # Each shard takes an equal share.
    ids = one_id_on_each(app.settings, "greet")
    app.sync.limit("greet", len(ids))
    for id_ in ids:
        app.sync.enqueue("greet", id=id_)
    with pytest.raises(QueueFull):
        app.sync.enqueue("greet")
    app.sync.pause("greet")
    assert [True] == [topic.paused for topic in app.sync.views().stats().topics]
    app.sync.resume("greet")
    assert [False] == [topic.paused for topic in app.sync.views().stats().topics]
    assert len(ids) == app.sync.purge("greet")


def test_jobs_are_listed_and_peeked_at(app):
    # Each shard is listed by itself.
    ids = ids_on(app.settings, "greet", app.settings.shards - 1, 5)
    for id_ in ids:
        app.sync.enqueue("greet", id=id_)
    views = app.sync.views()
    assert ids[:3] == [job.id for job in views.peek("greet", 3)]
    assert ids == [job.id for job in views.each(JobState.ready, "greet")]
    page = views.page(JobState.ready, "greet", limit=2, cursor=f"{app.settings.shards - 1}:")
    assert ids[:2] == [job.id for job in page.jobs]
    assert ids[2:4] == [
        job.id for job in views.page(JobState.ready, "greet", cursor=page.cursor, limit=2).jobs
    ]
    assert ["greet"] == views.topics()
    assert ids[1] == views.get(app.sync.job("greet", ids[1]).key).id
    assert [None] == views.get_many([app.sync.job("greet", "gone").key])
    assert [] == views.workers(0)


def test_failures_and_time_limits_are_raised_to_the_caller(app):
    @app.handler("fail", max_attempts=1)
    async def fail() -> None:
        raise ValueError("no")

    waits = app.sync.enqueue("wait", delay=3600)
    with pytest.raises(TimeoutError):
        waits.result(timeout=0.01)
    with working(app), pytest.raises(JobFailed, match="ValueError: no"):
        app.sync.enqueue(fail.job()).result(timeout=30)


def test_a_wrong_call_is_refused_before_anything_is_started(app):
    with pytest.raises(UsageError, match="invalid topic"):
        app.sync.job("no spaces", "x")
    with pytest.raises(UsageError, match="invalid topic"):
        app.sync.enqueue("no spaces")


async def test_on_an_event_loop_the_twin_refuses_to_block(app):
    with pytest.raises(UsageError, match="await the same method of the app itself"):
        app.sync.enqueue("greet")
    await asyncio.to_thread(app.sync.enqueue, "greet", id="a")
    with pytest.raises(UsageError, match="runs an event loop"):
        app.sync.close()
    await asyncio.to_thread(app.sync.close)


async def test_the_app_on_its_loop_and_the_twin_on_another_do_not_disturb_each_other(app):
    async with app:
        store = await app.store()
        for number in range(10):
            sent = await asyncio.to_thread(app.sync.enqueue, "greet", id=f"sync-{number}")
            assert JobState.ready == (await app.job("greet", sent.id).get()).state
            mine = await app.enqueue("greet", id=f"async-{number}")
            found = await asyncio.to_thread(app.sync.job("greet", mine.id).get)
            assert JobState.ready == found.state
        assert store is await app.store()
        await asyncio.to_thread(app.sync.close)
        assert JobState.ready == (await app.job("greet", "sync-0").get()).state


def test_many_threads_share_one_twin(app):
    names = []

    def send(number: int) -> bool:
        names.append(app.sync.thread())
        handle = app.sync.enqueue("greet", {"number": number}, id=f"n{number}")
        return handle.get().state is JobState.ready

    with ThreadPoolExecutor(16) as pool:
        assert [True] * 200 == list(pool.map(send, range(200)))
    assert 1 == len(set(names))
    assert 200 == app.sync.views().stats().topics[0].counts["ready"]


def test_a_closed_twin_opens_again_when_it_is_used(app):
    with app.sync as twin:
        first = twin.thread()
        twin.enqueue("greet", id="a")
    assert not first.usable
    app.sync.close()
    assert JobState.ready == app.sync.job("greet", "a").get().state
    assert first is not app.sync.thread()


def test_who_waits_while_another_thread_closes_is_told(app):
    job = app.sync.enqueue("wait", delay=3600)
    told = []

    def wait() -> None:
        try:
            job.result()
        except Exception as error:  # noqa: BLE001  # whatever it was
            told.append(type(error).__name__)

    waiter = threading.Thread(target=wait)
    waiter.start()
    thread = app.sync.thread()
    while not thread._calls:
        pass
    app.sync.close()
    waiter.join(60)
    assert ["OutcomeUnknown"] == told


def test_a_twin_that_nobody_uses_any_more_ends_its_thread(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace)
    app.sync.enqueue("greet")
    thread = app.sync.thread()
    del app
    import gc

    gc.collect()
    thread._thread.join(60)
    assert not thread.usable


def test_a_plain_handler_may_send_on_through_the_twin(app):
    @app.handler("first")
    def first() -> str:
        return app.sync.enqueue("second", id=f"after-{current_job().id}").id

    with working(app):
        assert "after-a" == app.sync.enqueue(first.job(), id="a").result(timeout=30)
    assert JobState.ready == app.sync.job("second", "after-a").get().state


TWINS = {
    Duly: SyncDuly,
    JobHandle: SyncJobHandle,
    Views: SyncViews,
    Reply: SyncReply,
    Replies: SyncReplies,
    Follower: SyncFollower,
    Quarantine: SyncQuarantine,
    KeyRing: SyncKeyRing,
}
REFUSED = {
    # What is awaited by its nature: `app.sync` says what to do instead.
    "work": "run `duly work`",
    "deliver": "run `duly work --callbacks`",
    "crew": "run `duly work`",
    "store": "await app.store()",
    "make_store": "app.make_store()",
    "queue": "await app.queue()",
    "record": "await app.record()",
    "promises": "await app.promises()",
    "waiters": "await app.waiters()",
    "reply_queue": "await app.reply_queue()",
    "redirect": "app.redirect(…)",
    "aclose": "app.sync.close()",
}


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("kind", "twin"), TWINS.items())
def test_every_method_that_waits_has_a_twin_that_takes_the_same(kind, twin):
    for name in public(kind) - {*REFUSED, "sync"}:
        value = getattr(kind, name)
        if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
            theirs = inspect.signature(value).parameters
            assert list(theirs.values()) == list(inspect.signature(getattr(twin, name)).parameters.values())
    # What a twin does not spell is found by the app's own name, or refused.
    assert kind is Duly or public(kind) <= public(twin)


@pytest.mark.parametrize("url", [None, "https://queue.example"])
def test_every_public_name_of_the_app_works_on_the_twin_or_is_refused(url):
    app = Duly(url)
    for name in sorted(public(app)):
        found = getattr(app.sync, name)
        if name in REFUSED:
            with pytest.raises(Unsupported, match=re.escape(REFUSED[name])):
                found()
        else:
            assert not inspect.iscoroutinefunction(found), name
    assert app.sync is app.sync.sync
    with pytest.raises(AttributeError, match="'SyncDuly' object has no attribute 'enqeue'"):
        app.sync.enqeue("mail")


def test_views_know_what_changed_since(app):
    views = app.sync.views()
    before = app.sync.enqueue("mail", id="before", delay=60).get()
    newest = views.newest()
    after = app.sync.enqueue("mail", id="after", delay=60).get()
    assert (False, True) == (views.changed(before, newest), views.changed(after, newest))
    assert views.shard_of(before.key) in range(len(newest))


@pytest.mark.parametrize("verb", ["work", "deliver"])
def test_what_blocks_for_good_is_refused_with_the_way_that_can(app, verb):
    with pytest.raises(Unsupported, match=rf"asyncio\.run\(app\.{verb}\(\)\)"):
        getattr(app.sync, verb)(concurrency=1)
