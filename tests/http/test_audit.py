"""
Who changed what: every change by a key or by a person leaves a record, and a line in the log.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os

import pytest

from duly.apikeys import KeyRing
from duly.audit import Actor, Audit, Change, this_user
from duly.cli.main import main
from tests.cli.schemas import read
from tests.http.conftest import problem
from tests.shards import fixed_of

JOBS = "/v1/topics/mail/jobs"


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture
async def admin(app, client, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    text, key = await KeyRing(await app.store()).create("ops", ["admin"])
    client.headers.update(bearer(text))
    return key


async def records(app, **options):
    return (await Audit(await app.store()).newest(**options))[0]


NAME = {"topic": "mail", "id": "a"}
HOOK = "https://example.com/hook?key=4111-secret"
CHANGES = [
    ("POST", "/v1/topics/mail/pause", None, ("pause", "mail", None, {})),
    ("POST", "/v1/topics/mail/resume", None, ("resume", "mail", None, {})),
    ("PUT", "/v1/topics/mail/limit", {"limit": 50}, ("limit", "mail", None, {"limit": 50})),
    ("PATCH", f"{JOBS}/a", {"delay": 60}, ("reschedule", "mail", "a", {"delay_s": 60.0, "due_at": None})),
    ("DELETE", f"{JOBS}/a", None, ("cancel", "mail", "a", {})),
    ("POST", f"{JOBS}/a/requeue", None, ("requeue", "mail", "a", {})),
    ("POST", "/v1/jobs:cancel", {"jobs": [NAME]}, ("cancel", None, None, {"count": 1})),
    ("POST", "/v1/jobs:requeue", {"jobs": [NAME]}, ("requeue", None, None, {"count": 1})),
    ("PUT", "/v1/topics/mail/callback", {"url": HOOK}, ("callback", "mail", None, {"callback": True})),
    ("DELETE", "/v1/topics/mail/callback", None, ("callback", "mail", None, {"callback": False})),
    ("POST", "/v1/topics/mail/purge", {"state": "ready"}, ("purge", "mail", None, {"count": 1})),
    ("DELETE", "/v1/quarantine/mail/a", None, ("drop", "mail", "a", {})),
]


async def test_every_change_by_a_key_is_recorded(client, app, admin, caplog):
    caplog.set_level(logging.INFO, "duly.audit")
    await client.post(JOBS, json={"id": "a", "payload": {"card": "4111-secret"}, "delay": 600})
    store = await app.store()
    await store.link.call("HSET", fixed_of(store, "mail", "a")["quarantine"], "mail/a", b"\7")
    for method, path, body, _ in CHANGES:
        response = await client.request(method, path, json=body)
        assert response.status_code < 300, response.text
    found = await records(app)
    assert [(*what, {**details, "address": None}) for *_, (*what, details) in reversed(CHANGES)] == [
        (each.action, each.topic, each.id, {**each.details, "address": None}) for each in found
    ]
    assert {"127.0.0.1"} == {each.details["address"] for each in found}
    assert {Actor("key", "ops", admin.id)} == {each.by for each in found}
    assert {"http"} == {each.via for each in found}
    assert len(CHANGES) == len(caplog.records)
    assert f"pause of mail by key ops ({admin.id}) over http" == caplog.records[0].getMessage()
    assert ("pause", "ops") == (caplog.records[0].action, caplog.records[0].by)
    stored = await store.link.call("XRANGE", store.keys[0].fixed["audit"], "-", "+")
    assert b"4111-secret" not in b"".join(part for _, fields in stored for part in fields)


async def test_the_changes_of_the_test_are_all_there_are():
    from duly.http.api import OPERATIONS

    changing = {(op.method, op.path) for op in OPERATIONS if op.audit}
    tested = {
        (method, path.replace("/mail/", "/{topic}/").replace("/a", "/{id}")) for method, path, *_ in CHANGES
    }
    assert changing == tested


async def test_what_was_refused_is_not_recorded(client, app, admin):
    problem(await client.delete(f"{JOBS}/none"), 404, "job-not-found")
    none = {"jobs": [{"topic": "mail", "id": "none"}]}
    assert "refused" == (await client.post("/v1/jobs:cancel", json=none)).json()["jobs"][0]["outcome"]
    assert 0 == (await client.post("/v1/topics/mail/purge", json={})).json()["purged"]
    problem(await client.put("/v1/topics/mail/limit", json={"limit": 0}), 422, "invalid")
    del client.headers["authorization"]
    problem(await client.post("/v1/topics/mail/pause"), 401, "unauthenticated")
    assert [] == await records(app)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{JOBS}/a", None),
        ("PATCH", f"{JOBS}/a", {"delay": 60}),
        ("POST", "/v1/topics/mail/pause", None),
        ("PUT", "/v1/topics/mail/limit", {"limit": 5}),
        ("POST", "/v1/jobs:cancel", {"jobs": [{"topic": "mail", "id": "a"}]}),
    ],
)
async def test_a_change_that_is_asked_for_again_under_its_key_is_recorded_once(
    client, app, method, path, body
):
    await client.post(JOBS, json={"id": "a", "delay": 3600})
    for _ in range(3):
        answer = await client.request(method, path, json=body, headers={"Idempotency-Key": "one"})
        assert 200 == answer.status_code
    assert 1 == len(await records(app))


async def test_a_change_that_is_made_again_much_later_is_another_one(app, monkeypatch):
    audit = Audit(await app.store())
    for _ in range(2):
        await audit.note(this_user(), "http", Change(action="requeue", id="a"), mark="one")
    assert 1 == len((await audit.newest())[0])
    monkeypatch.setattr("duly.audit.SAME_MS", -1)
    assert 2 == len((await audit.newest())[0])


async def test_without_keys_it_is_an_address(client, app):
    await client.post("/v1/topics/mail/pause")
    [record] = await records(app)
    assert Actor("address", "127.0.0.1") == record.by


async def test_admins_read_it_page_by_page(client, app, admin):
    for number in range(5):
        await client.put("/v1/topics/mail/limit", json={"limit": number + 1})
    seen, cursor = [], ""
    while cursor is not None:
        page = (await client.get(f"/v1/audit?limit=2&cursor={cursor}")).json()
        seen += [each["details"]["limit"] for each in page["records"]]
        cursor = page["cursor"]
    assert [5, 4, 3, 2, 1] == seen
    reader, _ = await KeyRing(await app.store()).create("reader", ["read", "enqueue", "work"])
    problem(await client.get("/v1/audit", headers=bearer(reader)), 403, "forbidden")


async def test_before_the_first_id_there_is_nothing(client, app):
    await client.post("/v1/topics/mail/pause")
    assert {"records": [], "cursor": None} == (await client.get("/v1/audit?cursor=0-00")).json()


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=1001", "cursor=x", "cursor=1"])
async def test_a_wrong_page_is_a_422(client, query):
    problem(await client.get(f"/v1/audit?{query}"), 422, "invalid")


async def test_only_the_newest_are_kept(client, app, monkeypatch):
    monkeypatch.setattr("duly.audit.KEPT", 3)
    audit = Audit(await app.store())
    for number in range(5):
        await audit.note(this_user(), "cli", Change(action="limit", topic="mail", details={"limit": number}))
    assert [4, 3, 2] == [each.details["limit"] for each in await records(app)]


async def test_a_record_that_was_written_twice_is_told_once(client, app):
    store = await app.store()
    await Audit(store).note(this_user(), "cli", Change(action="pause", topic="mail"))
    key = store.keys[0].fixed["audit"]
    [[_, fields]] = await store.link.call("XRANGE", key, "-", "+")
    await store.link.call("XADD", key, "*", *fields)
    assert 1 == len(await records(app))


async def test_a_change_stands_although_its_record_cannot_be_written(client, app, caplog):
    store = await app.store()
    await store.link.call("SET", store.keys[0].fixed["audit"], "of another type")
    assert (await client.post("/v1/topics/mail/pause")).json()["paused"]
    assert "pause of mail was done and could not be recorded" in [
        each.getMessage() for each in caplog.records
    ]


# -- commands ---------------------------------------------------------------------------------------------


@pytest.fixture
def duly(valkey, namespace, shards, monkeypatch, tmp_path, capsys):
    for name in list(os.environ):
        if name.startswith("DULY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", valkey.url)
    monkeypatch.setenv("DULY_NAMESPACE", namespace)
    monkeypatch.setenv("DULY_SHARDS", str(shards))

    def run(*words):
        capsys.readouterr()
        assert main(words) == 0, (words, capsys.readouterr().err)
        return capsys.readouterr().out

    return run


def test_every_change_by_a_command_is_recorded(duly):
    duly("enqueue", "mail", '{"card": "4111-secret"}', "--id", "a", "--delay", "1h")
    duly("enqueue", "mail", "--id", "b", "--delay", "1h")
    duly("topics", "pause", "mail")
    duly("topics", "resume", "mail")
    duly("topics", "set", "mail", "--limit", "7")
    duly("jobs", "reschedule", "mail/a", "--due-at", "2030-01-01T00:00:00Z")
    duly("jobs", "cancel", "mail/a")
    duly("jobs", "requeue", "--topic", "mail", "--state", "cancelled", "--yes")
    duly("topics", "purge", "mail", "--yes")
    text = duly("keys", "create", "shop", "--scope", "read", "--topic", "mail.*").strip()
    duly("keys", "revoke", "shop", "--force")
    found = read("audit", duly("audit", "--json"))
    key = text.split("_")[1]
    assert [
        ("revoke-key", None, None, key, {"name": "shop"}),
        ("create-key", None, None, key, {"name": "shop", "scopes": ["read"], "topics": ["mail.*"]}),
        ("purge", "mail", None, None, {"count": 2}),
        ("requeue", None, None, None, {"count": 1, "topics": {"mail": 1}}),
        ("cancel", "mail", "a", None, {}),
        ("reschedule", "mail", "a", None, {"due_at": "2030-01-01T00:00:00.000Z"}),
        ("limit", "mail", None, None, {"limit": 7}),
        ("resume", "mail", None, None, {}),
        ("pause", "mail", None, None, {}),
    ] == [(each.action, each.topic, each.id, each.key, each.details) for each in found]
    assert {("user", "cli")} == {(each.by.kind, each.via) for each in found}
    assert {this_user().name} == {each.by.name for each in found}
    said = duly("audit")
    assert "4111-secret" not in said
    assert text not in said
    assert "mail/a" in said
    assert 3 == len(duly("audit", "--limit", "3", "--json").splitlines())


def test_what_a_command_could_not_do_is_not_recorded(duly, capsys):
    duly("enqueue", "mail", "--id", "a")
    assert 1 == main(["jobs", "cancel", "mail/none"])
    assert 1 == main(["keys", "revoke", "none"])
    assert "" == duly("audit", "--json")


def test_the_user_is_the_one_that_runs_the_process(monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody-else")
    monkeypatch.setenv("USER", "somebody-else")
    assert "somebody-else" == getpass.getuser(), "which believes the environment"
    assert "somebody-else" != this_user().name
    assert this_user().id.startswith(f"{os.getuid()}@")


async def test_records_do_not_wait_long_for_a_server_that_is_away(client, app, monkeypatch):
    audit = Audit(await app.store())
    monkeypatch.setattr("duly.audit.WRITE_S", 0.05)
    calls = []

    async def never(*words, **_):
        calls.append(words)
        await asyncio.Event().wait()

    monkeypatch.setattr(audit._store.link, "call", never)
    await audit.note(this_user(), "cli", *(Change(action="pause", topic="mail") for _ in range(3)))
    assert 1 == len(calls), "once it is known to be away, the log has to do"
