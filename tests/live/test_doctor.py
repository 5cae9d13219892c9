"""
``duly doctor``: each finding appears where it should, with its remedy, and nowhere else.
"""

from __future__ import annotations

import asyncio
import json
import os
import time

import pytest
import redis
from sqlalchemy import insert

from duly import Duly
from duly.connection import Link
from duly.doctor import config, directory, machine, queue, server
from duly.doctor.examine import _connected, examine
from duly.feed import Feed
from duly.idempotency import ASYNC_CALLERS, KeysFull, entries_of, name_of
from duly.namespace import create
from duly.record import schema
from duly.record.tables import idempotency
from duly.settings import Settings, layers
from duly.store import Store
from tests.servers import Server, binary
from tests.shards import ids_on
from tests.store.kit import claim, enqueue


@pytest.fixture
async def patient(own_server):
    """
    An empty server, before anything is wrong with it.
    """
    async with _connected(Settings(url=own_server.url)) as patient:
        yield patient


@pytest.fixture
def raw(own_server):
    with redis.Redis.from_url(own_server.url) as raw:
        yield raw


async def again(patient):
    """
    The same server, asked anew what it says of itself.
    """
    told = await patient.store.link.call("INFO", "everything")
    info = dict(line.partition(":")[::2] for line in told.decode().splitlines() if ":" in line)
    return server.Patient(patient.store, patient.settings, info, patient.local)


def wrong(finding, level, words):
    """
    Whether a finding is of this level, says this, and tells what to do.
    """
    assert (level, True) == (finding.level, bool(finding.remedy)), finding
    assert words in finding.message, finding
    return True


def fine(finding):
    assert ("ok", "") == (finding.level, finding.remedy), finding
    return True


# -- this machine -----------------------------------------------------------------------------------------


def test_python_and_packages_are_named():
    assert fine(machine.python())
    assert "redis 8." in machine.packages(("redis", "msgspec")).message
    assert wrong(machine.packages(("redis", "no-such-package")), "hint", "without no-such-package")


def test_few_open_files_are_told():
    assert fine(machine.open_files(1024))
    assert wrong(machine.open_files(512), "hint", "512 files only")
    assert wrong(machine.open_files(100), "problem", "100 files only")


def test_huge_pages_are_told(tmp_path):
    enabled = tmp_path / "enabled"
    assert fine(machine.huge_pages(enabled))
    enabled.write_text("always [madvise] never\n")
    assert fine(machine.huge_pages(enabled))
    enabled.write_text("[always] madvise never\n")
    assert wrong(machine.huge_pages(enabled), "hint", "always on")


# -- settings ---------------------------------------------------------------------------------------------


def test_each_setting_is_told_with_where_it_comes_from(here, monkeypatch):
    monkeypatch.chdir(here)
    assert "all defaults: no duly.toml here, no DULY_* variables" == config.settings({}, {})[1].message
    (here / "duly.toml").write_text('# lease = "20s"\n')
    assert "all defaults: duly.toml sets nothing, no DULY_* variables" == config.settings({}, {})[1].message
    (here / "duly.toml").write_text('lease = "20s"\nconcurrency = 4\n')
    settings, finding = config.settings({"DULY_LEASE": "30s"}, {"namespace": "shop", "data": None})
    assert fine(finding)
    assert (
        "lease = 30s (the environment), concurrency = 4 (duly.toml), namespace = shop (flags)"
        == finding.message
    )
    assert (30_000, 4, "shop") == (settings.lease_ms, settings.concurrency, settings.namespace)


def test_a_password_is_not_told(here, monkeypatch):
    monkeypatch.chdir(here)
    _, finding = config.settings(
        {"DULY_URL": "rediss://duly:secret@queue:6379/0?ssl_certfile=x&password=y"}, {}
    )
    assert "url = rediss://***@queue:6379/0 (the environment)" == finding.message


