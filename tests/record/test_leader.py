"""
One process leads, and another one takes over when it is gone.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from duly.record import leader as leading
from duly.record.leader import SILENT_S, STANDS_BACK_S, Leader


class Steady:
    """
    A clock that stands still until a test moves it.
    """

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def steady(monkeypatch):
    steady = Steady()
    monkeypatch.setattr(leading, "time", SimpleNamespace(monotonic=steady.monotonic))
    return steady


@pytest.fixture
def make(database, namespace, steady):
    return lambda **options: Leader(database, namespace, **options)


async def test_of_several_processes_one_leads(make):
    leaders = [make() for _ in range(3)]
    for _ in range(2):
        await asyncio.gather(*(each.run_once() for each in leaders))
        assert 1 == sum(each.leads() for each in leaders)


async def test_another_one_takes_over_from_a_leader_that_is_silent(make, steady):
    gained = []
    first, second = make(), make(gained=lambda: gained.append(steady.now_s))
    await first.run_once()
    await second.run_once()
    steady.now_s += SILENT_S - 0.01
    await second.run_once()
    assert (True, False, []) == (first.leads(), second.leads(), gained)
    steady.now_s += 0.01
    # The former one knows by itself, before the other one takes over.
    assert not first.leads()
    await second.run_once()
    assert (True, [steady.now_s]) == (second.leads(), gained)
    await first.run_once()
    assert (False, True) == (first.leads(), second.leads())


async def test_a_leader_that_beats_is_not_replaced(make, steady):
    first, second = make(), make()
    for _ in range(10):
        await first.run_once()
        await second.run_once()
        assert (True, False) == (first.leads(), second.leads())
        steady.now_s += SILENT_S / 2


async def test_one_that_ends_or_resigns_is_followed_at_once(make, steady):
    first, second = make(), make()
    await first.run_once()
    await second.run_once()
    await first.aclose()
    await second.run_once()
    assert (False, True) == (first.leads(), second.leads())
    await second.resign()
    await second.run_once()
    assert not second.leads(), "it stands back for others"
    steady.now_s += STANDS_BACK_S
    await second.run_once()
    assert second.leads(), "nobody else wanted to"


async def test_namespaces_have_leaders_of_their_own(database, steady):
    here, there = Leader(database, "here"), Leader(database, "there")
    await here.run_once()
    await there.run_once()
    assert here.leads()
    assert there.leads()
