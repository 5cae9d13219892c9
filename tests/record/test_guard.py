"""
The rollback detector: a queue that lost a part of its past is compared before it hands anything out.
"""

from __future__ import annotations

import asyncio
import shutil
from functools import partial

import pytest
import redis

from duly.apikeys import KeyRing
from duly.connection import Link
from duly.errors import RecordUnavailable, ServerUnsuitable, StoreUnavailable
from duly.feed import Feed
from duly.job import JobKey, JobState, Lease
from duly.record import bringback
from duly.record.bringback import BringBack, Progress, progress_of
from duly.record.clock import Clock
from duly.record.guard import Guard
from duly.record.keys import KeptKeys
from duly.record.marks import mark
from duly.record.outcomes import write_runs
from duly.record.relay import Relay, promise_of
from duly.record.rows import JobRow
from duly.record.runs import EndedRun
from duly.record.startcheck import StartCheck
from duly.record.tables import positions
from duly.record.watermarks import raise_watermarks
from duly.store import Store
from duly.views import Views
from tests.eventually import eventually
from tests.record.kit import HOUR_MS, REVISION, both, change_row, now_ms, read_rows, row, write_rows
from tests.servers import Server, binary
from tests.shards import ids_on
from tests.store.kit import claim


@pytest.fixture
def own_server():
    server = Server(binary("valkey"), appendfsync="always").start()
    yield server
    server.stop()


@pytest.fixture
async def queue(own_server, namespace, shards):
    link = Link(own_server.url)
    store = Store(link, namespace=namespace, shards=shards)
    await store.create()
    yield store
    await link.aclose()


@pytest.fixture
def guard(database, queue):
    guard = Guard(database, queue, hint=lambda: None, settle_s=0)
    queue.agree = guard.agree
    relay = Relay(database, queue, horizon_ms=HOUR_MS, generation=guard.known)
    queue.startable = StartCheck(database, queue, guard, relay).startable
    return guard


def due(namespace: str, id_: str, **changes) -> dict:
    return row(namespace, id_, due_ms=now_ms() - 1, **changes)


async def confirm(database, queue) -> None:
    """
    Note in the record how far each shard of the queue has come.
    """
    values = [
        {"namespace": queue.namespace, "shard": shard, **offset._asdict(), "at_ms": now_ms()}
        for shard in range(queue.shards)
        if (offset := await Feed(queue).last(shard)) is not None
    ]
    await database.write(lambda connection: connection.execute(positions.insert(), values) and None)


async def hydrate(database, queue, *rows: dict) -> None:
    """
    Tell the queue of rows, and commit the watermarks with it, as a mark does.
    """
    told = await queue.hydrate([promise_of(JobRow(**each)) for each in rows])
    offsets = {each.upto.shard: each.upto.offset for each in told}
    await database.write(partial(raise_watermarks, namespace=queue.namespace, offsets=offsets))


async def given(database, queue, *rows: dict) -> None:
    """
    Rows that the queue has been given, and that are marked so.
    """
    await write_rows(database, *rows)
    await hydrate(database, queue, *(each for each in rows if not JobState(each["state"]).ended))


def back(database, queue, guard) -> BringBack:
    clock = Clock(queue)
    relay = Relay(database, queue, horizon_ms=HOUR_MS, generation=guard.known, clock=clock)
    return BringBack(database, queue, relay, clock, generation=guard.known)


async def bring_back(database, queue, guard) -> None:
    service = back(database, queue, guard)
    while await service.run_once():
        pass


async def pending(database, queue) -> list[Progress]:
    return await database.read(partial(progress_of, namespace=queue.namespace))


async def write_down(database, queue, *leases: Lease, token: int | None = None) -> None:
    """
    Write into the record how runs ended, as their worker does; with the token 0 as of jobs that never ran.
    """
    runs = [
        EndedRun(
            lease.key,
            lease.revision,
            lease.token if token is None else token,
            "acked",
            JobState.succeeded,
            1,
            1,
            0,
            "w",
            now_ms(),
            now_ms(),
            0,
            b"",
        )
        for lease in leases
    ]
    await database.write(
        lambda connection: write_runs(connection, queue.namespace, [(run, 1) for run in runs])
    )


