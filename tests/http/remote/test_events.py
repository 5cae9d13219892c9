"""
Following events: the same on the queue's own server, on several shards, with a record and over HTTP.
"""

from __future__ import annotations

import asyncio
import gc

import pytest

from duly import Duly, EventsLost, StoreUnavailable, UsageError
from duly.events import Verb
from duly.feed import Feed
from duly.http.api import api
from duly.http.settings import ServiceSettings
from duly.offsets import Place, read_places, write_places
from duly.record.schema import migrate
from tests.http.remote.kit import serving
from tests.http.service import Served

FACES = ["plain", "shards", "record", "http", "http-shards"]


@pytest.fixture(params=FACES)
async def face(request, valkey, namespace, tmp_path):
    """
    An app that follows, and one beside it straight on the server: (follower, beside).
    """
    settings = {"namespace": namespace, "shards": 3 if "shards" in request.param else 1}
    if request.param == "record":
        settings["record"] = f"sqlite:///{tmp_path}/record.db"
        migrate(settings["record"])
    async with Duly(valkey.url, **settings) as beside:
        if not request.param.startswith("http"):
            async with Duly(valkey.url, **settings) as follower:
                yield follower, beside
            return
        served = Duly(valkey.url, **settings)
        async with serving(api(served)) as url, Duly(url) as follower:
            yield follower, beside


def names(events):
    return sorted(event.id for event in events)


async def taken(events, count):
    """
    The next events, in the order of their ids.
    """
    found = []
    async with asyncio.timeout(60):
        while len(found) < count:
            found.append(await anext(events))
    return found


async def test_what_happens_comes_as_it_happens(face):
    app, beside = face
    async with app.events(topics="mail", verbs=["enqueued", "hydrated"]) as events:
        waiting = asyncio.create_task(taken(events, 6))
        await asyncio.gather(*(beside.enqueue("mail", id=id_) for id_ in "abcdef"))
        assert list("abcdef") == names(await waiting)


async def test_an_event_is_the_same_on_every_face(face):
    app, beside = face
    job = await beside.enqueue("mail", id="a", delay=60, priority="high")
    await job.reschedule(delay=90)
    await job.cancel()
    store = await beside.store()
    direct = [
        event
        for shard in range(store.shards)
        for _, rows in await Feed(store).oldest(shard)
        for event in rows
    ]
    assert direct == [event async for event in app.events(since="start", wait=0)]
    assert {"a"} == {event.id for event in direct}


async def test_it_begins_now_and_ends_when_none_came(face):
    app, beside = face
    await beside.enqueue("mail", id="before")
    assert [] == [event async for event in app.events(wait=0)]
    async with app.events(wait=0.05) as events:
        await beside.enqueue("mail", id="after")
        assert {"after"} == {event.id async for event in events}


async def test_what_is_there_now_is_given_also_when_it_happened_just_before(face):
    """
    The reader of a service must not answer from what it had seen a moment ago.
    """
    app, beside = face
    async with app.events() as events:
        offset = events.offset
        for number in range(20):
            await beside.enqueue("mail", id=f"j{number}")
            found = [
                event async for event in app.events(since=offset, wait=0, verbs=["enqueued", "hydrated"])
            ]
            assert number + 1 == len(found), number


async def test_what_is_there_now_is_given_also_where_the_service_reads_late(app, monkeypatch):
    news = Feed.news

    async def late(feed, after, block_s):
        await asyncio.sleep(0.3)
        return await news(feed, after, block_s)

    monkeypatch.setattr(Feed, "news", late)
    service = api(app)
    async with serving(service) as place, Duly(place) as remote:
        await app.enqueue("mail", id="before")
        async with remote.events() as events, asyncio.timeout(60):
            while None in service.state.service.live._tails:
                await asyncio.sleep(0.01)
            await app.enqueue("mail", id="just-now")
            found = [event.id async for event in remote.events(since=events.offset, wait=0)]
    assert ["just-now"] == found


async def test_a_reader_goes_on_from_its_offset_and_misses_nothing(face):
    app, beside = face
    ids = [f"j{number:02}" for number in range(30)]
    verbs = ["enqueued", "hydrated"]
    async with app.events(verbs=verbs) as events:
        offset = events.offset
        assert offset is not None
    await asyncio.gather(*(beside.enqueue("mail", id=id_) for id_ in ids[:20]))
    seen = []
    # One event each time: also in the middle of a script call, which tells of several jobs at once.
    for _ in range(20):
        events = app.events(since=offset, verbs=verbs)
        seen.append(await anext(events))
        offset = events.offset
        await events.aclose()
    await asyncio.gather(*(beside.enqueue("mail", id=id_) for id_ in ids[20:]))
    seen += [event async for event in app.events(since=offset, wait=0, verbs=verbs)]
    assert ids == names(seen)


