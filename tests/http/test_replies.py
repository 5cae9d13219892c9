"""
The response queue, as apps read it on the queue's own server and through the service, and as curl does.
"""

from __future__ import annotations

import asyncio

import httpx
import pytest

from duly import Duly, JobState, UsageError
from duly.apikeys import KeyRing
from duly.http.api import api
from duly.http.serve import listen, server_of
from duly.newjob import new_job
from duly.replies import AHEAD, FRESH_S, LEASE_S
from duly.store import Want
from tests.eventually import eventually
from tests.http.conftest import problem

INBOX = "/v1/replies/inbox"
JOBS = "/v1/topics/mail/jobs"


@pytest.fixture(params=["redis", "http"])
async def producer(request, app, url):
    """
    An app that sends and reads: straight to the server, or through the service.
    """
    settings = {"namespace": app.settings.namespace} if request.param == "redis" else {}
    async with Duly(app.settings.url if request.param == "redis" else url, **settings) as producer:
        yield producer


async def work(app, result=b"1", topic="mail"):
    """
    Ack what is ready.
    """
    store = await app.store()
    claimed = await store.claim(0, [Want(topic, 100, 60_000)], worker="w")
    for lease in claimed.leases:
        await store.ack(lease, result)
    return len(claimed.leases)


async def some(app, count=3, name="inbox"):
    jobs = [new_job("mail", {}, app.settings.limits).options(id=f"j{n}", reply_to=name) for n in range(count)]
    await app.enqueue_many(jobs)
    return await work(app)


async def test_an_app_reads_the_replies_to_its_jobs(producer, app):
    handle = await producer.enqueue("mail", {}, id="a", reply_to="inbox", context={"tenant": "acme"})
    await producer.enqueue("mail", {}, id="b", reply_to="inbox", delay=60)
    assert "inbox" == (await handle.get()).envelope.reply_to
    await work(app, b'{"sent":1}')
    await producer.job("mail", "b").cancel()
    found = [reply async for reply in producer.replies("inbox", wait=0)]
    assert ["a", "b"] == [reply.job.id for reply in found]
    assert [JobState.succeeded, JobState.cancelled] == [reply.state for reply in found]
    assert [{"sent": 1}, None] == [reply.result for reply in found]
    assert [None, {"type": "cancelled"}] == [reply.error for reply in found]
    assert handle.placed.revision == found[0].job.revision
    assert found[0].job.finished_at >= found[0].job.started_at >= found[0].job.due_at
    assert [] == [reply async for reply in producer.replies("inbox", wait=0)]


async def test_a_loop_is_woken_by_the_reply_and_not_by_looking(producer, app, monkeypatch):
    for place in ("duly.replies.RECHECK_S", "duly.waiting.RECHECK_S"):
        monkeypatch.setattr(place, 600.0)
    replies = producer.replies("inbox")
    waiting = asyncio.create_task(replies.next())
    store = await app.store()
    channel = store.keys[0].fixed["ended_channel"]
    await eventually(lambda: _listens(store, channel))
    await producer.enqueue("mail", {}, id="a", reply_to="inbox")
    await work(app)
    assert "a" == (await asyncio.wait_for(waiting, 15)).job.id


async def _listens(store, channel):
    return (await store.link.call("PUBSUB", "NUMSUB", channel))[1] > 0


async def test_a_reply_is_acked_when_the_next_is_asked_for(producer, app):
    await some(app, 3)
    replies = producer.replies("inbox", wait=0)
    first = await replies.next()
    assert {"j0", "j1", "j2"} == await unacked(app)
    second = await replies.next()
    assert ("j0", "j1") == (first.job.id, second.job.id)
    assert {"j1", "j2"} == await unacked(app)
    await second.ack()
    assert {"j2"} == await unacked(app)
    assert "j2" == (await replies.next()).job.id


async def unacked(app):
    store = await app.store()
    entries = await store.link.call("XRANGE", store.keys[0].fixed["replies"], "-", "+")
    return {fields[3].decode().partition("/")[2] for _, fields in entries}


async def test_who_left_the_loop_leaves_the_reply_to_others(producer, app, monkeypatch):
    monkeypatch.setattr("duly.replies.LEASE_S", 0.5)
    await some(app, 1)
    async for reply in producer.replies("inbox", wait=0):
        assert "j0" == reply.job.id
        break
    assert "j0" == (await producer.replies("inbox").next()).job.id