def snapshot(server: Server) -> None:
    """
    Keep what is on the disk now.
    """
    shutil.copytree(server.dir / "appendonlydir", server.dir / "kept")


def restore(server: Server) -> None:
    """
    Start the server again from what was kept.
    """
    server.kill()
    shutil.rmtree(server.dir / "appendonlydir")
    (server.dir / "kept").rename(server.dir / "appendonlydir")
    server.start()


async def test_a_new_record_lets_the_queue_be_used(database, queue, guard):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    assert ["a"] == [lease.key.id for lease in await claim(queue)]
    assert 1 == guard.generation


async def test_a_server_that_kept_everything_brings_nothing_back(database, queue, guard, own_server, caplog):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    own_server.kill()
    own_server.start()
    assert ["a"] == [lease.key.id for lease in await claim(queue)]
    assert (2, ()) == (guard.generation, guard.current.lost)
    assert [] == await pending(database, queue)


async def test_what_ended_after_the_snapshot_does_not_run_again(database, queue, guard, own_server):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"), due(queue.namespace, "b"))
    snapshot(own_server)
    for lease in await claim(queue):
        if lease.key.id == "a":
            await queue.ack(lease)
            await write_down(database, queue, lease)
    restore(own_server)
    assert ["b"] == [lease.key.id for lease in await claim(queue)]
    # The loss is of what no mark was committed with: nothing else is missing.
    assert (2, ()) == (guard.generation, guard.current.lost)


@pytest.mark.parametrize("follow", [True, False], ids=["followed", "not_followed"])
async def test_a_loss_of_one_command_is_found_and_comes_back(database, queue, guard, own_server, follow):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    snapshot(own_server)
    # On the last shard alone: its watermark shows the loss, and no other does.
    [id_] = ids_on(queue, "mail", queue.shards - 1, 1)
    await given(database, queue, due(queue.namespace, id_))
    if follow:
        await confirm(database, queue)
    restore(own_server)
    await guard.agree()
    assert (2, (queue.shards - 1,)) == (guard.generation, guard.current.lost)
    await bring_back(database, queue, guard)
    assert {"a", id_} == {lease.key.id for lease in await claim(queue)}
    assert [] == await pending(database, queue)


async def test_a_later_revision_that_was_lost_runs_instead_of_the_former_one(
    database, queue, guard, own_server
):
    """
    As long as it was not brought back, the queue has the job at its former time.
    """
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    snapshot(own_server)
    later = row(queue.namespace, "a", revision=REVISION + 1)
    await change_row(database, "a", revision=later["revision"], due_ms=later["due_ms"])
    await hydrate(database, queue, later)
    restore(own_server)
    assert [] == await claim(queue)
    [job] = await Views(queue).get_many([JobKey("mail", "a")])
    assert (later["revision"], later["due_ms"]) == (job.revision, job.due_ms)


@pytest.mark.parametrize(
    ("state", "left"),
    [
        (JobState.succeeded, JobState.succeeded),
        (JobState.dead, JobState.dead),
        (JobState.cancelled, None),
    ],
)
async def test_a_job_that_is_handed_out_again_ends_as_its_row_says(
    database, queue, guard, own_server, state, left
):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    await change_row(database, "a", state=state, ended_ms=now_ms(), outcome=b'"stored"')
    own_server.kill()
    own_server.start()
    assert [] == await claim(queue)
    [job] = await Views(queue).get_many([JobKey("mail", "a")])
    assert (left, b'"stored"' if left else None) == (job and job.state, job and job.outcome)


async def test_a_run_after_another_one_is_looked_up_in_any_generation(database, queue, guard):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    [lease] = await claim(queue)
    await change_row(database, "a", state=JobState.succeeded, ended_ms=now_ms(), outcome=b"1")
    await queue.retry(lease, 0)
    assert [] == await claim(queue)


