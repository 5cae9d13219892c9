"""
Options of the formats for Spark, as they are read on the driver.
"""

from __future__ import annotations

import pytest

from duly import UsageError
from duly.spark.options import WriteOptions, read_options

URL = {"url": "redis://localhost:6379/0"}


@pytest.mark.parametrize(("ms", "horizon"), [(43_200_000, "12h"), (90_000, "90"), (5_400_000, "PT1H30M")])
def test_how_far_ahead_is_a_duration_like_any_other(ms, horizon):
    assert ms == read_options(WriteOptions, URL | {"horizon": horizon}).horizon_ms


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"horizon": "soon"}, "horizon='soon' is no duration; write 500ms"),
        ({"horizon": "10ms"}, "horizon=10ms must be 1s or more"),
        ({"horizon_ms": "1000"}, "unknown option horizon_ms; did you mean horizon?"),
    ],
)
def test_a_horizon_that_is_none_is_a_sentence(given, said):
    with pytest.raises(UsageError, match=said):
        read_options(WriteOptions, URL | given)
