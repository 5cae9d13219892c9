"""
Who may do what: keys, scopes, topics, rates, and where the service may listen.
"""

from __future__ import annotations

import pytest

from duly.apikeys import FRESH_S, KeyRing, keys_of_environment
from duly.errors import UsageError
from duly.http.serve import check_place, listen
from tests.http.conftest import problem

JOBS = "/v1/topics/mail/jobs"


@pytest.fixture
async def ring(app, client):
    return KeyRing(await app.store())


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
def at_once(monkeypatch):
    """
    Keys are read for every request, instead of every few seconds.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)


async def test_without_keys_everybody_may_and_with_one_nobody_without_it(client, ring, at_once):
    assert 202 == (await client.post(JOBS, json={})).status_code
    text, _ = await ring.create("shop", ["enqueue"])
    response = await client.post(JOBS, json={})
    problem(response, 401, "unauthenticated")
    assert "Bearer" == response.headers["www-authenticate"]
    assert 202 == (await client.post(JOBS, json={}, headers=bearer(text))).status_code


@pytest.mark.parametrize("text", ["", "x", "duly_", "duly_x_y", "duly_{id}_wrong", "\xe9"])
async def test_a_wrong_key_is_a_401(client, ring, at_once, text):
    _, key = await ring.create("shop", ["admin"])
    sent = [(b"Authorization", f"Bearer {text.replace('{id}', key.id)}".encode("latin-1"))]
    problem(await client.post(JOBS, json={}, headers=sent), 401, "unauthenticated")


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("enqueue", {"POST"}), ("read", {"GET"}), ("work", set()), ("admin", {"POST", "GET"})],
)
async def test_a_scope_allows_what_it_says(client, ring, at_once, scope, allowed):
    text, _ = await ring.create("some", [scope])
    for method in ("POST", "GET"):
        response = await client.request(method, JOBS, json={}, headers=bearer(text))
        if method in allowed:
            assert response.status_code < 300
        else:
            problem(response, 403, "forbidden")


async def test_patterns_bind_a_key_to_topics(client, ring, at_once):
    text, _ = await ring.create("mailer", ["enqueue"], ["mail.*", "sms"])
    for topic, status in (("mail.out", 202), ("sms", 202), ("mail", 403), ("smsx", 403), ("other", 403)):
        response = await client.post(f"/v1/topics/{topic}/jobs", json={}, headers=bearer(text))
        assert status == response.status_code, topic


async def test_a_revoked_key_is_refused(client, ring, at_once):
    text, key = await ring.create("shop", ["admin"])
    await ring.create("other", ["admin"])
    assert [key.id] == [gone.id for gone in await ring.revoke("shop")]
    problem(await client.post(JOBS, json={}, headers=bearer(text)), 401, "unauthenticated")
    assert [] == await ring.revoke("shop")


async def test_only_a_hash_is_stored(ring, app):
    text, key = await ring.create("shop", ["admin"])
    store = await app.store()
    stored = await store.link.call("HGETALL", store.keys[0].fixed["api_keys"])
    assert text.split("_", 2)[2].encode() not in b"".join(stored)
    assert [key] == await ring.all()


async def test_keys_are_not_read_for_every_request(client, app, monkeypatch):
    assert FRESH_S > 1
    # However long the twenty take.
    monkeypatch.setattr("duly.apikeys.FRESH_S", 3600.0)
    await client.post(JOBS, json={})
    store = await app.store()
    await store.link.call("CONFIG", "RESETSTAT")
    for _ in range(20):
        await client.post(JOBS, json={})
    stats = (await store.link.call("INFO", "commandstats")).decode()
    assert "cmdstat_hgetall:" not in stats


async def test_the_environment_brings_keys(client, app, at_once):
    environ = {"DULY_API_KEYS": "ci:0123456789abcdef:enqueue+read:mail.*, ops:fedcba9876543210:admin"}
    ring = KeyRing(await app.store(), environ)
    assert ["ci", "ops"] == [key.name for key in await ring.all()]
    found = await ring.find("0123456789abcdef")
    assert found.allows("read", "mail.x")
    assert not found.allows("read", "other")
    assert not found.allows("work", "mail.x")
    assert await ring.find("0123456789abcdeF") is None
    assert [] == await ring.revoke("ci"), "it would come back"


@pytest.mark.parametrize(
    "text",
    [
        "ci",
        "ci:short:read",
        "ci:0123456789abcdef:write",
        "c i:0123456789abcdef:read",
        "a:0123456789abcdef:read:/x",
    ],
)
def test_a_wrong_key_in_the_environment_is_a_sentence(text):
    with pytest.raises(UsageError) as caught:
        keys_of_environment({"DULY_API_KEYS": text})
    assert "0123456789abcdef" not in str(caught.value), "no secret in a message"


async def test_a_caller_has_a_rate(serving):
    async with serving(rate=0.001, burst=2) as client:
        answers = [await client.post(JOBS, json={}) for _ in range(3)]
        assert [202, 202, 429] == [answer.status_code for answer in answers]
        problem(answers[-1], 429, "too-many-requests")
        assert int(answers[-1].headers["retry-after"]) > 0


async def test_browsers_are_let_in_only_where_allowed(serving):
    asked = {"Origin": "https://shop.example", "Access-Control-Request-Method": "POST"}
    async with serving() as client:
        assert "access-control-allow-origin" not in (await client.options(JOBS, headers=asked)).headers
    async with serving(cors_origins=("https://shop.example",)) as client:
        allowed = await client.options(JOBS, headers=asked)
        assert "https://shop.example" == allowed.headers["access-control-allow-origin"]
        other = await client.options(JOBS, headers=asked | {"Origin": "https://else.example"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "queue.example"])
async def test_others_are_served_only_with_keys(ring, host):
    with pytest.raises(UsageError, match="duly keys create"):
        await check_place(host, ring)
    await ring.create("shop", ["admin"])
    await check_place(host, ring)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
async def test_this_machine_is_served_without(ring, host):
    await check_place(host, ring)


def test_a_port_that_is_taken_is_a_sentence():
    with listen("127.0.0.1", 0) as taken, pytest.raises(UsageError, match="--port"):
        listen("127.0.0.1", taken.getsockname()[1])
