"""
The twin in processes that gevent or eventlet has patched.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from duly import Duly
from duly.record.schema import migrate
from tests.http.service import Served
from tests.sync.conftest import working

GEVENT = """
from gevent import monkey
monkey.patch_all()
import gevent, os, sys
from duly import Duly, UsageError

app = Duly(**dict(pair.split("=", 1) for pair in sys.argv[1:]))


def descriptors():
    return len(os.listdir("/proc/self/fd"))
"""


def script(body: str, *words: str, cwd: object = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(body), *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=cwd,
    )
    assert (0, "") == (done.returncode, done.stderr), done
    return done.stdout


@pytest.fixture(params=["embedded", "plain", "record", "http"])
def words(request, valkey, namespace, tmp_path):
    """
    The settings of a program, for each way to a queue.
    """
    match request.param:
        case "embedded":
            yield [f"data={tmp_path}/data"]
        case "plain":
            yield [f"url={valkey.url}", f"namespace={namespace}"]
        case "record":
            migrate(f"sqlite:///{tmp_path}/record.db")
            yield [f"url={valkey.url}", f"namespace={namespace}", f"record=sqlite:///{tmp_path}/record.db"]
        case "http":
            with Served(Duly(valkey.url, namespace=namespace)) as service:
                yield [f"url={service.url}"]


def test_greenlets_call_the_twin_while_others_go_on(words):
    printed = script(
        GEVENT
        + """
        def send(number):
            return app.sync.enqueue("add", id=str(number)).get().state.name

        def count():
            while True:
                turns.append(1)
                gevent.sleep(0.001)

        turns = []
        counting = gevent.spawn(count)
        senders = [gevent.spawn(send, number) for number in range(50)]
        gevent.joinall(senders)
        counting.kill()
        print({sender.value for sender in senders}, len(turns) > 5)

        # A greenlet that is stopped leaves the twin as it was.
        with gevent.Timeout(0.05, False):
            app.sync.job("add", "1").result()
        print(app.sync.job("add", "1").get().state.name)

        app.sync.close()
        before = descriptors()
        send("again")
        app.sync.close()
        print(descriptors() <= before)
        """.replace("\n        ", "\n"),
        *words,
    )
    assert "{'ready'} True\nready\nTrue\n" == printed


def test_greenlets_wait_for_results_and_send_in_sessions(valkey, namespace, tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    app = Duly(valkey.url, namespace=namespace, record=url, drain_grace=0.2)

    @app.handler("add")
    async def add(left: int, right: int) -> int:
        return left + right

    with working(app):
        printed = script(
            GEVENT
            + """
            from sqlalchemy import create_engine
            from sqlalchemy.orm import Session

            engine = create_engine(app.settings.record)
            with Session(engine) as session, session.begin():
                job = app.sync.enqueue("add", {"left": 1, "right": 2}, session=session)
            print(job.result(timeout=60))
            """.replace("\n            ", "\n"),
            f"url={valkey.url}",
            f"namespace={namespace}",
            f"record={url}",
        )
    assert "3\n" == printed


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def record(request, tmp_path):
    """
    A database with the tables of a record.
    """
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/record.db"
        migrate(url)
        yield url
        return
    database = request.getfixturevalue(request.param)
    url = database.migrated()
    yield url
    database.drop(url)


def test_greenlets_that_call_at_once_do_not_hold_up_the_database_for_each_other(valkey, namespace, record):
    # SQLite waits longer for a lock than any call takes on a busy machine: one stalled call is seen.
    printed = script(
        GEVENT
        + """
        import time
        from duly.record import dialects

        dialects.BUSY_MS = 25_000
        longest = []

        def send(greenlet):
            for number in range(20):
                began = time.monotonic()
                app.sync.enqueue("add", id=f"{greenlet}-{number}")
                longest.append(time.monotonic() - began)

        app.sync.enqueue("add")
        gevent.joinall([gevent.spawn(send, number) for number in range(8)], raise_error=True)
        print(len(longest), max(longest) < 20 or longest)
        """.replace("\n        ", "\n"),
        f"url={valkey.url}",
        f"namespace={namespace}",
        f"record={record}",
    )
    assert "160 True\n" == printed


def test_where_eventlet_has_patched_threads_the_first_call_is_refused_in_a_sentence(valkey):
    printed = script(
        """
        import sys, warnings
        warnings.simplefilter("ignore")
        import eventlet
        eventlet.monkey_patch()
        from duly import Duly, UsageError

        try:
            Duly(sys.argv[1]).sync.enqueue("add")
        except UsageError as error:
            print(error)
        """,
        valkey.url,
    )
    assert printed.startswith("app.sync cannot run where eventlet has patched threads: use threads or gevent")


PATCHED = """
import asyncio, sys, warnings
warnings.simplefilter("ignore")
LIBRARY = sys.argv[1]
if LIBRARY == "gevent":
    from gevent import monkey, sleep, spawn
    monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
    from eventlet import sleep, spawn
