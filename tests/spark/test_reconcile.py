"""
Record, queue and history compared by Spark: what was planted is found, mended, and not found again.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from duly import Duly
from duly.cli.main import main
from duly.job import JobKey, JobState, Lane, Order
from duly.record.mending import columns_between
from duly.record.mending import seen as seen_row
from duly.record.rules import Difference, Promised, Queued, digest, judge
from duly.record.schema import migrate
from duly.record.sight import sighted
from duly.spark.reconcile.comparing import duplicates, last_ends, met, suspects
from duly.spark.reconcile.sides import PROMISED, QUEUED, promised_row, queued_row
from tests.record.kit import HOUR_MS, REVISION, both, change_row, hydrate, now_ms, read_rows, row, write_rows
from tests.spark.stories import Story
from tests.spark.test_pipelines import save
from tests.store.kit import claim


@pytest.fixture
def record(tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    return url


@pytest.fixture
def plant(valkey, namespace, record):
    """
    Runs something on both sides, as a process with the record would.
    """

    def plant(work):
        async def run():
            async with Duly(valkey.url, namespace=namespace, record=record) as app:
                found = await app.record()
                return await work(found.database, found.store)

        return asyncio.run(run())

    return plant


@pytest.fixture
def reconcile(spark, valkey, namespace, record, capsys):
    def run(*words):
        where = ["--url", valkey.url, "--namespace", namespace, "--record", record]
        code = main(["pipeline", "reconcile", *words, "--json", *where])
        told = capsys.readouterr()
        assert told.out, told.err
        return code, json.loads(told.out)

    return run


async def every_kind(database, store):
    """
    Two of each kind of difference beside twenty jobs that agree.
    """
    name = store.namespace
    past = now_ms() - 5
    await both(database, store, *(row(name, f"same{n}", payload=b"x" * 200 * n) for n in range(20)))
    await write_rows(database, row(name, "far", relay_ms=now_ms() + 99 * HOUR_MS, hydrated=0))
    await both(database, store, *(row(name, f"unrecorded{n}", due_ms=past, topic="now") for n in range(2)))
    for lease in await claim(store, "now", limit=9):
        await store.ack(lease, b'"done"', lateness_ms=5)
    for n in range(2):
        await write_rows(database, row(name, f"missing{n}"))
        await write_rows(database, row(name, f"behind{n}", revision=REVISION + 5))
        await hydrate(store, row(name, f"behind{n}"))
        await both(database, store, row(name, f"finished{n}"))
        await change_row(database, f"finished{n}", state=JobState.succeeded, ended_ms=now_ms())
        await both(database, store, row(name, f"due{n}"))
        await change_row(database, f"due{n}", due_ms=now_ms() + 2 * HOUR_MS)
        await both(database, store, row(name, f"payload{n}"))
        await change_row(database, f"payload{n}", retain_s=5)
        await store.enqueue(Order(JobKey("mail", f"orphan{n}"), b"{}", due_ms=now_ms() + HOUR_MS))
        await write_rows(database, row(name, f"ahead{n}"))
        await hydrate(store, row(name, f"ahead{n}", revision=REVISION + 5, payload=b"newer"))


def test_every_kind_is_found_and_mended_and_then_gone(plant, reconcile, valkey, namespace, capsys):
    plant(every_kind)
    expected = {kind.value: 2 for kind in Difference}

    code, told = reconcile()
    assert (1, expected, {}) == (code, told["found"], told["repaired"])
    assert (35, 34, 1) == (told["rows"], told["jobs"], told["on_its_way"])
    assert {kind.value for kind in Difference} == set(told["examples"])
    assert ["mail/missing0", "mail/missing1"] == sorted(told["examples"]["missing"])

    code, told = reconcile("--apply")
    assert (0, expected, expected) == (code, told["found"], told["repaired"])
    # Missing, behind, due and payload are put back by way of the relay.
    assert 8 == told["brought"]

    code, told = reconcile()
    assert (0, {}, 0) == (code, told["found"], told["suspects"])

    main(["stats", "--json", "--url", valkey.url, "--namespace", namespace])
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert ("reconcile", 0, None) == (run["name"], run["counts"]["found"], run["error"])


def test_what_ended_in_the_history_is_recorded_and_not_run_again(plant, reconcile, tmp_path):
    async def lose(database, store):
        await write_rows(
            database,
            row(store.namespace, "over"),
            row(store.namespace, "lost"),
            row(store.namespace, "newer"),
        )

    plant(lose)
    story = Story()
    story.tell("over", "enqueued", "claimed", "buried", "pruned", revision=REVISION)
    story.tell("lost", "enqueued", "claimed", "retried", revision=REVISION)
    story.tell("newer", "enqueued", "claimed", "acked", revision=REVISION - 1)
    story.tell("twice", "enqueued", "claimed", "acked", "acked")
    save(story, tmp_path / "history")

    words = ("--table", str(tmp_path / "history"))
    code, told = reconcile(*words)
    assert (1, {"over": 1, "missing": 2, "duplicate": 1}) == (code, told["found"])
    assert (["mail/over"], ["mail/twice"]) == (told["examples"]["over"], told["examples"]["duplicate"])

    # That something happened twice cannot be undone.
    code, told = reconcile(*words, "--apply")
    assert (1, {"over": 1, "missing": 2}, 2) == (code, told["repaired"], told["brought"])
    code, told = reconcile(*words)
    assert {"duplicate": 1} == told["found"]

    async def look(database, store):
        return (await read_rows(database))["over"]

    over = plant(look)
    assert (JobState.dead, 1) == (over.state, over.attempts)


def test_digests_are_judged_as_bodies_are(spark):
    promised = Promised(5, False, 10, b"a")
    queued = Queued(5, JobState.scheduled, 10, b"a")
    cases = {
        "same": (promised, queued),
        "gone": (promised, None),
        "orphan": (None, queued),
        "ended": (promised._replace(ended=True), queued),
        "due": (promised, queued._replace(due_ms=11)),
        "began": (promised, queued._replace(due_ms=11, began=True)),
        "body": (promised, queued._replace(body=b"b")),
        "running": (promised, queued._replace(body=b"b", state=JobState.running)),
        "way": (promised._replace(on_its_way=True), None),
        "ahead": (promised, queued._replace(revision=6)),
        "behind": (promised, queued._replace(revision=4)),
        "unrecorded": (promised, queued._replace(state=JobState.dead)),
    }
    ours = spark.createDataFrame([("t", name, *case[0]) for name, case in cases.items() if case[0]], PROMISED)
    theirs = spark.createDataFrame(
        [
            ("t", name, *case[1]._replace(state=int(case[1].state)))
            for name, case in cases.items()
            if case[1] is not None
        ],
        QUEUED,
    )
    found = {each.id: each.kind for each in suspects(met(ours, theirs)).collect()}
    expected = {name: judge(*case) for name, case in cases.items()}
    assert {name: kind.value for name, kind in expected.items() if kind is not None} == found


def test_rows_made_in_one_step_say_what_the_live_look_says(plant, valkey, namespace):
    async def look(database, store):
        await every_kind(database, store)
        await store.enqueue(Order(JobKey("mail", "long"), b"x" * 3_000, due_ms=now_ms() + HOUR_MS, ttr_ms=5))
        await store.enqueue(Order(JobKey("mail", "high"), b"{}", delay_ms=HOUR_MS, lane=Lane.high))
        keys = store.keys[0].fixed
        flat = await store.link.call("HGETALL", keys["jobs"])
        for member, record in zip(flat[::2], flat[1::2], strict=True):
            apart = await store.link.call("HGET", keys["bodies"], member)
            score = await store.link.call("ZSCORE", store.keys[0].due("mail"), member)
            seen = sighted(JobKey.of(member), record, apart, score)
            queued = seen.queued._replace(body=digest(seen.queued.body))
            about = (record, apart or b"", b"", b"", score or b"", b"")
            assert (*seen.key, *queued) == queued_row(member, about, {}, 0)

        def rows(connection):
            return columns_between(connection, store.namespace, "mail", "", 100)

        for columns in await database.read(rows):
            found = seen_row(*columns)
            promised = found.promised._replace(body=digest(found.promised.body))
            assert (*found.key, *promised) == promised_row(*columns)
        return len(flat) // 2

    assert 36 == plant(look)


def test_an_end_counts_once_for_each_life_and_revision(spark):
    story = Story()
    story.tell("again", "enqueued", "claimed", "buried", "requeued", "claimed", "acked")
    story.tell("newer", "hydrated", "claimed", "acked")
    story.tell("newer", "hydrated", "claimed", "acked", revision=2)
    story.tell("twice", "hydrated", "claimed", "acked", "cancelled")
    told = story.frame(spark)
    assert [("twice", 1, 2)] == [(each.id, each.revision, each.ends) for each in duplicates(told).collect()]
    ends = {each.id: (each.state, each.revision) for each in last_ends(told).collect()}
    assert {"again": ("succeeded", 1), "newer": ("succeeded", 2), "twice": ("cancelled", 1)} == ends


def test_without_a_record_there_is_nothing_to_compare(valkey, namespace, capsys):
    assert 2 == main(["pipeline", "reconcile", "--url", valkey.url, "--namespace", namespace])
    assert "which record?" in capsys.readouterr().err
