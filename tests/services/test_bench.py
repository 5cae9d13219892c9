"""
How `duly bench` repeats and sums up; what it measures has tests beside each of its parts.
"""

from __future__ import annotations

from duly.bench import report
from duly.bench.figure import Figure
from duly.bench.measures import Sizes, bare, single
from duly.bench.rig import rig


async def test_measures_take_turns_and_the_median_and_the_extremes_are_told(monkeypatch):
    began, values = [], iter([10, 7, 30, 0, 2, 20, 1])

    async def rate(rig, sizes):
        began.append("rate")
        return [Figure("rate", next(values), "jobs/s", 15, at_least=True)]

    async def memory(rig, sizes):
        began.append("memory")
        return [Figure("memory", next(values), "bytes", at_least=False)]

    async def lost(rig, sizes):
        began.append("lost")
        return [Figure("lost", next(values), "jobs", 0, at_least=False)]

    monkeypatch.setattr(report, "MEASURES", {"rate": rate, "memory": memory, "lost": lost})
    figures = await report.measure(["rate", "memory", "lost"], Sizes(), 3, None)
    assert ["rate", "memory", "lost", "rate", "lost", "rate", "lost"] == began
    rates, lasting, never = figures
    assert (10, 0, 20, False) == (rates.value, rates.least, rates.most, rates.kept)
    assert (7, 7, 7) == (lasting.value, lasting.least, lasting.most)
    # One lost job in three runs is not none in the middle.
    assert (30, False) == (never.value, never.kept)
    first, second, third = report.table(figures).splitlines()
    assert first.endswith("(0.00 to 20.00)      ≥ 15  MISSED")
    assert "to" not in second
    assert "30.00 jobs" in third


async def test_what_redis_py_does_of_itself_is_measured_beside_it():
    async with rig(None) as each:
        figures = await bare(each, Sizes(jobs=500, one_by_one=10))
    assert all(figure.value > 0 and figure.bound is None for figure in figures)


async def test_one_enqueue_is_measured_beside_the_least_that_keeps_a_job():
    async with rig(None) as each:
        figures = await single(each, Sizes(one_by_one=100))
        [topic] = (await (await each.app.views()).stats()).topics
        store = await each.app.store()
        kept = await store.link.call("ZCARD", "single:due")
    assert (100, 100) == (topic.counts["scheduled"], kept)
    assert [
        ("server CPU, one enqueue", "µs", None, False),
        ("server CPU, one enqueue against a SET and a ZADD", "ratio", 1.1, False),
        ("one by one against SET by asyncio redis-py", "ratio", 0.7, True),
    ] == [(figure.name, figure.unit, figure.bound, figure.at_least) for figure in figures]
    assert all(figure.value > 0 for figure in figures)
