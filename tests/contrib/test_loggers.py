"""
structlog and loguru: lines that are written in a job say which one.
"""

from __future__ import annotations

import pytest

from duly import Duly
from tests.contrib import logged
from tests.services.conftest import working

HANDLERS = [logged.on_loop, logged.in_thread, logged.in_process, logged.bound]


@pytest.fixture
async def queue(valkey, namespace):
    async with Duly(valkey.url, namespace=namespace, drain_grace=0.2) as app:
        for handler in HANDLERS:
            app.handlers.add(handler)
        yield app


async def test_lines_of_a_run_have_the_fields_of_its_job(queue):
    async with working(queue):
        jobs = [await queue.enqueue(handler.job()) for handler in HANDLERS[:3] for _ in range(3)]
        for job in jobs:
            for line in await job.result(timeout=60):
                assert line.pop("token")
                assert {"event": "paid", "topic": job.topic, "id": job.id, "attempt": 1} == line


async def test_what_a_handler_has_bound_stays_as_it_is(queue):
    async with working(queue):
        job = await queue.enqueue(logged.bound.job())
        for line in await job.result(timeout=60):
            assert (7, "A-1", "log.bound") == (line["id"], line["order"], line["topic"])


def test_lines_outside_of_a_run_have_no_fields():
    for line in logged.both(order="A-1"):
        assert {"event": "paid", "order": "A-1"} == line
