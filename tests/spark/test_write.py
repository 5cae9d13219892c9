"""
Rows become jobs: the same jobs that any sender makes, once each, and what is wrong is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from duly.errors import DulyError, LayoutMismatch, UsageError
from duly.job import JobKey, JobState, Order
from duly.newjob import Limits, NewJob
from duly.runs import Runs
from duly.spark.schedule import schedule
from duly.views import Views
from tests.spark.kit import ROWS, SOON, Queue, frame, rows, without

RETRIED = Path(__file__).with_name("retried_child.py")
FULL = StructType(
    [
        *ROWS.fields,
        StructField("topic", StringType()),
        StructField("priority", StringType()),
        StructField("ttr", IntegerType()),
        StructField("max_attempts", IntegerType()),
        StructField("context", StringType()),
        StructField("callback", StringType()),
        StructField("reply_to", StringType()),
    ]
)
#: Plain rows and unusual ones, short bodies and one kept apart, several topics and lanes.
MANY = [
    ("a", SOON, '{"n": 1}', None, None, None, None, None, None, None),
    ("b", SOON, "[1, 2]", "web.push", "high", None, None, None, None, None),
    ("c", SOON, '"' + "x" * 2_000 + '"', None, "low", None, None, None, None, None),
    ("d", SOON, "null", None, None, 30, 7, '{"tenant": "acme"}', None, None),
    ("e", SOON, '"' + "y" * 2_000 + '"', "web.push", None, None, 3, None, None, None),
    ("f", SOON, "{}", None, None, None, None, None, "https://example.com/hook", None),
    ("g", SOON + timedelta(microseconds=1), "{}", None, None, 5, None, None, None, None),
    ("h", SOON, "{}", None, "high", 5, None, None, None, "billing"),
]


def write(df, queue, **options):
    return schedule(df, **(queue.options | {"topic": "mail"} | options))


def counts(report):
    return report.new, report.kept, report.replaced, report.rejected


async def test_jobs_are_those_that_any_other_sender_makes(spark, queue):
    other = Queue(queue.url, f"{queue.namespace}-core")
    await other.store.create()
    for id_, due_at, payload, topic, priority, ttr, max_attempts, context, callback, reply_to in MANY:
        job = NewJob(
            topic or "mail",
            payload.encode(),
            id=id_,
            due_at=due_at,
            priority=priority or "normal",
            ttr=ttr,
            max_attempts=max_attempts,
            context={"tenant": "acme"} if context else None,
            callback=callback,
            reply_to=reply_to,
        )
        await other.store.enqueue(job.order(Limits()))
    report = write(frame(spark, MANY, FULL), queue)
    assert (8, 0, 0, 0) == counts(report)
    assert without(await other.everything()) == without(await queue.everything())
    await other.store.link.aclose()


async def test_a_second_run_adds_and_changes_nothing_also_with_replace(spark, queue):
    df = frame(spark, MANY, FULL)
    assert (8, 0, 0, 0) == counts(write(df, queue))
    before = await queue.everything()
    assert (0, 8, 0, 0) == counts(write(df, queue))
    assert (0, 8, 0, 0) == counts(write(df, queue, on_conflict="replace"))
    assert before == await queue.everything()


async def test_the_same_run_again_is_a_replay_that_gets_the_first_answers(spark, queue):
    # What a task that Spark runs a second time does: the same places of the same run.
    from duly.spark.options import WriteOptions, read_options
    from duly.spark.writer import enqueue_rows

    options = read_options(WriteOptions, queue.options | {"topic": "mail"})
    batches = frame(spark, rows(700)).toArrow().to_batches()
    assert [700, 700] == [enqueue_rows(options, 1, iter(batches), "4/1").new for _ in range(2)]
    assert 0 == enqueue_rows(options, 1, iter(batches), "5/1").new


async def test_a_task_that_runs_again_undoes_nothing_that_others_did_since(spark, queue, tmp_path):
    from duly.spark.options import WriteOptions, read_options
    from duly.spark.writer import enqueue_rows

    store, keys = queue.store, [JobKey("mail", f"r{number}") for number in range(4)]
    write(frame(spark, rows(4)), queue)
    given = {"topic": "mail", "on_conflict": "replace", "rejects": str(tmp_path / "rejects")}
    options = read_options(WriteOptions, queue.options | given)
    changed = frame(spark, rows(4)).withColumn("payload", F.lit('"of the run"')).toArrow().to_batches()
    seen = [int(await store.link.call("HGET", store.keys[0].fixed["meta"], "sequence"))]
    assert 4 == enqueue_rows(options, 1, iter(changed), "4/1", seen).replaced
    # Whether the job has changed since the run began tells repeats: what bulk writers send is not remembered.
    assert [[], []] == await remembered(queue)
    await store.enqueue(Order(keys[0], b'"theirs"', delay_ms=60_000, on_conflict="replace"))
    await store.cancel([keys[1]])
    await store.reschedule(keys[2], delay_ms=90_000)
    before, others = await queue.everything(), await remembered(queue)
    assert others != [[], []]
    again = enqueue_rows(options, 1, iter(changed), "4/1", seen)
    # One that is only cancelled still is what the run made of it: the task is told so once more.
    assert (2, 2) == (again.rejected, again.replaced)
    assert ["the job was changed by others since the run began"] * 2 == again.examples["rejected"]
    assert before == await queue.everything()
    assert others == await remembered(queue)


@pytest.mark.long  # a Spark of its own: tasks of the one that tests share have one try
async def test_a_task_that_spark_tries_again_makes_each_job_once(spark_conf, queue, tmp_path):
    words = (queue.url, queue.namespace, str(tmp_path / "rejects"), json.dumps(spark_conf))
    done = subprocess.run(
        [sys.executable, RETRIED, *words],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "the first try fails" in done.stderr, done.stderr
    # The one that others replaced is theirs; the others are what the run made, the cancelled one, too.
    assert [59, 0, 0, 1] == json.loads(done.stdout.splitlines()[-1])
    jobs = await Views(queue.store).get_many([JobKey("mail", row[0]) for row in rows(60)])
    assert b'"theirs"' == jobs[0].payload
    assert [JobState.cancelled] == [job.state for job in jobs if job.state is not JobState.scheduled]
    assert "r1" == next(job.id for job in jobs if job.state is JobState.cancelled)
    assert 60 == len((await queue.content("jobs"))[0])
    # Two calls of others, and none of the task's.
    assert [2, 0] == [len(nonces) for nonces in await remembered(queue)]


async def remembered(queue) -> list[list[bytes]]:
    """
    The requests that the first shard remembers, of these minutes and of those before.
    """
    fixed, call = queue.store.keys[0].fixed, queue.store.link.call
    return [sorted(await call("HKEYS", fixed[name])) for name in ("requests", "old_requests")]


async def test_replace_replaces_what_differs_and_only_that(spark, queue):
    write(frame(spark, rows(10)), queue)
    changed = frame(spark, rows(10)).withColumn(
        "payload", F.when(F.col("id") < "r3", F.lit('"other"')).otherwise(F.col("payload"))
    )
    assert (0, 7, 3, 0) == counts(write(changed, queue, on_conflict="replace"))
    job = await Views(queue.store).get(JobKey("mail", "r1"))
    assert b'"other"' == job.payload


async def test_what_is_settled_where_it_is_called_counts(spark, queue, monkeypatch):
    # Spark's processes were started before.
    monkeypatch.setenv("DULY_URL", queue.url)
    monkeypatch.setenv("DULY_NAMESPACE", queue.namespace)
    assert (3, 0, 0, 0) == counts(schedule(frame(spark, rows(3)), topic="mail"))
    assert 3 == len(
        [job for job in await Views(queue.store).get_many([JobKey("mail", row[0]) for row in rows(3)]) if job]
    )


async def test_the_same_id_twice_is_one_job(spark, queue):
    df = frame(spark, rows(3) * 4).coalesce(1)
    assert (3, 9, 0, 0) == counts(write(df, queue))
    assert 3 == len((await queue.content("jobs"))[0])


async def test_each_job_is_on_the_shard_where_others_look_for_it(spark, valkey, namespace):
    queue = Queue(valkey.url, namespace, shards=3)
    await queue.store.create()
    df = frame(spark, rows(300)).withColumn("topic", F.when(F.col("id") < "r2", "web").otherwise("mail"))
    assert (300, 0, 0, 0) == counts(schedule(df, **queue.options))
    keys = [JobKey("web" if id_ < "r2" else "mail", id_) for id_, _, _ in rows(300)]
    assert all(await Views(queue.store).get_many(keys))
    assert all(len(jobs) > 30 for jobs in await queue.content("jobs"))
    await queue.store.link.aclose()


async def test_bad_rows_are_set_aside_with_their_reasons_and_the_others_are_accepted(spark, queue, tmp_path):
    bad = [
        (None, SOON, "{}"),
        ("naive id", SOON, "{}"),
        ("late", None, "{}"),
        ("large", SOON, '"' + "x" * 300_000 + '"'),
        ("text", SOON, "no json"),
    ]
    topic = F.when(F.col("id") == "r7", "bad topic")
    df = frame(spark, rows(51) + bad).withColumn("topic", topic)
    report = write(df, queue, rejects=str(tmp_path / "rejects"))
    assert (50, 0, 0, 6) == counts(report)
    found = spark.read.parquet(str(tmp_path / "rejects"))
    reasons = {row.id: row.reason for row in found.collect()}
    assert {None, "naive id", "late", "large", "text", "r7"} == reasons.keys()
    assert "id is null" == reasons[None]
    assert "payload is 300002 bytes, the limit is 262144" == reasons["large"]
    assert "invalid topic 'bad topic'" in reasons["r7"]
    assert ["bad topic", *["mail"] * 5] == sorted(row.topic for row in found.collect())
    assert '{"id":"late","due_at":null,"payload":"{}","topic":null}' == found.where("id = 'late'").first().row
    # The same run again writes the same files.
    assert (0, 50, 0, 6) == counts(write(df, queue, rejects=str(tmp_path / "rejects")))
    assert 6 == spark.read.parquet(str(tmp_path / "rejects")).count()


async def test_naive_times_are_rejected(spark, queue, tmp_path):
    df = frame(spark, rows(2)).withColumn("due_at", F.lit("2150-01-01T00:00:00").cast("timestamp_ntz"))
    assert (0, 0, 0, 2) == counts(write(df, queue, rejects=str(tmp_path)))
    assert "has no time zone" in spark.read.parquet(str(tmp_path)).first().reason


async def test_without_a_place_for_them_a_bad_row_ends_the_write_with_its_reason(spark, queue):
    with pytest.raises(
        UsageError, match=r"row with topic 'mail' and id 'a b': invalid job id .*rejects=PATH"
    ):
        write(frame(spark, [("a b", SOON, "{}")]), queue)
    [run] = await Runs(queue.store).all()
    assert ("schedule", 0) == (run.name, run.counts["new"])
    assert "run it again" in run.error


async def test_taken_ids_and_full_topics_are_rejects(spark, queue, tmp_path):
    write(frame(spark, rows(2)), queue)
    await queue.store.limit("mail", 4)
    report = write(frame(spark, rows(6)).coalesce(1), queue, on_conflict="raise", rejects=str(tmp_path))
    assert (2, 0, 0, 4) == counts(report)
    reasons = sorted(row.reason for row in spark.read.parquet(str(tmp_path)).collect())
    assert ["a job with this id exists already"] * 2 + ["the topic is at its backlog limit"] * 2 == reasons


async def test_a_plan_tells_what_would_be_done_and_changes_nothing(spark, queue):
    write(frame(spark, MANY[:4], FULL), queue)
    before = await queue.everything()
    planned = frame(spark, MANY, FULL).withColumn(
        "due_at",
        F.when(F.col("id") == "a", F.col("due_at") + F.expr("interval 1 hour")).otherwise(F.col("due_at")),
    )
    report = write(planned.coalesce(1), queue, plan=True, on_conflict="replace")
    assert (4, 3, 1, 0) == counts(report)
    assert [
        "mail/a due 2150-01-01T01:00:00.000+00:00 (was scheduled, due 2150-01-01T00:00:00.000+00:00)"
    ] == (report.examples["replaced"])
    assert before == await queue.everything()
    assert counts(report) == counts(write(planned, queue, on_conflict="replace"))
    assert (0, 8, 0, 0) == counts(write(planned, queue, plan=True, on_conflict="replace"))


async def test_a_plan_counts_a_damaged_job_as_new_and_a_write_takes_its_place(spark, queue):
    write(frame(spark, rows(3)), queue)
    await queue.store.link.call("HSET", queue.store.keys[0].fixed["jobs"], "mail/r1", b"\0" * 5)
    planned = write(frame(spark, rows(3)), queue, plan=True)
    assert (1, 2, 0, 0) == counts(planned) == counts(write(frame(spark, rows(3)), queue))


async def test_a_plan_does_not_make_a_queue(spark, valkey):
    with pytest.raises(LayoutMismatch, match="there is no namespace 'nobody'"):
        schedule(frame(spark, rows(1)), url=valkey.url, namespace="nobody", topic="mail", plan=True)


async def test_jobs_that_are_past_due_are_ready_at_once(spark, queue):
    past = datetime(2020, 1, 1, tzinfo=UTC)
    write(frame(spark, [("old", past, "{}")]), queue)
    assert "ready" == (await Views(queue.store).get(JobKey("mail", "old"))).state.name


async def test_a_rate_is_kept_by_all_tasks_together(spark, queue):
    seconds, _ = await queue.store.link.call("TIME")
    report = write(frame(spark, rows(1_000)).repartition(2), queue, rate=1_000)
    assert 1_000 == report.new
    # Whatever came after would have to wait until a second after the first of them.
    [places] = await queue.content("pace")
    assert {report.run.encode()} == places.keys()
    assert int(places[report.run.encode()]) >= (int(seconds) + 1) * 1_000_000


async def test_the_last_run_is_remembered(spark, queue):
    write(frame(spark, rows(5)), queue, name="nightly")
    [run] = await Runs(queue.store).all()
    assert ("nightly", {"new": 5, "kept": 0, "replaced": 0, "rejected": 0}, None) == (
        run.name,
        run.counts,
        run.error,
    )


async def test_each_batch_of_a_stream_is_enqueued(spark, queue, tmp_path):
    def land(values, name):
        frame(spark, values).coalesce(1).write.parquet(str(tmp_path / "in" / name))

    def run():
        stream = (
            spark.readStream.schema(ROWS).option("recursiveFileLookup", "true").parquet(str(tmp_path / "in"))
        )
        query = (
            stream.writeStream.format("duly")
            .options(**queue.options, topic="mail", on_conflict="replace")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    land(rows(5), "first")
    run()
    land(rows(7, '{"new": %d}'), "second")
    run()
    assert b'{"new": 2}' == (await Views(queue.store).get(JobKey("mail", "r2"))).payload
    [last] = await Runs(queue.store).all()
    assert {"new": 2, "kept": 0, "replaced": 5, "rejected": 0} == last.counts


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (["id", "due_at"], {}, "no column payload"),
        (["id", "due_at", "payload", "'x' as prority"], {}, "no column prority; did you mean priority?"),
        (["*"], {"topic": None}, "no topic: add a column"),
        (["*"], {"topic": "a b"}, "invalid topic"),
        (["*"], {"on_conflit": "keep"}, "unknown option on_conflit; did you mean on_conflict?"),
        (["*"], {"on_conflict": "merge"}, "must be keep, replace or raise"),
        (["*"], {"rate": "fast"}, "rate='fast' must be a number"),
        (["*"], {"url": "https://duly.example"}, "not the URL of an HTTP service"),
    ],
)
def test_a_mistake_is_said_before_anything_is_sent(spark, queue, columns, options, said):
    with pytest.raises(DulyError, match=said):
        write(frame(spark, rows(1)).selectExpr(*columns), queue, **options)


def test_a_queue_is_not_overwritten(spark, queue):
    with pytest.raises(Exception, match="a queue is not overwritten"):
        frame(spark, rows(1)).write.format("duly").options(**queue.options, topic="a").mode(
            "overwrite"
        ).save()


def test_a_frame_needs_times_and_not_dates_of_its_own_kind(spark, queue, tmp_path):
    df = frame(spark, rows(1)).withColumn("due_at", F.lit("2150-01-01").cast("date"))
    assert 1 == write(df, queue, rejects=str(tmp_path)).rejected
    assert "due_at must be a datetime" in spark.read.parquet(str(tmp_path)).first().reason
