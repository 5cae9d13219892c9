"""
Events as rows: derived from what the core says they are, and the same however they are read.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from duly.errors import LayoutMismatch, UsageError
from duly.events import Event
from duly.records import FIRST_HEAD, HEAD, Head
from duly.spark.events.places import read_places, slices, write_places
from duly.spark.events.schema import ARROW, EVENTS, PACKED, PACKED_ARROW
from duly.spark.events.shards import Shards
from duly.spark.events.source import EventOptions, EventsReader
from duly.spark.events.unpacking import FIRST, FULL, batch_of, entries_of
from tests.spark.happenings import Happenings


@pytest.fixture
def queue(valkey, namespace):
    return Happenings(valkey.url, namespace, shards=2)


def reader(queue, **options):
    return EventsReader(EventOptions.of({"url": queue.url, "namespace": queue.namespace, **options}))


def read(found, start, end):
    batches = [batch for part in found.partitions(start, end) for batch in found.read(part)]
    return pa.Table.from_batches(batches, ARROW).to_pylist()


def row_of(event):
    row = {name: getattr(event, name) for name in Event.__struct_fields__}
    return {**row, "verb": str(event.verb), "state": event.state.name}


def test_the_columns_are_the_fields_of_an_event():
    kinds = {"int": "bigint", "int | None": "bigint", "str": "string", "Verb": "string", "JobState": "string"}
    fields = [
        (field.name, kinds[Event.__annotations__[field.name]]) for field in msgspec.structs.fields(Event)
    ]
    assert fields == [(field.name, field.dataType.simpleString()) for field in EVENTS]
    assert EVENTS.names == ARROW.names
    assert PACKED.names == PACKED_ARROW.names


def test_heads_are_read_as_the_core_reads_them():
    assert (HEAD.size, FIRST_HEAD.size) == (FULL.itemsize, FIRST.itemsize)
    assert Head._fields == FULL.names
    data = bytes(range(1, HEAD.size + 1))
    numbers = [name for name in FULL.names if FULL.fields[name][0].kind == "u"]
    read = Head._make(HEAD.unpack(data))
    assert [getattr(read, name) for name in numbers] == [
        int(np.frombuffer(data, FULL)[0][name]) for name in numbers
    ]


def test_rows_are_what_the_feed_tells(queue):
    queue.live(60)
    queue.live(60, start=40)
    events = queue.events()
    assert {"enqueued", "claimed", "acked", "retried", "buried", "cancelled"} <= {str(e.verb) for e in events}
    found = reader(queue)
    end = found.latestOffset({}, ReadAllAvailable())
    assert [row_of(event) for event in events] == read(found, {}, end)


def test_packed_entries_hold_the_same_rows(queue):
    queue.live(60)
    found = reader(queue, packed="true")
    end = found.latestOffset({}, ReadAllAvailable())
    rows = []
    for part in found.partitions({}, end):
        for packed in found.read(part):
            assert PACKED_ARROW == packed.schema
            rows += batch_of(part.shard, entries_of(packed)).to_pylist()
    assert [row_of(event) for event in queue.events()] == rows


def test_heads_of_jobs_that_never_ran_stand_beside_others_in_one_entry(queue):
    # Rows of such entries are compared above; here is that there are any.
    queue.live(30)
    with Shards(queue.url, queue.namespace) as shards:
        first = shards.first(0)
    assert first.rows * FIRST_HEAD.size < len(first.heads) < first.rows * HEAD.size


def test_a_batch_holds_no_more_rows_than_the_limit_and_none_is_left_out(queue):
    for at in range(6):
        queue.live(20, start=20 * at)
    found = reader(queue)
    start, rows = {}, []
    while True:
        end = found.latestOffset(start, ReadMaxRows(50))
        if end == start:
            break
        batch = read(found, start, end)
        # Shares of 25 for each of two shards; a single entry may be larger.
        assert 0 < len(batch) <= 50
        rows += batch
        start = end
    assert {(e.shard, e.counter, e.row) for e in queue.events()} == {
        (r["shard"], r["counter"], r["row"]) for r in rows
    }
    assert len(queue.events()) == len(rows)


def test_what_comes_after_the_start_of_an_available_now_run_waits_for_the_next(queue):
    queue.live(10)
    found = reader(queue)
    found.prepareForTriggerAvailableNow()
    before = len(queue.events())
    queue.live(10, start=10)
    assert before == len(read(found, {}, found.latestOffset({}, ReadAllAvailable())))


def test_offsets_survive_being_written(queue):
    queue.live(10)
    end = reader(queue).latestOffset({}, ReadAllAvailable())
    assert end == write_places(read_places(json.loads(json.dumps(end))))
    assert end == reader(queue, startingOffsets=json.dumps(end)).initialOffset()


def test_ranges_are_cut_without_a_hole():
    assert [(1, 3), (4, 6), (7, 10)] == slices(0, 10, 3)
    assert [(5, 5)] == slices(4, 5, 8)
    assert [] == slices(5, 5, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "needs the option url"),
        ({"url": "redis://x", "maxRow": "1"}, "no option 'maxrow'"),
        ({"url": "redis://x", "maxRows": "0"}, "whole number from 1 on"),
        ({"url": "redis://x", "failOnDataLoss": "maybe"}, "true or false"),
        ({"url": "redis://x", "packed": "1"}, "packed is true or false, not '1'"),
    ],
)
def test_a_wrong_option_is_named(options, said):
    with pytest.raises(UsageError, match=said):
        EventOptions.of(options)


def test_a_namespace_that_nobody_made_is_named(valkey):
    with Shards(valkey.url, "nobody") as shards, pytest.raises(LayoutMismatch, match="'nobody'"):
        shards.count()
