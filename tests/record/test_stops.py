"""
A process dies while it sends, compares or reconciles: the next one goes on, and the promises hold.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import pytest

import duly.record
from duly import Duly
from duly.job import JobState, Order
from duly.record.reconcile import Reconciler
from duly.record.relay import Relay
from duly.record.rules import Difference
from tests.eventually import eventually
from tests.record.kit import REVISION, both, change_row, hydrate, now_ms, read_rows, row, write_rows
from tests.record.stopped import IDS, enqueue
from tests.record.test_reconcile import key
from tests.record.test_whole import working
from tests.servers import Server, binary
from tests.store.kit import claim

#: Every crash point of these steps; those of the way to Redis and back have tests of their own.
ENQUEUE = ["accept.written", "push.committed", "push.hydrated", "mark.written", "mark.committed"]
AGREE = ["guard.raised", "guard.compared", "guard.approved"]
RECONCILE = [f"reconcile.{kind}" for kind in Difference]


def turns(points):
    """
    Each at one of the databases in turn; the long run has them all.
    """
    return [
        pytest.param(point, database, marks=[] if at % 3 == number else pytest.mark.long)
        for at, point in enumerate(points)
        for number, database in enumerate(("sqlite", "postgresql", "mariadb"))
    ]


@pytest.fixture
def own_server():
    server = Server(binary("valkey"), appendfsync="always").start()
    yield server
    server.stop()


@pytest.fixture
async def open_app(namespace, migrated_url):
    apps = []

    def open_(server):
        app = Duly(server.url, namespace=namespace, record=migrated_url)
        apps.append(app)
        app.ran = []

        @app.handler("mail")
        async def mail(to: str) -> str:
            app.ran.append(to)
            return to

        return app

    yield open_
    for app in apps:
        await app.aclose()


async def die(point: str, step: str, *where: str) -> None:
    """
    Have a process of its own take a step and die at a point of it.
    """
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.record.stopped", step, *where),
        env=os.environ | {"DULY_CRASH_POINTS": point},
    )
    try:
        assert -signal.SIGKILL == await asyncio.wait_for(victim.wait(), 120)
    finally:
        if victim.returncode is None:
            victim.kill()


async def all_end(app) -> None:
    database = (await app.record()).database

    async def ended():
        assert {JobState.succeeded} == {each.state for each in (await read_rows(database)).values()}

    async with working(app):
        await eventually(ended, 60)


def test_every_crash_point_of_these_steps_has_its_test():
    here = Path(duly.record.__file__).parent
    found = {
        name
        for file in ("record", "guard", "reconcile")
        for name in re.findall(r'crash_point\(f?"([\w.{}]+)"\)', (here / f"{file}.py").read_text("utf-8"))
    }
    assert {"accept.written", *AGREE, "reconcile.{kind}"} == found


@pytest.mark.parametrize(("point", "migrated_url"), turns(ENQUEUE), indirect=["migrated_url"])
async def test_who_dies_while_it_sends_has_promised_what_is_committed(
    point, migrated_url, valkey, namespace, open_app
):
    await die(point, "enqueue", valkey.url, migrated_url, namespace)
    app = open_app(valkey)
    committed = set(await read_rows((await app.record()).database))
    assert (point == "accept.written") == (not committed)
    if committed:
        await all_end(app)
    # A commit that was under way when its process died may have come a moment later.
    assert committed <= set(app.ran)
    # Who got no answer says the same again.
    await enqueue(app)
    await all_end(app)
    assert IDS == sorted(app.ran)


@pytest.mark.parametrize(("point", "migrated_url"), turns(AGREE), indirect=["migrated_url"])
async def test_who_dies_while_it_compares_leaves_it_to_the_next(
    point, migrated_url, own_server, namespace, open_app
):
    app = open_app(own_server)
    await app.enqueue("mail", {"to": "before"}, id="before")
    await all_end(app)
    await enqueue(app)
    await (await app.store()).link.call("FLUSHALL")
    await die(point, "agree", own_server.url, migrated_url, namespace)
    later = open_app(own_server)
    await all_end(later)
    assert IDS == sorted(later.ran)
    assert not (await (await later.record()).reconcile(apply=False)).found


async def differ(database, queue) -> None:
    """
    One job of each difference.
    """
    ours, past = queue.namespace, now_ms() - 1
    await write_rows(database, row(ours, "missing"))
    await both(database, queue, *(row(ours, id_) for id_ in ("behind", "due", "payload", "ahead")))
    await change_row(database, "behind", revision=REVISION + 1)
    await change_row(database, "due", due_ms=now_ms() + 10**8)
    await change_row(database, "payload", payload=b"other")
    await hydrate(queue, row(ours, "ahead", revision=REVISION + 5))
    await both(database, queue, row(ours, "unrecorded", due_ms=past))
    for lease in await claim(queue):
        await queue.ack(lease, b'"done"')
    await both(database, queue, row(ours, "finished", due_ms=past))
    await change_row(database, "finished", state=JobState.succeeded, ended_ms=now_ms())
    await queue.enqueue(Order(key("orphan"), b"{}", due_ms=now_ms() + 10**8))


@pytest.mark.parametrize(("point", "migrated_url"), turns(RECONCILE), indirect=["migrated_url"])
async def test_who_dies_while_it_reconciles_leaves_the_rest_to_the_next(
    point, migrated_url, valkey, database, queue
):
    await queue.approve("record", 1)
    await differ(database, queue)
    await die(point, "reconcile", valkey.url, migrated_url, queue.namespace)
    await Reconciler(database, queue, apply=True, generation=1).run()
    assert [] == await claim(queue), "what has ended was handed out"
    while await Relay(database, queue, horizon_ms=10**9, generation=lambda: 1).look():
        pass
    again = await Reconciler(database, queue, apply=False, generation=1).run()
    assert ({}, 0) == (again.found, again.on_its_way)
    rows = await read_rows(database)
    assert {each.value for each in Difference} == set(rows)
    ended = {id_ for id_, each in rows.items() if each.state == JobState.succeeded}
    assert {"unrecorded", "finished"} == ended
