"""
Job options are described once: what spells them by hand agrees, and they mean the same wherever said.
"""

from __future__ import annotations

import io
import json
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_type_hints

import click
import msgspec
import pytest

from duly import where
from duly.backoff import Backoff
from duly.cli import lines
from duly.cli.enqueue import enqueue
from duly.codec import Envelope, decode_envelope
from duly.documents import JobDocument, job_document
from duly.durations import Seconds, parse_time
from duly.errors import UsageError
from duly.http.documents import JobRequest, new_job_of
from duly.job import Job, JobState, OnConflict, Order, Placed, Priority
from duly.newjob import Limits, NewJob, Options
from duly.options import CARRIED, IN_ENVELOPE, IN_RECORD, OBJECT, OPTIONS, TOLD, Option
from duly.remote.answers import JobAnswer, job_of
from duly.remote.orders import body_of
from duly.spark.columns import JOBS, WRITTEN
from duly.spark.horizon import rows as horizon
from duly.spark.packing import Packer
from duly.spark.replay.choosing import CARRIED as REPLAYED

if TYPE_CHECKING:
    from collections.abc import Iterable

LIMITS = Limits()
NAMES = {option.name for option in OPTIONS}


def each(options: Iterable[Option]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("option", list(options), ids=lambda option: option.name)


def said(option: Option) -> NewJob[Any]:
    """
    A job of which one option is said, beside an id.
    """
    job: NewJob[Any] = NewJob("mail", b"{}", id="a")
    return job.options(**{option.name: option.read(option.example)})


SOON = "2036-01-31T09:00:00Z"
PLAIN = NewJob("mail", b"{}", id="a").order(LIMITS)


# -- what is spelt by hand --------------------------------------------------------------------------------


def test_the_classes_that_users_see_have_every_option():
    scope = {"Seconds": Seconds, "Backoff": Backoff, "datetime": datetime, "Any": Any}
    scope |= {"Priority": Priority, "OnConflict": OnConflict}
    spelt = get_type_hints(Options, scope)
    known = {field.name: field for field in msgspec.structs.fields(NewJob)}
    assert NAMES == spelt.keys() == known.keys() - {"topic", "payload", "once", "reader"}
    assert spelt == {name: known[name].type for name in spelt}
    assert {option.name: option.default for option in OPTIONS} == {
        name: known[name].default for name in spelt
    }


def test_the_envelope_has_what_is_kept_there():
    assert {option.field for option in IN_ENVELOPE} == set(Envelope.__struct_fields__)
    assert all(option.field == option.name for option in IN_ENVELOPE)


def test_an_order_and_a_job_have_what_the_record_keeps():
    assert {option.field for option in IN_RECORD} <= set(Order.__struct_fields__)
    assert {option.field for option in IN_RECORD if option.document} <= {each.name for each in fields(Job)}


@each(OPTIONS)
def test_an_option_alone_is_not_lost_in_its_order(option):
    order = said(option).order(LIMITS)
    if option.name == "id":
        assert "order-1" == order.key.id
    else:
        assert order != PLAIN
    if option.kept:
        envelope = decode_envelope(order.envelope)
        assert option.write(option.within(order, envelope)) is not None


def test_far_future_tables_of_the_first_release_stay_readable():
    assert {"ttr_ms", "max_attempts", "context", "callback"}.isdisjoint(horizon.ADDED)
    assert {*horizon.ADDED, "ttr_ms", "max_attempts", "context", "callback"} == {
        option.field for option in CARRIED
    }


# -- what is made of the description ----------------------------------------------------------------------


def test_a_request_and_a_line_take_every_option():
    assert NAMES == set(JobRequest.__struct_fields__) - {"payload"}
    assert NAMES == set(lines.Line.__struct_fields__) - {"topic", "payload"}


def test_documents_tell_what_the_description_says():
    told = {option.name for option in OPTIONS if option.document}
    assert told <= set(JobDocument.__struct_fields__)
    assert {option.name for option in TOLD} <= set(JobAnswer.__struct_fields__)


def test_commands_columns_and_filters_know_what_the_description_says():
    flags = {each.name for each in enqueue.params if isinstance(each, click.Option)}
    assert {option.name for option in OPTIONS if option.flag} == flags & NAMES
    assert {option.name for option in OPTIONS if option.column} == WRITTEN.keys() & NAMES
    assert {"topic", "payload"} == WRITTEN.keys() - NAMES
    assert {option.name for option in IN_ENVELOPE} <= set(JOBS.fieldNames())
    assert {option.name for option in CARRIED} == {*REPLAYED} - {"payload"}
    for option in OPTIONS:
        if option.filtered:
            assert option.name in (where.INSIDE if option.kind is OBJECT else where.FIELDS)


@each(OPTIONS)
def test_an_option_means_the_same_in_python_http_and_lines(option):
    body = json.dumps({"id": "a", option.name: option.example, "payload": {}}).encode()
    request = msgspec.json.decode(body, type=JobRequest)
    assert said(option).order(LIMITS) == new_job_of("mail", request).order(LIMITS)
    [line] = lines.read_lines(io.BytesIO(body), "mail")
    assert isinstance(line.job, NewJob), line.job
    assert said(option).order(LIMITS) == line.job.order(LIMITS)


@each(OPTIONS)
def test_an_option_arrives_by_way_of_the_service(option):
    sent = said(option).order(LIMITS)
    request = msgspec.json.decode(body_of(sent), type=JobRequest)
    assert sent == new_job_of("mail", request).order(LIMITS)


@each(option for option in OPTIONS if option.flag)
def test_an_option_means_the_same_on_the_command_line(option):
    text = str(option.example)
    if option.kind is OBJECT:
        [(name, value)] = option.example.items()
        text = f"{name}={value}"
    words = ["mail", "--id", "a", f"--{option.name.replace('_', '-')}", text]
    found = enqueue.make_context("enqueue", words).params
    job = NewJob("mail", b"{}").options(**{name: found[name] for name in NAMES & found.keys()})
    assert said(option).order(LIMITS) == job.order(LIMITS)


@each(option for option in OPTIONS if option.column)
def test_an_option_means_the_same_in_a_column_and_in_a_table_of_far_future_jobs(option):
    row = {"topic": "mail", "id": "a", "due_at": SOON, "payload": "{}"}
    row[option.name] = json.dumps(option.example) if option.kind is OBJECT else option.example
    wanted = said(option).options(due_at=parse_time(SOON)).order(LIMITS)
    packer = Packer()
    assert wanted == packer.order(row)
    assert wanted == horizon.order_of(horizon.row_of(row, packer), packer)


@each(TOLD)
def test_what_a_document_tells_of_an_option_is_read_back(option):
    job = said(option).placed(Placed(PLAIN.key, "created", 1, 1, JobState.ready), LIMITS)
    assert option.of(job) is not None
    document = msgspec.json.encode(job_document(job))
    told = json.loads(document)[option.name]
    assert option.tell(option.of(job)) == told
    assert said(option).order(LIMITS) == said(option).options(**{option.name: option.read(told)}).order(
        LIMITS
    )
    assert job == job_of(msgspec.json.decode(document, type=JobAnswer))


def test_a_context_of_a_column_that_is_nested_without_end_is_refused():
    def packed(levels):
        context = f'{{"a": {"[" * levels}{"]" * levels}}}'
        return Packer().order(row | {"context": context})

    row = {"topic": "mail", "id": "a", "due_at": "2036-01-31T09:00:00Z", "payload": "1"}
    for levels in (500, 5_000):
        with pytest.raises(UsageError, match=r"^context is "):
            packed(levels)
    assert packed(499).envelope
