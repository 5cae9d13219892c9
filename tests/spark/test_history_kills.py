"""
kill -9 of the whole process tree, wherever it hurts: every event is in the table, once.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from duly.spark.history.pipeline import HistoryOptions, history
from duly.spark.history.reading import read_gaps, read_history
from tests.spark.happenings import Happenings, identity

pytestmark = pytest.mark.timeout(600)
CHILD = Path(__file__).with_name("history_child.py")
PLACES = (
    "batch planned",
    "files written, not committed",
    "committed, not settled",
    "settled, not in the checkpoint",
)


@pytest.fixture
def queue(valkey, namespace):
    return Happenings(valkey.url, namespace, shards=2)


@pytest.fixture
def options(queue, tmp_path):
    return HistoryOptions(
        url=queue.url, namespace=queue.namespace, table=str(tmp_path / "history"), max_rows=100
    )


def start(options, place, conf):
    words = (options.url, options.namespace, options.table, place, str(options.max_rows), json.dumps(conf))
    return subprocess.Popen([sys.executable, CHILD, *words], stdout=subprocess.PIPE, text=True)


def tree(root):
    """
    A process and all that came from it.
    """
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in listed.splitlines())
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def kill(child):
    for pid in tree(child.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


def check(spark, options, emitted):
    history(spark, options)
    columns = ("shard", "epoch", "counter", "row")
    rows = [tuple(row) for row in read_history(spark, options.table).select(*columns).collect()]
    assert len(rows) == len(set(rows))
    assert {identity(event) for event in emitted} == set(rows)
    assert [] == read_gaps(options.table)


@pytest.mark.parametrize("place", PLACES[3:])
def test_a_kill_in_a_bad_place_loses_and_doubles_nothing(spark, spark_conf, queue, options, place):
    killed_in(spark, spark_conf, queue, options, place)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_in_any_named_place_loses_and_doubles_nothing(spark, spark_conf, queue, options, place):
    killed_in(spark, spark_conf, queue, options, place)
    # And once more, without the checkpoint.
    before = {identity(event) for event in queue.events()}
    queue.live(60, start=500)
    emitted = [event for event in queue.events() if identity(event) not in before]
    shutil.rmtree(options.checkpoint_path)
    rows = read_history(spark, options.table).count()
    assert len(emitted) == history(spark, options).rows
    assert rows + len(emitted) == read_history(spark, options.table).count()


def killed_in(spark, spark_conf, queue, options, place):
    queue.live(60)
    emitted = queue.events()
    child = start(options, place, spark_conf)
    try:
        lines = iter(child.stdout.readline, "")
        reached = next((line for line in lines if line.startswith("reached")), "")
    except BaseException:
        kill(child)
        raise
    kill(child)
    assert reached
    check(spark, options, emitted)


@pytest.mark.long
def test_kills_at_random_lose_and_double_nothing(spark, spark_conf, queue, options):
    chance = random.Random(20)
    emitted = {}
    for run in range(10):
        queue.live(60, start=100 * run)
        emitted |= {identity(event): event for event in queue.events()}
        child = start(options, "", spark_conf)
        first = child.stdout.readline()
        # From the first batch on, at any moment; some end before.
        with suppress(subprocess.TimeoutExpired):
            child.wait(chance.uniform(0, 3))
        kill(child)
        assert first
    check(spark, options, emitted.values())