async def test_pages_come_back_by_due_time_what_was_due_lately_first(database, queue, guard, monkeypatch):
    monkeypatch.setattr(bringback, "AT_ONCE", 4)
    await guard.agree()
    now = now_ms()
    dues = {
        **{f"old-{at}": now - HOUR_MS + at for at in range(5)},
        **{f"due-{at}": now - 5_000 + at for at in range(5)},
        **{f"soon-{at}": now + HOUR_MS + at for at in range(5)},
    }
    await given(database, queue, *(row(queue.namespace, id_, due_ms=at) for id_, at in dues.items()))
    await given(database, queue, due(queue.namespace, "ended", state=JobState.succeeded, ended_ms=now))
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    service, come = back(database, queue, guard), []
    while await service.run_once():
        jobs = await Views(queue).get_many([JobKey("mail", id_) for id_ in (*dues, "ended")])
        come += sorted(job.key.id for job in jobs if job is not None and job.key.id not in come)
    assert [*(f"due-{at}" for at in range(5)), *(f"soon-{at}" for at in range(5))] == come[:10]
    assert {f"old-{at}" for at in range(5)} == set(come[10:])
    [progress] = await database.read(partial(progress_of, namespace=queue.namespace, all_=True))
    assert (None, 15) == (progress.now_pass, progress.brought)


async def test_another_process_goes_on_where_one_stopped_to_bring_back(database, queue, guard, monkeypatch):
    monkeypatch.setattr(bringback, "AT_ONCE", 2)
    await guard.agree()
    await given(database, queue, *(due(queue.namespace, f"{at}") for at in range(6)))
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    for _ in range(3):
        await back(database, queue, guard).run_once()
    await bring_back(database, queue, guard)
    [progress] = await database.read(partial(progress_of, namespace=queue.namespace, all_=True))
    assert (None, 6) == (progress.now_pass, progress.brought)
    assert {str(at) for at in range(6)} == {lease.key.id for lease in await claim(queue)}


async def test_what_waits_for_the_relay_is_not_brought_back(database, queue, guard):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "given"))
    await write_rows(database, due(queue.namespace, "new", hydrated=0, relay_ms=now_ms()))
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    await bring_back(database, queue, guard)
    assert ["given"] == [lease.key.id for lease in await claim(queue)]


async def test_what_an_emptied_queue_was_given_and_nobody_had_marked_is_not_lost(database, queue, guard):
    await guard.agree()
    unmarked = due(queue.namespace, "a", hydrated=0, relay_ms=now_ms())
    await both(database, queue, unmarked)
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    assert 2 == guard.generation
    # Whoever gave it to the queue that was marks it only now.
    marks = [(JobKey("mail", "a"), REVISION)]
    await database.write(partial(mark, namespace=queue.namespace, given=marks, generation=1, offsets={}))
    assert (0, unmarked["relay_ms"]) == _given(await read_rows(database))
    await database.write(partial(mark, namespace=queue.namespace, given=marks, generation=2, offsets={}))
    assert (REVISION, None) == _given(await read_rows(database))


def _given(rows) -> tuple[int, int | None]:
    return rows["a"].hydrated, rows["a"].relay_ms


async def test_rows_that_came_before_the_queue_show_no_loss(database, queue, guard, caplog):
    await write_rows(database, due(queue.namespace, "a", hydrated=0, relay_ms=now_ms()))
    await guard.agree()
    assert (1, []) == (guard.generation, [each for each in caplog.records if each.levelname == "CRITICAL"])


async def test_a_revision_that_the_queue_has_already_is_not_overwritten(database, queue, guard, own_server):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    await queue.link.call("HDEL", queue.keys[0].fixed["meta"], "record")
    own_server.kill()
    own_server.start()
    await guard.agree()
    assert (2, (0,)) == (guard.generation, guard.current.lost)
    await bring_back(database, queue, guard)
    [lease] = await claim(queue)
    assert REVISION == lease.revision