async def test_what_was_fetched_ahead_too_long_ago_is_not_handed_out(app, monkeypatch):
    async with app:
        await some(app, 4)
        replies = app.replies("inbox", wait=0)
        assert ["j0", "j1"] == [(await replies.next()).job.id for _ in range(2)]
        monkeypatch.setattr(replies, "_fresh_until", 0.0)
        # j2 is in its hands and may be another's soon; what nobody has comes first.
        assert "j3" == (await replies.next()).job.id
    assert AHEAD > 1
    assert FRESH_S < LEASE_S


async def test_the_blocking_twin_reads_replies(app, url):
    def read(place, **settings):
        twin = Duly(place, **settings).sync
        with twin:
            twin.enqueue("mail", {}, id="a", reply_to="inbox")
            asyncio.run_coroutine_threadsafe(work(app), loop).result(20)
            found = []
            for reply in twin.replies("inbox", wait=0):
                reply.ack()
                found.append((reply.job.id, reply.state, reply.result, reply.error, reply.name))
            twin.job("mail", "a").requeue()
            asyncio.run_coroutine_threadsafe(work(app), loop).result(20)
            return found, len(list(twin.replies("inbox", wait=0)))

    loop = asyncio.get_running_loop()
    expected = ([("a", JobState.succeeded, 1, None, "inbox")], 1)
    assert expected == await asyncio.to_thread(read, app.settings.url, namespace=app.settings.namespace)
    await app.job("mail", "a").requeue()
    await work(app)
    assert 1 == len([reply async for reply in app.replies("inbox", wait=0)])


@pytest.mark.parametrize("name", ["", "a b", "-a", "x" * 101, "a/b"])
async def test_a_name_that_no_topic_may_have_is_refused(app, name):
    async with app:
        with pytest.raises(UsageError, match="invalid reply_to"):
            await app.enqueue("mail", {}, reply_to=name)
        with pytest.raises(UsageError, match="invalid reply queue"):
            app.replies(name)


# -- over HTTP ----------------------------------------------------------------------------------------------


async def test_curl_takes_and_acks(client, app):
    created = await client.post(JOBS, json={"id": "a", "reply_to": "inbox"})
    assert (202, "inbox") == (created.status_code, created.json()["reply_to"])
    assert {"replies": [], "dropped": 0} == (await client.get(INBOX)).json()
    await work(app, b'{"sent":1}')
    [reply] = (await client.get(INBOX, params={"limit": 10})).json()["replies"]
    job = (await client.get(f"{JOBS}/a")).json()
    assert reply["job"] == {name: job[name] for name in reply["job"]}
    assert (400, {"sent": 1}, None) == tuple(
        reply["job"][name] for name in ("status_code", "result", "error")
    )
    assert [] == (await client.get(INBOX)).json()["replies"], "it is leased"
    for acked in (1, 0):
        response = await client.post(f"{INBOX}/ack", json={"ids": [reply["id"]]})
        assert (200, {"acked": acked}) == (response.status_code, response.json())


async def test_jobs_of_a_batch_reply_too(client, app):
    lines = b'{"id":"a","reply_to":"inbox"}\n{"id":"b","reply_to":"no name"}\n{"id":"c"}\n'
    response = await client.post(
        f"{JOBS}:batch", content=lines, headers={"Content-Type": "application/x-ndjson"}
    )
    assert ["created", "refused", "created"] == [
        line.partition('"outcome":"')[2].partition('"')[0] for line in response.text.splitlines()
    ]
    assert 2 == await work(app)
    assert ["a"] == [
        reply["job"]["id"] for reply in (await client.get(INBOX, params={"limit": 10})).json()["replies"]
    ]


async def test_a_poll_waits_for_the_first_reply(client, app):
    await client.post(JOBS, json={"id": "a", "reply_to": "inbox"})
    polling = asyncio.create_task(client.get(INBOX, params={"wait": "20"}))
    store = await app.store()
    await eventually(lambda: _listens(store, store.keys[0].fixed["ended_channel"]))
    await work(app)
    assert ["a"] == [reply["job"]["id"] for reply in (await polling).json()["replies"]]
    response = await client.get(INBOX, params={"wait": "0.1"})
    assert (200, []) == (response.status_code, response.json()["replies"])


async def test_a_client_that_has_gone_keeps_no_reply_from_others(app, url):
    service_store = await app.store()
    waiters = await app.waiters()
    async with httpx.AsyncClient(base_url=url) as client:
        polling = asyncio.create_task(client.get(INBOX, params={"wait": "20"}, timeout=60))
        await eventually(lambda: "inbox" in waiters._waiting)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    await eventually(lambda: "inbox" not in waiters._waiting)
    await app.enqueue("mail", {}, id="a", reply_to="inbox")
    await work(app)
    leases = service_store.keys[0].fixed["reply_leases"]
    assert 0 == await service_store.link.call("ZCARD", leases)


