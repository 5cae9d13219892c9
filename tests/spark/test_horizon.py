"""
Far-future jobs from their table to the queue: none early, none twice, none missed.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from duly import JobState
from duly.connection import Link
from duly.errors import Conflict, UsageError
from duly.job import JobKey, Order
from duly.namespace import create
from duly.records import ended_job
from duly.spark.horizon import hydrating, put_off
from duly.spark.horizon.hydrating import hydrate
from duly.spark.horizon.queue import Queue
from duly.spark.horizon.rows import ROWS
from duly.spark.horizon.table import HorizonTable, Overtaken
from duly.store import Keeping, Store, Want
from duly.views import Views

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOUR_MS = 3_600_000
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SCHEMA = "id string, due_at timestamp, payload string"


class Rig:
    """
    A table, a queue on a test clock, and a worker that runs what is due.
    """

    def __init__(self, spark: Any, path: str, store: Store, clock: Any, url: str) -> None:
        self.spark, self.path, self.store, self.clock, self.url = spark, path, store, clock, url
        self.views = Views(store)
        self.ran: list[tuple[str, int]] = []
        self.claims = 0

    async def put(self, *rows: tuple[str, float], payload: str = "{}") -> int:
        """
        Put jobs off: id, and hours from noon.
        """
        given = [(id_, NOON + timedelta(hours=hours), payload) for id_, hours in rows]
        frame = self.spark.createDataFrame(given, SCHEMA)
        return await asyncio.to_thread(put_off, frame, self.path, topic="mail")

    async def hydrate(self, window_ms: int = HOUR_MS, **options: Any) -> Any:
        queue = Queue(self.url, self.store.namespace, now_ms=self.clock.now_ms)
        table = HorizonTable(self.path)
        return await asyncio.to_thread(hydrate, self.spark, table, queue, window_ms=window_ms, **options)

    async def work(self) -> None:
        """
        Run whatever is due now, and forget it: the queue keeps nothing that ended.
        """
        while True:
            self.claims += 1
            wants = [Want("mail", 100, 60_000)]
            leases = (await self.store.claim(0, wants, worker="w")).leases
            if not leases:
                break
            assert [] == [lease.key.id for lease in leases if lease.due_ms > self.clock.now_ms]
            self.ran += [(lease.key.id, lease.due_ms) for lease in leases]
            await asyncio.gather(*(self.store.ack(lease) for lease in leases))

    async def state(self, id_: str) -> JobState | None:
        job = await self.views.get(JobKey("mail", id_))
        return None if job is None else job.state

    async def due(self, id_: str) -> float:
        """
        When it is due, in hours from noon.
        """
        job = await self.views.get(JobKey("mail", id_))
        return (job.due_ms - ms(NOON)) / HOUR_MS


def ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@pytest.fixture
async def rig(spark, valkey, namespace, clock, tmp_path) -> AsyncIterator[Rig]:
    clock._now_ms = ms(NOON)
    link = Link(valkey.url)
    await create(link, namespace, 1, clock="test")
    # An hour of test time prunes what ended.
    store = Store(link, namespace=namespace, now=clock, keeping=Keeping(done_ms=0))
    yield Rig(spark, str(tmp_path / "later"), store, clock, valkey.url)
    await link.aclose()


async def test_what_is_due_within_the_window_is_moved_and_nothing_else(rig):
    assert 3 == await rig.put(("soon", 0.5), ("edge", 1), ("far", 48))
    report = await rig.hydrate()
    assert (1, 1, 0, 0) == (report.number, report.moved, report.kept, report.rejected)
    assert (JobState.scheduled, None, None) == (
        await rig.state("soon"),
        await rig.state("edge"),
        await rig.state("far"),
    )
    assert 0.5 == await rig.due("soon")
    await rig.work()
    assert [] == rig.ran, "never early"
    # An hour later the next hour comes, and what came before does not come again.
    rig.clock.advance(ms=HOUR_MS)
    await rig.work()
    rig.clock.advance(ms=HOUR_MS)
    await rig.store.prune(0)
    assert 1 == (await rig.hydrate()).moved
    await rig.work()
    assert ["soon", "edge"] == [id_ for id_, _ in rig.ran]


async def test_rows_that_are_added_after_a_pass_are_found_also_when_they_are_due_before_its_end(rig):
    await rig.put(("first", 0.2))
    await rig.hydrate(window_ms=24 * HOUR_MS)
    await rig.put(("second", 0.3), ("third", 30))
    assert 1 == (await rig.hydrate(window_ms=24 * HOUR_MS)).moved
    assert JobState.scheduled is await rig.state("second")
    assert 0 == (await rig.hydrate(window_ms=24 * HOUR_MS)).moved


async def test_a_job_is_as_it_was_put_off(rig):
    frame = rig.spark.sql(
        """
        select 'a' as id, timestamp '2026-06-01 12:30:00' as due_at, named_struct('user', 7) as payload,
               'news' as topic, 'high' as priority, '90s' as ttr, 3 as max_attempts,
               map('tenant', 'acme') as context, cast(null as string) as callback, 'answers' as reply_to
        """
    )
    await asyncio.to_thread(put_off, frame, rig.path)
    await rig.hydrate()
    job = await rig.views.get(JobKey("news", "a"))
    assert "answers" == job.envelope.reply_to
    assert (b'{"user":7}', "high", 90_000) == (job.payload, job.priority, job.ttr_ms)
    assert (3, {"tenant": "acme"}) == (job.envelope.max_attempts, job.envelope.context)
    assert NOON + timedelta(minutes=30) == job.due_at


async def test_who_asked_for_a_reply_is_told_of_the_end_wherever_the_job_was(rig):
    frame = rig.spark.sql(
        """
        select id, timestamp '2026-06-01 12:30:00' as due_at, '{}' as payload, 'answers' as reply_to
        from values ('ran'), ('cancelled-in-the-queue'), ('cancelled-in-the-table') as jobs(id)
        """
    )
    await asyncio.to_thread(put_off, frame, rig.path, topic="mail")
    await rig.hydrate(window_ms=1)
    await rig.store.cancel([JobKey("mail", "cancelled-in-the-table")])
    await rig.hydrate()
    await rig.store.cancel([JobKey("mail", "cancelled-in-the-queue")])
    rig.clock.advance(ms=HOUR_MS)
    await rig.work()
    _, taken, _ = await rig.store.reply_take(0, "answers", 10, lease_ms=1_000)
    jobs = [ended_job(member, head, outcome) for _, member, head, outcome in taken]
    assert [
        ("cancelled-in-the-queue", "cancelled"),
        ("cancelled-in-the-table", "cancelled"),
        ("ran", "succeeded"),
    ] == sorted((job.id, job.state.name) for job in jobs)


async def test_a_table_of_an_earlier_release_is_read_and_takes_the_column_that_it_lacks(rig):
    old = pa.schema([field for field in ROWS if field.name != "reply_to"])
    row = dict.fromkeys(old.names) | {"topic": "mail", "id": "old", "due_ms": ms(NOON), "payload": "{}"}
    rows = pa.Table.from_pylist([row | {"day": "2026-06-01"}], old)
    write_deltalake(rig.path, rows, partition_by=["day"])
    assert (1, 0) == ((report := await rig.hydrate()).moved, report.rejected)
    assert JobState.ready is await rig.state("old")

    asking = rig.spark.sql(
        "select 'new' as id, timestamp '2026-06-01 12:30' as due_at, '{}' as payload, 'answers' as reply_to"
    )
    await asyncio.to_thread(put_off, asking, rig.path, topic="mail")
    # What is read from now on is what a rewrite by others leaves of it.
    assert 1 == DeltaTable(rig.path).optimize.compact()["numFilesAdded"]
    assert 1 == (await rig.hydrate()).moved
    assert "answers" == (await rig.views.get(JobKey("mail", "new"))).envelope.reply_to


async def test_rows_may_have_the_types_that_a_write_to_the_queue_takes(rig):
    frame = rig.spark.sql("select 7 as id, '2026-06-01T14:30:00+02:00' as due_at, array(1, 2) as payload")
    await asyncio.to_thread(put_off, frame, rig.path, topic="mail")
    await rig.hydrate()
    assert 0.5 == await rig.due("7")
    wrong = rig.spark.sql("select 8 as id, 'at noon' as due_at, 'null' as payload")
    with pytest.raises(UsageError, match="row with id 8: due_at"):
        await asyncio.to_thread(put_off, wrong, rig.path, topic="mail")


async def test_a_job_that_waits_in_the_table_can_be_cancelled_and_rescheduled(rig):
    await rig.put(("cancelled", 30), ("later", 30), ("sooner", 30), ("as-it-is", 30))
    await rig.hydrate()
    store = rig.store
    assert ["accepted"] == await store.cancel([JobKey("mail", "cancelled")])
    for id_, hours in (("later", 40), ("sooner", 0.5)):
        due_ms = ms(NOON + timedelta(hours=hours))
        assert "accepted" == (await store.reschedule(JobKey("mail", id_), due_ms=due_ms)).word
    report = await rig.hydrate()
    assert (1, 1) == (report.moved, report.rescheduled)
    assert 0.5 == await rig.due("sooner")
    rig.clock.advance(ms=29 * HOUR_MS + 1)
    await rig.work()
    await rig.store.prune(0)
    report = await rig.hydrate()
    assert (2, 1, 1) == (report.moved, report.cancelled, report.kept)
    rig.clock.advance(ms=12 * HOUR_MS)
    await rig.work()
    assert {"sooner": 0.5, "as-it-is": 30, "later": 40} == {
        id_: (due - ms(NOON)) / HOUR_MS for id_, due in rig.ran
    }
    assert [] == await store.link.call("HGETALL", store.keys[0].fixed["overrides"])


async def test_a_change_to_a_job_that_is_in_no_table_is_forgotten_by_the_pass_that_looked_for_it(rig):
    await rig.put(("far", 48))
    await rig.hydrate()
    overrides = rig.store.keys[0].fixed["overrides"]
    await rig.store.reschedule(JobKey("mail", "nobody"), delay_ms=1_000)
    await rig.hydrate()
    await rig.hydrate(window_ms=2 * HOUR_MS)
    assert [] == await rig.store.link.call("HGETALL", overrides)
    assert None is await rig.state("nobody")


async def test_on_the_queue_side_jobs_are_changed_as_any_others(rig):
    await rig.put(("a", 0.5), ("b", 0.5))
    await rig.hydrate()
    assert [JobState.cancelled] == await rig.store.cancel([JobKey("mail", "a")])
    assert "rescheduled" == (await rig.store.reschedule(JobKey("mail", "b"), delay_ms=9 * HOUR_MS)).word


async def test_a_pass_that_is_killed_before_its_commit_is_run_again_without_effect(rig, monkeypatch):
    await rig.put(*((f"j{n}", 0.1) for n in range(50)))

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HorizonTable, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            await rig.hydrate()
    # All of them run, end and are pruned before the pass is tried again.
    rig.clock.advance(ms=HOUR_MS // 2)
    await rig.work()
    rig.clock.advance(ms=HOUR_MS)
    while (await rig.store.prune(0))[1]:
        pass
    assert 50 == len(rig.ran)
    assert None is await rig.state("j7")
    report = await rig.hydrate()
    assert (1, 0, 50) == (report.number, report.moved, report.kept)
    await rig.work()
    assert 50 == len(rig.ran)


async def test_a_pass_that_is_killed_after_its_commit_leaves_nothing_undone(rig, monkeypatch):
    await rig.put(("a", 0.1))

    async def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hydrating, "_settle", killed)
        with pytest.raises(KeyboardInterrupt):
            await rig.hydrate()
    await rig.put(("b", 0.2))
    assert 1 == (await rig.hydrate()).moved
    rig.clock.advance(ms=HOUR_MS)
    await rig.work()
    assert ["a", "b"] == [id_ for id_, _ in rig.ran]


async def test_two_at_the_same_pass_move_each_job_once(rig, monkeypatch):
    await rig.put(("a", 0.1))
    commit = HorizonTable.commit

    def second_first(table: Any, *rest: Any) -> None:
        monkeypatch.setattr(HorizonTable, "commit", commit)
        queue = Queue(rig.url, rig.store.namespace, now_ms=rig.clock.now_ms)
        other = hydrate(rig.spark, HorizonTable(rig.path), queue, window_ms=HOUR_MS)
        assert (1, 1) == (other.number, other.kept)
        commit(table, *rest)

    monkeypatch.setattr(HorizonTable, "commit", second_first)
    with pytest.raises(Overtaken):
        await rig.hydrate()
    assert 1 == (await rig.views.stats()).topics[0].counts["scheduled"]
    with pytest.raises(Conflict, match="pass 1 is over"):
        await rig.store.thaw([Order(JobKey("mail", "a"), b"{}", due_ms=1)], 1)


async def test_a_table_that_was_compacted_or_rewritten_moves_nothing_twice(rig):
    await rig.put(("a", 0.1), ("far", 5))
    await rig.put(("b", 0.2))
    await rig.hydrate()
    rig.clock.advance(ms=HOUR_MS)
    await rig.work()
    rig.clock.advance(ms=HOUR_MS)
    await rig.store.prune(0)
    table = DeltaTable(rig.path)
    assert 1 <= table.optimize.compact()["numFilesAdded"]
    table.delete("id = 'far'")
    await rig.put(("c", 2.5))
    report = await rig.hydrate()
    assert (1, 0) == (report.moved, report.kept)
    await rig.hydrate(window_ms=24 * HOUR_MS)
    assert None is await rig.state("far")
    assert ["a", "b"] == [id_ for id_, _ in rig.ran]


async def test_a_row_that_is_no_job_is_reported_and_does_not_stop_the_others(rig):
    await rig.put(("good", 0.5))
    given = dict.fromkeys(ROWS.names) | {"topic": "mail", "id": "x", "due_ms": ms(NOON), "payload": "{}"}
    for wrong in ({"topic": "no/topic"}, {"payload": "{"}, {"reply_to": "no/queue"}):
        row = given | wrong | {"day": "2026-06-01"}
        write_deltalake(rig.path, pa.Table.from_pylist([row], ROWS), mode="append")
    report = await rig.hydrate()
    assert (1, 3) == (report.moved, report.rejected)
    told = "\n".join(sorted(report.examples))
    assert "row with topic 'no/topic' and id 'x': invalid topic" in told
    assert "row with topic 'mail' and id 'x': payload is no JSON" in told
    assert "row with topic 'mail' and id 'x': invalid reply_to 'no/queue'" in told


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((None, NOON, "{}"), "row with id None: id is null"),
        (("a", None, "{}"), "row with id 'a': due_at is null"),
        (("a b", NOON, "{}"), "row with id 'a b': invalid job id"),
        (("a", NOON, "{"), "row with id 'a': payload is no JSON"),
    ],
)
async def test_a_wrong_row_is_refused_and_nothing_is_written(rig, row, message):
    frame = rig.spark.createDataFrame([("good", NOON, "{}"), row], SCHEMA)
    with pytest.raises(UsageError) as caught:
        await asyncio.to_thread(put_off, frame, rig.path, topic="mail")
    assert message in str(caught.value)
    assert [] == DeltaTable(rig.path).file_uris()


async def test_wrong_tables_are_told_apart(rig, tmp_path):
    with pytest.raises(UsageError, match="there is no table of far-future jobs at"):
        await rig.hydrate()
    with pytest.raises(UsageError, match="no column due_at: a frame of jobs has id, due_at, payload"):
        put_off(rig.spark.sql("select 'a' as id"), rig.path)
    with pytest.raises(UsageError, match="a job has no column reply_too; did you mean reply_to"):
        frame = rig.spark.sql("select 'a' as id, now() as due_at, '{}' as payload, 'answers' as reply_too")
        put_off(frame, rig.path, topic="mail")
    await rig.put(("a", 0.5))
    await rig.hydrate()
    rig.path = str(tmp_path / "other")
    await rig.put(("b", 0.5))
    with pytest.raises(UsageError, match="say --adopt"):
        await rig.hydrate()
    assert 1 == (await rig.hydrate(instead=True)).moved


async def test_thousands_of_jobs_come_hour_by_hour_none_early_none_twice_none_missed(rig, pytestconfig):
    count, hours = (200_000, 72) if pytestconfig.getoption("--long") else (2_000, 4)
    frame = rig.spark.range(count).selectExpr(
        "concat('j', id) as id",
        f"timestamp_millis({ms(NOON)} + id * {hours * HOUR_MS} div {count}) as due_at",
        "concat('{\"n\":', id, '}') as payload",
    )
    assert count == await asyncio.to_thread(put_off, frame, rig.path, topic="mail")
    most = 0
    for hour in range(hours):
        await rig.hydrate()
        stats = (await rig.views.stats()).topics
        most = max([most, *(topic.counts["scheduled"] for topic in stats)])
        rig.clock.advance(ms=HOUR_MS)
        await rig.work()
        assert (hour + 1) * count // hours == len(rig.ran)
    assert most <= count // hours + 1, "the queue holds an hour of them"
    assert count == len({id_ for id_, _ in rig.ran}) == len(rig.ran)
