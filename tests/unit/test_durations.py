"""
Lengths of time and moments as people write them.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import UsageError
from duly.durations import (
    MAX_DUE_MS,
    parse_duration,
    parse_time,
    parse_timeout,
    say_duration,
    say_ms,
    say_time,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (90_000, "90"),
        (90_000, "90s"),
        (500, "500ms"),
        (300_000, "5m"),
        (24 * HOUR, "24h"),
        (14 * DAY, "14d"),
        (7 * DAY, "1w"),
        (90_000, "1.5m"),
        (15_000, " 15 "),
        (HOUR + 30 * MINUTE, "1h30m"),
        (HOUR + 30 * MINUTE, "1h 30m"),
        (DAY + 2 * HOUR + 3 * MINUTE + 4_005, "1d2h3m4s5ms"),
        (HOUR + 30 * MINUTE, "PT1H30M"),
        (HOUR + 30 * MINUTE, "pt1h30m"),
        (36 * HOUR, "P1DT12H"),
        (14 * DAY, "P2W"),
        (1_500, "PT1.5S"),
        (0, "0"),
        (1, "0.0001"),
    ],
)
def test_a_duration_is_seconds_or_units_or_iso_8601(ms, text):
    assert ms == parse_duration(text)


@given(st.integers(0, 10**12))
def test_milliseconds_are_read_exactly(ms):
    assert ms == parse_duration(f"{ms}ms")
    assert ms == parse_duration(f"{ms // 1000}.{ms % 1000:03d}")
    assert ms == parse_duration(timedelta(milliseconds=ms))


@given(st.floats(0, 1e9))
def test_text_is_never_shorter_than_what_it_says(seconds):
    assert parse_duration(f"{seconds:.9f}") >= seconds * 1000 - 1e-3
    assert abs(parse_duration(f"{seconds:.6f}") - parse_duration(seconds)) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "-5s",
        "5 s 3",
        "5S",
        "30m1h",
        "1h1h",
        "nan",
        "1e3",
        "٣s",
        "P",
        "PT",
        "P1DT",
        "P1H",
        "PT1D",
        "tomorrow",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError, match="no duration"):
        parse_duration(text)


def test_a_month_has_no_fixed_length():
    for text in ("P1M", "P1Y2M3D"):
        with pytest.raises(UsageError, match="no fixed length; write days"):
            parse_duration(text)


def test_a_duration_beyond_the_calendar_is_refused():
    for value in ("9999999d", "P9999999999W", 10**15):
        with pytest.raises(UsageError, match="year 10000"):
            parse_duration(value)


def test_the_error_names_what_was_meant():
    with pytest.raises(UsageError, match="ttr must be seconds, a timedelta or text like 1h30m, not True"):
        parse_duration(True, "ttr")
    with pytest.raises(UsageError, match="ttr='soon' is no duration; write 500ms, 15s, 1h30m, 14d"):
        parse_duration("soon", "ttr")
    with pytest.raises(UsageError, match="ttr='30m1h' is no duration: name each unit once"):
        parse_duration("30m1h", "ttr")


@pytest.mark.parametrize(
    ("seconds", "timeout"),
    [
        *((None, None), (1.5, "1.5s"), (90, "1m30s"), (5, 5), (3600, timedelta(hours=1))),
        *((0, 0), (0, -0.25), (0, timedelta(microseconds=-1))),
    ],
)
def test_a_timeout_is_a_duration_and_nothing_is_left_of_one_that_is_over(seconds, timeout):
    assert seconds == parse_timeout(timeout)


def test_a_timeout_that_is_no_duration_is_refused_by_its_name():
    with pytest.raises(UsageError, match="timeout='a while' is no duration"):
        parse_timeout("a while")


@pytest.mark.parametrize(
    ("ms", "wait"),
    [
        (0, 0),
        (60_000, 60),
        (1_500, 1.5),
        (16_100, 16.1),  # and not 16,101, although the float is a little larger
        (1, 0.000_001),
        (10_800_000, timedelta(hours=3)),
        (2, timedelta(microseconds=1_001)),
        (1, timedelta(microseconds=1)),
    ],
)
def test_a_wait_is_seconds_or_a_timedelta_rounded_up(ms, wait):
    assert ms == parse_duration(wait)


@pytest.mark.parametrize(
    "wait",
    [
        -1,
        -0.000_1,
        timedelta(microseconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        10**30,
        1e300,
        timedelta.max,
        True,
        "soon",
        None,
        Fraction(1, 2),
    ],
)
def test_what_is_no_wait_is_refused_by_name(wait):
    with pytest.raises(UsageError, match="ttr"):
        parse_duration(wait, "ttr")


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_a_timedelta_is_never_shortened_nor_stretched_by_a_millisecond(wait):
    ms = timedelta(milliseconds=parse_duration(wait))
    assert wait <= ms < wait + timedelta(milliseconds=1)


@given(st.integers(0, 10**13))
def test_a_float_counts_to_the_microsecond_like_a_timedelta(microseconds):
    assert parse_duration(timedelta(microseconds=microseconds)) == parse_duration(microseconds / 1_000_000)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 1, 31, 9, tzinfo=UTC), "2026-01-31T09:00:00Z"),
        (datetime(2026, 1, 31, 9, tzinfo=UTC), "2026-01-31t10:00:00+01:00"),
        (datetime(2026, 1, 31, 9, tzinfo=UTC), "2026-01-31 03:30-05:30"),
        (datetime(2026, 1, 31, 9, 0, 0, 250_000, UTC), "2026-01-31T09:00:00.25Z"),
        (datetime(2026, 1, 31, 9, 0, 0, 1, UTC), "2026-01-31T09:00:00.0000001Z"),
    ],
)
def test_a_time_is_rfc_3339_with_an_offset(moment, text):
    assert moment == parse_time(text)
    assert UTC == parse_time(text).tzinfo


def test_a_time_without_an_offset_is_refused_and_shown_how():
    with pytest.raises(
        UsageError, match=r"due_at: '2026-01-31T09:00' has no offset.*write 2026-01-31T09:00Z"
    ):
        parse_time("2026-01-31T09:00", "due_at")


@pytest.mark.parametrize(
    "text",
    ["", "tomorrow", "2026-01-31", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "0001-01-01T00:00+09:00"],
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError, match="is no time"):
        parse_time(text)


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("0ms", 0),
        ("350ms", 350.4),
        ("1s", 1_000),
        ("12s", 12_345),
        ("1m30s", 90_000),
        ("1h", HOUR + 30_000),
        ("1h30m", HOUR + 30 * MINUTE + 5_000),
        ("14d", 14 * DAY + MINUTE),
        ("1d12h", 36 * HOUR),
    ],
)
def test_a_length_of_time_is_said_in_its_two_largest_units(said, ms):
    assert said == say_duration(ms)


def test_a_moment_is_said_in_utc_whatever_its_zone():
    moment = datetime(2026, 1, 31, 10, 0, 0, 1_999, timezone(timedelta(hours=1)))
    assert "2026-01-31T09:00:00.001Z" == say_time(moment)


@given(st.integers(1, MAX_DUE_MS))
def test_milliseconds_are_told_as_the_moment_they_are(ms):
    assert say_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)) == say_ms(ms)


@pytest.mark.parametrize("never", [0, None])
def test_never_is_no_time(never):
    assert say_ms(never) is None
