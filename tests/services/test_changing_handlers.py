"""
Handlers added to and removed from an app whose worker runs.
"""

from __future__ import annotations

import asyncio

from duly import JobState
from tests.eventually import eventually
from tests.services import processes
from tests.services.conftest import becomes, working


async def test_a_running_worker_takes_jobs_of_a_handler_added_later(app):
    @app.handler("early")
    async def early() -> str:
        return "early"

    async with working(app):
        assert "early" == await (await app.enqueue(early.job())).result(timeout=30)
        waiting = await app.enqueue("late")

        @app.handler("late")
        async def late() -> str:
            return "late"

        assert "late" == await waiting.result(timeout=30)

        async def known() -> None:
            workers = (await (await app.views()).stats()).workers
            assert [["early", "late"]] == [worker["topics"] for worker in workers]

        await eventually(known, 30)


async def test_a_running_worker_stops_claiming_jobs_of_a_removed_handler(app):
    going = asyncio.Event()

    @app.handler("gone")
    async def gone() -> str:
        await going.wait()
        return "ran"

    @app.handler("stays")
    async def stays() -> str:
        return "ran"

    async with working(app):
        running = await app.enqueue(gone.job())
        await becomes(running, "running")
        app.remove_handler("gone")
        left = await app.enqueue("gone")
        # The worker comes round several times, and each time claims what it may.
        for _ in range(20):
            assert "ran" == await (await app.enqueue(stays.job())).result(timeout=30)
        assert JobState.ready == (await left.get()).state
        going.set()
        assert "ran" == await running.result(timeout=30)  # what runs goes on

        @app.handler("gone")
        async def anew() -> str:
            return "ran anew"

        assert "ran anew" == await left.result(timeout=30)
    assert (1, 0) == ((await left.get()).attempts, (await left.get()).crashes)


async def test_without_any_handler_a_running_worker_waits_for_one(app):
    @app.handler("only")
    async def only() -> None: ...

    async with working(app):
        await (await app.enqueue(only.job())).result(timeout=30)
        app.remove_handler("only")
        waiting = await app.enqueue("only")

        @app.handler("other")
        async def other() -> str:
            return "other"

        assert "other" == await (await app.enqueue(other.job())).result(timeout=30)
        assert JobState.ready == (await waiting.get()).state


async def test_a_running_worker_runs_the_newest_of_a_handler_that_is_made_again(app):
    def run_cell(answer: str):
        @app.handler("again")
        async def again() -> str:
            return answer

        return again

    again = run_cell("first")
    async with working(app):
        assert "first" == await (await app.enqueue(again.job())).result(timeout=30)
        run_cell("second")
        # The handler that was made before sends to the same topic, which has a newer one.
        assert "second" == await (await app.enqueue(again.job())).result(timeout=30)


async def test_another_process_handler_of_the_same_topic_gets_another_child(app):
    square, cube = processes.square, processes.cube
    app.handlers.add(square)
    async with working(app):
        assert 9 == await (await app.enqueue("square", 3)).result(timeout=60)
        app.remove_handler("square")
        app.handler("square", run_in="process")(cube.fn)
        assert 27 == await (await app.enqueue("square", 3)).result(timeout=60)
