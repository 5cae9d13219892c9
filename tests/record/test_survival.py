"""
Workers outlive a role that lacks a grant, and a database that is away when they start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys

import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from duly import Duly, JobState
from duly.record import schema
from duly.record.database import Database, GrantMissing, sync_engine
from duly.record.retention import Retention
from tests.databases import PostgreSQL
from tests.eventually import eventually
from tests.record import kit
from tests.record.working import working

OLD_MS = 60 * 24 * kit.HOUR_MS


@pytest.fixture(params=["postgresql", "mariadb"])
def servers(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def owner_url(servers):
    url = servers.migrated()
    yield url
    servers.drop(url)


def execute(url, *statements):
    engine = sync_engine(url)
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
        connection.commit()
    engine.dispose()


@pytest.fixture
def role_url(owner_url):
    """
    The record as a role of this test's own sees it, which may do nothing yet.
    """
    name = f"role_{os.getpid()}_{make_url(owner_url).database}"
    if owner_url.startswith("mysql"):
        execute(owner_url, f"CREATE USER {name}@'%'")
    else:
        execute(owner_url, f"CREATE ROLE {name} LOGIN")
    yield make_url(owner_url).set(username=name).render_as_string()
    if owner_url.startswith("mysql"):
        execute(owner_url, f"DROP USER {name}@'%'")
    else:
        execute(owner_url, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


def grant(owner_url, role_url, *, without=""):
    statements = schema.grants(owner_url, make_url(role_url).username)
    execute(owner_url, *(each.replace(without, "") for each in statements))


async def test_a_role_without_delete_keeps_its_workers(
    valkey, namespace, owner_url, role_url, monkeypatch, caplog
):
    monkeypatch.setattr(Retention, "every_s", 0.05)
    grant(owner_url, role_url, without=", DELETE")
    owner = Database(owner_url)
    then_ms = kit.now_ms() - OLD_MS
    old = {"state": JobState.succeeded, "accepted_ms": then_ms, "changed_ms": then_ms, "ended_ms": then_ms}
    await kit.write_rows(owner, kit.row(namespace, "old", **old))
    async with Duly(valkey.url, namespace=namespace, record=role_url) as app:

        @app.handler("mail")
        async def mail(number: int) -> int:
            return number + 1

        async with working(app):
            await eventually(lambda: "`duly record grants` prints what its role needs" in caplog.text)
            for number in range(3):
                job = await app.enqueue(mail.job(number))
                assert number + 1 == await job.result(timeout=60)
            # It is named once, not at every try.
            [said] = [each for each in caplog.records if each.levelno == logging.ERROR]
            assert "retention: the record does not allow it: " in said.getMessage()
            grant(owner_url, role_url)

            async def gone():
                assert "old" not in await kit.read_rows(owner)

            await eventually(gone, within_s=30)
    await owner.aclose()


async def test_the_printed_grants_are_enough(valkey, namespace, owner_url, role_url):
    grant(owner_url, role_url)
    async with Duly(valkey.url, namespace=namespace, record=role_url, horizon="1m") as app:

        @app.handler("mail")
        async def mail(number: int) -> int:
            return number + 1

        async with working(app):
            sent = await app.enqueue_many([mail.job(number) for number in range(30)])
            assert [*range(1, 31)] == [await job.result(timeout=60) for job in sent]
            late = await app.enqueue(mail.job(1), delay=3600)
            await late.reschedule(delay=7200)
            await late.cancel()
            await late.requeue()
            assert 2 == await late.result(timeout=60)
        await (await app.record()).reconcile(apply=True)
    assert [] == schema.check(role_url)


async def test_a_session_whose_role_lacks_a_grant_is_told_what_it_needs(
    valkey, namespace, owner_url, role_url
):
    grant(owner_url, role_url, without=", INSERT")
    driver = "postgresql+psycopg2" if role_url.startswith("postgresql") else "mysql+pymysql"
    engine = create_engine(make_url(role_url).set(drivername=driver))
    async with Duly(valkey.url, namespace=namespace, record=owner_url) as app:
        with engine.connect() as session, pytest.raises(GrantMissing, match="duly record grants"):
            await app.enqueue("mail", 1, session=session)
    engine.dispose()


# -- a database that is away ------------------------------------------------------------------------------

JOBS = """
from duly import Duly

app = Duly()


@app.handler("mail")
async def mail(number: int) -> int:
    return number + 1
"""


@pytest.fixture
def away():
    server = PostgreSQL()
    server.start()
    server.away_url = server.migrated()
    server.kill()
    yield server
    server.stop()


async def test_a_worker_waits_for_its_database(valkey, namespace, away, tmp_path):
    tmp_path.joinpath("jobs.py").write_text(JOBS)
    settings = {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace, "DULY_RECORD": away.away_url}
    command = [sys.executable, "-m", "duly", "work", "jobs:app"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        worker = subprocess.Popen(command, cwd=tmp_path, env=os.environ | settings, stderr=out, stdout=out)
    try:
        await eventually(lambda: "the record cannot be reached" in log.read_text(), within_s=60)
        away.start()
        async with Duly(valkey.url, namespace=namespace, record=away.away_url) as app:
            sent = await app.enqueue("mail", {"number": 1}, retain=60)
            assert 2 == await sent.result(timeout=60)
        worker.terminate()
        assert 0 == await asyncio.to_thread(worker.wait, 60), log.read_text()
    finally:
        worker.kill()
        worker.wait()


async def test_a_worker_that_waits_for_its_database_can_be_stopped(valkey, namespace, away, caplog):
    app = Duly(valkey.url, namespace=namespace, record=away.away_url)
    app.handler("mail")(_nothing)
    async with asyncio.timeout(60), working(app):
        await eventually(lambda: "the record cannot be reached" in caplog.text)
    await app.aclose()


async def _nothing() -> None: ...
