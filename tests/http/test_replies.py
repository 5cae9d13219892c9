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
from duly.http.replies import FIRST
from duly.http.serve import listen, server_of
from duly.newjob import new_job
from duly.replies import AHEAD, FRESH_S, LEASE_S
from duly.store import Want
from tests.eventually import eventually
from tests.http.conftest import problem
from tests.shards import claim_all, ids_on, on_all

INBOX = "/v1/replies/inbox"
TAKE = f"{INBOX}/take"
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
    leases = await claim_all(store, [Want(topic, 100, 60_000)], worker="w")
    for lease in leases:
        await store.ack(lease, result)
    return len(leases)


async def some(app, count=3, name="inbox"):
    """
    Replies to jobs of one shard, which are taken in the order in which the jobs ended; the ids of those.
    """
    store = await app.store()
    ids = ids_on(store, "mail", store.shards - 1, count)
    await app.enqueue_many(
        [new_job("mail", {}, app.settings.limits).options(id=id_, reply_to=name) for id_ in ids]
    )
    assert count == await work(app)
    return ids


async def test_an_app_reads_the_replies_to_its_jobs(producer, app):
    handle = await producer.enqueue("mail", {}, id="a", reply_to="inbox", context={"tenant": "acme"})
    await producer.enqueue("mail", {}, id="b", reply_to="inbox", delay=60)
    assert "inbox" == (await handle.get()).envelope.reply_to
    await work(app, b'{"sent":1}')
    await producer.job("mail", "b").cancel()
    found = [reply async for reply in producer.replies("inbox", wait=0)]
    found.sort(key=lambda reply: reply.job.id)
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
    await eventually(lambda: _listens(store))
    await producer.enqueue("mail", {}, id="a", reply_to="inbox")
    await work(app)
    assert "a" == (await asyncio.wait_for(waiting, 15)).job.id


async def _listens(store):
    channels = [keys.fixed["ended_channel"] for keys in store.keys]
    return all((await store.link.call("PUBSUB", "NUMSUB", *channels))[1::2])


async def test_a_reply_is_acked_when_the_next_is_asked_for(producer, app):
    ids = await some(app, 3)
    replies = producer.replies("inbox", wait=0)
    first = await replies.next()
    assert set(ids) == await unacked(app)
    second = await replies.next()
    assert ids[:2] == [first.job.id, second.job.id]
    assert set(ids[1:]) == await unacked(app)
    await second.ack()
    assert {ids[2]} == await unacked(app)
    assert ids[2] == (await replies.next()).job.id


async def unacked(app):
    store = await app.store()
    found = await on_all(store, "replies", "XRANGE", "-", "+")
    return {fields[3].decode().partition("/")[2] for entries in found for _, fields in entries}


async def test_who_left_the_loop_leaves_the_reply_to_others(producer, app, monkeypatch):
    monkeypatch.setattr("duly.replies.LEASE_S", 0.5)
    [id_] = await some(app, 1)
    async for reply in producer.replies("inbox", wait=0):
        assert id_ == reply.job.id
        break
    assert id_ == (await producer.replies("inbox").next()).job.id


async def test_what_was_fetched_ahead_too_long_ago_is_not_handed_out(app, monkeypatch):
    async with app:
        ids = await some(app, 4)
        replies = app.replies("inbox", wait=0)
        assert ids[:2] == [(await replies.next()).job.id for _ in range(2)]
        monkeypatch.setattr(replies, "_fresh_until", 0.0)
        # The third is in its hands and may be another's soon; what nobody has comes first.
        assert ids[3] == (await replies.next()).job.id
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
    assert {"replies": [], "dropped": 0} == (await client.post(TAKE)).json()
    await work(app, b'{"sent":1}')
    [reply] = (await client.post(TAKE, json={"limit": 10})).json()["replies"]
    job = (await client.get(f"{JOBS}/a")).json()
    assert reply["job"] == {name: job[name] for name in reply["job"]}
    assert ("succeeded", {"sent": 1}, None) == tuple(
        reply["job"][name] for name in ("state", "result", "error")
    )
    assert [] == (await client.post(TAKE)).json()["replies"], "it is leased"
    assert [] == (await client.get(INBOX)).json()["replies"], "another reader has it"
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
        reply["job"]["id"] for reply in (await client.post(TAKE, json={"limit": 10})).json()["replies"]
    ]


