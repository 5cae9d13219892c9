"""
Where a record is, and how it is reached: a schema of PostgreSQL, poolers, pools of a size, TLS.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import closing
from functools import partial

import psycopg
import psycopg2
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from duly import Duly, JobState, UsageError
from duly.cli.main import main
from duly.errors import JobExists, RecordUnavailable, ServerUnsuitable
from duly.record import lend, schema
from duly.record.database import Database
from duly.record.notices import Notices
from duly.record.searchpath import within_schema
from duly.record.target import Target
from tests import certificates
from tests.databases import MariaDB, PostgreSQL
from tests.eventually import eventually
from tests.pgbouncer import pgbouncer
from tests.record.test_engines import engine_of, named, verbs, with_mail

HERE = "jobs_here"  #: a schema


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def url(postgresql):
    """
    A database with an empty schema, and no table of a record anywhere.
    """
    url = postgresql.fresh()
    execute(url, f"CREATE SCHEMA {HERE}")
    yield url
    postgresql.drop(url)


@pytest.fixture
def in_schema(url):
    target = Target(url, schema=HERE)
    schema.migrate(target)
    return target


def app_in(valkey, namespace, record, **options):
    return Duly(valkey.url, namespace=namespace, record=record, record_schema=HERE, horizon="1m", **options)


# -- a schema ---------------------------------------------------------------------------------------------


def test_tables_are_made_checked_and_listed_in_their_schema(url, in_schema):
    assert [] == schema.check(in_schema)
    assert (schema.newest(), schema.newest()) == schema.migrate(in_schema)
    parts = schema.partitions(in_schema)
    assert 16 == len([part for table, part, _ in parts if table == "duly_jobs"])
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'duly%'"
        ).fetchall()
    assert [(HERE,)] == found


def test_tables_in_another_schema_are_pointed_at(url, in_schema):
    [sentence] = schema.check(url)
    assert sentence == (
        "the record has no tables in the schemas of its search path, but there are some in 'jobs_here': "
        "make new ones with duly record migrate, or use those with record_schema='jobs_here' "
        "(DULY_RECORD_SCHEMA=jobs_here)"
    )
    execute(url, "CREATE SCHEMA empty")
    [sentence] = schema.check(Target(url, schema="empty"))
    assert sentence.startswith(
        "the record has no tables in schema 'empty', but there are some in 'jobs_here'"
    )


async def test_a_schema_that_is_not_there_is_named(valkey, namespace, url):
    target = Target(url, schema="nowhere")
    for ask in (schema.check, schema.migrate):
        with pytest.raises(
            UsageError, match="there is no schema 'nowhere' in the record's database: correct"
        ):
            ask(target)
    with pytest.raises(UsageError, match='CREATE SCHEMA "nowhere"'):
        await Duly(valkey.url, namespace=namespace, record=url, record_schema="nowhere").queue()


@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
async def test_every_verb_finds_the_schema(valkey, namespace, url, in_schema, pooled):
    async def use(url):
        async with app_in(valkey, namespace, url) as app:
            await verbs(app, with_mail(app))

    if pooled:
        # Few connections, which others with another search path use as well.
        with pgbouncer(url, connections=2) as through:
            await use(through)
            with psycopg.connect(through, prepare_threshold=None) as connection:
                for _ in range(5):
                    assert ('"$user", public',) == connection.execute("SHOW search_path").fetchone()
                    connection.commit()
    else:
        await use(url)


@pytest.mark.parametrize(
    ("make", "driver"),
    [
        (create_engine, "psycopg2"),
        (create_engine, "psycopg"),
        (create_async_engine, "psycopg"),
        (create_async_engine, "asyncpg"),
    ],
)
async def test_an_engine_that_was_handed_in_keeps_its_search_path(
    valkey, namespace, url, in_schema, make, driver
):
    async with engine_of(make, named(url, driver)) as engine:
        async with app_in(valkey, namespace, engine) as app:
            await verbs(app, with_mail(app))
        question = text("SHOW search_path")
        if make is create_engine:
            with engine.connect() as connection:
                assert '"$user", public' == connection.scalar(question)
        else:
            async with engine.connect() as connection:
                assert '"$user", public' == await connection.scalar(question)


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg", "asyncpg"])
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
async def test_a_session_finds_the_schema_and_its_own_tables(
    valkey, namespace, url, in_schema, driver, pooled
):
    if pooled and driver == "asyncpg":
        pytest.skip("what it needs behind a pooler is tested with engines that are handed in")
    execute(url, "CREATE TABLE orders (number int)")

    async def use(url):
        make = create_async_engine if driver == "asyncpg" else create_engine
        options = {"connect_args": {"prepare_threshold": None}} if driver == "psycopg" else {}
        async with (
            app_in(valkey, namespace, url) as app,
            engine_of(make, named(url, driver), **options) as engine,
        ):
            mail = with_mail(app)
            await app.record()

            async def within(session, order):
                await order("INSERT INTO orders VALUES (7)")
                one = await app.enqueue(mail.job(1), id="one", delay=60, session=session)
                with pytest.raises(JobExists):
                    await app.enqueue(mail.job(1), id="one", on_conflict="raise", session=session)
                await order("INSERT INTO orders VALUES (8)")  # also after a call that was refused
                assert JobState.cancelled is await one.cancel(session=session)
                await order("INSERT INTO orders VALUES (9)")
                return one

            if driver == "asyncpg":
                async with AsyncSession(engine) as session:
                    one = await within(session, lambda words: session.execute(text(words)))
                    await session.commit()
            else:
                with Session(engine) as session:

                    async def order(words):
                        session.execute(text(words))

                    one = await within(session, order)
                    session.commit()
            assert JobState.cancelled is (await one.get()).state

    if pooled:
        with pgbouncer(url, connections=2) as through:
            await use(through)
    else:
        await use(url)
    with psycopg.connect(url) as connection:
        assert (3,) == connection.execute("SELECT count(*) FROM orders").fetchone()


@pytest.mark.parametrize("driver", ["psycopg2", "psycopg"])
def test_work_that_fails_leaves_the_search_path_as_it_was(url, in_schema, driver):
    engine = create_engine(named(url, driver))

    def fail(connection):
        assert f'"{HERE}"' == connection.scalar(text("SHOW search_path"))
        raise LookupError

    with engine.begin() as connection:
        connection.execute(text("SET LOCAL search_path TO pg_catalog, public"))
        with pytest.raises(LookupError):
            within_schema(connection, HERE, fail)
        assert "pg_catalog, public" == connection.scalar(text("SHOW search_path"))
        savepoint = connection.begin_nested()
        with pytest.raises(ProgrammingError, match="nothing"):
            within_schema(connection, HERE, lambda found: found.execute(text("SELECT * FROM nothing")))
        savepoint.rollback()
        assert "pg_catalog, public" == connection.scalar(text("SHOW search_path"))
    engine.dispose()


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
async def test_a_lent_connection_finds_the_schema_and_has_to_be_in_a_transaction(
    valkey, namespace, url, in_schema, connect
):
    async with app_in(valkey, namespace, url) as app:
        await app.record()
        with closing(connect(url)) as mine:
            with lend(mine) as session:
                job = await app.enqueue("mail", 1, delay=60, session=session)
            cursor = mine.cursor()
            cursor.execute("SHOW search_path")
            assert ('"$user", public',) == cursor.fetchone()
            mine.commit()
            assert JobState.scheduled is (await job.get()).state
            mine.autocommit = True
            with lend(mine) as session, pytest.raises(UsageError, match="begin a transaction first"):
                await app.enqueue("mail", 1, session=session)


async def test_what_is_printed_lets_a_role_use_a_schema(valkey, namespace, url, in_schema):
    role = f"role_{os.getpid()}_schema"
    execute(url, f"CREATE ROLE {role} LOGIN")
    theirs = make_url(url).set(username=role).render_as_string()
    target = Target(theirs, schema=HERE)
    try:
        with pytest.raises(ServerUnsuitable, match="may not use schema 'jobs_here': `duly record grants"):
            schema.check(target)
        execute(url, *schema.grants(target, role))
        assert [] == schema.check(target)
        async with app_in(valkey, namespace, theirs) as app:
            await verbs(app, with_mail(app))
    finally:
        execute(url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_commands_find_the_schema(url, in_schema, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = ("--record", url, "--record-schema", HERE)
    assert 0 == main(("record", "check", *words))
    assert 0 == main(("record", "export", *words))
    assert 0 == main(("record", "grants", "--to", "app", *words))
    assert 'GRANT USAGE ON SCHEMA "jobs_here" TO "app";' in capsys.readouterr().out
    monkeypatch.setenv("DULY_RECORD_SCHEMA", HERE)
    monkeypatch.setenv("DULY_RECORD", url)
    assert 0 == main(("record", "migrate"))
    assert 0 == main(("record", "partitions"))
    assert "duly_jobs_p15" in capsys.readouterr().out
    assert 2 == main(("record", "check", "--record-schema", "not a name"))
    assert "record_schema='not a name' must be 1 to 63" in capsys.readouterr().err


async def test_two_records_in_two_schemas_of_a_database_do_not_meet(valkey, namespace, url, in_schema):
    schema.migrate(url)
    async with app_in(valkey, namespace, url) as app:
        await app.enqueue("mail", 1, delay=3600)
    other = Duly(valkey.url, namespace=namespace, record=url)
    with pytest.raises(ServerUnsuitable, match="belongs to another record than the one in the settings"):
        await other.queue()
    await other.aclose()


@pytest.mark.parametrize("url", ["sqlite:///record.db", "mysql://u@127.0.0.1:1/x"])
@pytest.mark.parametrize(
    "setting", [{"record_schema": "jobs"}, {"record_listen": "postgresql://u@127.0.0.1:1/x"}]
)
async def test_settings_for_postgresql_are_refused_elsewhere(valkey, namespace, url, setting):
    [name] = setting
    with pytest.raises(UsageError, match=f"{name} is for a record on PostgreSQL"):
        await Duly(valkey.url, namespace=namespace, record=url, **setting).queue()


# -- poolers ----------------------------------------------------------------------------------------------


async def heard_of(database, namespace):
    """
    Listen; return what stops it, and a list that grows with each notice.
    """
    heard = []
    task = asyncio.create_task(Notices(database, namespace, lambda: heard.append(1)).listen())
    await eventually(lambda: len(heard) == 1)  # it listens
    return task, heard


async def test_a_direct_url_hears_what_is_committed_through_a_pooler(valkey, namespace, postgresql):
    direct = postgresql.migrated()
    with pgbouncer(direct) as through:
        database = Database(Target(through, listen=direct))
        task, heard = await heard_of(database, namespace)
        async with Duly(valkey.url, namespace=namespace, record=through, record_listen=direct) as app:
            engine = create_engine(named(through, "psycopg2"))
            with Session(engine) as session:
                await app.enqueue("mail", 1, session=session)
                session.commit()
            engine.dispose()
            await eventually(lambda: len(heard) > 1)
        task.cancel()
        await asyncio.wait([task])
        await database.aclose()
    postgresql.drop(direct)


@pytest.mark.parametrize("listens", [False, True])
async def test_an_engine_listens_where_a_url_says(postgresql, listens):
    direct = postgresql.migrated()
    async with engine_of(create_engine, named(direct, "psycopg2")) as engine:
        target = Target(engine, listen=direct if listens else None)
        assert listens is (Database(target).listen_url is not None)
    postgresql.drop(direct)


async def test_what_cannot_be_listened_to_is_refused(valkey, namespace):
    for wrong in ("redis://secret@host", "secret"):
        app = Duly(
            valkey.url, namespace=namespace, record="postgresql://u@127.0.0.1:1/x", record_listen=wrong
        )
        with pytest.raises(UsageError, match="record_listen must look like postgresql://") as refused:
            await app.queue()
        assert "secret" not in str(refused.value)


# -- pools ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("migrated_url", ["postgresql", "mariadb"], indirect=True)
async def test_a_pool_has_no_more_connections_than_it_may(valkey, namespace, migrated_url):
    options = {"record_pool_size": 1, "record_max_overflow": 2}
    async with Duly(valkey.url, namespace=namespace, record=migrated_url, horizon="1m", **options) as app:
        opened, most = [0], [0]
        sync = (await app.record()).database.engine.sync_engine

        def count(by, *_):
            opened[0] += by
            most[0] = max(most[0], opened[0])

        event.listen(sync, "checkout", partial(count, 1))
        event.listen(sync, "checkin", partial(count, -1))
        await verbs(app, with_mail(app))
        assert 1 <= most[0] <= 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"record_pool_size": 0}, "record_pool_size=0 must be at least 1"),
        ({"record_max_overflow": -1}, "record_max_overflow=-1 must be at least 0"),
        ({"record_pool_size": 1, "record_max_overflow": 1}, "must be at least 3 together"),
        ({"record_schema": "a b"}, "must be 1 to 63 of the characters"),
        ({"record_schema": ""}, "must be 1 to 63 of the characters"),
    ],
)
def test_pools_and_names_that_cannot_be_are_refused(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Duly(record="postgresql://u@127.0.0.1:1/x", **options)


# -- connect arguments ------------------------------------------------------------------------------------


class EncryptedPostgreSQL(PostgreSQL):
    def _command(self, port):
        flags = {"ssl": "on", "ssl_cert_file": self.dir / "s.crt", "ssl_key_file": self.dir / "s.key"}
        return [
            *super()._command(port),
            *(word for name, to in flags.items() for word in ("-c", f"{name}={to}")),
        ]


class EncryptedMariaDB(MariaDB):
    def _command(self, port):
        return [*super()._command(port), f"--ssl-cert={self.dir}/s.crt", f"--ssl-key={self.dir}/s.key"]


@pytest.fixture(params=[EncryptedPostgreSQL, EncryptedMariaDB], ids=["postgresql", "mariadb"])
def encrypted(request):
    server = request.param()
    certificates.make(server.dir)
    for name in ("s.crt", "s.key", "ca.crt"):
        path = server.dir / name
        path.chmod(0o600 if name == "s.key" else 0o644)
        if server.user:
            shutil.chown(path, server.user)
    server.dir.chmod(0o755)
    server.start()
    yield server
    server.stop()


async def test_the_query_of_a_url_says_which_certificates_to_trust(valkey, namespace, encrypted, tmp_path):
    url = encrypted.fresh()
    is_postgresql = isinstance(encrypted, PostgreSQL)
    ca = encrypted.dir / "ca.crt"
    said = f"sslmode=verify-full&sslrootcert={ca}" if is_postgresql else f"ssl_ca={ca}"
    schema.migrate(f"{url}?{said}")
    async with Duly(valkey.url, namespace=namespace, record=f"{url}?{said}", horizon="1m") as app:
        await verbs(app, with_mail(app))
        database = (await app.record()).database
        if is_postgresql:
            question = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            assert await database.read(lambda connection: connection.scalar(text(question)))
        else:
            question = "SHOW STATUS LIKE 'Ssl_cipher'"
            [row] = await database.read(lambda connection: connection.execute(text(question)).all())
            assert row[1]
    others = tmp_path / "others"
    others.mkdir()
    certificates.make(others)
    wrong = f"{url}?{said}".replace(str(ca), str(others / "ca.crt"))
    with pytest.raises(RecordUnavailable, match=r"the record cannot be reached: .*certificate"):
        schema.check(wrong)
    with pytest.raises(RecordUnavailable, match=r"the record cannot be reached: .*certificate"):
        await Duly(valkey.url, namespace=namespace, record=wrong).queue()


@pytest.mark.parametrize("migrated_url", ["postgresql"], indirect=True)
async def test_what_a_url_says_of_a_connection_counts(migrated_url):
    database = Database(f"{migrated_url}?application_name=shop&options=-cstatement_timeout%3D7s")
    found = await database.read(
        lambda connection: [
            connection.scalar(text(f"SHOW {name}")) for name in ("application_name", "statement_timeout")
        ]
    )
    assert ["shop", "7s"] == found
    await database.aclose()