async def test_topics_and_verbs_are_chosen(face):
    app, beside = face
    async with app.events(topics=["mail", "sms"], verbs=Verb.cancelled, wait=0.05) as events:
        for topic in ("mail", "sms", "fax"):
            await (await beside.enqueue(topic, id="x")).cancel()
        assert {("mail", "cancelled"), ("sms", "cancelled")} == {
            (event.topic, event.verb.value) async for event in events
        }
    everything = {event.topic async for event in app.events(since="start", verbs=None, topics=None, wait=0)}
    assert {"mail", "sms", "fax"} == everything


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"verbs": ["eaten"]}, "must be some of enqueued"),
        ({"verbs": "eaten"}, "must be some of enqueued"),
        ({"verbs": []}, "leave it out"),
        ({"topics": []}, "leave it out"),
        ({"topics": "a/b"}, "a/b"),
        ({"wait": "soon"}, "wait"),
        ({"wait": True}, "wait"),
        ({"since": "yesterday"}, "yesterday"),
        ({"since": 7}, "since"),
    ],
)
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "http://127.0.0.1:1"])
def test_a_wrong_question_is_refused_before_it_is_sent(url, options, said):
    app = Duly(url)
    for ask in (app.events, app.sync.events):
        with pytest.raises(UsageError, match=said):
            ask(**options)


async def test_the_offset_of_another_queue_is_refused(face):
    app, _ = face
    with pytest.raises(UsageError, match="9 shards"):
        await anext(app.events(since=write_places([None] * 9)))


async def trim(app):
    """
    Drop all but the newest entry of every shard, as the bound of the stream does.
    """
    store = await app.store()
    for shard in range(store.shards):
        await store.link.call("XTRIM", store.keys[shard].fixed["events"], "MAXLEN", "=", 1)
    return [await Feed(store).last(shard) for shard in range(store.shards)]


async def test_a_gap_is_raised_with_its_range_and_the_same_follower_goes_on(face):
    app, beside = face
    for number in range(12):
        await beside.enqueue("mail", id=f"j{number}")
    kept = await trim(beside)
    events = app.events(since="start", wait=0)
    gaps, seen, going = [], [], True
    while going:
        try:
            while (event := await events.next()) is not None:
                seen.append(event)
            going = False
        except EventsLost as lost:
            gaps.append((lost.shard, lost.since, lost.until))
    assert [(shard, 1, last.counter - 1) for shard, last in enumerate(kept)] == sorted(gaps)
    assert {last.counter for last in kept} == {event.counter for event in seen}


async def test_a_server_that_was_rolled_back_is_told_also_to_who_does_not_wait(face):
    app, beside = face
    await beside.enqueue("mail", id="a")
    async with app.events() as events:
        places = read_places(events.offset, (await beside.store()).shards)
    ahead = [place and Place(place.offset._replace(counter=place.offset.counter + 5)) for place in places]
    told, going = [], True
    events = app.events(since=write_places(ahead), wait=0)
    while going:
        try:
            assert [] == [event async for event in events]
            going = False
        except EventsLost as lost:
            told.append(lost.until)
    assert [None for place in places if place is not None] == told


@pytest.mark.parametrize("loops", [40, pytest.param(100, marks=pytest.mark.long)])
async def test_loops_that_were_left_hold_nothing(app, loops):
    """
    By break, by an error, by cancellation and forgotten: each has a connection to the service.
    """
    service = api(app, ServiceSettings(max_streams=20))
    async with serving(service) as place, Duly(place) as remote:
        live = service.state.service.live
        await remote.enqueue("mail", id="a")

        async def left(number):
            if number % 4 == 0:
                async for _ in remote.events(since="start"):
                    break
            elif number % 4 == 1:
                with pytest.raises(ZeroDivisionError):
                    async for _ in remote.events(since="start"):
                        raise ZeroDivisionError
            elif number % 4 == 2:
                task = asyncio.create_task(anext(remote.events()))
                await asyncio.sleep(0.01)
                task.cancel()
                await asyncio.wait([task])
            else:
                cycle = [remote.events(since="start")]
                cycle.append(cycle)
                await anext(cycle[0])
                del cycle
                gc.collect()

        for number in range(loops):
            async with asyncio.timeout(60):
                while live.full:
                    await asyncio.sleep(0.01)
                await left(number)
        async with asyncio.timeout(60):
            while live.followers:
                await asyncio.sleep(0.01)
        assert (await remote.enqueue("mail", id="b")).created
        async with asyncio.timeout(60):
            while (await remote._remote_link())._streams:
                await asyncio.sleep(0.01)


