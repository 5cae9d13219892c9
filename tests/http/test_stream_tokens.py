"""
Stream tokens: a browser follows events without a key, with what a key has made for it.
"""

from __future__ import annotations

import time

import httpx
import msgspec
import pytest

from duly import Duly
from duly.apikeys import KeyRing
from duly.failure import signature
from duly.http import streamtokens
from duly.http.access import Buckets
from duly.http.api import OPERATIONS, api
from duly.http.settings import ServiceSettings
from duly.store import Want
from tests.http.conftest import problem
from tests.http.service import Served
from tests.http.test_live import Client, do, enqueue
from tests.shards import claim_all

TOKEN, EVENTS = "/v1/events/token", "/v1/events"
GIVEN = "a-secret-of-the-settings"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """
    Keys are read for every request, instead of every few seconds.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)


class Clock:
    """
    The time as tokens see it.
    """

    def __init__(self):
        self.now_s = time.time()

    def time(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(streamtokens, "time", clock)
    return clock


@pytest.fixture
async def ring(app, client):
    return KeyRing(await app.store())


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


async def token_of(client, key, *topics):
    response = await client.post(TOKEN, json={"topics": topics}, headers=bearer(key))
    assert 200 == response.status_code, response.text
    assert "no-store" == response.headers["cache-control"]
    return response.json()["token"]


async def look(client, token, **query):
    """
    Ask for the head of a stream: it goes through the same gate, and ends.
    """
    response = await client.head(EVENTS, params={"token": token, **query})
    return response.status_code


async def test_a_token_opens_the_stream_and_nothing_else(client, ring):
    key, _ = await ring.create("page", ["admin"])
    token = await token_of(client, key)
    assert 200 == await look(client, token)
    assert 401 == (await client.head(EVENTS)).status_code
    client._transport.app.state.service.access._keyless = Buckets(1.0, len(OPERATIONS))
    for operation in OPERATIONS:
        if operation.scope is None or operation.by_token:
            continue
        path = operation.path.format(topic="mail", id="a", token="x", name="n", key="k")
        response = await client.request(operation.method, path, params={"token": token})
        assert 401 == response.status_code, (operation.name, response.text)
    # Nor is it a key.
    assert 401 == (await client.head(EVENTS, headers=bearer(token))).status_code


async def test_a_token_shows_the_topics_that_it_was_made_for(client, ring):
    key, _ = await ring.create("page", ["read"], ["mail.*"])
    narrow, wide = await token_of(client, key, "mail.in"), await token_of(client, key)
    seen = [
        await look(client, each, topic=topic)
        for each in (narrow, wide)
        for topic in ("mail.in", "mail.out", "x")
    ]
    assert [200, 403, 403, 200, 200, 403] == seen
    problem(await client.post(TOKEN, json={"topics": ["x"]}, headers=bearer(key)), 403, "forbidden")


async def test_only_a_key_that_reads_makes_one(client, ring):
    key, _ = await ring.create("shop", ["enqueue"])
    problem(await client.post(TOKEN, headers=bearer(key)), 403, "forbidden")
    problem(await client.post(TOKEN), 401, "unauthenticated")


@pytest.mark.parametrize(
    "body", [{"topics": ["no topic"]}, {"topics": ["mail\n"]}, {"topics": ["a"] * 21}, {"lifetime": 1}]
)
async def test_a_wrong_question_is_a_422(client, ring, body):
    key, _ = await ring.create("page", ["read"])
    problem(await client.post(TOKEN, json=body, headers=bearer(key)), 422, "invalid")


async def test_a_token_shows_the_type_of_an_error_and_a_key_the_message(client, app, ring):
    key, _ = await ring.create("shop", ["read"])
    token = await token_of(client, key)
    store = await app.store()
    for id_, reason in (("a", signature(KeyError("pass: word"))), ("b", "expired")):
        await app.enqueue("mail", {}, id=id_)
        [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w")
        await store.bury(lease, b"{}", reason)

    async def reasons(headers, **query):
        query = {"from": "start", "wait": 0, "verb": "buried", **query}
        text = (await client.get(EVENTS, params=query, headers=headers)).text
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith('data: {"verb')]
        return {each["id"]: each["reason"] for each in map(msgspec.json.decode, lines)}

    assert {"a": "KeyError", "b": "expired"} == await reasons({}, token=token)
    whole = {"a": "KeyError: 'pass: word'", "b": "expired"}
    assert whole == await reasons(bearer(key)) == await reasons(bearer(key), token=token)


async def test_without_keys_an_event_tells_the_message_whatever_token_is_sent(client, app):
    store = await app.store()
    await app.enqueue("mail", {}, id="a")
    [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w")
    await store.bury(lease, b"{}", "KeyError: word")
    query = {"from": "start", "wait": 0, "token": "none"}
    assert "KeyError: word" in (await client.get(EVENTS, params=query)).text


async def test_a_token_ends_with_its_key(client, ring):
    await ring.create("other", ["admin"])
    key, _ = await ring.create("page", ["read"])
    token = await token_of(client, key)
    await ring.revoke("page")
    assert 401 == await look(client, token)


async def test_a_token_ends_by_itself_and_its_end_is_no_wrong_key(client, ring, clock):
    key, _ = await ring.create("page", ["read"])
    token = await token_of(client, key)
    clock.now_s += streamtokens.LIFETIME_S
    for _ in range(30):  # more than wrong keys are allowed
        assert 401 == await look(client, token)
    assert "/v1/events/token" in (await client.get(EVENTS, params={"token": token})).json()["detail"]
    assert 200 == await look(client, await token_of(client, key))


async def test_a_token_that_was_changed_is_refused_and_counted(client, ring):
    key, about = await ring.create("page", ["read"], ["mail"])
    await ring.create("other", ["read"])
    claims, _, signature = (await token_of(client, key)).partition(".")
    longer = streamtokens._write(msgspec.json.encode([about.id, 2**40, []]))
    empty = streamtokens._write(b"[]")
    texts = [
        f"{longer}.{signature}",
        f"{claims}.{'A' * 43}",
        f"{empty}.{signature}",
        claims,
        ".",
        "é",
        "x" * 9000,
    ]
    for wrong in texts:
        assert 401 == await look(client, wrong), wrong
    statuses = [await look(client, f"{claims}.{'A' * 43}") for _ in range(30)]
    assert 429 in statuses


async def test_the_key_of_a_header_goes_before_a_token(client, ring):
    key, _ = await ring.create("page", ["read"])
    token = await token_of(client, key)
    response = await client.head(EVENTS, params={"token": token}, headers=bearer("wrong"))
    assert 401 == response.status_code


async def test_without_keys_a_token_is_empty_and_not_needed(client):
    response = await client.post(TOKEN)
    assert (200, "") == (response.status_code, response.json()["token"])
    assert 200 == await look(client, "")


async def test_every_process_of_a_service_takes_the_tokens_of_the_others(valkey, namespace, monkeypatch):
    monkeypatch.setenv("DULY_API_KEYS", f"page:{GIVEN}:read")

    def process():
        return api(Duly(valkey.url, namespace=namespace))

    one, other = process(), process()
    async with one.router.lifespan_context(one), other.router.lifespan_context(other):
        first, second = (
            httpx.AsyncClient(transport=httpx.ASGITransport(each), base_url="http://localhost")
            for each in (one, other)
        )
        async with first, second:
            stored, _ = await (await one.state.service.app.key_ring()).create("stored", ["read"])
            for key in (GIVEN, stored):
                token = await token_of(first, key)
                assert 200 == await look(second, token)
            # The same name with another secret is another key.
            monkeypatch.setenv("DULY_API_KEYS", f"page:{GIVEN}-of-another:read")
            third = process()
            async with third.router.lifespan_context(third):
                transport = httpx.ASGITransport(third)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                    assert 401 == await look(client, await token_of(first, GIVEN))


def test_a_page_follows_with_tokens_and_misses_nothing(app, clock):
    with Served(app, ServiceSettings(heartbeat_s=0.1)) as served:

        async def create(other):
            return (await KeyRing(await other.store()).create("page", ["read"]))[0]

        key = do(app, create)

        def token():
            return httpx.post(served.url + TOKEN, headers=bearer(key)).raise_for_status().json()["token"]

        first = token()
        with Client(served.url, f"?token={first}") as client:
            client.begun()
            enqueue(app, "a")
            assert "a" == client.next()[1]["id"]
            # The token ends, and the stream with it.
            clock.now_s += streamtokens.LIFETIME_S
            assert client.next() is None
        enqueue(app, "b")
        with Client(served.url, f"?token={first}", last=client.last) as again:
            assert 401 == again.status
        with Client(served.url, f"?token={token()}&last_event_id={client.last}") as again:
            assert (200, "b") == (again.status, again.next()[1]["id"])