@pytest.mark.parametrize("how", ["killed", "emptied"])
async def test_a_server_that_was_not_compared_is_not_approved(database, queue, guard, own_server, after, how):
    """
    What was compared agrees, and what answers when that is to be said has lost its memory since.
    """
    await write_rows(database, due(queue.namespace, "a"))
    await guard.agree()
    generation = guard.generation

    async def lose():
        own_server.kill()
        shutil.rmtree(own_server.dir / "appendonlydir")
        own_server.start()
        await queue.create()

    async def empty():
        await queue.link.call("FLUSHALL")

    after(guard, "_counting", lose if how == "killed" else empty)
    await guard.agree()
    assert guard.generation == generation + 1


async def test_several_compare_at_once_and_raise_the_generation_once(database, queue, guard):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    await queue.link.call("FLUSHALL")
    await queue.create()
    other = Guard(database, queue, hint=lambda: None, settle_s=0)
    await guard.agree()
    await other.agree()
    assert (2, 2) == (guard.generation, other.generation)


async def test_who_comes_while_another_one_compares_does_not_raise_the_generation_again(
    database, queue, guard
):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    await queue.link.call("FLUSHALL")
    await queue.create()
    guards = [Guard(database, queue, hint=lambda: None, settle_s=0.5) for _ in range(2)]
    await asyncio.gather(*(each.agree() for each in guards))
    assert {2} == {each.generation for each in guards}


async def test_a_process_goes_on_for_one_that_failed_before_it_approved(database, queue, guard, monkeypatch):
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    await queue.link.call("FLUSHALL")
    await queue.create()

    async def fail(*_, **__):
        raise StoreUnavailable("a test")

    with monkeypatch.context() as failing:
        failing.setattr(queue, "approve", fail)
        with pytest.raises(StoreUnavailable):
            await guard.agree()
    other = Guard(database, queue, hint=lambda: None, settle_s=0)
    await other.agree()
    await bring_back(database, queue, other)
    assert ["a"] == [lease.key.id for lease in await claim(queue)]


async def test_a_worker_claims_only_in_the_generation_that_it_knows(database, queue, guard):
    """
    What it finishes is told to the rows as of that generation, and they refuse what is of a former one.
    """
    queue.generation = guard.known
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    other = Guard(database, queue, hint=lambda: None, settle_s=0)
    await queue.link.call("FLUSHALL")
    await queue.create()
    await other.agree()
    assert (1, 2) == (guard.generation, other.generation)
    await claim(queue)
    assert 2 == guard.generation


async def test_a_queue_of_another_record_is_refused(database, queue, guard):
    await queue.approve("somebody-elses", 1)
    await write_rows(database, due(queue.namespace, "a"))
    with pytest.raises(ServerUnsuitable, match="belongs to another record"):
        await guard.agree()


# -- approvals ----------------------------------------------------------------------------------------------


async def test_an_approval_ends_by_itself(database, queue, guard, monkeypatch):
    monkeypatch.setattr("duly.record.guard.APPROVED_MS", 50)
    await guard.agree()
    await given(database, queue, due(queue.namespace, "a"))
    queue.agree = None

    async def refused() -> bool:
        try:
            await queue.probe(0)
        except ServerUnsuitable:
            return True
        return False

    await eventually(refused)
    with pytest.raises(ServerUnsuitable):
        await claim(queue)


async def test_the_leader_renews_an_approval_before_it_ends(database, queue, guard, monkeypatch):
    asked = []
    await guard.agree()
    monkeypatch.setattr(queue, "approve", recorded(queue.approve, asked))
    await guard.run_once()
    assert [] == asked
    monkeypatch.setattr("duly.record.guard.RENEWED_MS", 60_000)
    await guard.run_once()
    assert [1] == asked
    follower = Guard(database, queue, hint=lambda: None, leads=lambda: False)
    await follower.run_once()
    assert [1] == asked


def recorded(call, asked):
    async def wrapped(*args, **options):
        asked.append(1)
        return await call(*args, **options)

    return wrapped


