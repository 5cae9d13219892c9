"""
Rows of ended jobs go by their age; what has not ended, or Redis has not heard of, stays.
"""

from __future__ import annotations

from sqlalchemy import insert, select

from duly.job import JobState
from duly.record import retention
from duly.record.clock import Moment
from duly.record.retention import Retention
from duly.record.tables import attempts
from tests.record.kit import now_ms, read_rows, row, write_rows

DAY_MS = 86_400_000


class Now:
    """
    A clock that tells this machine's time.
    """

    def now(self) -> Moment:
        return Moment(now_ms(), now_ms())


def old(id_: str, **changes):
    return row("n", id_, changed_ms=now_ms() - 2 * DAY_MS, **changes)


def run_of(id_: str) -> dict[str, object]:
    about = {"namespace": "n", "topic": "mail", "id": id_, "token": 1, "revision": 1, "attempt": 1}
    return about | {"word": "acked", "worker": "w", "started_ms": 1, "ended_ms": 2}


async def runs(database) -> list[str]:
    found = await database.read(lambda connection: connection.execute(select(attempts.c.id)).all())
    return sorted(each.id for each in found)


async def test_only_old_rows_of_ended_jobs_go_with_their_runs(database):
    await write_rows(
        database,
        old("done", state=JobState.succeeded),
        old("dead", state=JobState.dead),
        old("open"),
        old("untold", state=JobState.cancelled, relay_ms=5),
        row("n", "fresh", state=JobState.succeeded),
        old("other") | {"namespace": "m", "state": JobState.succeeded},
    )
    both = [run_of("done"), run_of("open")]
    await database.write(lambda connection: connection.execute(insert(attempts), both) and None)
    tidy = Retention(database, "n", keep_ms=DAY_MS, clock=Now())
    assert 2 == await tidy.run_once()
    assert {"open", "untold", "fresh", "other"} == set(await read_rows(database))
    assert ["open"] == await runs(database)
    assert 0 == await tidy.run_once()


async def test_many_go_in_steps(database, monkeypatch):
    monkeypatch.setattr(retention, "AT_ONCE", 3)
    await write_rows(database, *(old(str(number), state=JobState.succeeded) for number in range(7)))
    tidy = Retention(database, "n", keep_ms=DAY_MS, clock=Now())
    assert [3, 3, 1, 0] == [await tidy.run_once() for _ in range(4)]
    assert {} == await read_rows(database)