def test_callback_secrets_are_not_shown(here, monkeypatch):
    monkeypatch.chdir(here)
    _, finding = config.settings({"DULY_CALLBACK_SECRETS": "whsec_hunter2"}, {})
    assert "callback_secrets = *** (the environment)" == finding.message


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        ({}, {"shards": 0}, "shards=0"),
        ({"DULY_LEASE": "soon"}, {}, "the environment: lease"),
    ],
)
def test_a_wrong_setting_is_a_problem(here, monkeypatch, environ, flags, words):
    monkeypatch.chdir(here)
    settings, finding = config.settings(environ, flags)
    assert settings is None
    assert wrong(finding, "problem", words)


def test_a_variable_that_sets_nothing_is_a_problem(here, monkeypatch):
    monkeypatch.chdir(here)
    settings, finding = config.settings({"DULY_LEESE": "3s", "DULY_SERVICE_HOST": "10.0.0.7"}, {})
    assert settings == Settings()
    assert wrong(finding, "problem", "unknown variable DULY_LEESE; did you mean DULY_LEASE?")
    assert "SERVICE_HOST" not in finding.message


def test_layers_are_told_from_the_weakest_to_the_strongest(here, monkeypatch):
    monkeypatch.chdir(here)
    (here / "duly.toml").write_text("shards = 2\n")
    assert [
        ("duly.toml", {"shards": 2}),
        ("the environment", {"lease": "3s"}),
        ("flags", {"namespace": "shop"}),
    ] == layers(None, {"DULY_LEASE": "3s", "HOME": "/"}, namespace="shop", data=None)


# -- the data directory -----------------------------------------------------------------------------------


