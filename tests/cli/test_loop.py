"""
The event loop of a worker's process.
"""

from __future__ import annotations

import gc

import pytest

from duly.cli import loop


@pytest.fixture(autouse=True)
def as_it_was():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_a_worker_with_many_slots_looks_for_cycles_less_often_and_not_among_what_is_there():
    loop.collect_less(1_000)
    assert (10_000, 1, 1) == gc.get_threshold()
    assert gc.get_freeze_count() > 0


def test_a_worker_with_few_slots_collects_as_usual():
    before = gc.get_threshold()
    loop.collect_less(16)
    assert (before, 0) == (gc.get_threshold(), gc.get_freeze_count())


def test_an_app_that_has_set_its_own_thresholds_keeps_them():
    gc.set_threshold(1_234, 5, 6)
    loop.collect_less(1_000)
    assert (1_234, 5, 6) == gc.get_threshold()
    assert 0 == gc.get_freeze_count()
