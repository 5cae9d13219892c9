"""
Workers that are killed around the commits of their handlers: each effect is there once.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import duly.record
from duly import JobState
from tests.eventually import eventually
from tests.record.effects import effects_in
from tests.record.transaction_worker import app_of
from tests.record.working import working

JOBS = 5
KILLS = 6
MOST_S = 0.06  #: between the begin of a handler and the kill
WITHIN_S = 120

#: Every crash point of a transaction, and whether what it did is there after it.
POINTS = {"transaction.begun": False, "transaction.written": False, "transaction.committed": True}
#: Each at one of the databases in turn; the long run has them all.
CASES = [
    pytest.param(point, run_in, database, marks=[] if (at + other) % 3 == number else pytest.mark.long)
    for at, point in enumerate(POINTS)
    for other, run_in in enumerate(("loop", "thread"))
    for number, database in enumerate(("sqlite", "postgresql", "mariadb"))
]


@pytest.fixture
def effects(migrated_url):
    with effects_in(migrated_url) as effects:
        yield effects


def test_every_crash_point_of_a_transaction_has_its_test():
    here = Path(duly.record.__file__).parent
    found = {
        name
        for file in here.glob("transaction*.py")
        for name in re.findall(r'crash_point\("([\w.]+)"\)', file.read_text("utf-8"))
    }
    assert set(POINTS) == found


@asynccontextmanager
async def worker(*where, points=""):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.record.transaction_worker", *where),
        env=os.environ | {"DULY_CRASH_POINTS": points},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize(("point", "run_in", "migrated_url"), CASES, indirect=["migrated_url"])
async def test_a_worker_that_dies_around_a_commit_repeats_no_effect(
    point, run_in, migrated_url, valkey, namespace, effects
):
    where = (valkey.url, migrated_url, namespace, run_in)
    async with app_of(*where) as app:
        for number in range(JOBS):
            await app.enqueue("mail", {}, id=str(number))
        async with worker(*where, points=point) as victim:
            assert -signal.SIGKILL == await asyncio.wait_for(victim.wait(), WITHIN_S)
        committed = [id_ for id_, _ in effects.all()]
        assert POINTS[point] == bool(committed)
        assert sorted(committed) == ended_of(effects)

        async with working(app):
            await eventually(lambda: JOBS == len(ended_of(effects)), WITHIN_S)
            record = await app.record()

            async def agreed():
                assert not (await record.reconcile(apply=False)).found

            # Redis is told how those ended that were committed, and they do not begin again.
            await eventually(agreed, WITHIN_S)
        assert set(committed).isdisjoint(app.ran)
    check(effects)
    assert JOBS == len(effects.all())


def ended_of(effects):
    return sorted(row.id for row in effects.execute("SELECT id FROM duly_jobs WHERE state >= 3"))


def check(effects):
    """
    A job has its effect once if it has succeeded, and none otherwise.
    """
    rows = effects.execute("SELECT id, state, outcome FROM duly_jobs")
    succeeded = [row for row in rows if row.state == JobState.succeeded]
    assert dict.fromkeys((row.id for row in succeeded), 1) == Counter(id_ for id_, _ in effects.all())
    assert {b'"sent"'} == {bytes(row.outcome) for row in succeeded}
    found = effects.execute("SELECT id FROM duly_attempts WHERE word = 'acked'")
    assert sorted(row.id for row in succeeded) == sorted(row.id for row in found)


async def kill_at_random(kills, run_in, migrated_url, valkey, namespace, effects):
    """
    Kill one worker after another while it has jobs, then have one do what is left.
    """
    seed = random.randrange(2**32)
    print("seed", seed)
    random_ = random.Random(seed)
    where = (valkey.url, migrated_url, namespace, run_in)
    sent = 0
    async with app_of(*where) as app:
        for _ in range(kills):
            for _ in range(JOBS):
                await app.enqueue("mail", {}, id=str(sent))
                sent += 1
            async with worker(*where) as victim:
                assert victim.stdout
                assert await asyncio.wait_for(victim.stdout.readline(), WITHIN_S)
                await asyncio.sleep(random_.uniform(0, MOST_S))
                victim.kill()
        async with working(app):
            await eventually(lambda: sent == len(ended_of(effects)), WITHIN_S + kills)
    check(effects)


@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_workers_that_are_killed_at_random_repeat_no_effect(
    run_in, migrated_url, valkey, namespace, effects
):
    await kill_at_random(KILLS, run_in, migrated_url, valkey, namespace, effects)


@pytest.mark.long
@pytest.mark.parametrize("run_in", ["loop", "thread"])
async def test_five_hundred_killed_workers_repeat_no_effect(run_in, migrated_url, valkey, namespace, effects):
    # Together: on three databases, in both kinds of handlers, on one shard and on several.
    await kill_at_random(42, run_in, migrated_url, valkey, namespace, effects)
