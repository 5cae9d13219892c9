"""
`duly bench http` measures what it says: real processes, small sizes, no word about speed.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.bench.http import http
from duly.bench.load import batch, one_by_one, posts, reads
from duly.bench.measures import Sizes
from duly.bench.rig import rig
from duly.job import JobState


async def test_every_figure_is_there_and_every_job_was_stored():
    async with rig(None) as each:
        figures = await http(each, Sizes(jobs=500, requests=100))
        counts = (await (await each.app.views()).stats()).topics[0].counts
    assert all(figure.value > 0 and figure.bound for figure in figures)
    assert ["jobs/s", "jobs/s", "ms", "reads/s", "ms"] == [figure.unit for figure in figures]
    # The batch, the posts, and the tenth of them that came first.
    assert 500 + 100 + 10 == counts[JobState.scheduled.name]


async def test_the_client_does_not_count_what_was_refused(url):
    port = int(url.rpartition(":")[2])
    with pytest.raises(RuntimeError, match="job-not-found"):
        await one_by_one("127.0.0.1", port, reads(1), b"200", 1)
    assert 0 < (await batch("127.0.0.1", port, 20))["rate"]
    with pytest.raises(RuntimeError, match="0 of 20"):
        await batch("127.0.0.1", port, 20)
    answers = await asyncio.gather(*(one_by_one("127.0.0.1", port, posts(20), b"202", 2) for _ in range(2)))
    assert all(0 < answer["p50_ms"] <= answer["p99_ms"] for answer in answers)
