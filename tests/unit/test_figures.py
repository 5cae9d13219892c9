"""
Percentiles, histograms, durations in words.
"""

from __future__ import annotations

import pytest

from duly.figures import amount, bar, histogram, percentile, percentile_of, spread


def test_a_percentile_is_a_value_that_was_there():
    values = [5, 1, 4, 2, 3]
    assert [1, 3, 5, 5] == [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)]
    assert 99 == percentile(range(1, 101), 0.99)


def test_of_nothing_there_is_no_percentile():
    assert (None, None) == (percentile([], 0.5), percentile_of({}, 0.5))


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.99, 1.0])
def test_counted_values_have_the_same_percentiles(share):
    values = [1] * 70 + [2] * 25 + [300] * 5
    assert percentile(values, share) == percentile_of({1: 70, 300: 5, 2: 25}, share)


def test_each_value_is_in_one_bar():
    rows = spread([0.5, 1, 1.9, 2, 100, 5000], ends=(1, 2, 100))
    assert [("< 1 ms", 1), ("< 2 ms", 2), ("< 100 ms", 1), ("≥ 100 ms", 2)] == rows


def test_bars_are_as_long_as_their_numbers_and_what_is_there_is_seen():
    assert ["████████", "████", "▏", ""] == [bar(value, 8000, 8) for value in (8000, 4000, 1, 0)]
    assert [" a  ████  2", "bb  ██    1", " c        0"] == histogram(
        [("a", 2), ("bb", 1), ("c", 0)], width=4
    )


def test_a_histogram_of_nothing_has_no_bars():
    assert ["a        0"] == histogram([("a", 0)], width=4)


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (None, "-"),
        (0, "0 ms"),
        (0.44, "0.4 ms"),
        (3, "3 ms"),
        (12.4, "12 ms"),
        (999, "999 ms"),
        (1_500, "1.5 s"),
        (100_000, "100 s"),
        (300_000, "5 min"),
        (9_000_000, "2.5 h"),
        (864_000_000, "10 d"),
        (-1_500, "-1.5 s"),
    ],
)
def test_a_duration_is_said_in_the_unit_that_suits_it(ms, words):
    assert words == amount(ms)
