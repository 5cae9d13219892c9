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
from tests.record.kit import change_row, now_ms, read_rows, row, write_rows

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


async def test_what_ended_lately_stays_however_long_ago_it_was_asked_for(database):
    await write_rows(
        database,
        old("late", state=JobState.succeeded, ended_ms=now_ms()),
        old("early", state=JobState.succeeded, ended_ms=now_ms() - 2 * DAY_MS),
    )
    assert 1 == await Retention(database, "n", keep_ms=DAY_MS, clock=Now()).run_once()
    assert {"late"} == set(await read_rows(database))


async def test_jobs_that_have_not_ended_for_long_hide_none_behind_them(database, monkeypatch):
    monkeypatch.setattr(retention, "AT_ONCE", 2)
    monkeypatch.setattr(retention, "PAGES", 2)
    longest_ago = now_ms() - 9 * DAY_MS
    await write_rows(
        database,
        *(row("n", f"open{number}", changed_ms=longest_ago) for number in range(6)),
        old("done", state=JobState.succeeded),
    )
    tidy = Retention(database, "n", keep_ms=DAY_MS, clock=Now())
    # Four of them are looked at in a step, two pages of two; the second step comes to what is behind.
    assert [0, 1] == [await tidy.run_once() for _ in range(2)]
    assert {f"open{number}" for number in range(6)} == set(await read_rows(database))
    # The next round begins with them again.
    await write_rows(database, row("n", "first", changed_ms=longest_ago - 1, state=JobState.dead))
    assert [1, 0] == [await tidy.run_once() for _ in range(2)]


async def test_what_is_asked_for_again_meanwhile_stays_with_its_runs(database):
    await write_rows(database, old("a", state=JobState.dead))
    await database.write(lambda connection: connection.execute(insert(attempts), [run_of("a")]) and None)
    before_ms = now_ms() - DAY_MS
    keys, _ = await database.read(lambda connection: retention.past(connection, "n", before_ms, None))
    await change_row(database, "a", state=JobState.scheduled, changed_ms=now_ms())
    drop = retention.drop_ended
    assert 0 == await database.write(lambda connection: drop(connection, "n", before_ms, keys))
    assert ({"a"}, ["a"]) == (set(await read_rows(database)), await runs(database))
