"""
The process dies between every two steps, and what was promised happens all the same.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import duly.record
from duly.feed import Feed
from duly.job import JobState
from duly.namespace import create
from duly.record import crashpoints
from duly.store import Store, Want
from duly.views import Views
from tests.record.way.kit import commit, key, position_of, rows_of, runs_of
from tests.record.way.victim import JOBS, Way, fresh
from tests.shards import claim_all, shard_of

if TYPE_CHECKING:
    from duly.events import Event

#: Every crash point, and the step that leads to it.
POINTS = {
    "push.committed": "push",
    "push.hydrated": "push",
    "mark.written": "push",
    "mark.committed": "push",
    "relay.selected": "look",
    "relay.hydrated": "look",
    "relay.marked": "look",
    "relay.committed": "look",
    "outcome.acked": "work",
    "outcome.written": "work",
    "outcome.committed": "work",
    "net.read": "catch",
    "net.written": "catch",
    "net.moved": "catch",
    "net.committed": "catch",
    "net.confirmed": "catch",
}
#: Each at one of the databases in turn; the long run has them all.
CASES = [
    pytest.param(point, database, marks=[] if at % 3 == number else pytest.mark.long)
    for at, point in enumerate(POINTS)
    for number, database in enumerate(("sqlite", "postgresql", "mariadb"))
]
IDS = [str(at) for at in range(JOBS)]


def test_every_crash_point_in_the_code_has_its_test():
    here = Path(duly.record.__file__).parent
    found = {
        name
        for file in ("relay", "marks", "outcomes", "net")
        for name in re.findall(r'crash_point\("([\w.]+)"\)', (here / f"{file}.py").read_text("utf-8"))
    }
    assert set(POINTS) == found


def test_a_crash_point_is_nothing_unless_it_is_meant():
    assert crashpoints._go_on is crashpoints.crash_point
    code = (
        "from duly.record.crashpoints import crash_point as c; c('b'); print(1, flush=True); c('a'); print(2)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"DULY_CRASH_POINTS": "x, a"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (-signal.SIGKILL, "1\n") == (ended.returncode, ended.stdout)


async def die(point: str, step: str, *where: str) -> None:
    """
    Have a process of its own take a step and die at a point of it.
    """
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.record.way.victim", step, *where),
        env=os.environ | {"DULY_CRASH_POINTS": point},
    )
    try:
        assert -signal.SIGKILL == await asyncio.wait_for(victim.wait(), 120)
    finally:
        if victim.returncode is None:
            victim.kill()


async def events_of(way: Way) -> list[Event]:
    feed = Feed(way.store)
    return [event for shard in range(way.store.shards) for event in (await feed.read(shard, None, 10_000))[1]]


@pytest.mark.parametrize(("point", "migrated_url"), CASES, indirect=["migrated_url"])
async def test_a_process_that_dies_on_the_way_breaks_no_promise(
    point, server, migrated_url, link, namespace, shards
):
    await create(link, namespace, shards)
    await Store(link, namespace=namespace, shards=shards).approve("record", 1)
    where = (server.url, migrated_url, namespace)
    way = Way(*where)
    # Somebody who has read no event yet, so that none is trimmed.
    for shard in range(shards):
        await Feed(way.store).commit("witness", shard, None)
    try:
        await tell_the_story(way, point, where)
    finally:
        await way.aclose()


async def tell_the_story(way: Way, point: str, where: tuple[str, ...]) -> None:
    step = POINTS[point]
    # What comes before the step that dies.
    if step != "push":
        await commit(way.database, *fresh(way.namespace))
    if step in ("work", "catch"):
        await way.look()
    if step == "catch":
        await way.app.store()
        for lease in await claim_all(way.store, [Want("mail", JOBS, 10_000)], worker="w"):
            await way.store.ack(lease, b"2")
    await die(point, step, *where)
    acked = {event.id for event in await events_of(way) if event.verb == "acked"}

    # Another one goes on, and every row that was committed comes to its end.
    assert IDS == sorted(await rows_of(way.database))
    await way.look()
    await asyncio.wait_for(way.work(), 120)
    await way.catch()
    rows = await rows_of(way.database)
    assert [(JobState.succeeded, b"2", None)] * JOBS == [
        (rows[id_].state, bytes(rows[id_].outcome), rows[id_].relay_ms) for id_ in IDS
    ]
    # What Redis has seen end is not run again, whether the record knew or not.
    assert not acked & set(way.ran)
    events = await events_of(way)
    assert dict.fromkeys(IDS, 1) == Counter(event.id for event in events if event.verb == "acked")
    assert dict.fromkeys(IDS, 1) == Counter(event.id for event in events if event.verb == "hydrated")
    assert JOBS == len([run for run in await runs_of(way.database) if run.word == "acked"])
    job = await Views(way.store).get(key("0"))
    assert (rows["0"].revision, JobState.succeeded) == (job.revision, job.state)
    for shard in {shard_of(way.store, "mail", id_) for id_ in IDS}:
        last = await Feed(way.store).last(shard)
        assert last.counter == (await position_of(way.database, shard)).counter
