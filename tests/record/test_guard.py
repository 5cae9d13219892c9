"""
The rollback detector: a queue that lost a part of its past is compared before it hands anything out.
"""

from __future__ import annotations

import shutil
from functools import partial

import pytest
import redis

from duly.apikeys import KeyRing
from duly.connection import Link
from duly.errors import RecordUnavailable, ServerUnsuitable
from duly.feed import Feed
from duly.job import JobKey, JobState, Lease
from duly.record import soundness
from duly.record.guard import Guard
from duly.record.keys import KeptKeys
from duly.record.marks import mark
from duly.record.outcomes import write_runs
from duly.record.rows import AT_ONCE_MS
from duly.record.runs import EndedRun
from duly.record.tables import positions
from duly.store import Store
from tests.eventually import eventually
from tests.record.kit import HOUR_MS, REVISION, both, change_row, now_ms, read_rows, row, write_rows
from tests.servers import Server, binary
from tests.shards import SEVERAL, ids_on, on_all, one_id_on_each
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


async def test_a_server_that_kept_everything_goes_on_in_the_same_generation(
    database, queue, guard, own_server
):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    await confirm(database, queue)
    own_server.kill()
    own_server.start()
    assert ["a"] == [lease.key.id for lease in await claim(queue)]
    assert 1 == guard.generation


async def test_what_ended_after_the_snapshot_does_not_run_again(database, queue, guard, own_server):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"), due(queue.namespace, "b"))
    snapshot(own_server)
    for lease in await claim(queue):
        if lease.key.id == "a":
            await queue.ack(lease)
            await write_down(database, queue, lease)
    await confirm(database, queue)
    restore(own_server)
    assert ["b"] == [lease.key.id for lease in await claim(queue)]
    assert 2 == guard.generation


async def test_what_was_accepted_after_the_snapshot_is_taken_there_again(database, queue, guard, own_server):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    snapshot(own_server)
    # On the last shard alone: its position shows the loss, and no other does.
    [id_] = ids_on(queue, "mail", queue.shards - 1, 1)
    await both(database, queue, due(queue.namespace, id_))
    await confirm(database, queue)
    restore(own_server)
    await guard.agree()
    rows = await read_rows(database)
    assert rows[id_].relay_ms == rows[id_].due_ms - AT_ONCE_MS
    assert 2 == guard.generation


@pytest.mark.parametrize("shards", [SEVERAL])
async def test_the_shard_that_remembers_least_says_since_when_rows_are_compared(
    database, queue, guard, own_server, monkeypatch
):
    """
    The servers of a cluster lose their memories one by one.
    """
    monkeypatch.setattr("duly.record.guard.MARGIN_MS", 0)
    await guard.agree()
    last = queue.shards - 1
    [ended] = ids_on(queue, "mail", last, 1)
    await both(database, queue, due(queue.namespace, ended, changed_ms=now_ms() - HOUR_MS))
    with redis.Redis(unix_socket_path=str(own_server.socket)) as raw:
        kept = {name: raw.dump(name) for name in raw.keys(f"{{{queue.namespace}:{last}}}:*")}
        [lease] = await claim(queue)
        await queue.ack(lease)
        await write_down(database, queue, lease)
        written_ms = now_ms()
        await eventually(lambda: now_ms() > written_ms)
        # What the other shards remember is younger than that.
        others = one_id_on_each(queue, "mail", "other")[:last]
        await both(database, queue, *(row(queue.namespace, id_) for id_ in others))
        raw.delete(*raw.keys(f"{{{queue.namespace}:{last}}}:*"))
        for name, value in kept.items():
            raw.restore(name, 0, value)
    await on_all(queue, "meta", "HDEL", "server")
    await guard.agree()
    assert [] == await claim(queue)


async def test_a_loss_that_no_position_shows_is_found_row_by_row(database, queue, guard, own_server):
    """
    Positions follow a little later than rows: what lies between is compared job by job.
    """
    await guard.agree()
    # What was promised of it is an hour old: only its run is not.
    await both(database, queue, due(queue.namespace, "a", changed_ms=now_ms() - HOUR_MS))
    await confirm(database, queue)
    snapshot(own_server)
    await both(database, queue, due(queue.namespace, "b"))
    [lease] = [each for each in await claim(queue) if each.key.id == "a"]
    await queue.ack(lease)
    await write_down(database, queue, lease)
    restore(own_server)
    await guard.agree()
    assert 1 == guard.generation
    assert [] == await claim(queue)
    rows = await read_rows(database)
    assert rows["b"].relay_ms == rows["b"].due_ms - AT_ONCE_MS