from duly import Duly, UsageError

app = Duly(**dict(pair.split("=", 1) for pair in sys.argv[2:]))


async def send():
    return (await app.enqueue("add", delay=60)).created
"""


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_a_loop_for_each_call_works_where_threads_are_patched(valkey, namespace, tmp_path, library, record):
    words = [f"url={valkey.url}", f"namespace={namespace}"]
    if record:
        migrate(f"sqlite:///{tmp_path}/record.db")
        words.append(f"record=sqlite:///{tmp_path}/record.db")
    body = PATCHED + "print([asyncio.run(send()) for _ in range(3)])"
    assert "[True, True, True]\n" == script(body, library, *words)


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_of_the_greenlets_of_a_thread_one_at_a_time_may_run_a_loop(valkey, namespace, library):
    body = """
        began, others = [], []


        async def held():
            sent = await send()
            began.append(sent)
            while not others:
                await asyncio.sleep(0.01)
            return sent


        first = spawn(lambda: asyncio.run(held()))
        while not began:
            sleep(0.01)
        call = send()
        try:
            asyncio.run(call)
        except RuntimeError as error:
            others.append(error)
            call.close()
        print((first.get if LIBRARY == "gevent" else first.wait)(), *others)
        print(asyncio.run(send()))
        """
    printed = script(PATCHED + textwrap.dedent(body), library, f"url={valkey.url}", f"namespace={namespace}")
    assert "True asyncio.run() cannot be called from a running event loop\nTrue\n" == printed


def test_where_eventlet_has_patched_threads_the_embedded_server_is_refused(tmp_path):
    body = """
        try:
            asyncio.run(send())
        except UsageError as error:
            print(error)
        """
    printed = script(PATCHED + textwrap.dedent(body), "eventlet", f"data={tmp_path}/data")
    assert printed.startswith("the embedded server cannot be started where eventlet has patched threads: ")


def test_where_eventlet_has_patched_sockets_the_http_service_is_refused():
    body = """
        try:
            asyncio.run(send())
        except UsageError as error:
            print(error)
        """
    printed = script(PATCHED + textwrap.dedent(body), "eventlet", "url=http://127.0.0.1:9")
    assert printed.startswith("the HTTP service cannot be reached where eventlet has patched sockets: ")


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
@pytest.mark.parametrize("call", ["work", "deliver"])
def test_a_worker_is_refused_where_threads_are_patched(valkey, library, call):
    printed = script(
        f"""
        import asyncio, sys, warnings
        warnings.simplefilter("ignore")
        {"from gevent import monkey" if library == "gevent" else "import eventlet"}
        {"monkey.patch_all()" if library == "gevent" else "eventlet.monkey_patch()"}
        from duly import Duly, UsageError

        call = Duly(sys.argv[1]).{call}()
        try:
            call.send(None)
        except UsageError as error:
            print(error)
        """,
        valkey.url,
    )
    says = f"app.{call}() runs on asyncio, and {library} has patched the threads of this process: run"
    assert printed.startswith(says)