async def test_a_poll_waits_for_the_first_reply(client, app):
    await client.post(JOBS, json={"id": "a", "reply_to": "inbox"})
    polling = asyncio.create_task(client.post(TAKE, json={"wait": "20s"}))
    store = await app.store()
    await eventually(lambda: _listens(store))
    await work(app)
    assert ["a"] == [reply["job"]["id"] for reply in (await polling).json()["replies"]]
    response = await client.post(TAKE, json={"wait": 0.1})
    assert (200, []) == (response.status_code, response.json()["replies"])


async def test_a_client_that_has_gone_keeps_no_reply_from_others(app, url):
    service_store = await app.store()
    waiters = await app.waiters()
    async with httpx.AsyncClient(base_url=url) as client:
        polling = asyncio.create_task(client.post(TAKE, json={"wait": 20}, timeout=60))
        await eventually(lambda: "inbox" in waiters._waiting)
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    await eventually(lambda: "inbox" not in waiters._waiting)
    await app.enqueue("mail", {}, id="a", reply_to="inbox")
    await work(app)
    assert 0 == sum(await on_all(service_store, "reply_leases", "ZCARD"))


@pytest.mark.parametrize(
    ("method", "path", "body"), [("POST", TAKE, {"wait": 60}), ("GET", f"{JOBS}/a?wait=60", None)]
)
async def test_a_poll_ends_when_the_service_is_about_to_end(app, method, path, body):
    place = listen("127.0.0.1", 0)
    server = server_of(api(app), 30)
    serving = asyncio.create_task(server.serve([place]))
    await eventually(lambda: server.started)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.getsockname()[1]}") as client:
        await client.post(JOBS, json={"id": "a"})
        polling = asyncio.create_task(client.request(method, path, json=body, timeout=60))
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
    ],
)
async def test_a_wrong_question_says_which_word_is_wrong(client, path, field):
    assert field == problem(await client.get(path), 422, "invalid")["field"]


@pytest.mark.parametrize(
    ("body", "field"),
    [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"wait": "x"}, "wait"), ({"a": 1}, "a")],
)
async def test_a_wrong_take_says_which_word_is_wrong(client, body, field):
    assert field == problem(await client.post(TAKE, json=body), 422, "invalid")["field"]


async def test_looking_takes_nothing(client, app):
    ids = await some(app, 3)
    for _ in range(2):
        shown = (await client.get(INBOX, params={"limit": 2})).json()["replies"]
        assert ids[:2] == [reply["job"]["id"] for reply in shown]
    assert 0 == sum(await on_all(await app.store(), "reply_leases", "ZCARD"))
    assert shown == (await client.post(TAKE, json={"limit": 2})).json()["replies"]
    assert ids[2:] == [reply["job"]["id"] for reply in (await client.get(INBOX)).json()["replies"]]


async def test_looking_does_not_use_up_what_is_said_of_dropped_replies(client, app):
    store = await app.store()
    for shard, keys in enumerate(store.keys):
        await store.link.call("HSET", keys.fixed["reply_drops"], "inbox", 3 + shard)
    dropped = sum(3 + shard for shard in range(store.shards))
    assert [dropped, dropped] == [(await client.get(INBOX)).json()["dropped"] for _ in range(2)]
    assert [dropped, 0] == [(await client.post(TAKE)).json()["dropped"] for _ in range(2)]


async def test_an_app_looks_without_taking(producer, app):
    ids = await some(app, 2)
    queue = await producer.reply_queue()
    for _ in range(2):
        assert ids == [reply.job.id for reply in (await queue.peek("inbox", limit=10)).replies]


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
            client.post(TAKE, headers=headers),
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
    [reply] = (await client.post("/v1/replies/mail.replies/take", headers=bound)).json()["replies"]
    assert "b" == reply["job"]["id"]
    problem(await client.get("/v1/replies/pay.replies", headers=bound), 403, "forbidden")
    problem(await client.post("/v1/replies/pay.replies/take", headers=bound), 403, "forbidden")
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


