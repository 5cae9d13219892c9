"""
Transactions: shared by those who come together, repeated where that is safe, and clear where they fail.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from duly.errors import LayoutMismatch, OutcomeUnknown, RecordUnavailable
from duly.job import JobKey, Order
from duly.record import database as module
from duly.record.clock import Moment
from duly.record.commits import Commits, Kind
from duly.record.database import Database
from duly.record.stored import find
from duly.record.writes import Wanted, accept
from tests.databases import PostgreSQL

NOW = Moment(1_000, 1_000)
accepting = Kind(
    lambda connection, items: accept(connection, "n", items, NOW),
    key=lambda wanted: wanted.order.key,
    size=lambda wanted: len(wanted.order.payload),
)


def wanted(number, payload=b""):
    return Wanted(Order(JobKey("mail", str(number)), payload), number.to_bytes(6, "big"))


async def stored(database, *numbers):
    keys = [JobKey("mail", str(number)) for number in numbers]
    return len(await database.read(lambda connection: find(connection, "n", keys)))


async def test_calls_that_are_under_way_together_share_a_transaction(database):
    commits = Commits(database)
    answers = await asyncio.gather(*(commits.ask(accepting, wanted(number)) for number in range(100)))
    assert {"created"} == {written.answer.word for written in answers}
    # The first one met nobody; the others came while it was under way.
    assert 2 == commits.transactions
    assert 100 == await stored(database, *range(100))


async def test_what_follows_a_commit_is_done_once_for_all_of_it_before_anybody_is_told(database):
    followed = []

    async def follow(answers):
        assert len(answers) == await stored(database, *(each.answer.key.id for each in answers))
        followed.append(len(answers))

    commits, kind = Commits(database), replace(accepting, after=follow)

    async def ask(number):
        await commits.ask(kind, wanted(number))
        return sum(followed)

    told = await asyncio.gather(*map(ask, range(20)))
    assert ([1, 19], [1] + [20] * 19) == (followed, told)


async def test_two_calls_for_one_id_are_answered_in_turn(database):
    commits = Commits(database)
    asked = [wanted(1), wanted(2), Wanted(wanted(2).order, b"second")]
    answers = await asyncio.gather(*(commits.ask(accepting, each) for each in asked))
    assert ["created", "created", "kept"] == [written.answer.word for written in answers]


async def test_kinds_share_transactions_and_keep_their_answers(database):
    counting = Kind(
        lambda connection, items: (
            [connection.execute(text("SELECT count(*) FROM duly_jobs")).scalar()] * len(items)
        ),
        key=lambda number: number,
        size=lambda _: 0,
    )
    commits = Commits(database)
    first = asyncio.create_task(commits.ask(accepting, wanted(0)))
    await asyncio.sleep(0)
    others = [commits.ask(accepting, wanted(1)), commits.ask(counting, 1), commits.ask(counting, 2)]
    written, *counts = await asyncio.gather(*others)
    assert ("created", [2, 2]) == (written.answer.word, counts)
    await first
    assert 2 == commits.transactions


async def test_what_fails_leaves_nothing_behind(database):
    def work(connection):
        accept(connection, "n", [wanted(1)], NOW)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.write(work)
    assert 0 == await stored(database, 1)


async def test_a_commit_whose_answer_was_lost_is_found_by_its_repetition(database, monkeypatch):
    run, lost = module._Attempt.run, []

    async def run_and_lose(self, work):
        answer = await run(self, work)
        if not lost:
            lost.append(answer)
            raise lost_connection()
        return answer

    monkeypatch.setattr(module._Attempt, "run", run_and_lose)
    [written] = await database.write(lambda connection: accept(connection, "n", [wanted(1)], NOW))
    assert lost == [[written]]


def lost_connection():
    return OperationalError("COMMIT", {}, OSError("gone"), connection_invalidated=True)


async def test_a_database_without_tables_says_what_to_do(record_url):
    database = Database(record_url)
    with pytest.raises(LayoutMismatch, match="duly record migrate"):
        await stored(database, 1)
    await database.aclose()


@pytest.mark.parametrize(
    "url", ["postgresql://x@127.0.0.1:1/x", "mysql://x@127.0.0.1:1/x", "sqlite:////no/x.db"]
)
async def test_a_database_that_is_away_is_named(url):
    database = Database(url)
    with pytest.raises(RecordUnavailable, match="the record cannot be reached: "):
        await stored(database, 1)
    await database.aclose()


async def test_a_database_that_comes_back_is_used_again():
    server = PostgreSQL()
    try:
        server.start()
        database = Database(server.migrated())
        commits = Commits(database)
        await commits.ask(accepting, wanted(1))
        server.kill()
        with pytest.raises((RecordUnavailable, OutcomeUnknown)):
            await commits.ask(accepting, wanted(2))
        server.start()
        # Its connections died with it; that is not the caller's business.
        assert "created" == (await commits.ask(accepting, wanted(3))).answer.word
        assert 2 == await stored(database, 1, 3)
        await database.aclose()
    finally:
        server.stop()


class Locked(Exception):
    """
    What PostgreSQL says where a statement has waited long enough for a lock.
    """

    sqlstate = "55P03"


async def test_what_is_locked_waits_alone_and_what_fails_fails_alone(database):
    free = []

    def run(_, items):
        if "locked" in items and not free:
            raise OperationalError("", {}, Locked())
        if "bad" in items:
            raise ValueError("bad")
        return [f"{item}!" for item in items]

    kind, commits = Kind(run, key=str, size=len), Commits(database)
    words = ["first", *(f"{number}" for number in range(100)), "locked"]
    calls = [asyncio.create_task(commits.ask(kind, word)) for word in words]
    bad = asyncio.create_task(commits.ask(kind, "bad"))
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*calls[:90])
        await asyncio.wait([bad])
        assert "late!" == await commits.ask(kind, "late")
    assert [f"{word}!" for word in words[:90]] == answers
    assert "bad" == str(bad.exception())
    assert not calls[-1].done()
    free.append(True)
    async with asyncio.timeout(20):
        assert "locked!" == await calls[-1]


async def test_what_is_locked_for_too_long_is_refused(database, monkeypatch):
    monkeypatch.setattr("duly.record.commits.ANSWERS_WITHIN_S", 0.1)

    def run(*_):
        raise OperationalError("", {}, Locked())

    with pytest.raises(RecordUnavailable, match="somebody else has locked what the record needs"):
        await Commits(database).ask(Kind(run, key=str, size=len), "a")