def test_a_data_directory_is_there_or_not_yet_or_cannot_be(here):
    assert fine(directory.data_directory(here))
    assert wrong(directory.data_directory(here / "new"), "hint", "is not there yet")
    (here / "file").touch()
    assert wrong(directory.data_directory(here / "file" / "x"), "problem", "is a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_data_directory_that_cannot_be_written_is_a_problem(here):
    here.chmod(0o500)
    assert wrong(directory.data_directory(here / "new"), "problem", "cannot be written")
    here.chmod(0o700)


def test_a_disk_that_fills_up_is_told(here):
    mib = 1 << 20
    assert fine(directory.disk_space(here, 2048 * mib))
    assert wrong(directory.disk_space(here, 500 * mib), "hint", "500 MiB are free")
    assert wrong(directory.disk_space(here, 10 * mib), "problem", "10 MiB are free")
    assert "MiB are free" in directory.disk_space(here).message


def test_a_network_file_system_is_a_problem(here, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {here} nfs4 rw 0 0\n")
    assert wrong(directory.file_system(here / "data", mounts), "problem", "nfs4")
    mounts.write_text(f"server:/x / nfs4 rw 0 0\n/dev/sda {here} ext4 rw 0 0\n")
    assert fine(directory.file_system(here / "data", mounts))
    assert fine(directory.file_system(here, tmp_path / "no-such-file"))


def test_a_missing_server_binary_is_a_problem(monkeypatch):
    assert fine(directory.binary())
    monkeypatch.setattr("duly.embedded.binary._in_wheel", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    assert wrong(directory.binary(), "problem", "no Valkey server")


# -- the server -------------------------------------------------------------------------------------------


async def test_a_server_as_it_should_be_has_nothing_wrong(patient, monkeypatch):
    # How long the way is depends on what else the machine does; what that means is judged below.
    monkeypatch.setattr(server, "SLOW_MS", 10_000.0)
    for check in (
        *(server.version, server.persistence, server.eviction),
        *(server.round_trip, server.clock, server.functions),
    ):
        assert fine(await check(patient))


def test_an_old_server_is_a_problem():
    assert wrong(server.judge_version("Redis", "6.2.14", (7, 0)), "problem", "Redis 6.2.14 is too old")
    assert fine(server.judge_version("Valkey", "7.2.0", (7, 2)))


async def test_a_server_without_an_append_only_file_is_a_problem(patient, raw):
    raw.config_set("appendonly", "no")
    assert wrong(await server.persistence(await again(patient)), "problem", "a restart loses jobs")


async def test_a_server_that_does_not_sync_is_told(patient, raw):
    raw.config_set("appendfsync", "no")
    assert wrong(await server.persistence(patient), "hint", "appendfsync is no")


async def test_a_server_that_evicts_is_a_problem(patient, raw):
    raw.config_set("maxmemory-policy", "allkeys-lru")
    assert wrong(await server.eviction(await again(patient)), "problem", "allkeys-lru")


async def test_memory_without_a_limit_or_near_it_is_told(patient, raw):
    assert wrong(await server.memory(patient), "hint", "no limit")
    used = raw.info("memory")["used_memory"]
    for limit, level in ((100 * used, "ok"), (int(used * 1.25), "hint"), (used, "problem")):
        raw.config_set("maxmemory", limit)
        assert level == (await server.memory(await again(patient))).level, limit
    raw.config_set("maxmemory", 0)


def test_a_long_way_to_the_server_is_told():
    assert fine(server.judge_round_trip(0.3, 4.0))
    assert wrong(server.judge_round_trip(12.0, 30.0), "hint", "12.00 ms")
    assert wrong(server.judge_round_trip(80.0, 90.0), "problem", "80.00 ms")


async def test_clocks_that_disagree_are_told(patient):
    assert fine(await server.clock(patient))
    assert wrong(await server.clock(patient, lambda: time.time() + 60), "problem", "60 s ahead of")
    assert wrong(await server.clock(patient, lambda: time.time() - 60), "problem", "60 s behind")
    assert wrong(await server.clock(patient, lambda: time.time() + 0.5), "hint", "ahead of")


async def test_functions_left_behind_are_told(patient, raw):
    raw.function_load("#!lua name=duly_old\nredis.register_function('duly_claim', function() return 1 end)")
    raw.function_load("#!lua name=theirs\nredis.register_function('their_own', function() return 1 end)")
    finding = await server.functions(patient)
    assert wrong(finding, "hint", "duly_old")
    assert "theirs" not in finding.message
    assert finding.remedy.endswith(": FUNCTION DELETE duly_old")
    raw.function_delete("duly_old")
    assert fine(await server.functions(patient))


# -- the queue --------------------------------------------------------------------------------------------


@pytest.fixture
async def made(patient):
    await patient.store.create()
    return patient


async def stats(patient):
    return await queue.stats_of(patient)


async def test_a_namespace_that_nobody_made_is_told_and_not_made(patient, raw):
    assert wrong(await queue.namespace(patient), "hint", "no app has used it yet")
    assert [] == raw.keys("*")


async def test_a_namespace_as_it_should_be(made):
    assert fine(await queue.namespace(made))


async def test_another_layout_is_a_problem(made, raw):
    raw.hset("{duly:0}:meta", "layout", "99")
    assert wrong(await queue.namespace(made), "problem", "layout version 99")


async def test_another_shard_count_is_a_problem(made):
    other = Store(made.store.link, shards=4)
    finding = await queue.namespace(server.Patient(other, made.settings, made.info, local=True))
    assert wrong(finding, "problem", "has 1 shards, the settings say 4")
    assert "set shards = 1" in finding.remedy


async def test_a_lost_shard_is_a_problem(own_server, raw):
    link = Link(own_server.url)
    try:
        store = Store(link, shards=3)
        await store.create()
        lone = server.Patient(store, Settings(url=own_server.url, shards=3), {}, local=True)
        assert fine(await queue.namespace(lone))
        raw.delete("{duly:2}:meta")
        assert wrong(await queue.namespace(lone), "problem", "lacks shards 2")
    finally:
        await link.aclose()


async def test_a_namespace_for_tests_is_a_problem(patient):
    await create(patient.store.link, "duly", 1, clock="test")
    assert wrong(await queue.namespace(patient), "problem", "made for tests")


async def test_no_worker_is_a_hint_and_with_jobs_that_wait_a_problem(made):
    store = made.store
    assert wrong(queue.workers(await stats(made), "this machine"), "hint", "none is alive on this machine")
    await enqueue(store, "a", due_ms=0)
    assert wrong(queue.workers(await stats(made), "this machine"), "problem", "and jobs wait")
    await store.beat("w1", b'{"topics": ["mail"]}')
    assert fine(queue.workers(await stats(made), "this machine"))


async def test_a_worker_that_fell_silent_is_not_alive(made, raw):
    await made.store.beat("w1", b'{"topics": ["mail"]}')
    raw.zadd("{duly:0}:beats", {"w1": 1})
    assert wrong(queue.workers(await stats(made), "this machine"), "hint", "1 fell silent")


async def test_due_jobs_without_a_worker_for_their_topic_are_a_problem(made):
    await made.store.beat("w1", b'{"topics": ["mail"]}')
    for topic in ("mail", "fax"):
        await enqueue(made.store, "a", topic=topic, due_ms=0)
    await enqueue(made.store, "later", topic="letter", due_ms=2**41)
    finding = queue.orphans(await stats(made))
    assert wrong(finding, "problem", "fax (1 ready)")
    assert "mail" not in finding.message
    assert "letter" not in finding.message
    await made.store.pause("fax")
    assert fine(queue.orphans(await stats(made)))


async def test_due_jobs_that_nobody_makes_ready_are_a_problem(made, raw):
    assert fine(queue.overdue(await stats(made)))
    await enqueue(made.store, "a", due_ms=2**41)
    raw.zadd("{duly:0}:due:mail", {"mail/a": 1})
    raw.zadd("{duly:0}:next_due", {"mail": 1})
    assert wrong(queue.overdue(await stats(made)), "problem", "no timer runs")


async def test_dead_jobs_are_told(made):
    assert fine(queue.dead(await stats(made)))
    await enqueue(made.store, "a", due_ms=0)
    [lease] = await claim(made.store)
    await made.store.bury(lease, b"{}", "E: why")
    assert wrong(queue.dead(await stats(made)), "hint", "1: mail (1)")


async def test_paused_topics_are_told(made):
    assert fine(queue.paused(await stats(made)))
    await enqueue(made.store, "a", due_ms=0)
    await made.store.pause("mail")
    assert wrong(queue.paused(await stats(made)), "hint", "mail (1 ready)")


@pytest.mark.several_shards
@pytest.mark.parametrize(("events", "level"), [(3, "ok"), (6, "hint"), (9, "problem")])
async def test_event_consumers_that_lag_are_told(own_server, shards, events, level):
    link = Link(own_server.url)
    try:
        store = Store(link, shards=shards, max_events=(10, 1 << 20))
        await store.create()
        patient = server.Patient(store, Settings(url=own_server.url, shards=shards), {}, local=True)
        assert fine(await queue.consumers(patient))
        last = shards - 1
        await Feed(store).commit("lake", last, None)
        for id_ in ids_on(store, "mail", last, events):
            await enqueue(store, id_, due_ms=2**41)
        finding = await queue.consumers(patient)
        assert level == finding.level, finding
        assert f"lake ({events} behind)" in finding.message
    finally:
        await link.aclose()


@pytest.mark.several_shards
async def test_callers_whose_keys_have_little_room_are_told(own_server, shards):
    async with Duly(own_server.url, shards=shards, idempotency_bytes=300_000) as app:
        patient = server.Patient(await app.store(), app.settings, {}, local=True)
        assert fine(await queue.request_keys(patient))
        _, key = await (await app.key_ring()).create("web", ["enqueue"])
        entries, number = await entries_of(app), 0
        while (await entries.used([key.id])).fills[key.id] < 0.8:
            await entries.reserve(name_of(key.id, str(number)), bytes(16))
            number += 1
        assert wrong(await queue.request_keys(patient), "hint", "API key web is 80% full")
        with pytest.raises(KeysFull):
            for more in range(10_000):
                await entries.reserve(name_of(key.id, str(number + more)), bytes(16))
        assert wrong(await queue.request_keys(patient), "problem", "API key web is")


async def test_keys_in_the_record_are_told_too(own_server, tmp_path):
    record = f"sqlite:///{tmp_path}/record.db"
    schema.migrate(record)
    async with Duly(own_server.url, record=record, idempotency_bytes=10_000) as app:
        patient = server.Patient(await app.store(), app.settings, {}, local=True)
        assert fine(await queue.request_keys(patient))
        row = {
            "namespace": "duly",
            "name": name_of(ASYNC_CALLERS, "a"),
            "about": bytes(4_500),
            "until_ms": 2**50,
        }
        await (await app.promises()).database.write(
            lambda made: made.execute(insert(idempotency).values(row))
        )
        assert wrong(await queue.request_keys(patient), "hint", "callers of async endpoints is 91% full")


# -- all of it --------------------------------------------------------------------------------------------


def by_check(findings):
    return {finding.check: finding for finding in findings}


async def test_looking_makes_nothing(here, monkeypatch):
    monkeypatch.chdir(here)
    found = by_check(await examine({}, {}))
    assert "hint" == found["data directory"].level
    assert "server" not in found
    assert [] == list(here.iterdir())


async def test_a_server_that_is_away_is_one_problem(here, monkeypatch):
    monkeypatch.chdir(here)
    found = by_check(await examine({"url": f"unix://{here}/nobody.sock"}, {}))
    assert wrong(found["server"], "problem", "cannot use")
    assert "version" not in found


async def test_a_user_with_few_rights_is_told_what_could_not_be_looked_at(own_server, raw, here, monkeypatch):
    monkeypatch.chdir(here)
    raw.execute_command("ACL", "SETUSER", "low", "on", ">pw", "~*", "&*", "+@all", "-function", "-config")
    found = by_check(await examine({"url": f"unix://low:pw@{own_server.socket}"}, {}))
    assert wrong(found["functions"], "hint", "could not be looked at")
    assert fine(found["persistence"])


FIELDS = {"ok", "problems", "hints", "findings"}


def test_without_problems_it_exits_with_0_and_says_so(run, here):
    done = run("doctor")
    assert (0, "") == (done.returncode, done.stderr)
    assert "no problems, " in done.stdout
    assert "→ go where the app runs" in done.stdout


async def test_the_embedded_server_is_examined_where_there_is_one(run, here):
    async with Duly(data=here / ".duly") as app:
        await app.enqueue("fax", None)
        done = await asyncio.to_thread(run, "doctor", "--json")
    assert (1, "") == (done.returncode, done.stderr)
    document = json.loads(done.stdout)
    found = {each["check"]: each for each in document["findings"]}
    assert FIELDS == set(document)
    assert all({"check", "level", "message", "remedy"} == set(each) for each in document["findings"])
    assert (False, 2) == (document["ok"], document["problems"])
    assert {"workers", "topics without worker"} == {
        name for name, each in found.items() if each["level"] == "problem"
    }
    assert "answers at" in found["server"]["message"]
    # A worker in another folder is on another queue: this is the one that was looked at.
    assert str(here / ".duly") == found["data directory"]["message"]
    assert (
        f"none is alive on the embedded server in {here / '.duly'}, and jobs wait"
        == found["workers"]["message"]
    )
    for each in document["findings"]:
        assert (each["level"] == "ok") == (each["remedy"] == ""), each


def test_a_wrong_setting_is_a_finding_and_no_crash(run, here):
    (here / "duly.toml").write_text("leese = 3\n")
    done = run("doctor")
    assert 1 == done.returncode
    assert "problem  settings" in done.stdout
    assert "did you mean lease?" in done.stdout


def test_a_redis_server_is_fine_as_well(run):
    redis_server = Server(binary("redis")).start()
    try:
        document = json.loads(run("doctor", "--json", "--url", redis_server.url).stdout)
        assert 0 == document["problems"], document
        assert any(each["message"].startswith("Redis ") for each in document["findings"])
    finally:
        redis_server.stop()
