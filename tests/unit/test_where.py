"""
The filter over jobs: what it lets through, and how it says what is wrong with it.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import UsageError
from duly.codec import Envelope
from duly.job import Job, JobState
from duly.where import FIELDS, parse

NOW = 1_800_000_000_000


def job(**changes):
    fields = {
        "topic": "mail.welcome",
        "id": "u-42",
        "state": JobState.dead,
        "revision": 7,
        "priority": "high",
        "attempts": 5,
        "crashes": 0,
        "payload": b'{"user": {"id": 42, "tags": ["new", "vip"]}, "locale": "de", "test": true, "n": null}',
        "due_ms": NOW - 3_600_000,
        "started_ms": NOW - 3_599_000,
        "ended_ms": NOW - 3_598_000,
        "lateness_ms": 1_000,
        "worker": "host-1",
        "outcome": b'{"type":"TimeoutError","message":"the bank took 30 s"}',
        "envelope": Envelope(context={"tenant": "acme"}),
    }
    return Job(**fields | changes)


def matches(text, **changes):
    return parse(text).matches(job(**changes), NOW)


@pytest.mark.parametrize(
    "text",
    [
        "topic = mail.welcome",
        "topic='mail.welcome'",
        'topic="mail.welcome" and id=u-42',
        "topic != mail",
        "topic ~ WELCOME",
        "topic !~ sms",
        "state = dead",
        "state in (dead, cancelled)",
        "not state = ready",
        "attempts > 3",
        "attempts >= 5 and attempts <= 5",
        "crashes < 1",
        "error ~ timeout",
        "error ~ 'took 30 s'",
        "error = 'TimeoutError: the bank took 30 s'",
        "due < now",
        "due < now-30m",
        "due > now-2h",
        "due < now+1d",
        "finished > 2027-01-15T06:00:00Z",
        "lateness >= 1s",
        "lateness < PT2S",
        "priority = high",
        "worker = host-1",
        "payload.user.id = 42",
        "payload.user.id > 41.5",
        "payload.user.id = '42'",
        "payload.user.tags.1 = vip",
        "payload.user ~ vip",
        "payload.locale in (de, fr)",
        "payload.test = true",
        "payload.n = null",
        "context.tenant = acme",
        "state = ready or attempts = 5",
        "state = ready and id = x or attempts = 5",
        "(state = ready or attempts = 5) and topic = mail.welcome",
        "NOT (state = ready OR attempts = 4) AND revision = 7",
        "expires != now",
    ],
)
def test_a_filter_lets_through_what_it_describes(text):
    assert matches(text)
    assert not matches(f"not ({text})")


@pytest.mark.parametrize(
    "text",
    [
        "topic = mail",
        "id ~ 43",
        "state in (ready, running)",
        "attempts < 5",
        "due > now",
        "expires < now",
        "payload.missing = 1",
        "payload.user.id.deeper = 1",
        "payload.user.tags.9 = vip",
        "payload.user = 42",
        "payload.locale = null",
        "context.other ~ a",
        "state = ready or attempts = 4",
        "state = ready and (attempts = 5 or attempts = 4)",
    ],
)
def test_a_filter_keeps_back_what_it_does_not_describe(text):
    assert not matches(text)


def test_what_a_job_does_not_have_equals_nothing():
    nothing = {"outcome": b"", "lateness_ms": None, "worker": "", "envelope": None, "payload": b"\xff"}
    for text in ("error = x", "error ~ ''", "lateness < 1d", "worker = x", "context.a = b", "payload.a = b"):
        assert not matches(text, **nothing), text
    for text in ("error != x", "error !~ x", "worker != x", "context.a != b"):
        assert matches(text, **nothing), text


def test_a_result_is_no_error():
    assert not matches("error ~ e", state=JobState.succeeded, outcome=b'"fine"')


@pytest.mark.parametrize(
    ("only", "text"),
    [
        ({"state": {"dead"}}, "state = dead and attempts > 3"),
        ({"state": {"dead"}, "topic": {"mail"}}, "state in (dead, ready) and topic = mail and state = dead"),
        ({"topic": {"a", "b"}}, "topic = a and state = dead or topic = b"),
        ({}, "topic = a or attempts = 1"),
        ({}, "not topic = a"),
        ({}, "topic != a"),
        ({"topic": set()}, "topic = a and topic = b"),
        ({"topic": {"a"}}, "(topic = a)"),
    ],
)
def test_a_filter_knows_where_to_look(only, text):
    assert only == parse(text).only


@pytest.mark.parametrize(
    ("text", "said", "at", "width"),
    [
        ("attemps > 3", "there is no field 'attemps'; did you mean attempts?", 0, 7),
        ("zzz = 3", "known are topic, id,", 0, 3),
        ("'topic' = mail", "there is no field", 0, 7),
        ("topic is mail", "'is' is no operator; known are = != <", 6, 2),
        ("topic = ", "the filter ends where a value should follow", 8, 1),
        ("topic", "the filter ends where an operator", 5, 1),
        ("", "the filter ends where a field should follow", 0, 1),
        ("topic = mail and", "the filter ends where a field should follow", 16, 1),
        ("topic = mail attempts > 3", "'attempts' was not expected here", 13, 8),
        ("attempts > many", "'many' is no number", 11, 4),
        ("state = deaad", "'deaad' is no state; known are scheduled", 8, 5),
        ("state > dead", "states have no order", 8, 4),
        ("due > tomorrow", "is no time; write", 6, 8),
        ("due > 2026-01-01T00:00", "has no offset", 6, 16),
        ("due > now-soon", "'soon' is no duration", 6, 8),
        ("lateness > 5 parsecs", "'parsecs' was not expected", 13, 7),
        ("topic = 'mail", "a quote without its end", 8, 1),
        ("(topic = mail", "a parenthesis is not closed", 13, 1),
        ("topic in mail", "in takes a list: topic in (one, another)", 9, 4),
        ("topic in (a b)", "the list is not closed", 12, 1),
        ("topic = = mail", "'=' stands where a value should", 8, 1),
        ("topic ! mail", "'!' means nothing here", 6, 1),
        ("payload = 3", "say what of it: payload.NAME", 0, 7),
        ("__class__ = 3", "there is no field", 0, 9),
    ],
)
def test_an_error_points_at_the_word_that_is_wrong(text, said, at, width):
    with pytest.raises(UsageError) as told:
        parse(text)
    sentence, line, pointer = str(told.value).split("\n")
    assert said in sentence
    assert f"  {text}" == line
    assert "  " + " " * at + "^" * width == pointer


def test_a_filter_is_bounded():
    with pytest.raises(UsageError, match="simpler filter"):
        parse("(" * 60 + "topic = a" + ")" * 60)
    with pytest.raises(UsageError, match="more than"):
        parse("not " * 5_000 + "topic = a")


@given(st.text(alphabet="topicand or=<>~!()'\",.0123 \n\t", max_size=40))
def test_any_text_is_a_filter_or_a_usage_error(text):
    with suppress(UsageError):
        parse(text).matches(job(), NOW)


def test_every_field_can_be_asked_for():
    for name, field in FIELDS.items():
        value = {"number": "1", "time": "now", "duration": "1s", "state": "ready"}.get(field.kind, "x")
        assert isinstance(matches(f"{name} = {value}"), bool)
