"""
Connections that SQLAlchemy did not make: of plain DB-API modules, and Django's.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import psycopg
import psycopg2
import pymysql
import pytest
from sqlalchemy.engine import make_url

from duly import Duly
from duly.errors import UsageError
from duly.record import lend

COUNT = "SELECT count(*) FROM duly_jobs"


def connected(url):
    parts = make_url(url)
    match parts.drivername:
        case "sqlite":
            return sqlite3.connect(parts.database)
        case "postgresql":
            return psycopg.connect(url)
        case _:
            return pymysql.connect(
                host=parts.host, port=parts.port, user=parts.username, database=parts.database
            )


def count(connection):
    with closing(connection.cursor()) as cursor:
        cursor.execute(COUNT)
        return cursor.fetchone()[0]


@pytest.fixture
def app(valkey, namespace, migrated_url):
    app = Duly(valkey.url, namespace=namespace, record=migrated_url)
    yield app
    app.sync.close()


def test_a_plain_connection_decides_when_its_jobs_are_promised(app, migrated_url):
    with closing(connected(migrated_url)) as mine, closing(connected(migrated_url)) as other:
        with lend(mine) as session:
            app.sync.enqueue("mail", 1, id="a", session=session)
        assert 1 == count(mine)
        mine.rollback()
        assert 0 == count(mine)
        with lend(mine) as session:
            app.sync.enqueue("mail", 1, id="a", session=session)
            assert not app.sync.enqueue("mail", 2, id="a", session=session).created
        # Giving it back committed nothing: nobody else sees the job.
        assert 0 == count(other)
        other.rollback()
        mine.commit()
        assert 1 == count(other)
    assert "a" == app.sync.job("mail", "a").get().id


def test_what_a_connection_reads_is_the_same_after_it_was_lent(postgresql):
    with closing(psycopg2.connect(postgresql.url("postgres"))) as mine:
        with lend(mine) as session:
            session.exec_driver_sql("SELECT 1")
        with closing(mine.cursor()) as cursor:
            cursor.execute("SELECT CAST('5e7a0cbe-34a5-4d3c-b5d6-2b3f4e9f7a11' AS uuid)")
            assert [("5e7a0cbe-34a5-4d3c-b5d6-2b3f4e9f7a11",)] == cursor.fetchall()
    with closing(psycopg.connect(postgresql.url("postgres"))) as mine:
        handlers = len(mine._notice_handlers)
        with lend(mine) as session:
            session.exec_driver_sql("SELECT 1")
        assert handlers == len(mine._notice_handlers)


def test_no_function_is_added_to_a_connection_that_was_lent():
    with closing(sqlite3.connect(":memory:")) as mine:
        with lend(mine) as session:
            session.exec_driver_sql("SELECT 1")
        with pytest.raises(sqlite3.OperationalError, match="no such function"):
            mine.execute("SELECT 'a' REGEXP 'a'")


def test_what_cannot_be_lent_is_named():
    with pytest.raises(UsageError, match=r"cannot lend a builtins\.int"), lend(42):
        pass


DJANGO = """
import sys
import django
from django.conf import settings
from sqlalchemy.engine import make_url
from duly import Duly
from duly.record import lend

url, record, namespace = sys.argv[1:]
parts = make_url(record)
engine = {"sqlite": "sqlite3", "postgresql": "postgresql"}[parts.drivername]
settings.configure(DATABASES={"default": {
    "ENGINE": f"django.db.backends.{engine}", "NAME": parts.database, "USER": parts.username or "",
    "HOST": parts.host or "", "PORT": parts.port or "",
}})
django.setup()
from django.db import connection, transaction

app = Duly(url, namespace=namespace, record=record)

def send(id):
    with transaction.atomic():
        with lend(connection.connection) as session:
            app.sync.enqueue("mail", 1, id=id, session=session)
        if id == "b":
            raise ValueError

connection.ensure_connection()
send("a")
try:
    send("b")
except ValueError:
    pass
with connection.cursor() as cursor:
    cursor.execute("SELECT id FROM duly_jobs")
    print(cursor.fetchall())
app.sync.close()
"""


def test_a_job_is_part_of_a_transaction_of_django(valkey, namespace, migrated_url):
    if migrated_url.startswith("mysql"):
        pytest.skip("Django speaks to MySQL through mysqlclient, which needs a compiler to install")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DJANGO, valkey.url, migrated_url, namespace],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (0, "[('a',)]\n") == (done.returncode, done.stdout), done.stderr
