"""
``duly record``: the tables and rows of a record from the command line.
"""

from __future__ import annotations

import asyncio
import csv
import io

import msgspec
import pytest
import redis

from duly import Duly
from duly.cli.main import main
from duly.failure import reason_document
from duly.job import JobKey, JobState, Order, shard_of
from duly.keys import ShardKeys
from duly.record.clock import Moment
from duly.record.database import Database
from duly.record.schema import newest
from duly.record.tables import metadata
from duly.record.writes import Wanted, accept, cancel
from duly.store import Want
from tests.shards import claim_all

NOW = Moment(1_000, 1_000)


@pytest.fixture
def duly(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
async def filled(migrated_url):
    database = Database(migrated_url)
    wanted = [
        Wanted(Order(JobKey(topic, f"{number:04}"), payload), number.to_bytes(6, "big"))
        for topic, payload in (("mail", b'{"to":"ada"}'), ("sms", b"\xff,"))
        for number in range(3)
    ]
    await database.write(lambda connection: accept(connection, "duly", wanted, NOW))
    ended = [JobKey("mail", "0001")]
    await database.write(lambda connection: cancel(connection, "duly", ended, b"123456", NOW))
    await database.aclose()
    return migrated_url


def test_tables_are_made_and_checked(duly, record_url):
    said = "the record has no tables yet: duly record migrate\n"
    assert (1, said, "") == duly("record", "check", "--record", record_url)
    code, out, _ = duly("record", "migrate", "--record", record_url, "--json")
    assert (0, {"before": None, "version": newest()}) == (code, msgspec.json.decode(out))
    assert (
        f"the record is up to date, at version {newest()}\n"
        == duly("record", "migrate", "--record", record_url)[1]
    )
    assert (0, f"the record fits, at version {newest()}\n", "") == duly(
        "record", "check", "--record", record_url
    )


def test_the_status_says_what_was_brought_back_and_what_waits(duly, migrated_url, namespace, valkey):
    where = ("--record", migrated_url, "--namespace", namespace)
    assert "no queue has used this record yet\n" == duly("record", "status", *where)[1]
    queue = ("--url", valkey.url, *where)
    assert 0 == duly("enqueue", "mail", "{}", "--delay", "2d", *queue)[0]
    code, out, _ = duly("record", "status", *where, "--json")
    told = msgspec.json.decode(out)
    assert (0, 1, [], 1, False) == (
        code,
        told["generation"]["number"],
        told["brought_back"],
        told["waiting"],
        told["led"],
    )
    said = duly("record", "status", *where)[1].splitlines()
    assert said[0].startswith("generation 1 since ")
    assert ["waiting to be brought: 1 job"] == said[1:2]
    assert "start a worker" in said[2]


def test_partitions_are_listed(duly, migrated_url):
    code, out, _ = duly("record", "partitions", "--record", migrated_url, "--json")
    lines = [msgspec.json.decode(line) for line in out.splitlines()]
    assert 0 == code
    assert {"duly_jobs", "duly_attempts", "duly_positions"} <= {line["table"] for line in lines}
    assert {"table", "part", "rows"} == lines[0].keys()


@pytest.mark.parametrize("at_once", [2, 3, 1_000])
def test_every_row_is_exported_once_in_order(duly, filled, monkeypatch, at_once):
    monkeypatch.setattr("duly.record.export.AT_ONCE", at_once)
    code, out, _ = duly("record", "export", "--record", filled)
    found = [msgspec.json.decode(line) for line in out.splitlines()]
    assert 0 == code
    assert [(topic, f"{n:04}") for topic in ("mail", "sms") for n in range(3)] == [
        (each["topic"], each["id"]) for each in found
    ]
    assert ({"to": "ada"}, None) == (found[0]["payload"], found[0]["outcome"])
    assert ("cancelled", {"type": "cancelled"}) == (found[1]["state"], found[1]["outcome"])
    assert {"base64": "/yw="} == found[3]["payload"]  # no JSON: kept as it is


def test_some_are_exported_as_csv(duly, filled):
    words = (
        "record",
        "export",
        "--record",
        filled,
        "--format",
        "csv",
        "--topic",
        "mail",
        "--state",
        "cancelled",
    )
    [row] = csv.DictReader(io.StringIO(duly(*words)[1]))
    assert ("mail", "0001", "cancelled", '{"to":"ada"}', "") == tuple(
        row[name] for name in ("topic", "id", "state", "payload", "started_at")
    )
    assert JobState.cancelled.name == row["state"]


def test_which_record_is_asked_for(duly):
    code, _, err = duly("record", "check")
    assert (2, "duly: which record? Say --record URL, set DULY_RECORD, or record in duly.toml\n") == (
        code,
        err,
    )
    code, _, err = duly("record", "export", "--record", "mysql://x@127.0.0.1:1/x")
    assert 3 == code
    assert err.startswith("duly: the record cannot be reached: ")


def test_the_doctor_looks_at_the_record(duly, record_url):
    def finding():
        _, out, _ = duly("doctor", "--record", record_url, "--json")
        [about] = [each for each in msgspec.json.decode(out)["findings"] if each["check"] == "record"]
        return about

    assert ("problem", "duly record migrate") == (finding()["level"], finding()["remedy"])
    duly("record", "migrate", "--record", record_url)
    assert "ok" == finding()["level"]


def test_what_differs_is_listed_and_mended(duly, valkey, namespace, shards, migrated_url):
    where = ("--url", valkey.url, "--namespace", namespace, "--record", migrated_url)
    for id_ in ("a", "b", "c"):
        assert 0 == duly("enqueue", "mail", "{}", "--id", id_, "--delay", "1h", *where)[0]
    said = "3 rows of the record compared with 3 jobs of the queue\nnothing differs\n"
    assert (0, said, "") == duly("record", "reconcile", "--dry-run", *where)

    with redis.Redis(unix_socket_path=str(valkey.socket)) as client:
        for id_ in ("a", "b"):
            keys = ShardKeys(namespace, shard_of("mail", id_, shards))
            client.hdel(keys.fixed["jobs"], f"mail/{id_}")
            client.zrem(keys.due("mail"), f"mail/{id_}")
    code, out, _ = duly("record", "reconcile", "--dry-run", *where)
    assert 1 == code
    assert ["missing", "2", "put", "back", "mail/a,", "mail/b"] == out.splitlines()[-1].split()

    code, out, _ = duly("record", "reconcile", "--json", *where)
    mended = {"found": 2, "repaired": 2, "repair": "put back", "examples": ["mail/a", "mail/b"]}
    assert (0, {"missing": mended}) == (code, msgspec.json.decode(out)["differences"])
    # Brought at once, although nobody works here.
    code, out, _ = duly("record", "reconcile", "--dry-run", "--json", *where)
    again = msgspec.json.decode(out)
    assert (0, 3, 3, 0, {}) == (
        code,
        *(again[name] for name in ("rows", "jobs", "on_its_way", "differences")),
    )


def test_an_emptied_queue_is_filled_again_from_the_command_line(duly, valkey, namespace, migrated_url):
    where = ("--url", valkey.url, "--namespace", namespace, "--record", migrated_url)
    duly("enqueue", "mail", "{}", "--id", "a", "--delay", "1h", *where)
    with redis.Redis(unix_socket_path=str(valkey.socket)) as client:
        client.delete(*client.keys(f"*{{{namespace}:*"), *client.keys(f"{namespace}*"))
    assert 0 == duly("record", "reconcile", *where)[0]
    _, out, _ = duly("record", "reconcile", "--json", *where)
    assert (1, 0) == tuple(msgspec.json.decode(out)[name] for name in ("jobs", "on_its_way"))


@pytest.fixture
def recorded(duly, valkey, namespace, migrated_url):
    """
    A command on a queue with a record; three jobs wait, one of them beyond the horizon.
    """
    where = ("--url", valkey.url, "--namespace", namespace, "--record", migrated_url)

    def run(*words):
        code, out, err = duly(*words, *where)
        assert "" == err
        return code, out

    for id_, delay in (("a", "1h"), ("b", "2h"), ("far", "3d")):
        assert 0 == run("enqueue", "mail", "{}", "--id", id_, "--delay", delay)[0]
    return run


def states(recorded):
    listed = [msgspec.json.decode(line) for line in recorded("jobs", "ls", "--json")[1].splitlines()]
    return {job["id"]: job["state"] for job in listed}


def test_many_jobs_of_a_record_are_cancelled_and_run_again(recorded):
    assert (0, "3 jobs cancelled\n") == recorded("jobs", "cancel", "--topic", "mail", "--yes")
    assert {"a": "cancelled", "b": "cancelled", "far": "cancelled"} == states(recorded)
    assert (0, "0 jobs cancelled\n") == recorded("jobs", "cancel", "--topic", "mail", "--yes")
    words = ("jobs", "requeue", "--state", "cancelled", "--where", "id in (a, b)", "--yes")
    assert (0, "2 jobs requeued\n") == recorded(*words)
    assert {"a": "ready", "b": "ready", "far": "cancelled"} == states(recorded)


def test_many_jobs_of_a_record_are_rescheduled_once_each(recorded):
    words = ("jobs", "reschedule", "--topic", "mail", "--delay", "4d", "--yes")
    assert (0, "3 jobs rescheduled\n") == recorded(*words)
    words = ("jobs", "reschedule", "--topic", "mail", "--delay", "0", "--yes")
    assert (0, "3 jobs rescheduled\n") == recorded(*words)
    assert {"a": "ready", "b": "ready", "far": "ready"} == states(recorded)


async def _bury(url, namespace, record):
    async with Duly(url, namespace=namespace, record=record) as app:
        await app.job("mail", "a").reschedule(delay=0)
        store = await app.store()
        [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w", limit=1)
        await store.bury(lease, reason_document("ValueError", "no user 42"))


def test_dead_jobs_of_a_record_are_run_again(recorded, valkey, namespace, migrated_url):
    asyncio.run(_bury(valkey.url, namespace, migrated_url))
    assert "dead" == states(recorded)["a"]
    assert (0, "1 job requeued\n") == recorded("dead", "requeue", "--error", "no user", "--yes")
    assert "ready" == states(recorded)["a"]


def test_reconcile_needs_a_record(duly, valkey):
    code, _, err = duly("record", "reconcile", "--url", valkey.url)
    assert (2, "duly: which record? Say --record URL, set DULY_RECORD, or record in duly.toml\n") == (
        code,
        err,
    )


def test_grants_are_printed_for_a_role(duly):
    code, out, _ = duly("record", "grants", "--record", "postgresql://owner@db/shop", "--to", 'a "b"')
    names = ", ".join(table.name for table in metadata.sorted_tables)
    expected = [
        f'GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO "a ""b""";',
        'GRANT SELECT ON duly_version TO "a ""b""";',
    ]
    assert (0, expected) == (code, out.splitlines())
    code, out, _ = duly("record", "grants", "--record", "mysql://owner@db/shop", "--to", "app@10.0.0.%")
    assert 0 == code
    assert "GRANT SELECT ON `shop`.duly_version TO `app`@`10.0.0.%`;" == out.splitlines()[-1]
    assert (0, "", "") == duly("record", "grants", "--record", "sqlite:///r.db", "--to", "app")
