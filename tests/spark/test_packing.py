"""
Rows packed by columns are what the core would send one by one, and what is wrong is said in its words.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duly.errors import UsageError
from duly.newjob import Limits
from duly.spark.packing import Packer, pack_order, requests

NOON = datetime(2150, 6, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", "UTC")


def batch(**columns):
    size = len(next(iter(columns.values())))
    filled = {
        "id": [f"j{n}" for n in range(size)],
        "due_at": pa.array([NOON] * size, TIME),
        "payload": ['{"n": 1}'] * size,
    } | columns
    return pa.record_batch(
        {
            name: values if isinstance(values, pa.Array) else pa.array(values)
            for name, values in filled.items()
        }
    )


def packed(packer, rows):
    return packer.pack(rows, requests("run", "0/0", 0, rows.num_rows))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.sampled_from(["a", "b-1", ".", "ü", "x" * 200, "x" * 201, ""])),
            st.one_of(st.none(), st.datetimes(timezones=st.just(UTC))),
            st.one_of(
                st.none(),
                st.sampled_from(['{"a": 1}', "null", " 1 ", "1,2", "[1", "2]", "", '"' + "x" * 60 + '"']),
            ),
            st.one_of(st.none(), st.sampled_from(["mail", "web.push", "-no", ""])),
            st.one_of(st.none(), st.sampled_from(["high", "low", "normal", "urgent"])),
            st.one_of(st.none(), st.integers(-1, 9)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_by_columns_and_one_by_one_give_the_same(values):
    ids, dues, payloads, topics, priorities, attempts = zip(*values, strict=True)
    rows = batch(
        id=pa.array(ids, pa.string()),
        due_at=pa.array(dues, TIME),
        payload=pa.array(payloads, pa.string()),
        topic=pa.array(topics, pa.string()),
        priority=pa.array(priorities, pa.string()),
        max_attempts=pa.array(attempts, pa.int32()),
    )
    packer = Packer("default", "replace", Limits(payload=50))
    asked = requests("run", "0/0", 0, rows.num_rows)
    parcel = packer.pack(rows, asked)
    for at, row in enumerate(rows.to_pylist()):
        if at in parcel.rejected:
            assert parcel.rows[at].as_py() is None
            with pytest.raises(UsageError, match=re.escape(parcel.rejected[at])):
                packer.order(row)
        else:
            order = packer.order(row)
            assert pack_order(order, asked[at].tobytes()) == parcel.rows[at].as_py()
            assert (order.key.member.encode(), order.due_ms) == (
                parcel.members[at].as_py(),
                parcel.due_ms[at],
            )


def test_plain_rows_are_not_looked_at_one_by_one(monkeypatch):
    monkeypatch.setattr(Packer, "order", lambda *_: pytest.fail("one by one"))
    parcel = packed(Packer("mail"), batch(id=["a", "b"], priority=["high", None], topic=[None, "web"]))
    assert [b"mail/a", b"web/b"] == parcel.members.to_pylist()


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"id": [None]}, "id is null"),
        ({"id": ["a b"]}, "invalid job id 'a b'"),
        ({"id": [1.5]}, "invalid job id 1.5"),
        ({"due_at": pa.array([None], TIME)}, "due_at is null"),
        ({"due_at": pa.array([datetime(2150, 1, 1)], pa.timestamp("us"))}, "has no time zone"),  # noqa: DTZ001  # on purpose
        ({"due_at": ["2150-01-01T00:00:00"]}, "offset"),
        ({"due_at": ["tomorrow"]}, "is no time"),
        ({"payload": [None]}, "payload is null"),
        ({"payload": ["{"]}, "payload is no JSON"),
        ({"payload": ["[1e999]"]}, "payload has a value that workers cannot read"),
        ({"payload": ["[" * 501 + "]" * 501]}, "payload is nested 501 levels deep"),
        ({"payload": ['"' + "x" * 300_000 + '"']}, "payload is 300002 bytes, the limit is 262144"),
        ({"payload": [{"text": "x" * 300_000}]}, "payload is 300011 bytes, the limit is 262144"),
        ({"topic": ["/"]}, "invalid topic '/'"),
        ({"topic": [7]}, "invalid topic 7"),
        ({"topic": ["duly.mail"]}, "duly's own"),
        ({"priority": ["urgent"]}, "priority='urgent' must be one of"),
        ({"max_attempts": [0]}, "max_attempts=0 must be a whole number"),
        ({"ttr": ["soon"]}, "'soon' is no duration"),
        ({"ttr": [0]}, "ttr must be more than zero"),
        ({"context": ["["]}, "context is no JSON"),
        ({"context": ["[]"]}, "context must be a dict"),
        ({"callback": ["ftp://x"]}, "ftp"),
        ({"callback": ["https://10.1.2.3/"]}, "10.1.2.3 is at an address that is private"),
        ({"reply_to": ["a b"]}, "invalid reply_to 'a b'"),
    ],
)
def test_a_bad_row_is_told_why(columns, reason):
    parcel = packed(Packer("mail"), batch(**columns))
    assert re.search(reason, parcel.rejected[0])
    assert [None] == parcel.rows.to_pylist()


def test_a_row_without_any_topic_is_told_so():
    assert {0: "no topic: fill the column `topic`, or say option topic"} == packed(
        Packer(), batch(topic=pa.array([None], pa.string()))
    ).rejected


def test_structs_numbers_and_times_as_text_are_taken():
    parcel = packed(
        Packer("mail"),
        batch(
            id=[17],
            due_at=["2150-06-01T14:00:00+02:00"],
            payload=pa.array(
                [{"who": "Ada", "when": NOON, "tags": [("a", 1)]}],
                pa.struct({"who": pa.string(), "when": TIME, "tags": pa.map_(pa.string(), pa.int64())}),
            ),
        ),
    )
    assert {} == parcel.rejected
    assert b"mail/17" == parcel.members[0].as_py()
    assert int(NOON.timestamp() * 1000) == parcel.due_ms[0]
    assert b'{"who":"Ada","when":"2150-06-01T12:00:00Z","tags":{"a":1}}\r\n' in parcel.rows[0].as_py()


def test_texts_that_are_json_only_together_are_rejected():
    parcel = packed(Packer("mail"), batch(payload=["[1", "2]", "3,4", "5"]))
    assert {0, 1, 2} == parcel.rejected.keys()


def test_a_part_of_a_millisecond_is_rounded_up():
    parcel = packed(Packer("mail"), batch(due_at=pa.array([NOON + timedelta(microseconds=1)], TIME)))
    assert int(NOON.timestamp() * 1000) + 1 == parcel.due_ms[0]


def test_requests_are_the_same_for_the_same_place_and_differ_for_any_other():
    first = {bytes(each) for each in requests("run", "1/0", 0, 1000)}
    assert 1000 == len(first)
    assert bytes(requests("run", "1/0", 500, 1)[0]) in first
    for other in (
        requests("other", "1/0", 0, 1000),
        requests("run", "1/1", 0, 1000),
        requests("run", "1/0", 1000, 1000),
    ):
        assert not first & {bytes(each) for each in other}