@pytest.mark.parametrize("path", [f"{INBOX}?wait=60", f"{JOBS}/a?wait=60"])
async def test_a_poll_ends_when_the_service_is_about_to_end(app, path):
    place = listen("127.0.0.1", 0)
    server = server_of(api(app), 30)
    serving = asyncio.create_task(server.serve([place]))
    await eventually(lambda: server.started)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.getsockname()[1]}") as client:
        await client.post(JOBS, json={"id": "a"})
        polling = asyncio.create_task(client.get(path, timeout=60))
        waiters = await app.waiters()
        await eventually(lambda: bool(waiters._waiting))
        server.should_exit = True
        assert 200 == (await asyncio.wait_for(polling, 20)).status_code
        await asyncio.wait_for(serving, 20)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        (f"{INBOX}?limit=0", "limit"),
        (f"{INBOX}?limit=101", "limit"),
        (f"{INBOX}?limit=x", "limit"),
        (f"{INBOX}?wait=x", "wait"),
    ],
)
async def test_a_wrong_question_says_which_word_is_wrong(client, path, field):
    assert field == problem(await client.get(path), 422, "invalid")["field"]


@pytest.mark.parametrize("ids", [[], ["mail/a"], [1], "0-1", None, ["0-1"] * 101])
async def test_ids_that_are_none_are_refused(client, ids):
    document = problem(await client.post(f"{INBOX}/ack", json={"ids": ids}), 422, "invalid")
    assert document["field"].startswith("ids")


async def test_a_reply_to_that_is_no_name_is_refused(client):
    document = problem(await client.post(JOBS, json={"reply_to": "no name"}), 422, "invalid")
    assert ("reply_to", True) == (document["field"], "begin with a letter or a digit" in document["detail"])
    problem(await client.get("/v1/replies/-x"), 422, "invalid")


# -- keys ---------------------------------------------------------------------------------------------------


@pytest.fixture
async def key(app, client, monkeypatch):
    """
    Make a key; the answer is the header that carries it.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring = KeyRing(await app.store())

    async def make(*scopes, topics=()):
        text, _ = await ring.create("some", scopes, topics)
        return {"Authorization": f"Bearer {text}"}

    return make


async def test_replies_are_for_who_may_send_jobs_and_not_for_who_may_only_look(client, key):
    sender, onlooker, worker = await key("enqueue"), await key("read"), await key("work")
    for allowed, headers in ((True, sender), (False, onlooker), (False, worker)):
        for call in (
            client.get(INBOX, headers=headers),
            client.post(f"{INBOX}/ack", json={"ids": ["0-1"]}, headers=headers),
        ):
            response = await call
            assert allowed == (response.status_code == 200)
            if not allowed:
                problem(response, 403, "forbidden")


async def test_a_key_that_is_bound_to_topics_has_the_queues_of_such_names_and_no_others(client, app, key):
    bound = await key("enqueue", topics=["mail", "mail.*"])
    await app.enqueue("pay", {}, id="a", reply_to="pay.replies")
    await app.enqueue("mail", {}, id="b", reply_to="mail.replies")
    assert (1, 1) == (await work(app, topic="pay"), await work(app))
    [reply] = (await client.get("/v1/replies/mail.replies", headers=bound)).json()["replies"]
    assert "b" == reply["job"]["id"]
    problem(await client.get("/v1/replies/pay.replies", headers=bound), 403, "forbidden")
    problem(
        await client.post("/v1/replies/pay.replies/ack", json={"ids": ["0-1"]}, headers=bound),
        403,
        "forbidden",
    )
    # Nor may it put anything into the queue of somebody else.
    refused = await client.post(JOBS, json={"reply_to": "pay.replies"}, headers=bound)
    assert "reply_to" == problem(refused, 403, "forbidden")["field"]
    assert 202 == (await client.post(JOBS, json={"reply_to": "mail.replies"}, headers=bound)).status_code
    batch = await client.post(f"{JOBS}:batch", json=[{"reply_to": "pay.replies"}, {}], headers=bound)
    assert ["refused", "created"] == [
        line.partition('"outcome":"')[2].partition('"')[0] for line in batch.text.splitlines()
    ]