async def test_the_message_of_an_error_is_for_keys_that_may_read_its_job(client, app, key):
    store = await app.store()
    await app.enqueue("mail", {}, id="a", reply_to="mail.inbox")
    [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w")
    await store.bury(lease, b'{"type":"KeyError","message":"secret","traceback":"secret"}')
    everything = {"type": "KeyError", "message": "secret", "traceback": "secret"}
    seen = {
        ("enqueue",): {"type": "KeyError", "reference": "a#1"},
        ("enqueue", "read"): everything,
        ("admin",): everything,
    }
    for scopes, error in seen.items():
        headers = await key(*scopes)
        [reply] = (await client.get("/v1/replies/mail.inbox", headers=headers)).json()["replies"]
        assert error == reply["job"]["error"]
    # The queue is one of its topics, and the job is none of them.
    bound = await key("enqueue", "read", topics=["mail.*"])
    [reply] = (await client.post("/v1/replies/mail.inbox/take", headers=bound)).json()["replies"]
    assert seen["enqueue",] == reply["job"]["error"]


async def test_what_a_job_carries_is_for_keys_that_may_read_it(client, app, key):
    context, callback = {"tenant": "acme"}, "https://example.com/hook?secret=1"
    sent = await app.enqueue("mail", {}, reply_to="inbox", delay=60, context=context, callback=callback)
    await sent.cancel()
    for scopes, seen in (("enqueue",), (None, None)), (("enqueue", "read"), (context, callback)):
        [reply] = (await client.get(INBOX, headers=await key(*scopes))).json()["replies"]
        assert seen == (reply["job"]["context"], reply["job"]["callback"])
        assert reply["job"]["scheduled_for"] == reply["job"]["due_at"]


async def test_replies_that_are_large_together_come_in_several_answers(serving, app):
    await app.enqueue_many(
        [new_job("mail", {}, app.settings.limits).options(reply_to="inbox") for _ in range(30)]
    )
    while await work(app, b'"%b"' % (b"x" * 3000)):
        pass
    async with serving(page_limit=10_000) as client:
        taken = []
        while replies := (await client.post(TAKE, json={"limit": 100})).json()["replies"]:
            assert len(replies) <= FIRST
            taken += [reply["job"]["id"] for reply in replies]
        assert 30 == len(set(taken)) == len(taken)


async def test_replies_that_are_large_together_are_shown_in_part(serving, app):
    await app.enqueue_many(
        [new_job("mail", {}, app.settings.limits).options(reply_to="inbox") for _ in range(30)]
    )
    while await work(app, b'"%b"' % (b"x" * 3000)):
        pass
    async with serving(page_limit=10_000) as client:
        told = (await client.get("/v1/replies/inbox", params={"limit": 30})).json()
        assert (3, True) == (len(told["replies"]), told["more"])
        told = (await client.get("/v1/replies/inbox", params={"limit": 2})).json()
        assert (2, False) == (len(told["replies"]), told["more"])
    async with serving(page_limit=1_024) as client:
        told = (await client.get("/v1/replies/inbox", params={"limit": 30})).json()
        assert (1, True) == (len(told["replies"]), told["more"]), "one at least"
    async with serving() as client:
        told = (await client.get("/v1/replies/inbox", params={"limit": 100})).json()
        assert (30, False) == (len(told["replies"]), told["more"])


async def test_replies_that_the_server_leaves_out_for_their_size_are_told_of(serving, app):
    await app.enqueue_many(
        [new_job("mail", {}, app.settings.limits).options(reply_to="inbox") for _ in range(40)]
    )
    while await work(app, b'"%b"' % (b"x" * 250_000)):
        pass
    async with serving() as client:
        told = (await client.get("/v1/replies/inbox", params={"limit": 100})).json()
        assert (True, True) == (0 < len(told["replies"]) < 40, told["more"])
