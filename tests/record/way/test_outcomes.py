"""
What becomes of jobs gets into the record: by the worker, together with what else ends meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from sqlalchemy import event

from duly import Duly, Retry, Snooze
from duly.job import JobKey, JobState
from duly.record.database import Database
from duly.record.outcomes import Outcomes, write_runs
from duly.record.relay import Relay
from duly.record.runs import EndedRun
from duly.record.schema import migrate
from duly.services.crew import Crew
from duly.store import Store
from tests.databases import PostgreSQL
from tests.eventually import eventually
from tests.record.way.kit import NOW, commit, promised, rows_of, runs_of

if TYPE_CHECKING:
    from duly.connection import Link


def ended(row, word: str = "acked", state: JobState = JobState.succeeded, **fields) -> EndedRun:
    run = EndedRun(
        row.key, row.revision, 77, word, state, 1, 1, 0, "w1", NOW + 10, NOW + 30, 10, b'{"n": "\xc3\xa4\'"}'
    )
    return replace(run, **fields)


async def write(database, namespace, *runs: EndedRun, generation: int = 1) -> None:
    await database.write(
        lambda connection: write_runs(connection, namespace, [(run, generation) for run in runs])
    )


async def test_an_outcome_ends_the_row_and_leaves_a_row_of_the_run(database, namespace):
    row, other = promised("a", namespace=namespace), promised("b", namespace=namespace)
    await commit(database, row, other)
    run = ended(row)
    await write(database, namespace, run)
    rows = await rows_of(database)
    stored = rows["a"]
    assert (JobState.succeeded, run.outcome, 1, 0) == (
        stored.state,
        bytes(stored.outcome),
        stored.attempts,
        stored.crashes,
    )
    assert (NOW + 10, NOW + 30, 10, row.changed_ms) == (
        stored.started_ms,
        stored.ended_ms,
        stored.lateness_ms,
        stored.changed_ms,
    )
    assert (None, row.revision) == (stored.relay_ms, stored.hydrated), (
        "Redis had it: there is nothing to bring"
    )
    assert other == rows["b"]
    [attempt] = await runs_of(database)
    assert (
        namespace,
        "mail",
        "a",
        77,
        row.revision,
        1,
        "acked",
        "w1",
        NOW + 10,
        NOW + 30,
        10,
        None,
    ) == tuple(attempt)


async def test_the_same_again_changes_nothing_and_another_ending_comes_too_late(database, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    await write(database, namespace, ended(row))
    before = await rows_of(database), await runs_of(database)
    await write(database, namespace, ended(row))
    assert before == (await rows_of(database), await runs_of(database))
    await write(database, namespace, ended(row, "buried", JobState.dead, token=78, outcome=b"{}"))
    assert before[0] == await rows_of(database)
    assert [77, 78] == [run.token for run in await runs_of(database)], "that it ran is true all the same"


@pytest.mark.parametrize(
    ("columns", "written"),
    [({}, True), ({"generation": 1}, True), ({"generation": 2}, False), ({"state": 5}, False)],
)
async def test_only_the_open_row_of_this_revision_and_generation_is_ended(
    database, namespace, columns, written
):
    row = promised("a", namespace=namespace, **columns)
    await commit(database, row)
    await write(database, namespace, ended(row, revision=row.revision - 1))
    assert row == (await rows_of(database))["a"]
    await write(database, namespace, ended(row), generation=1)
    assert written == (JobState.succeeded == (await rows_of(database))["a"].state)


async def test_runs_and_crashes_of_open_jobs_are_counted_and_never_down(database, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    retried = ended(row, "retried", JobState.scheduled, attempts=2, attempt=2, token=2)
    await write(
        database, namespace, replace(retried, attempts=1, attempt=1, token=1), replace(retried, crashes=1)
    )
    await write(database, namespace, replace(retried, attempts=1, token=1))
    await write(database, namespace, replace(retried, attempts=1, crashes=2, token=2))
    stored = (await rows_of(database))["a"]
    assert (2, 2, JobState.scheduled, row.relay_ms, None) == (
        stored.attempts,
        stored.crashes,
        stored.state,
        stored.relay_ms,
        stored.outcome,
    )
    assert [(1, b'{"n": "\xc3\xa4\'"}'), (2, b'{"n": "\xc3\xa4\'"}')] == [
        (run.token, bytes(run.error)) for run in await runs_of(database)
    ]


async def test_what_ends_together_is_committed_together(database, namespace):
    rows = [promised(str(at), namespace=namespace) for at in range(1_200)]
    await commit(database, *rows)
    commits = []
    event.listen(database.engine.sync_engine, "commit", lambda _: commits.append(1))
    outcomes = Outcomes(database, namespace, generation=lambda: 1)
    for at, row in enumerate(rows):
        outcomes.put(ended(row, token=at + 1))
    assert 0 == await outcomes.finish(60)
    assert 2 == len(commits)
    assert {JobState.succeeded.value} == {row.state for row in (await rows_of(database)).values()}
    assert 1_200 == len(await runs_of(database))


async def test_runs_that_are_there_already_keep_none_of_the_others_away(database, namespace, caplog):
    rows = [promised(id_, namespace=namespace) for id_ in ("a", "b", "c")]
    await commit(database, *rows)
    runs = [ended(row, token=at) for at, row in enumerate(rows, 1)]
    # By a commit whose answer was lost, or by the net.
    await write(database, namespace, runs[1])
    outcomes = Outcomes(database, namespace, generation=lambda: 1)
    for run in runs:
        outcomes.put(run)
    assert 0 == await outcomes.finish(60)
    assert {JobState.succeeded.value} == {row.state for row in (await rows_of(database)).values()}
    assert [1, 2, 3] == [run.token for run in await runs_of(database)]
    assert [] == caplog.messages, "nobody has to know"


async def test_an_ending_without_a_run_is_a_change_of_its_row(database, namespace):
    row = promised("a", namespace=namespace)
    await commit(database, row)
    await write(database, namespace, ended(row, "cancelled", JobState.cancelled, token=0))
    assert NOW + 30 == (await rows_of(database))["a"].changed_ms
    assert [] == await runs_of(database)


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
async def test_an_outcome_that_the_database_does_not_take_holds_up_no_other(database, namespace, caplog):
    rows = [promised(id_, namespace=namespace) for id_ in ("a", "b", "c")]
    await commit(database, *rows)
    outcomes = Outcomes(database, namespace, generation=lambda: 1)
    for at, row in enumerate(rows):
        outcomes.put(ended(row, token=at + 1, worker="x" * (500 if at == 1 else 1)))
    assert 0 == await outcomes.finish(60)
    stored = await rows_of(database)
    assert [3, 0, 3] == [stored[id_].state for id_ in ("a", "b", "c")]
    assert "does not take the outcome of mail/b" in caplog.text


# -- by a worker ------------------------------------------------------------------------------------------


@pytest.fixture
async def bench(server, namespace):
    """
    An app with handlers and a crew for them; what a test needs to put them together with a record.
    """
    app = Duly(server.url, namespace=namespace, concurrency=4, drain_grace=5)
    ran: list[str] = []

    @app.handler("mail", max_attempts=2)
    async def mail(word: str = "ok") -> str:
        ran.append(word)
        match word:
            case "fail":
                raise ValueError("no")
            case "fenced":
                # It loses its lease, and does not hear of it before it has ended.
                store = await app.store()
                await store.cancel([JobKey("mail", "fenced")])
                return "too late"
            case "snooze" if ran.count("snooze") == 1:
                return Snooze(0.01)
            case "retry" if ran.count("retry") == 1:
                raise Retry(0.01)
        return f"{word}!"

    app.ran = ran
    yield app
    await app.aclose()


def crew_of(app: Duly, outcomes: Outcomes) -> Crew:
    return Crew(app.make_store, app.handlers, app.hooks, app.settings, outcomes=outcomes)


def relay_of(database: Database, app: Duly, link: Link) -> Relay:
    store = Store(link, namespace=app.settings.namespace, shards=app.settings.shards)
    return Relay(database, store, horizon_ms=10**9, generation=lambda: 1)


async def test_a_worker_writes_what_became_of_its_jobs(database, bench, link, namespace):
    await (await bench.store()).approve("record", 1)
    words = ("ok", "fail", "snooze", "retry")
    rows = [promised(word, namespace=namespace, payload=f'"{word}"'.encode()) for word in words]
    rows = [row._replace(due_ms=1) for row in rows]
    await commit(database, *rows)
    relay = relay_of(database, bench, link)
    await relay.look()
    outcomes = Outcomes(database, namespace, generation=lambda: 1)
    stop = asyncio.Event()
    task = asyncio.create_task(crew_of(bench, outcomes).run(stop))

    async def all_ended() -> None:
        assert all(row.ended for row in (await rows_of(database)).values())

    await eventually(all_ended, 60)
    stop.set()
    await task
    stored = await rows_of(database)
    assert {
        "ok": (JobState.succeeded, 1, b'"ok!"'),
        "snooze": (JobState.succeeded, 1, b'"snooze!"'),
        "retry": (JobState.succeeded, 2, b'"retry!"'),
    } == {id_: (row.state, row.attempts, bytes(row.outcome)) for id_, row in stored.items() if id_ != "fail"}
    assert (JobState.dead, 2) == (stored["fail"].state, stored["fail"].attempts)
    assert b'"ValueError"' in bytes(stored["fail"].outcome)
    told = sorted((run.id, run.word, run.attempt) for run in await runs_of(database))
    assert [
        ("fail", "buried", 2),
        ("fail", "retried", 1),
        ("ok", "acked", 1),
        ("retry", "acked", 2),
        ("retry", "retried", 1),
        ("snooze", "acked", 1),
        ("snooze", "retried", 1),
    ] == told


async def test_what_a_run_returns_that_lost_its_lease_is_not_written(database, bench, link, namespace):
    await (await bench.store()).approve("record", 1)
    rows = [promised(word, namespace=namespace, payload=f'"{word}"'.encode()) for word in ("fenced", "ok")]
    await commit(database, *(row._replace(due_ms=1) for row in rows))
    await relay_of(database, bench, link).look()
    outcomes = Outcomes(database, namespace, generation=lambda: 1)
    stop = asyncio.Event()
    task = asyncio.create_task(crew_of(bench, outcomes).run(stop))

    async def other_ended() -> None:
        assert (await rows_of(database))["ok"].ended
        assert "fenced" in bench.ran

    await eventually(other_ended, 60)
    stop.set()
    await task
    # Its cancellation is told by the events; what it returned is nobody's.
    assert JobState.scheduled == (await rows_of(database))["fenced"].state
    assert ["ok"] == [run.id for run in await runs_of(database)]


async def test_a_worker_claims_no_more_while_the_record_cannot_be_told(bench, link, namespace):
    server = PostgreSQL()
    try:
        url = server.start().fresh()
        await asyncio.to_thread(migrate, url)
        database = Database(url)
        await (await bench.store()).approve("record", 1)
        rows = [
            promised(f"{at:02}", namespace=namespace, payload=b'"ok"')._replace(due_ms=1) for at in range(60)
        ]
        await commit(database, *rows)
        await relay_of(database, bench, link).look()
        server.kill()
        outcomes = Outcomes(database, namespace, generation=lambda: 1, most=10)
        crew = crew_of(bench, outcomes)
        stop = asyncio.Event()
        task = asyncio.create_task(crew.run(stop))
        await eventually(lambda: outcomes.full and not crew.worker.running.runs, 60)
        # As long as it would take to run them all: nothing else can show that it claims no more.
        await asyncio.sleep(1)
        assert len(outcomes) == len(bench.ran) < 60
        server.start()

        async def all_ended() -> None:
            assert all(row.ended for row in (await rows_of(database)).values())

        await eventually(all_ended, 60)
        assert 60 == len(bench.ran) == len(await runs_of(database))
        stop.set()
        await task
        await database.aclose()
    finally:
        server.stop()
