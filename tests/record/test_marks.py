"""
Marks that are not written yet when their loop ends.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.job import JobKey
from duly.record.marks import Marks

GIVEN = [(JobKey("mail", "a"), 1)]


class Written:
    """
    A database that counts what is written to it.
    """

    def __init__(self):
        self.times = 0

    async def write(self, work):
        self.times += 1


@pytest.fixture
def database():
    return Written()


@pytest.mark.parametrize("turns", range(4))
async def test_what_writes_them_may_be_cancelled_at_any_moment_and_nobody_waits_for_it(database, turns):
    # The end of a loop cancels all tasks, those that have not begun, too.
    marks = Marks(database, "namespace")
    marks.add(GIVEN, 1, {})
    [writing] = asyncio.all_tasks() - {asyncio.current_task()}
    for _ in range(turns):
        await asyncio.sleep(0)
    writing.cancel()
    async with asyncio.timeout(20):
        await marks.settle()


async def test_they_are_written_after_that_as_ever(database):
    marks = Marks(database, "namespace")
    marks.add(GIVEN, 1, {})
    [writing] = asyncio.all_tasks() - {asyncio.current_task()}
    writing.cancel()
    await asyncio.wait([writing])
    marks.add(GIVEN, 1, {})
    async with asyncio.timeout(20):
        await marks.settle()
    assert 1 == database.times
