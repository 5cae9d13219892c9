"""
A scan shows every job as the queue knows it, and reads no more than its filters need.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import StringType, TimestampType

from duly.backoff import Fixed
from duly.connection import Link
from duly.defaults import CALLBACK_ATTEMPTS, DEFAULTS
from duly.job import Job, JobKey, JobState
from duly.keys import ShardKeys
from duly.newjob import Limits, NewJob
from duly.spark import pages
from duly.spark.columns import JOBS, SCANNED
from duly.spark.options import ScanOptions, read_options
from duly.spark.pages import Part, parts_of, read_part
from duly.spark.scan import JobReader
from duly.views import Views
from tests.spark.kit import SOON
from tests.store.kit import claim, enqueue, key


def scan(spark, queue, **options):
    return spark.read.format("duly").options(**queue.options, **options).load()


async def fill(store):
    """
    A job in every state, with a run behind it or not, with all that a job may carry.
    """
    for id_ in ("succeeded", "dead", "retried", "running"):
        await enqueue(store, id_, payload=b'{"id": 1}')
    leases = {lease.key.id: lease for lease in await claim(store, worker="ada")}
    await store.ack(leases["succeeded"], b'{"sent": true}', lateness_ms=7)
    await store.bury(leases["dead"], b'{"type": "Boom", "message": "no"}', "Boom")
    await store.retry(leases["retried"], 3_600_000, b'{"type": "Again", "message": ""}')
    await store.progress(leases["running"], b"0.5")
    await enqueue(store, "ready", "web")
    job = NewJob(
        *("web", b'"' + b"x" * 5_000 + b'"'),
        id="full",
        due_at=SOON,
        expires=SOON,
        priority="high",
        ttr=30,
        max_attempts=9,
        context={"tenant": "ä"},
    )
    await store.enqueue(job.order(Limits()))
    await enqueue(store, "cancelled", delay_ms=60_000)
    await store.cancel([key("cancelled")])
    await enqueue(store, "gone", "mute", retain_s=0)
    [lease] = await claim(store, "mute")
    await store.ack(lease, b"1")
    return [key(id_) for id_ in ("succeeded", "dead", "retried", "running", "cancelled")] + [
        key("ready", "web"),
        key("full", "web"),
        key("gone", "mute"),
    ]


def test_columns_are_those_of_a_job():
    assert [each.name for each in fields(Job)] == list(SCANNED)
    assert StringType() == JOBS["context"].dataType
    times = {each.name for each in JOBS if each.dataType == TimestampType()}
    assert {
        *("due_at", "scheduled_for", "created_at", "updated_at", "started_at", "finished_at"),
        *("lease_until", "expires"),
    } == times


async def test_a_scan_leaves_a_damaged_job_out(queue):
    for id_ in ("one", "bad", "two"):
        await enqueue(queue.store, id_, delay_ms=3_600_000)
    link, jobs = queue.store.link, queue.store.keys[0].fixed["jobs"]
    options = ScanOptions(**queue.options)
    for damaged in (b"", b"\0" * 5, b"\7" * 60):
        await link.call("HSET", jobs, "mail/bad", damaged)
        for part in (Part(0), Part(0, (0,), "due", topics=("mail",))):
            # In a thread: reading a part has a loop of its own.
            batches = await asyncio.to_thread(lambda part=part: list(read_part(options, part, None)))
            assert {"one", "two"} == {id_ for batch in batches for id_ in batch["id"].to_pylist()}


async def test_every_job_is_seen_as_others_see_it(spark, queue):
    keys = await fill(queue.store)
    found = {row.id: row for row in scan(spark, queue).collect()}
    assert {each.id for each in keys} == found.keys()
    for each in await Views(queue.store).get_many(keys):
        row = found[each.id]
        assert (each.topic, each.state.name, each.revision, each.priority) == (
            *(row.topic, row.state, row.revision, row.priority),
        )
        assert (each.attempts, each.crashes, each.lateness_ms) == (row.attempts, row.crashes, row.lateness_ms)
        assert (each.payload, each.outcome, each.progress) == tuple(
            (text or "").encode() for text in (row.payload, row.outcome, row.progress)
        )
        assert (each.worker or None, each.ttr_ms / 1000 or None) == (row.worker, row.ttr)
        assert each.result_gone == row.result_gone
    full = found["full"]
    assert (9, '{"tenant":"ä"}', None, 0) == (full.max_attempts, full.context, full.callback, full.shard)


async def test_attempts_are_told_as_they_hold_without_a_handler(spark, queue, monkeypatch):
    await enqueue(queue.store, "plain", delay_ms=60_000)
    for id_, options in {
        "own": {"max_attempts": 9},
        "retained": {"retain": 5, "reply_to": "inbox"},
        "sent": {"callback": "https://example.com/hook", "backoff": Fixed(5)},
    }.items():
        await queue.store.enqueue(NewJob("mail", b"1", id=id_, due_at=SOON, **options).order(Limits()))

    def told(**options):
        return {row.id: row.max_attempts for row in scan(spark, queue, **options).collect()}

    fixed = {"own": 9, "sent": CALLBACK_ATTEMPTS}
    assert fixed | dict.fromkeys(("plain", "retained"), DEFAULTS.max_attempts) == told()
    assert fixed | dict.fromkeys(("plain", "retained"), 3) == told(max_attempts=3)
    monkeypatch.setenv("DULY_MAX_ATTEMPTS", "4")
    assert 4 == read_options(ScanOptions, queue.options).max_attempts
    with pytest.raises(Exception, match="max_attempts=0 must be"):
        told(max_attempts=0)


async def test_times_of_a_scan_are_exact(spark, queue):
    keys = await fill(queue.store)
    names = {
        "due_at": "due_ms",
        "scheduled_for": "scheduled_ms",
        "created_at": "created_ms",
        "updated_at": "updated_ms",
        "started_at": "started_ms",
        "finished_at": "ended_ms",
        "lease_until": "lease_ms",
    }
    columns = [f"unix_millis({name}) as {name}" for name in names]
    found = {row.id: row for row in scan(spark, queue).selectExpr("id", *columns).collect()}
    for each in await Views(queue.store).get_many(keys):
        for name, field in names.items():
            assert (getattr(each, field) or None) == found[each.id][name], (each.id, name)


@pytest.mark.parametrize("state", [state.name for state in JobState])
async def test_each_state_can_be_asked_for_by_itself(spark, queue, state):
    keys = await fill(queue.store)
    expected = {each.id for each in await Views(queue.store).get_many(keys) if each.state.name == state}
    by_filter = scan(spark, queue).where(f"state = '{state}'")
    assert (
        expected
        == {row.id for row in by_filter.collect()}
        == {row.id for row in scan(spark, queue, state=state).collect()}
    )
    of_web = {row.id for row in by_filter.where("topic in ('web', 'other')").collect()}
    assert of_web == expected & {"ready", "full"}


async def test_filters_decide_what_is_read(queue):
    await fill(queue.store)
    options = ScanOptions(**queue.options)
    reader = JobReader(options, 1)
    due = SOON.timestamp() * 1000
    filters = [
        EqualTo(("state",), "scheduled"),
        In(("topic",), ("web", "mail")),
        GreaterThanOrEqual(("due_at",), SOON),
        LessThan(("due_at",), SOON),
    ]
    # Spark applies each of them again: what is pushed down only has to be no less than needed.
    assert filters == list(reader.pushFilters(filters))
    [partition] = reader.partitions()
    assert Part(0, (JobState.scheduled,), "due", due, due + 1, ("mail", "web")) == partition.part
    [batch] = reader.read(partition)
    assert ["full"] == batch.column("id").to_pylist()


async def test_nothing_is_read_where_filters_leave_nothing(spark, queue):
    await fill(queue.store)
    assert 0 == scan(spark, queue).where("state = 'asleep'").count()
    assert 0 == scan(spark, queue, state="dead").where("state = 'ready'").count()


async def test_jobs_that_are_due_together_are_read_page_by_page(spark, queue):
    for n in range(25):
        await enqueue(queue.store, f"j{n}", due_ms=5_000_000_000_000 + n // 20)
    found = [row.id for row in scan(spark, queue, state="scheduled", page=7).collect()]
    assert sorted(f"j{n}" for n in range(25)) == sorted(found)
    for n in range(9):
        await enqueue(queue.store, f"r{n}", "web")
    found = [row.id for row in scan(spark, queue, state="ready", page=4).collect()]
    assert [f"r{n}" for n in range(9)] == sorted(found)


async def test_jobs_that_leave_while_an_index_is_read_hide_no_others(queue):
    later_ms, ids = 5_000_000_000_000, [f"{at:02}" for at in range(40)]
    for id_ in ids:
        await enqueue(queue.store, id_, due_ms=later_ms)
    await enqueue(queue.store, "later", due_ms=later_ms + 1)
    part = Part(0, (int(JobState.scheduled),), "due", high=later_ms + 1, topics=("mail",))
    seen = []
    async for page in pages._indexed(queue.store.link, queue.store.keys[0], part, 10):
        seen += [member.decode() for member, _ in page]
        await queue.store.cancel([JobKey.of(member) for member, _ in page[::3]])
    assert [f"mail/{id_}" for id_ in ids] == seen


async def test_a_long_index_is_cut_into_ranges_that_miss_nothing(queue, monkeypatch):
    monkeypatch.setattr(pages, "SPLIT", 10)
    for n in range(60):
        await enqueue(queue.store, f"j{n}", due_ms=5_000_000_000_000 + n // 7)
    options = ScanOptions(**queue.options, ranges=4, page=5)
    states = {JobState.scheduled}
    parts = await parts_of(queue.store.link, options, 1, states, None, (float("-inf"), float("inf")))
    assert 4 == len(parts)
    found = [
        id_
        for part in parts
        for batch in pages.read_part(options, part, None)
        for id_ in batch.column("id").to_pylist()
    ]
    assert sorted(f"j{n}" for n in range(60)) == sorted(found)


async def test_a_job_that_moves_while_it_is_read_is_shown_as_of_one_moment(queue, monkeypatch):
    """
    Its record is read first and its due time after that; a run that fails in between changes both.
    """
    store, past_ms, later_ms = queue.store, 1_000_000_000_000, 5_000_000_000_000
    for id_ in ("failed", "gone", "still"):
        await enqueue(store, id_, due_ms=later_ms)

    async def move():
        await store.link.call("HDEL", store.keys[0].fixed["jobs"], "mail/gone")
        await store.reschedule(key("failed"), due_ms=past_ms)
        await store.promote(0)
        [lease] = await claim(store)
        await store.retry(lease, 3_600_000)

    here, call, moves = asyncio.get_running_loop(), Link.call, [move]

    async def moving(link, *command, **rest):
        if command[0] == "ZMSCORE" and moves:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(moves.pop()(), here))
        return await call(link, *command, **rest)

    monkeypatch.setattr(Link, "call", moving)
    options = ScanOptions(**queue.options)
    batches = await asyncio.to_thread(lambda: list(pages.read_part(options, Part(0), None)))
    found = {row["id"]: row for batch in batches for row in batch.to_pylist()}
    assert {"failed": ("scheduled", 1), "still": ("scheduled", 0)} == {
        id_: (row["state"], row["attempts"]) for id_, row in found.items()
    }
    assert (
        later_ms == found["still"]["due_at"].timestamp() * 1000 > found["failed"]["due_at"].timestamp() * 1000
    )


async def test_the_table_of_all_jobs_is_walked_in_parts_that_do_not_overlap(server, namespace):
    link = Link(server.url)
    shard = ShardKeys(namespace, 0)
    names = [f"mail/j{n}".encode() for n in range(30_000)]
    for at in range(0, len(names), 1_000):
        await link.call(
            "HSET",
            shard.fixed["jobs"],
            *(word for name in names[at : at + 1_000] for word in (name, b"-" * 70)),
        )
    found = [
        member
        for slot in range(4)
        async for page in pages._all(link, shard, Part(0, slot=slot, slots=4), 1_000)
        for member, _ in page
    ]
    assert len(names) == len(found) == len(set(found))
    await link.aclose()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": "asleep"}, "no state 'asleep'; states are scheduled"),
        ({"topic": "a b"}, "invalid topic"),
        ({"page": "0"}, "page=0 must be from 1"),
        ({"path": "x"}, "format duly has no path"),
        ({"namespace": "nobody"}, "there is no namespace 'nobody'"),
    ],
)
def test_a_mistake_is_said(spark, queue, options, said):
    with pytest.raises(Exception, match=said):
        spark.read.format("duly").options(**(queue.options | options)).load().count()


async def test_what_was_scanned_can_be_written_again(spark, queue):
    await fill(queue.store)
    jobs = scan(spark, queue, state="scheduled").select(
        "topic", "id", "due_at", "payload", "context", "max_attempts"
    )
    before = await Views(queue.store).get(JobKey("web", "full"))
    jobs.write.format("duly").options(**queue.options).mode("append").save()
    assert before == await Views(queue.store).get(JobKey("web", "full"))
