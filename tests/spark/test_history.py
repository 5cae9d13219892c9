"""
Every event once in the table, whatever was lost on the way, and what is missing is named.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark import InheritableThread

from duly.errors import UsageError
from duly.spark.history import upkeep
from duly.spark.history.batch import BEGUN
from duly.spark.history.pipeline import HistoryOptions, HistoryStopped, history
from duly.spark.history.ranges import missing, runs_of
from duly.spark.history.reading import read_gaps, read_history
from duly.spark.history.table import HistoryTable, Overtaken
from duly.spark.history.upkeep import compact
from tests.servers import Server, binary
from tests.spark.happenings import Happenings, identity


@pytest.fixture
def queue(valkey, namespace):
    return Happenings(valkey.url, namespace)


@pytest.fixture
def options(queue, tmp_path):
    return options_of(queue, tmp_path)


def options_of(queue, tmp_path):
    return HistoryOptions(url=queue.url, namespace=queue.namespace, table=str(tmp_path / "history"))


def rows_of(spark, path):
    columns = ("shard", "epoch", "counter", "row")
    return sorted(tuple(row) for row in read_history(spark, path).select(*columns).collect())


def identities(events):
    return sorted(identity(event) for event in events)


# -- what is kept ------------------------------------------------------------------------------------------


def test_every_event_is_in_the_table_once_and_is_trimmed_behind(spark, valkey, namespace, tmp_path):
    queue = Happenings(valkey.url, namespace, shards=2)
    options = options_of(queue, tmp_path)
    queue.live(120)
    first = queue.events()
    assert len(first) == history(spark, options).rows
    # One stays on each shard: it tells whether the server still has the same past.
    assert 2 == len({(event.shard, event.counter) for event in queue.events()})
    assert queue.events()[0].counter == queue.consumers()["history"]
    queue.live(60, start=200)
    seen = {identity(event) for event in first}
    later = [event for event in queue.events() if identity(event) not in seen]
    assert len(later) == history(spark, options).rows
    assert 0 == history(spark, options).rows
    assert identities(first + later) == rows_of(spark, options.table)
    folders = {
        path.parent.relative_to(options.table).parts for path in (tmp_path / "history").glob("*/*/*.parquet")
    }
    assert {"topic=mail", "topic=sms.de"} == {topic for _, topic in folders}
    assert all(date.startswith("date=20") for date, _ in folders)


def test_it_goes_on_until_it_is_stopped(spark, queue, options):
    queue.live(10)
    going = replace(options, every="100ms")
    came = []
    thread = InheritableThread(
        target=lambda: history(spark, going, once=False, tell=came.append), daemon=True
    )
    thread.start()
    poll(lambda: came)
    queue.live(10, start=10)
    last = max(event.counter for event in queue.events())
    poll(lambda: last == queue.consumers()["history"])
    for query in spark.streams.active:
        query.stop()
    thread.join(timeout=100)
    assert not thread.is_alive()
    assert sum(came) == len(rows_of(spark, options.table)) == len(set(rows_of(spark, options.table)))


def poll(check, within_s=200):
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_small_batches_add_up_to_the_same(spark, queue, options):
    for at in range(4):
        queue.live(20, start=20 * at)
    events = queue.events()
    run = history(spark, replace(options, max_rows=60))
    assert run.batches > 2
    assert identities(events) == rows_of(spark, options.table)


def test_a_lost_checkpoint_costs_nothing(spark, queue, options):
    queue.live(40)
    events = queue.events()
    history(spark, options)
    shutil.rmtree(options.checkpoint_path)
    queue.live(40, start=40)
    seen = {identity(event) for event in events}
    later = [event for event in queue.events() if identity(event) not in seen]
    assert len(later) == history(spark, options).rows
    assert identities(events + later) == rows_of(spark, options.table)


def test_a_batch_that_is_taken_again_adds_nothing(spark, queue, options):
    queue.live(40)
    history(spark, options)
    events = rows_of(spark, options.table)
    # As if the process had ended between the table's commit and Spark's own.
    shutil.rmtree(f"{options.checkpoint_path}/commits")
    assert 0 == history(spark, options).rows
    assert events == rows_of(spark, options.table)


def test_nothing_is_trimmed_before_the_table_has_it(spark, queue, options, monkeypatch):
    queue.live(40)
    events = identities(queue.events())

    def refuse(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(HistoryStopped):
        patch.setattr(HistoryTable, "append", refuse)
        history(spark, options)
    assert 0 == queue.consumers()["history"]
    assert events == identities(queue.events())
    assert len(events) == history(spark, options).rows


def test_a_batch_that_the_table_holds_in_part_is_written_only_as_far_as_it_is_new(spark, queue, options):
    queue.hold("somebody slow")
    queue.live(20)
    history(spark, options)
    queue.live(20, start=20)
    # Another checkpoint brings the table on, and the first one, which knows nothing of it, plans a batch that
    # begins before that.
    history(spark, replace(options, checkpoint=f"{options.checkpoint_path}-other", consumer="other"))
    queue.live(20, start=40)
    history(spark, options)
    assert identities(queue.events()) == rows_of(spark, options.table)


def test_two_pipelines_on_one_table_do_not_write_twice(spark, queue, options):
    queue.live(20)
    history(spark, options)
    table = HistoryTable(options.table)
    mine, other = table.open(), table.open()
    progress = table.progress()
    further = replace(
        progress, places={0: replace(progress.places[0], counter=progress.places[0].counter + 5)}
    )
    table.append(other, [], further)
    with pytest.raises(Overtaken, match="let one of them go on"):
        table.append(mine, [], further)


def test_compaction_keeps_rows_and_progress(spark, queue, options):
    for at in range(3):
        queue.live(20, start=20 * at)
        history(spark, options)
    before = rows_of(spark, options.table)
    table = HistoryTable(options.table)
    progress = table.progress()
    done = compact(options.table, keep_hours=0)
    assert done.files_after < done.files_before
    assert done.removed >= done.files_before
    assert before == rows_of(spark, options.table)
    assert progress == table.progress()
    assert 0 == history(spark, options).rows


def test_a_batch_beside_a_compaction_is_not_forgotten(spark, queue, options, monkeypatch):
    queue.live(40)
    assert 1 < history(spark, replace(options, max_rows=20)).batches
    table = HistoryTable(options.table)
    progress = table.progress()
    [place] = progress.places.values()
    further = replace(progress, places={0: replace(place, counter=place.counter + 5)})

    class Slow(HistoryTable):
        def progress(self, opened=None):
            found = super().progress(opened)
            table.append(table.open(), [], further)
            return found

    monkeypatch.setattr(upkeep, "HistoryTable", Slow)
    done = compact(options.table)
    assert done.files_after < done.files_before
    assert further == table.progress()


def test_how_far_a_table_came_outlives_the_commits_of_its_batches(spark, queue, options):
    queue.live(40)
    history(spark, replace(options, max_rows=20))
    table = HistoryTable(options.table)
    progress = table.progress()
    compact(options.table)
    long_ago_s = time.time() - 365 * 86_400
    for commit in Path(options.table, "_delta_log").glob("*.json"):
        os.utime(commit, (long_ago_s, long_ago_s))
    opened = table.open()
    opened.create_checkpoint()
    opened.cleanup_metadata()
    assert ["OPTIMIZE"] == [commit["operation"] for commit in table.open().history()]
    assert progress == table.progress()


def test_plain_parquet_holds_the_same_rows(spark, queue, options):
    queue.live(30)
    events = queue.events()
    plain = replace(options, format="parquet")
    history(spark, plain)
    assert 0 == history(spark, plain).rows
    assert identities(events) == rows_of(spark, options.table)
    shutil.rmtree(options.checkpoint_path)
    with pytest.raises(UsageError, match="belong to a checkpoint"):
        history(spark, plain)


# -- what is missing ---------------------------------------------------------------------------------------


def test_what_was_trimmed_before_the_first_run_is_noted(spark, valkey, namespace, tmp_path):
    queue = Happenings(valkey.url, namespace, max_event_rows=20)
    queue.live(60)
    first = min(event.counter for event in queue.events())
    options = options_of(queue, tmp_path)
    history(spark, options)
    [gap] = read_gaps(options.table)
    assert (0, 1, first - 1, BEGUN) == (gap.shard, gap.first, gap.last, gap.why)


def test_a_gap_stops_the_pipeline_and_names_its_range(spark, valkey, namespace, tmp_path):
    queue = Happenings(valkey.url, namespace, max_event_rows=60)
    options = options_of(queue, tmp_path)
    queue.live(10)
    history(spark, options)
    last = queue.consumers()["history"]
    for at in range(5):
        queue.live(30, start=100 + 30 * at)
    first = min(event.counter for event in queue.events())
    assert first > last + 1
    said = f"events {last + 1} to {first - 1} of shard 0 are lost: trimmed before they were read"
    with pytest.raises(HistoryStopped, match=said):
        history(spark, options)
    held = rows_of(spark, options.table)
    assert [] == read_gaps(options.table)

    events = queue.events()
    history(spark, replace(options, fail_on_data_loss=False))
    [gap] = read_gaps(options.table)
    assert (last + 1, first - 1) == (gap.first, gap.last)
    assert sorted(held + identities(events)) == rows_of(spark, options.table)


def test_a_rolled_back_server_stops_the_pipeline(spark, namespace, tmp_path):
    server = Server(binary("valkey")).start()
    try:
        queue = Happenings(server.url, namespace)
        options = options_of(queue, tmp_path)
        queue.live(10)
        server.kill()
        shutil.copytree(server.dir / "appendonlydir", tmp_path / "backup")
        server.start()
        queue.live(10, start=10)
        history(spark, options)
        last = queue.consumers()["history"]
        held = rows_of(spark, options.table)

        server.kill()
        shutil.rmtree(server.dir / "appendonlydir")
        shutil.copytree(tmp_path / "backup", server.dir / "appendonlydir")
        server.start()
        # It goes on, past the place where the history stands: only the nonce tells.
        queue.live(40, start=50)
        newest = max(event.counter for event in queue.events())
        assert newest > last
        said = rf"events {last + 1} to \? of shard 0 are lost: .* rolled back .* newest event is {newest}"
        with pytest.raises(HistoryStopped, match=said):
            history(spark, options)

        loose = replace(options, fail_on_data_loss=False)
        history(spark, loose)
        [gap] = read_gaps(options.table)
        assert (0, last + 1, None) == (gap.shard, gap.first, gap.last)
        assert "rolled back" in gap.why
        queue.live(10, start=100)
        later = [event for event in queue.events() if event.counter > newest]
        history(spark, loose)
        assert sorted(held + identities(later)) == rows_of(spark, options.table)
    finally:
        server.stop()


def test_an_emptied_server_is_told_from_a_new_one(spark, queue, options, valkey):
    queue.live(10)
    history(spark, options)
    held = rows_of(spark, options.table)
    again = Happenings(valkey.url, queue.namespace)
    wipe(queue)
    again.live(10)
    with pytest.raises(HistoryStopped, match="emptied and began anew"):
        history(spark, options)
    history(spark, replace(options, fail_on_data_loss=False))
    [gap] = read_gaps(options.table)
    assert "emptied" in gap.why
    found = rows_of(spark, options.table)
    assert len(held) < len(found) == len(set(found))
    assert 2 == len({row[1] for row in found})


def wipe(queue):
    import redis

    with redis.Redis.from_url(queue.url) as client:
        keys = list(client.scan_iter(f"{{{queue.namespace}:*"))
        client.delete(*keys)


def test_a_table_of_another_namespace_is_left_alone(spark, queue, options, valkey):
    queue.live(5)
    history(spark, options)
    other = Happenings(valkey.url, f"{queue.namespace}other")
    other.live(5)
    with pytest.raises(UsageError, match=f"the history of namespace '{queue.namespace}'"):
        history(spark, replace(options, namespace=other.namespace))


def test_no_history_is_said_to_be_none(spark, tmp_path):
    with pytest.raises(UsageError, match="there is no history at"):
        read_history(spark, str(tmp_path / "none"))


# -- ranges ------------------------------------------------------------------------------------------------


def test_runs_and_what_they_leave_out():
    assert [(1, 3), (7, 7)] == runs_of([1, 1, 2, 3, 7, 7])
    assert [] == missing([(4, 6), (1, 3)], 1, 6)
    assert [(1, 2), (5, 6), (9, 10)] == missing([(3, 4), (7, 8)], 1, 10)
    assert [(5, 9)] == missing([], 5, 9)
    assert [] == missing([], 5, 4)
