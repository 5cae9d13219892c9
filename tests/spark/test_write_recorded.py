"""
Rows go by way of the record where a queue has one: promised once each, then taken on if they are due soon.
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pyarrow as pa
import pytest

from duly import Duly
from duly.cli.main import main
from duly.errors import LayoutMismatch, RecordUnavailable, ServerUnsuitable
from duly.job import JobKey, JobState
from duly.newjob import NewJob
from duly.record.relay import Relay
from duly.record.schema import migrate
from duly.record.target import Target
from duly.spark.columns import arrow
from duly.spark.options import WriteOptions, read_options
from duly.spark.reconcile.sources import RecordRows
from duly.spark.schedule import schedule
from duly.spark.writer import JobWriter, Written, enqueue_rows
from duly.views import Views
from tests.databases import PostgreSQL
from tests.record.kit import read_rows
from tests.spark.kit import ROWS, SOON, frame, rows
from tests.spark.test_write import FULL, MANY, counts


@pytest.fixture(scope="module")
def postgresql():
    database = PostgreSQL()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def record(request, tmp_path):
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").migrated()
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    return url


@pytest.fixture
def write(queue, record):
    """
    Schedules in another thread, as this one has a loop already.
    """

    async def write(df, **options):
        given = queue.options | {"topic": "mail", "record": record} | options
        return await asyncio.to_thread(schedule, df, **given)

    return write


@pytest.fixture
async def rows_of(queue, record):
    async with Duly(queue.url, namespace=queue.namespace, record=record) as app:
        found = await app.record()

        async def rows_of():
            return await read_rows(found.database)

        yield rows_of


def hour(count, payload='{"n": %d}'):
    """
    Rows that are due within the hour, so that the queue is given them, too.
    """
    near = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    return [(id_, near, body) for id_, _, body in rows(count, payload)]


async def test_what_is_due_soon_is_in_both_and_the_rest_in_the_record_alone(spark, queue, write, rows_of):
    far = [("far", SOON, "{}")]
    report = await write(frame(spark, hour(700) + far).repartition(2))
    assert (701, 0, 0, 0) == counts(report)
    promised = await rows_of()
    assert 701 == len(promised)
    assert (0, JobState.scheduled) == (promised["far"].hydrated, promised["far"].state)
    assert int(SOON.timestamp() * 1000) == promised["far"].relay_ms
    keys = [JobKey("mail", id_) for id_ in promised]
    found = {job.id: job for job in await Views(queue.store).get_many(keys) if job is not None}
    assert promised.keys() - {"far"} == found.keys()
    for id_, job in found.items():
        row = promised[id_]
        # Said in the record as well: nobody takes it there again.
        assert (row.revision, None) == (row.hydrated, row.relay_ms)
        assert (row.revision, row.due_ms, row.payload) == (job.revision, job.due_ms, job.payload)


async def test_rows_are_written_to_and_read_from_a_schema(spark, queue, postgresql):
    url = postgresql.fresh()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA jobs")
    migrate(Target(url, schema="jobs"))
    given = queue.options | {"topic": "mail", "record": url, "record_schema": "jobs"}
    report = await asyncio.to_thread(schedule, frame(spark, hour(7)), **given)
    assert (7, 0, 0, 0) == counts(report)
    spark.dataSource.register(RecordRows)
    read = spark.read.format("duly.record").options(
        record=url, record_schema="jobs", namespace=queue.namespace
    )
    assert 7 == await asyncio.to_thread(lambda: read.load().count())
    with psycopg.connect(url) as connection:
        assert (7,) == connection.execute("SELECT count(*) FROM jobs.duly_jobs").fetchone()
    postgresql.drop(url)


async def test_rows_are_those_that_any_other_sender_with_the_record_makes(
    spark, queue, write, rows_of, record
):
    async with Duly(queue.url, namespace=queue.namespace, record=record) as app:
        for id_, due_at, payload, topic, priority, ttr, attempts, context, callback, reply_to in MANY:
            given = {"due_at": due_at, "priority": priority or "normal", "ttr": ttr, "max_attempts": attempts}
            given |= {"context": json.loads(context) if context else None, "callback": callback}
            job = NewJob(topic or "mail", payload.encode(), id=f"{id_}-other", reply_to=reply_to, **given)
            await app.enqueue(job)
    await write(frame(spark, MANY, FULL))
    found = await rows_of()
    names = ("topic", "state", "due_ms", "relay_ms", "lane", "ttr_ms", "payload", "envelope", "retain_s")
    for id_, *_ in MANY:
        assert [getattr(found[f"{id_}-other"], name) for name in names] == [
            getattr(found[id_], name) for name in names
        ]


async def test_a_second_run_changes_nothing_and_replace_changes_what_differs(spark, write, rows_of, tmp_path):
    given = hour(20)
    df = frame(spark, given)
    assert (20, 0, 0, 0) == counts(await write(df))
    before = await rows_of()
    assert (0, 20, 0, 0) == counts(await write(df))
    assert (0, 20, 0, 0) == counts(await write(df, on_conflict="replace"))
    assert before == await rows_of()

    new = frame(
        spark, [given[0], *((id_, due_at, '"new"') for id_, due_at, _ in given[1:3]), ("n", SOON, "1")]
    )
    planned = await write(new, on_conflict="replace", plan=True)
    assert (1, 1, 2, 0) == counts(planned)
    assert ["mail/n due 2150-01-01T00:00:00.000+00:00"] == planned.examples["new"]
    assert before == await rows_of()
    assert (1, 1, 2, 0) == counts(await write(new, on_conflict="replace"))
    after = await rows_of()
    assert {"r1", "r2"} == {id_ for id_ in before if before[id_] != after[id_]}
    assert (b'"new"', after["r1"].revision) == (after["r1"].payload, after["r1"].hydrated)

    rejects = str(tmp_path / "rejects")
    for plan in (True, False):
        report = await write(new, on_conflict="raise", rejects=rejects, plan=plan)
        assert (0, 0, 0, 4) == counts(report)
    reasons = {row.reason for row in spark.read.parquet(rejects).collect()}
    assert {"a job with this id exists already"} == reasons


def batches(given, size=600):
    """
    What a task is given.
    """
    schema = arrow(ROWS)
    columns = [
        pa.array(values, field.type) for values, field in zip(zip(*given, strict=True), schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema).to_batches(max_chunksize=size)


async def run_task(options, given):
    return await asyncio.to_thread(enqueue_rows, options, 1, iter(given), "3/0")


@pytest.fixture
def options(queue, record):
    return read_options(WriteOptions, queue.options | {"topic": "mail", "record": record, "run": "this"})


async def test_a_task_that_is_run_again_tells_the_same_and_changes_nothing(options, rows_of):
    given = batches(hour(1_500))
    first = await run_task(options, given)
    before = await rows_of()
    assert first == await run_task(options, given)
    assert (1_500, 0) == (first.new, first.kept)
    assert before == await rows_of()
    # In another run they are known.
    assert 1_500 == (await run_task(replace(options, run="other"), given)).kept


async def test_what_no_task_could_take_to_the_queue_is_taken_there_at_the_end(
    options, queue, rows_of, monkeypatch
):
    async def fail(*_):
        return False

    with monkeypatch.context() as away:
        away.setattr(Relay, "push", fail)
        tally = await run_task(options, batches(hour(700)))
    assert 700 == tally.new
    assert [{}] == await queue.content("jobs")
    await asyncio.to_thread(JobWriter(options, 1).commit, [Written(tally)])
    assert 700 == len((await queue.content("jobs"))[0])
    assert {None} == {row.relay_ms for row in (await rows_of()).values()}


async def test_the_same_id_twice_in_one_task_is_one_job(options, rows_of):
    due_at = hour(1)[0][1]
    tally = await run_task(
        replace(options, on_conflict="replace"), batches([("a", due_at, "1"), ("a", due_at, "2")])
    )
    assert (1, 1) == (tally.new, tally.replaced)
    assert b"2" == (await rows_of())["a"].payload


async def test_a_database_that_is_restarted_is_waited_for(queue, postgresql):
    url = postgresql.migrated()
    options = read_options(WriteOptions, queue.options | {"topic": "mail", "record": url})
    first, second = batches(hour(400), 200)
    restart = threading.Thread(target=postgresql.start)

    def given():
        yield first
        postgresql.kill()
        restart.start()
        yield second

    tally = await asyncio.to_thread(enqueue_rows, options, 1, given(), "3/0")
    restart.join()
    assert 400 == tally.new
    async with Duly(queue.url, namespace=queue.namespace, record=url) as app:
        assert 400 == len(await read_rows((await app.record()).database))


async def test_a_queue_with_a_record_is_not_written_to_behind_its_back(spark, queue, write, tmp_path):
    df = frame(spark, rows(3))
    await write(df)
    for plan in (False, True):
        with pytest.raises(ServerUnsuitable, match=r"has a record: .* Say record=URL"):
            await write(df, record=None, plan=plan)
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(LayoutMismatch, match="duly record migrate"):
        await write(df, record=other)
    migrate(other)
    with pytest.raises(ServerUnsuitable, match="belongs to another record"):
        await write(df, record=other)
    with pytest.raises(RecordUnavailable):
        await write(df, record="sqlite:////no/such/folder/record.db")


async def test_the_command_takes_the_record_of_the_settings(
    spark, queue, record, rows_of, tmp_path, monkeypatch, capsys
):
    frame(spark, rows(5)).write.parquet(str(tmp_path / "table"))
    monkeypatch.setenv("DULY_RECORD", record)
    words = ["--from", str(tmp_path / "table"), "--topic", "mail", "--json"]
    where = ["--url", queue.url, "--namespace", queue.namespace]
    assert 0 == await asyncio.to_thread(main, ["pipeline", "schedule", *words, *where])
    assert 5 == json.loads(capsys.readouterr().out)["new"]
    assert 5 == len(await rows_of())
