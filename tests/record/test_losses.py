"""
Redis loses its newest part, of any length: every promised job ends, none begins after its row has ended, and
nothing has to be reconciled.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import redis

from duly import Duly
from duly.errors import DulyError
from duly.job import JobState
from duly.record.bringback import BringBack
from duly.record.status import status_of
from tests.eventually import eventually
from tests.record.kit import HOUR_MS, change_row, now_ms, read_rows, row, write_rows
from tests.record.working import working
from tests.servers import Server, binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HORIZON_S = 2.0
EVERY_S = 0.02


class Loser:
    """
    A server of one's own that can lose what it was told last.
    """

    def __init__(self) -> None:
        self.server = Server(binary("valkey"), appendfsync="always").start()
        self.sizes: list[tuple[float, int]] = []  #: of its file, and when

    @property
    def file(self) -> Path:
        return next((self.server.dir / "appendonlydir").glob("*.incr.aof"))

    def note(self) -> None:
        size = self.file.stat().st_size
        if not self.sizes or self.sizes[-1][1] != size:
            self.sizes.append((time.monotonic(), size))

    def lose(self, last_s: float | None) -> None:
        """
        Start again without what came in the last seconds; None for the last command, 0 for everything.
        """
        self.server.kill()
        self.note()
        ended_s, size = self.sizes[-1]
        if last_s is None:
            kept = self._before_the_last_command(size)
        elif last_s == 0:
            kept = 0
        else:
            kept = max((size for at_s, size in self.sizes if at_s <= ended_s - last_s), default=0)
        with self.file.open("r+b") as file:
            file.truncate(kept)
        self.sizes.clear()
        self.server.start()

    def _before_the_last_command(self, size: int) -> int:
        # A command begins with the number of its words; one that is cut short is left out by the server.
        return size - 1


class Traffic:
    """
    Jobs of all kinds that are under way when the server loses something.
    """

    def __init__(self, app: Duly) -> None:
        self.app = app
        self.began: list[tuple[str, float]] = []
        self.sent: list[str] = []

        @app.handler("loss", max_attempts=5, max_crashes=50)
        async def loss(id: str, takes: float) -> str:
            self.began.append((id, time.time()))
            await asyncio.sleep(takes)
            return id

    async def send(self, stop: asyncio.Event) -> None:
        """
        Near and far jobs, short and long ones, until told to stop.
        """
        number = 0
        while not stop.is_set():
            number += 1
            id_ = f"{number}"
            # Due now, soon, and behind the horizon; some run while it happens.
            delay = (0, 0, 0.5, HORIZON_S + 1)[number % 4]
            takes = (0, 0.4)[number % 7 == 0]
            try:
                await self.app.enqueue("loss", {"id": id_, "takes": takes}, id=id_, delay=delay)
            except DulyError:
                continue  # it was not promised, or is: who gets no answer does not know
            self.sent.append(id_)
            await asyncio.sleep(EVERY_S)


@asynccontextmanager
async def all_must_end(
    migrated_url: str, namespace: str, *, sends: bool = True
) -> AsyncIterator[tuple[Loser, Traffic]]:
    loser = Loser()
    app = Duly(
        loser.server.url,
        namespace=namespace,
        record=migrated_url,
        horizon=HORIZON_S,
        lease="1s",
        recover_scan="200ms",
        concurrency=50,
    )
    traffic, stop = Traffic(app), asyncio.Event()
    try:
        async with app, working(app):
            if not sends:
                stop.set()
            sending = asyncio.create_task(traffic.send(stop))
            yield loser, traffic
            stop.set()
            await sending
            record = await app.record()

            async def ended() -> None:
                rows = await read_rows(record.database)
                assert {JobState.succeeded} == {JobState(each.state) for each in rows.values()}

            await eventually(ended, 60)
            rows = await read_rows(record.database)
            assert set(traffic.sent) <= set(rows)
            late = [id_ for id_, at_s in traffic.began if int(at_s * 1000) > rows[id_].ended_ms]
            assert [] == late, "began although their rows had ended"
            assert {} == (await record.reconcile(apply=False)).found
    finally:
        loser.server.stop()


async def note_for(loser: Loser, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        loser.note()
        await asyncio.sleep(0.005)


LOSSES = [
    pytest.param(None, id="one-command"),
    pytest.param(0.2, id="0.2s"),
    pytest.param(1.0, id="1s"),
    pytest.param(2.0, id="2s", marks=pytest.mark.long),
    pytest.param(4.0, id="4s", marks=pytest.mark.long),
    pytest.param(0, id="everything"),
]


@pytest.mark.parametrize("migrated_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("last_s", LOSSES)
async def test_a_loss_of_any_length_costs_no_job_and_repeats_none_that_has_ended(
    migrated_url, namespace, last_s
):
    async with all_must_end(migrated_url, namespace) as (loser, _):
        await note_for(loser, 1.5 + (last_s or 0))
        loser.lose(last_s)
        await note_for(loser, 0.5)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_everything_but_the_newest_second_may_be_lost(migrated_url, namespace):
    async with all_must_end(migrated_url, namespace) as (loser, traffic):
        await note_for(loser, 1.5)
        await (await traffic.app.store()).link.call("FLUSHALL")
        await note_for(loser, 1.0)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_what_is_brought_after_an_outage_and_lost_then_comes_back(migrated_url, namespace):
    async with all_must_end(migrated_url, namespace) as (loser, traffic):
        await note_for(loser, 0.5)
        loser.server.kill()
        before = len(traffic.sent)
        await eventually(lambda: len(traffic.sent) > before + 10, 30)
        loser.server.start()
        await note_for(loser, 0.6)
        loser.lose(0.23)


@pytest.mark.parametrize("migrated_url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("last_s", [None, 0.2, 1.1])
async def test_jobs_from_beyond_the_horizon_come_back_that_were_promised_long_ago(
    migrated_url, namespace, last_s
):
    """
    Nothing but bringing them tells that Redis has them: their rows changed long before.
    """
    async with all_must_end(migrated_url, namespace, sends=False) as (loser, traffic):
        for number in range(20):
            await traffic.app.enqueue("loss", {"id": f"{number}", "takes": 0}, id=f"{number}", delay=4)
        database = (await traffic.app.record()).database
        long_ago = now_ms() - HOUR_MS
        for number in range(20):
            await change_row(database, f"{number}", accepted_ms=long_ago, changed_ms=long_ago)

        async def brought() -> None:
            loser.note()
            assert {None} == {each.relay_ms for each in (await read_rows(database)).values()}

        await eventually(brought)
        loser.lose(last_s)


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_two_losses_one_after_the_other(migrated_url, namespace):
    async with all_must_end(migrated_url, namespace) as (loser, _):
        await note_for(loser, 1.0)
        loser.lose(0.3)
        await note_for(loser, 1.0)
        loser.lose(0.5)


MANY = [pytest.param(5_000, id="5000"), pytest.param(100_000, id="100000", marks=pytest.mark.long)]


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("many", MANY)
async def test_what_is_due_now_starts_before_all_that_was_lost_is_back(
    migrated_url, valkey, namespace, many, monkeypatch
):
    ran: list[str] = []
    async with Duly(valkey.url, namespace=namespace, record=migrated_url) as app:

        @app.handler("mail")
        async def mail(to: str) -> None:
            ran.append(to)

        await app.enqueue("mail", {"to": "first"}, id="first", delay=3600)
        record = await app.record()
        await record.settle()
        moment = now_ms()
        rows = [row(namespace, f"{at}", due_ms=moment + HOUR_MS + at) for at in range(many)]
        for at in range(0, many, 1_000):
            await write_rows(record.database, *rows[at : at + 1_000])
        old = row(namespace, "old", due_ms=moment - 1_000, payload=b'{"to":"old"}')
        await write_rows(record.database, old)
        await (await app.store()).link.call("FLUSHALL")
        back, paused = BringBack.run_once, asyncio.Event()

        async def first_pages_only(self: BringBack) -> int:
            [progress] = await self.pending() or [None]
            if progress is not None and progress.brought >= 1_000:
                await paused.wait()
            return await back(self)

        monkeypatch.setattr(BringBack, "run_once", first_pages_only)
        async with working(app):
            await app.enqueue("mail", {"to": "new"}, id="new")
            await eventually(lambda: {"old", "new"} <= set(ran), 30)
            told = await asyncio.to_thread(status_of, migrated_url, namespace)
            [progress] = told["brought_back"]
            assert (False, True) == (progress["done"], progress["jobs"] <= 1_500)
            paused.set()

            async def all_back() -> None:
                told = await asyncio.to_thread(status_of, migrated_url, namespace)
                assert (True, many + 2) == (told["brought_back"][0]["done"], told["brought_back"][0]["jobs"])

            await eventually(all_back, 120)
        assert not (await record.reconcile(apply=False)).found


def test_the_server_loses_what_it_is_told_to_lose():
    loser = Loser()
    try:
        with redis.Redis(unix_socket_path=str(loser.server.socket)) as raw:
            for number in range(3):
                raw.set(str(number), 1)
            loser.lose(None)
            assert [b"0", b"1"] == sorted(raw.keys())
            loser.lose(0)
            assert [] == raw.keys()
    finally:
        loser.server.stop()
