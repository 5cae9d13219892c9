"""
The clock that tests move.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from duly import UsageError
from duly.testing import TestClock


def test_the_clock_stands_still_until_it_is_moved():
    clock = TestClock(1_000)
    assert (1_000, 1_000) == (clock(), clock())
    assert 11_801_501 == clock.advance(timedelta(seconds=1), hours=3, minutes=16, seconds=39, s=0.5, ms=1)
    assert datetime(1970, 1, 1, 3, 16, 41, 501_000, tzinfo=UTC) == clock.now


def test_the_clock_begins_at_the_time_of_day():
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    assert before <= TestClock().now <= datetime.now(UTC)


def test_a_part_of_a_millisecond_counts_as_a_whole_one():
    clock = TestClock(0)
    assert 1 == clock.advance(timedelta(microseconds=1))
    assert 3 == clock.advance(s=0.0011)


def test_the_clock_moves_on_by_any_duration():
    clock = TestClock(0)
    assert [5_400_000, 5_403_000] == [clock.advance("1h30m"), clock.advance(3)]


def test_the_clock_moves_to_a_time_in_any_zone():
    clock = TestClock(0)
    clock.advance_to(datetime(1970, 1, 1, 3, tzinfo=timezone(timedelta(hours=2))))
    assert 3_600_000 == clock()


@pytest.mark.parametrize(
    ("move", "message"),
    [
        (lambda clock: clock.advance(hours=-1), "cannot go back by 1:00:00"),
        (lambda clock: clock.advance("soon"), "advance='soon' is no duration; write"),
        (lambda clock: clock.advance(-3), "advance=-3 must be zero or more"),
        (lambda clock: clock.advance_to(datetime(1969, 1, 1, tzinfo=UTC)), "cannot go back to 1969"),
        (lambda clock: clock.advance_to(datetime(2030, 1, 1)), "has no time zone"),  # noqa: DTZ001  # on purpose
    ],
)
def test_a_wrong_move_is_refused_and_changes_nothing(move, message):
    clock = TestClock(5)
    with pytest.raises(UsageError, match=message):
        move(clock)
    assert 5 == clock()
