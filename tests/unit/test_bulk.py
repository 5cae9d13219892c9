"""
Many orders at once: what is said of all of them is true of each.
"""

from __future__ import annotations

import pytest

from duly.bulk import unless_all_failed
from duly.errors import OutcomeUnknown, StoreUnavailable, UsageError


@pytest.mark.parametrize("order", [1, -1])
def test_where_all_failed_nobody_says_that_nothing_was_changed_if_some_may_have_been(order):
    with pytest.raises(OutcomeUnknown, match="lost"):
        unless_all_failed([StoreUnavailable("away"), OutcomeUnknown("lost")][::order])


def test_where_all_failed_alike_that_is_raised_and_otherwise_each_is_told():
    with pytest.raises(StoreUnavailable, match="one"):
        unless_all_failed([StoreUnavailable("one"), StoreUnavailable("other")])
    mixed = [StoreUnavailable("away"), UsageError("wrong")]
    assert mixed == unless_all_failed(mixed)