@pytest.mark.parametrize("works_alone", [True, False])
async def test_while_the_database_is_away_the_setting_says_whether_work_goes_on(
    database, queue, monkeypatch, works_alone
):
    guard = Guard(database, queue, hint=lambda: None, works_alone=works_alone)
    await guard.agree()

    async def away(_):
        raise RecordUnavailable("the record cannot be reached: a test")

    monkeypatch.setattr(database, "read", away)
    if works_alone:
        await guard.agree()
        # A process that has not asked the record before knows nothing.
        with pytest.raises(RecordUnavailable):
            await Guard(database, queue, hint=lambda: None).agree()
    else:
        with pytest.raises(RecordUnavailable):
            await guard.agree()


async def test_a_silent_database_holds_up_nobody_who_has_asked_before(database, queue, guard, monkeypatch):
    await guard.agree()
    read, answered = database.read, asyncio.Event()

    async def silent(work):
        await answered.wait()
        return await read(work)

    monkeypatch.setattr(database, "read", silent)
    monkeypatch.setattr("duly.record.guard.ASKED_FOR_S", 0.05)
    for _ in range(3):
        async with asyncio.timeout(10):
            await guard.agree()
    asked = guard._asked
    answered.set()
    await guard.agree()
    assert guard._asked is not asked, "it was asked anew: what was asked long ago may be over"


async def test_what_is_committed_while_no_approval_counts_is_brought_at_once(
    database, queue, guard, monkeypatch, caplog
):
    """
    Where no worker runs, nobody renews it.
    """
    monkeypatch.setattr("duly.record.guard.APPROVED_MS", 0)
    await guard.agree()
    new = due(queue.namespace, "a", hydrated=0, relay_ms=now_ms())
    await write_rows(database, new)
    monkeypatch.setattr("duly.record.guard.APPROVED_MS", 60_000)
    relay = Relay(database, queue, horizon_ms=HOUR_MS, generation=guard.known, agree=guard.agree)
    assert await relay.push([JobRow(**new)])
    await relay.settle()
    assert [] == [each for each in caplog.records if each.name == "duly.relay"]
    assert ["a"] == [lease.key.id for lease in await claim(queue)]


async def test_while_the_database_is_away_another_life_of_the_server_is_not_approved(
    database, queue, guard, own_server, monkeypatch
):
    await guard.agree()

    async def away(_):
        raise RecordUnavailable("the record cannot be reached: a test")

    monkeypatch.setattr(database, "read", away)
    own_server.kill()
    own_server.start()
    with pytest.raises(RecordUnavailable):
        await guard.agree()


async def test_a_single_shard_that_belongs_to_another_record_is_refused(database, queue, guard):
    await queue.link.call("HSET", queue.keys[-1].fixed["meta"], "record", "somebody-elses")
    await write_rows(database, due(queue.namespace, "a"))
    with pytest.raises(ServerUnsuitable, match="belongs to another record"):
        await guard.agree()


async def test_a_single_shard_that_was_emptied_is_compared(database, queue, guard):
    await guard.agree()
    [lost] = ids_on(queue, "mail", queue.shards - 1, 1)
    await both(database, queue, due(queue.namespace, lost))
    with redis.Redis(unix_socket_path=queue.link.url.removeprefix("unix://")) as raw:
        raw.delete(*raw.keys(f"{{{queue.namespace}:{queue.shards - 1}}}:*"))
    await queue.create()
    await guard.agree()
    assert (2, (queue.shards - 1,)) == (guard.generation, guard.current.lost)
    await bring_back(database, queue, guard)
    assert [lost] == [lease.key.id for lease in await claim(queue)]


async def test_keys_come_back_to_a_queue_that_lost_them_and_revoked_ones_do_not(
    database, queue, guard, own_server
):
    before = KeyRing(queue, {})
    await before.create("old", ["read"])
    await guard.agree()
    ring = KeyRing(queue, {}, keeper=KeptKeys(database, queue.namespace))
    text, _ = await ring.create("shop", ["enqueue"])
    await both(database, queue, due(queue.namespace, "a"))
    snapshot(own_server)
    await ring.revoke("old")
    restore(own_server)
    await guard.agree()
    assert ["shop"] == [key.name for key in await KeyRing(queue, {}).all()]
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    assert await KeyRing(queue, {}).find(text)
