"""
The record of a job has two readers, in Lua and in Python: they must agree on every byte.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files
from struct import Struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import records
from duly.codec import Envelope
from duly.job import JobKey, JobState, Lane, Order
from duly.keys import ShardKeys
from duly.records import (
    BASE,
    HEAD,
    INLINE_BYTES,
    OPTIONS,
    RUN,
    UNKNOWN,
    Terms,
    job_of,
    lease_of,
    leased_job,
    options_of,
    read,
)

LIB = files("duly.scripts") / "lib"
LUA = (LIB / "records.lua").read_text("utf-8")


def constants():
    """
    The numbers and strings that records.lua gives names to.
    """
    found = {}
    for line in re.findall(r"^local ([A-Z][A-Z_, \n]*?) =\s+(.+)$", LUA, re.MULTILINE):
        names, values = re.findall(r"\w+", line[0]), re.findall(r"'[^']*'|\{.*\}|[^,\s][^,]*", line[1])
        if len(names) == len(values):
            found.update(zip(names, values, strict=True))
    return found


def struct_of(lua_format):
    """
    The same format in the words of Python.
    """
    words = re.findall(r"I8|I4|I2|c\d+|[BH]", lua_format)
    assert ">" + "".join(words) == lua_format.strip("'")
    return ">" + "".join(
        {"I8": "Q", "I4": "I", "I2": "H"}.get(word, f"{word[1:]}s" if word[0] == "c" else word)
        for word in words
    )


CONSTANTS = constants()


@pytest.mark.parametrize(("name", "ours"), [("BASE", BASE), ("OPTIONS", OPTIONS), ("RUN", RUN)])
def test_both_pack_in_the_same_format(name, ours):
    assert ours.format == struct_of(CONSTANTS[name])


@pytest.mark.parametrize(
    ("name", "ours"), [("BASE_BYTES", BASE), ("OPTIONS_BYTES", OPTIONS), ("HEAD_BYTES", HEAD)]
)
def test_both_know_the_same_sizes(name, ours):
    assert ours.size == int(CONSTANTS[name])


def test_both_number_states_alike():
    assert {state.name.upper(): str(state.value) for state in JobState} == {
        name: CONSTANTS[name] for name in (state.name.upper() for state in JobState)
    }
    changes = (LIB / "changes.lua").read_text("utf-8")
    [words] = re.findall(r"^local STATES = \{\[0\] = (.*)\}$", changes, re.MULTILINE)
    assert [state.name for state in JobState] == re.findall(r"'(\w+)'", words)


def test_both_number_lanes_alike():
    named = [int(CONSTANTS[lane.name.upper()]) for lane in (Lane.callback, Lane.suspect, Lane.isolated)]
    assert [Lane.callback, Lane.suspect, Lane.isolated] == named
    # What a record names has two bits.
    assert [lane for lane in Lane if lane < 4] == list(Lane)[:-2]
    changes = (LIB / "changes.lua").read_text("utf-8")
    assert ", ".join(lane.name for lane in Lane) + "), then its wake list" in changes.replace("\n--", "")
    names = [key.partition("}:")[2] for key in ShardKeys("n", 0).lanes("topic")]
    assert [*(f"ready:topic:{lane.name}" for lane in Lane), "wake:topic", "due:topic"] == names


def test_both_know_the_same_words_for_unknown_and_long():
    assert (UNKNOWN, INLINE_BYTES) == (int(CONSTANTS["UNKNOWN"]), int(CONSTANTS["INLINE_BYTES"]))


def test_marks_are_bits_of_their_own_and_fit_into_a_byte():
    names = ("AWAITED", "REPLACED", "BODY_DROPPED", "ERROR_KEPT", "REPLY", "HALF")
    marks = [int(CONSTANTS[name]) for name in names]
    assert [1 << at for at in range(len(marks))] == marks
    assert (records.HALF, True) == (marks[-1], marks[-1] < 256)


def test_offsets_into_a_record_are_where_the_format_puts_them():
    """
    The quick paths cut strings at fixed places; Lua counts from 1.
    """

    def at(field):
        before = records.Head._fields[: records.Head._fields.index(field)]
        return Struct(">" + "".join(re.findall(r"\d*[A-Za-z]", HEAD.format)[: len(before)])).size + 1

    fields = {"ENDED_AT": "ended_ms", "TOKEN_AT": "token", "STARTED_AT": "started_ms", "DUE_AT": "due_ms"}
    fields["REVISION_AT"] = "revision"
    assert {name: at(field) for name, field in fields.items()} == {
        name: int(CONSTANTS[name]) for name in fields
    }
    assert HEAD.size + 1 == int(CONSTANTS["OPTIONS_AT"])


u64 = st.integers(0, 2**53)
u32 = st.integers(0, UNKNOWN)
heads = st.builds(
    records.Head,
    mark=st.builds(lambda state, lane: state + 8 * lane + 64, st.sampled_from(JobState), st.integers(0, 3)),
    attempts=st.integers(0, 65535),
    crashes=st.integers(0, 65535),
    verb=st.integers(0, 5),
    marks=st.integers(0, 63),
    entry=u64,
    ended_ms=u64,
    lateness_ms=u32,
    token=u64,
    nonce=st.binary(min_size=8, max_size=8),
    worker=st.binary(min_size=8, max_size=8),
    started_ms=u64,
    due_ms=u64,
    revision=u64,
    request=st.binary(min_size=6, max_size=6),
)


@given(heads, st.binary(max_size=50))
def test_a_record_reads_as_it_was_written(head, body):
    found = read(HEAD.pack(*head) + body)
    assert (head, body, False) == (found.head, found.body, found.apart)
    assert (JobState(head.mark & 7), Lane(head.mark >> 3 & 3)) == (found.head.state, found.head.lane)
    assert (0, 0, UNKNOWN, 0, 0) == found[1:6]


@given(
    st.integers(0, 2**48),
    st.binary(min_size=6, max_size=6),
    st.binary(max_size=50),
    st.sampled_from([Lane.normal, Lane.high, Lane.low, Lane.callback]),
)
def test_a_record_that_waits_for_its_first_run_reads_as_it_was_written(revision, request, body, lane):
    found = read(BASE.pack(8 * lane, revision, request) + body)
    assert (JobState.scheduled, lane, revision, request, 0, 0, body) == (
        found.head.state,
        found.head.lane,
        found.head.revision,
        found.head.request,
        found.head.due_ms,
        found.head.attempts,
        found.body,
    )


orders = st.builds(
    Order,
    st.just(JobKey("t", "1")),
    st.binary(max_size=9),
    expires_ms=st.integers(0, 2**47),
    ttr_ms=st.integers(0, UNKNOWN),
    retain_s=st.none() | st.integers(0, UNKNOWN - 1),
    max_crashes=st.integers(0, 255),
    envelope=st.binary(max_size=9),
)


@given(heads, orders)
def test_options_read_as_they_were_asked_for(head, order):
    options = options_of(order)
    head = head._replace(mark=head.mark + (32 if options else 0))
    found = read(HEAD.pack(*head) + options + order.envelope + order.payload)
    retain = UNKNOWN if order.retain_s is None else order.retain_s
    assert (order.expires_ms, order.ttr_ms, retain, order.max_crashes, len(order.envelope)) == found[1:6]
    assert order.envelope + order.payload == found.body


#: What a later release may add: a byte that names a part, one for its length, its value.
parts = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=255)), max_size=4).map(
    lambda some: b"".join(bytes([name, len(value)]) + value for name, value in some)
)
with_options = orders.filter(options_of)


def with_parts(options, parts):
    return options[:-2] + len(parts).to_bytes(2, "big") + parts


@given(heads, with_options, parts)
def test_parts_that_nobody_knows_are_read_past(head, order, parts):
    options = with_parts(options_of(order), parts)
    whole = order.envelope + order.payload
    for record, at in (
        (HEAD.pack(*head._replace(mark=head.mark + 32)), HEAD.size),
        (BASE.pack(head.mark - 64 + 32, head.revision, head.request), BASE.size),
    ):
        found = read(record + options + whole)
        assert (parts, whole, len(order.envelope)) == (found.parts, found.body, found.envelope_bytes)
        assert (order.expires_ms, order.ttr_ms, order.max_crashes) == (
            found.expires_ms,
            found.ttr_ms,
            found.max_crashes,
        )
        assert (at, at + len(options)) == records.options_at(record + options + whole)
        assert len(options) == records.options_size(record + options + whole, at)


@given(heads, with_options, parts, st.booleans())
def test_a_lease_and_a_job_are_the_same_with_parts_that_nobody_knows(head, order, parts, apart):
    head = head._replace(mark=(head.mark - (head.mark & 7) + JobState.running + 32) | (128 if apart else 0))
    whole = order.envelope + order.payload
    body, elsewhere = (b"", whole) if apart else (whole, b"")
    plain = HEAD.pack(*head) + options_of(order) + body
    later = HEAD.pack(*head) + with_parts(options_of(order), parts) + body
    leases = [
        lease_of(b"mail/a", one, elsewhere, Terms("mail", 3, 1_000, 500, 50, 50, 0)) for one in (plain, later)
    ]
    assert leases[0] == msgspec.structs.replace(leases[1], record=leases[0].record)
    # Parts that are known, and may be among these, tell nothing but two times.
    [told, same] = [replace(leased_job(each, Envelope()), created_ms=0, scheduled_ms=0) for each in leases]
    assert told == same
    assert (order.payload, head.marks >> 5) == (leases[1].payload, leases[1].half)


def test_an_order_without_options_costs_nothing():
    assert b"" == options_of(Order(JobKey("t", "1"), b"x"))
    assert b"" != options_of(Order(JobKey("t", "1"), b"x", retain_s=0))


@pytest.mark.parametrize(
    ("option", "asked", "kept"),
    [("ttr_ms", 10**12, UNKNOWN), ("retain_s", 10**12, UNKNOWN - 1), ("max_crashes", 1_000_000, 255)],
)
def test_what_is_more_than_a_record_holds_is_as_much_as_it_holds(option, asked, kept):
    """
    Orders share a script call: one that cannot be written would be the failure of all.
    """
    options = OPTIONS.unpack(options_of(Order(JobKey("t", "1"), b"x", **{option: asked})))
    assert (
        kept == dict(zip(("expires_ms", "ttr_ms", "retain_s", "max_crashes"), options, strict=False))[option]
    )


@given(heads, orders, st.integers(1, 10**6), st.booleans())
def test_a_lease_tells_what_the_record_says(head, order, ttr_ms, apart):
    options = options_of(order)
    mark = head.mark - (head.mark & 7) + JobState.running
    head = head._replace(mark=mark + (32 if options else 0) + (128 if apart else 0))
    whole = order.envelope + order.payload
    record = HEAD.pack(*head) + options + (b"" if apart else whole)
    lease = lease_of(
        b"mail/a:b", record, whole if apart else b"", Terms("mail", 3, 1_000, 500, 50, ttr_ms, 77)
    )
    ttr_ms = order.ttr_ms or ttr_ms
    assert (JobKey("mail", "a:b"), 3, head.revision, head.token, head.nonce) == (
        lease.key,
        lease.shard,
        lease.revision,
        lease.token,
        lease.nonce,
    )
    assert (head.attempts + 1, head.crashes, head.due_ms, head.started_ms, max(head.due_ms, 77)) == (
        lease.attempt,
        lease.crashes,
        lease.due_ms,
        lease.claimed_ms,
        lease.floor_ms,
    )
    assert (order.payload, order.envelope, ttr_ms, 1_000 + min(500, ttr_ms + 50)) == (
        lease.payload,
        lease.envelope,
        lease.ttr_ms,
        lease.expires_ms,
    )
    asked = Lane(head.mark >> 3 & 3)
    suspected = Lane.suspect if head.crashes == 1 else Lane.isolated
    assert lease.lane is (suspected if head.crashes and asked is not Lane.callback else asked)


def test_a_job_tells_what_get_found():
    order = Order(JobKey("mail", "a"), b'{"n":1}', lane=Lane.high, envelope=b'{"max_attempts":7}', ttr_ms=9)
    record = (
        BASE.pack(JobState.scheduled + 8 * Lane.high + 32, 5, b"reques") + options_of(order) + order.envelope
    )
    job = job_of("mail/a", [record + order.payload, b"", b"", b"", b"1500", b""], "w1")
    assert ("mail", "a", JobState.scheduled, 5, "high", b'{"n":1}', 1500, 9, 7, None, "w1") == (
        job.topic,
        job.id,
        job.state,
        job.revision,
        job.priority,
        job.payload,
        job.due_ms,
        job.ttr_ms,
        job.envelope.max_attempts,
        job.lateness_ms,
        job.worker,
    )