async def test_a_follower_beside_many_others_holds_up_no_call(face):
    app, _ = face
    followers = [app.events() for _ in range(70)]
    waiting = [asyncio.create_task(each.next()) for each in followers]
    try:
        async with asyncio.timeout(60):
            assert (await app.enqueue("mail", id="a")).created
            await app.job("mail", "a").get()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_service_that_is_started_again_is_followed_from_the_same_place(app, valkey, namespace):
    async with Duly(valkey.url, namespace=namespace) as beside:
        async with serving(api(app)) as place:
            remote = Duly(place)
            events = remote.events(verbs="enqueued")
            await events.begin()
            port = int(place.rpartition(":")[2])
        waiting = asyncio.create_task(taken(events, 2))
        await beside.enqueue("mail", id="while-away")
        async with serving(api(Duly(valkey.url, namespace=namespace)), port):
            await beside.enqueue("mail", id="after")
            assert ["after", "while-away"] == names(await waiting)
            await remote.aclose()


async def test_a_service_that_stays_away_is_told_after_the_patience(app):
    async with serving(api(app)) as place:
        remote = Duly(place)
        events = remote.events()
        await events.begin()
        (await remote._remote_link()).patience_s = 0.3
    async with asyncio.timeout(60):
        with pytest.raises(StoreUnavailable, match="cannot follow"):
            await anext(events)
    await remote.aclose()


async def test_streams_that_end_at_once_are_not_begun_for_ever(app):
    async with serving(api(app, ServiceSettings(max_stream_s=0.0))) as place, Duly(place) as remote:
        (await remote._remote_link()).patience_s = 0.3
        with pytest.raises(StoreUnavailable, match="ends at once"):
            await anext(remote.events())


async def test_a_lost_stream_is_begun_again_where_it_was(wire, over, app):
    events = over.events(verbs="enqueued")
    await events.begin()
    await app.enqueue("mail", id="a")
    assert "a" == (await anext(events)).id
    wire.cut()
    await app.enqueue("mail", id="b")
    async with asyncio.timeout(60):
        assert "b" == (await anext(events)).id
    await events.aclose()


async def test_no_shard_waits_until_another_has_told_everything(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=3) as app:
        for number in range(90):
            await app.enqueue("mail", id=str(number))
        first = await taken(app.events(since="start"), 40)
    assert {0, 1, 2} == {event.shard for event in first}


async def commands(store):
    """
    How many commands the server has been sent.
    """
    return int((await store.link.call("INFO", "stats")).split(b"total_commands_processed:")[1].split()[0])


async def test_several_shards_are_waited_for_by_one_call(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, shards=16) as app, app.events() as events:
        waiting = asyncio.create_task(events.next())
        store, loop = await app.store(), asyncio.get_running_loop()
        await asyncio.sleep(0.2)
        before, began_s = await commands(store), loop.time()
        await asyncio.sleep(2)
        rate = (await commands(store) - before) / (loop.time() - began_s)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert rate < 2 * 16, "to ask each shard five times a second is 80"


def test_the_blocking_twin_follows_too(valkey, namespace):
    queue = Duly(valkey.url, namespace=namespace)
    with Served(queue) as served:
        for twin in (Duly(valkey.url, namespace=namespace).sync, Duly(served.url).sync):
            with twin:
                with twin.events(verbs="enqueued") as events:
                    sent = [twin.enqueue("mail", delay=60).id for _ in range(3)]
                    assert sorted(sent) == names(next(events) for _ in range(3))
                    offset = events.offset
                last = twin.enqueue("mail", delay=60)
                assert [last.id] == [event.id for event in twin.events(since=offset, wait=0)]
                for _ in range(100):
                    for _event in twin.events(since="start"):
                        break
                assert twin.enqueue("mail").created