@pytest.mark.parametrize("token", [None, 0], ids=["by_a_run", "without_one"])
async def test_endings_that_the_queue_forgot_are_found_page_by_page(
    database, queue, guard, own_server, monkeypatch, token
):
    monkeypatch.setattr(soundness, "PAGE", 2)
    await guard.agree()
    rows = [due(queue.namespace, id_, changed_ms=now_ms() - HOUR_MS) for id_ in "abcdef"]
    await both(database, queue, *rows)
    await confirm(database, queue)
    snapshot(own_server)
    ended = await claim(queue, limit=5)
    for lease in ended:
        await queue.ack(lease)
    await write_down(database, queue, *ended, token=token)
    restore(own_server)
    await guard.agree()
    [left] = await claim(queue)
    assert set("abcdef") - {lease.key.id for lease in ended} == {left.key.id}


async def test_an_emptied_queue_gets_back_whatever_has_not_ended(database, queue, guard):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "open"), due(queue.namespace, "ended"))
    await change_row(database, "ended", state=JobState.succeeded, ended_ms=now_ms())
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    rows = await read_rows(database)
    assert 2 == guard.generation
    assert rows["open"].relay_ms == rows["open"].due_ms - AT_ONCE_MS
    assert rows["ended"].relay_ms is None


async def test_what_an_emptied_queue_was_given_and_nobody_had_marked_is_not_lost(database, queue, guard):
    await guard.agree()
    given = due(queue.namespace, "a", hydrated=0, relay_ms=now_ms())
    await both(database, queue, given)
    await queue.link.call("FLUSHALL")
    await queue.create()
    await guard.agree()
    assert 2 == guard.generation
    # Whoever gave it to the queue that was marks it only now.
    marks = [(JobKey("mail", "a"), REVISION)]
    await database.write(partial(mark, namespace=queue.namespace, given=marks, generation=1))
    assert (0, given["relay_ms"]) == _given(await read_rows(database))
    await database.write(partial(mark, namespace=queue.namespace, given=marks, generation=2))
    assert (REVISION, None) == _given(await read_rows(database))


def _given(rows) -> tuple[int, int | None]:
    return rows["a"].hydrated, rows["a"].relay_ms


async def test_rows_that_came_before_the_queue_show_no_loss(database, queue, guard, caplog):
    await write_rows(database, due(queue.namespace, "a", hydrated=0, relay_ms=now_ms()))
    await guard.agree()
    assert (1, []) == (guard.generation, [each for each in caplog.records if each.levelname == "CRITICAL"])


async def test_a_revision_that_the_queue_has_already_is_not_overwritten(database, queue, guard, own_server):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    await on_all(queue, "meta", "HDEL", "server")
    await guard.agree()
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

    after(guard, "_found_sound", lose if how == "killed" else empty)
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
    await guard.agree()
    # As it is while the first one has still to compare the rows.
    await on_all(queue, "meta", "HDEL", "record", "server")
    other = Guard(database, queue, hint=lambda: None, settle_s=0)
    await other.agree()
    assert 2 == other.generation


async def test_who_goes_on_for_one_that_failed_half_way_does_not_raise_the_generation_again(
    database, queue, guard, monkeypatch
):
    await guard.agree()
    await both(database, queue, due(queue.namespace, "a"))
    await queue.link.call("FLUSHALL")
    await queue.create()

    async def fail(_):
        raise RecordUnavailable("the record cannot be reached: a test")

    monkeypatch.setattr(guard, "_recheck", fail)
    with pytest.raises(RecordUnavailable):
        await guard.agree()
    other = Guard(database, queue, hint=lambda: None, settle_s=0)
    await other.agree()
    assert 2 == other.generation


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
    assert (1, True) == (guard.generation, await guard.changed_server())
    await claim(queue)
    assert (2, False) == (guard.generation, await guard.changed_server())


async def test_a_queue_of_another_record_is_refused(database, queue, guard):
    await queue.approve("somebody-elses", 1, "a/b")
    await write_rows(database, due(queue.namespace, "a"))
    with pytest.raises(ServerUnsuitable, match="belongs to another record"):
        await guard.agree()


async def test_another_server_behind_the_same_address_is_noticed(queue, guard):
    await guard.agree()
    assert not await guard.changed_server()
    for keys in queue.keys:
        here = await queue.link.call("HGET", keys.fixed["meta"], "server")
        await queue.link.call("HSET", keys.fixed["meta"], "server", "another/one")
        assert await guard.changed_server()
        await queue.link.call("HSET", keys.fixed["meta"], "server", here)
    assert not await guard.changed_server()


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
    assert 2 == guard.generation
    assert (await read_rows(database))[lost].relay_ms is not None


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
