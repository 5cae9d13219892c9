"""
What the description allows is what the queue reads: patterns against parsers.
"""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.durations import parse_duration, parse_time
from duly.errors import UsageError
from duly.http import cursors
from duly.http.grammar import (
    DURATION_PATTERN,
    ID_PATTERN,
    POSITIVE_PATTERN,
    TIME_PATTERN,
    Duration,
    PositiveDuration,
    Time,
)
from duly.job import JobState, check_id


@given(st.from_regex(DURATION_PATTERN, fullmatch=True))
def test_every_duration_of_the_pattern_is_one(text):
    assert parse_duration(text) >= 0


@given(st.from_regex(DURATION_PATTERN, fullmatch=True))
def test_a_time_to_run_is_a_duration_that_is_not_zero(text):
    assert bool(re.search(POSITIVE_PATTERN, text)) == (parse_duration(text) > 0)


@pytest.mark.parametrize("text", ["999999999999s", "P1Y", "1h2d", "1s1s", "P", "PT", "", "-1s", "soon", "1 "])
def test_what_is_no_duration_fits_no_pattern(text):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(text, Duration)


@pytest.mark.parametrize("value", [0, 0.0001, "0s", "PT0S", "0"])
def test_no_time_to_run_is_zero(value):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, PositiveDuration)


@given(
    st.datetimes(min_value=parse_time("1970-01-02T00:00:00Z").replace(tzinfo=None)), st.integers(-1439, 1439)
)
def test_every_time_of_rfc_3339_is_one(moment, offset):
    sign, minutes = "-" if offset < 0 else "+", abs(offset)
    text = f"{moment.isoformat()}{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    assert text == msgspec.convert(text, Time)
    if moment.year < 9999:
        parse_time(text)


@pytest.mark.parametrize(
    "text", ["2036-01-31T10:00:00", "2036-01-31", "2036-13-01T00:00:00Z", "0001-01-01T00:00:00Z", "now"]
)
def test_what_is_no_moment_fits_no_pattern(text):
    assert not re.search(TIME_PATTERN, text)


@given(st.text("ab.~:@=+-_/ 9", max_size=5))
def test_an_id_fits_the_pattern_if_it_is_one(text):
    try:
        check_id(text)
    except UsageError:
        assert not re.search(ID_PATTERN, text)
    else:
        assert re.search(ID_PATTERN, text)


@pytest.mark.parametrize("place", ["", "0:", "0:1794728495151 mail/a", "3:12 a.b/c+d"])
@pytest.mark.parametrize("state", [state for state in JobState if state is not JobState.ready])
def test_a_cursor_is_read_as_it_was_written(state, place):
    assert (state, place, None) == cursors.read(cursors.write(state, place))


def test_a_cursor_among_ready_jobs_names_an_entry():
    place = "0:mail normal 1794728495151-3"
    assert (JobState.ready, place, None) == cursors.read(cursors.write(JobState.ready, place))
    assert cursors.read(cursors.write(JobState.scheduled, place)) is None


@pytest.mark.parametrize(
    ("state", "place"),
    [
        (JobState.dead, ""),
        (JobState.dead, "0:12 mail/"),
        (JobState.scheduled, "record:12 mail/a:b 0:12 mail/c"),
        (JobState.ready, "0:mail normal 12-3"),
    ],
)
def test_a_cursor_of_a_topic_names_no_other(state, place):
    assert (state, place, "mail") == cursors.read(cursors.write(state, place, "mail"))
    if place:
        assert cursors.read(cursors.write(state, place, "mailing")) is None
    assert cursors.read(cursors.write(state, place, "a b")) is None


@pytest.mark.parametrize("place", ["x", "0", "0:x", "0:1 ", "0:(1 a/b", "0:1 a", "0:1 a/b\n"])
def test_no_cursor_brings_words_of_its_own_to_the_server(place):
    assert cursors.read(cursors.write(JobState.scheduled, place)) is None
    assert cursors.read(cursors.write(JobState.ready, place)) is None


@pytest.mark.parametrize("text", ["", "é", "a", "====", "scheduled!", cursors.write(JobState.dead, "")[1:]])
def test_what_is_no_cursor_is_told_from_one(text):
    assert cursors.read(text) is None
