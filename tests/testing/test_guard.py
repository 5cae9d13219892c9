"""
Tests reach no configured queue unless they say so: pytest run on small projects whose queue is a real server.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import redis

from tests.servers import binary
from tests.testing.projects import Project, outcome

SHOP = """
    from duly import Duly

    app = Duly({arguments})


    @app.handler("mail.welcome")
    async def welcome(user: int) -> int:
        return user
"""

CONFTEST = """
    import pytest

    import shop


    @pytest.fixture
    def duly_app():
        return shop.app
"""

REFUSED = "tests do not reach a configured queue, and "

TESTS = """
    import asyncio
    import os

    import pytest

    import shop
    from duly import UsageError


    def test_a_plain_call():
        with pytest.raises(UsageError, match="tests do not reach a configured queue"):
            shop.app.sync.enqueue(shop.welcome.job(1))


    def test_an_async_call():
        with pytest.raises(UsageError, match="tests do not reach a configured queue"):
            asyncio.run(shop.app.enqueue(shop.welcome.job(1)))


    def test_a_worker():
        with pytest.raises(UsageError, match="tests do not reach a configured queue"):
            asyncio.run(shop.app.work())


    def test_the_fixture(duly):
        shop.app.sync.enqueue(shop.welcome.job(1))
        duly.assert_enqueued(shop.welcome, count=1)


    def test_after_the_fixture():
        with pytest.raises(UsageError, match="tests do not reach a configured queue"):
            shop.app.sync.enqueue(shop.welcome.job(1))


    def test_where():
        with open("seen", "a") as seen:
            seen.write(os.environ.get("PYTEST_XDIST_WORKER", "alone"))
"""


@pytest.fixture
def keys(valkey, namespace):
    """
    What the configured queue holds.
    """
    with redis.Redis.from_url(valkey.url) as raw:
        yield lambda: raw.keys(f"{{{namespace}:*")


@pytest.fixture
def project(tmp_path, valkey, namespace):
    binary("valkey")
    project = Project(tmp_path)
    project.write("shop.py", SHOP.format(arguments=f"{valkey.url!r}, namespace={namespace!r}"))
    project.write("conftest.py", CONFTEST)
    return project


@pytest.mark.parametrize("where", ["code", "variable", "file"])
def test_a_test_outside_the_fixture_is_refused_wherever_the_queue_is_configured(
    project, keys, valkey, namespace, where
):
    project.write("test_shop.py", TESTS)
    more = {}
    if where != "code":
        project.write("shop.py", SHOP.format(arguments=""))
    if where == "variable":
        more = {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace}
    if where == "file":
        project.write("duly.toml", f'url = "{valkey.url}"\nnamespace = "{namespace}"\n')
    run = project.pytest("-p", "no:asyncio", **more)
    assert "6 passed" == outcome(run), run.stdout
    assert [] == keys()


def test_the_embedded_server_of_the_project_is_not_started(project):
    project.write("shop.py", SHOP.format(arguments=""))
    project.write("test_shop.py", TESTS)
    assert "6 passed" == outcome(project.pytest("-p", "no:asyncio"))
    assert not (project.folder / ".duly").exists()


def test_an_http_service_is_not_asked(project):
    pytest.importorskip("httpx")
    project.write("shop.py", SHOP.format(arguments='"http://127.0.0.1:1"'))
    project.write("test_shop.py", TESTS.replace("def test_a_worker", "def no_test_of_a_worker"))
    assert "5 passed" == outcome(project.pytest("-p", "no:asyncio"))


def test_the_processes_of_xdist_refuse_as_well(project, keys):
    project.write("test_shop.py", TESTS)
    project.write("test_more.py", TESTS)
    run = project.pytest("-n", "2", "-p", "no:asyncio")
    assert "12 passed" == outcome(run), run.stdout
    assert "alone" not in (project.folder / "seen").read_text()
    assert [] == keys()


def test_the_refusal_is_one_sentence_that_says_what_to_do_and_shows_no_password(project):
    project.write(
        "shop.py", SHOP.format(arguments='"redis://user:s3cr3t@queue.example:6379/0?password=s3cr3t"')
    )
    project.write(
        "test_shop.py", "import shop\n\ndef test_it():\n    shop.app.sync.enqueue(shop.welcome.job(1))\n"
    )
    run = project.pytest("-p", "no:asyncio", "--tb=line")
    assert "1 failed" == outcome(run)
    assert (
        f"{REFUSED}redis://queue.example:6379/0 is one: use the fixture `duly` or a TestBed, or say "
        "`with duly.testing.real_queue():` if it is meant"
    ) in run.stdout
    assert "s3cr3t" not in run.stdout


def test_nothing_is_sent_while_tests_are_collected(project, keys):
    project.write(
        "test_shop.py", "import shop\n\nshop.app.sync.enqueue(shop.welcome.job(1))\n\ndef test_it(): ...\n"
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 error" == outcome(run)
    assert REFUSED in run.stdout
    assert [] == keys()


def test_a_test_that_says_so_reaches_the_configured_queue(project, valkey, namespace):
    project.write(
        "test_shop.py",
        """
        import asyncio

        import pytest

        import shop
        from duly import UsageError
        from duly.testing import real_queue


        def refused():
            with pytest.raises(UsageError, match="tests do not reach a configured queue"):
                shop.app.sync.enqueue(shop.welcome.job(1))


        def test_a_context():
            with real_queue():
                with real_queue():
                    shop.app.sync.enqueue(shop.welcome.job(1), id="inner")
                shop.app.sync.enqueue(shop.welcome.job(1), id="context")
            refused()  # although it is connected


        @real_queue()
        def test_a_decorator():
            shop.app.sync.enqueue(shop.welcome.job(1), id="decorator")


        def test_an_async_decorator():
            @real_queue()
            async def send():
                await asyncio.sleep(0)
                async with shop.app:
                    await shop.app.enqueue(shop.welcome.job(1), id="async-decorator")

            asyncio.run(send())
            refused()


        @pytest.fixture
        def sent():
            shop.app.sync.enqueue(shop.welcome.job(1), id="fixture")


        @pytest.mark.real_queue
        def test_a_marker(sent):
            shop.app.sync.enqueue(shop.welcome.job(1), id="marker")


        def test_after_the_marker():
            refused()
        """,
    )
    run = project.pytest("-p", "no:asyncio", "--strict-markers")
    assert "5 passed" == outcome(run), run.stdout
    with redis.Redis.from_url(valkey.url, decode_responses=False) as raw:
        held = b"".join(raw.dump(key) for key in raw.keys(f"{{{namespace}:*"))
    for id_ in (b"inner", b"context", b"decorator", b"async-decorator", b"fixture", b"marker"):
        assert id_ in held


def test_a_whole_project_says_so_once(project, keys):
    project.write(
        "conftest.py",
        """
        import pytest

        from duly.testing import real_queue


        @pytest.fixture(autouse=True, scope="session")
        def on_a_queue_for_tests():
            with real_queue():
                yield
        """,
    )
    project.write(
        "test_shop.py", "import shop\n\ndef test_it():\n    shop.app.sync.enqueue(shop.welcome.job(1))\n"
    )
    assert "1 passed" == outcome(project.pytest("-p", "no:asyncio"))
    assert keys()


def test_processes_that_a_test_starts_belong_to_the_run(project, keys):
    project.write("send.py", "import shop\n\nshop.app.sync.enqueue(shop.welcome.job(1))\nprint('sent')\n")
    project.write(
        "test_shop.py",
        """
        import multiprocessing
        import os
        import subprocess
        import sys

        import pytest

        import shop
        from duly.testing import real_queue


        def run(*words, **more):
            return subprocess.run(
                [sys.executable, *words], env=os.environ | more, capture_output=True, text=True, timeout=60
            )


        def test_a_program():
            done = run("send.py")
            assert "a test has started this process, and tests do not reach a configured queue" in done.stderr


        def test_a_worker():
            done = run("-m", "duly", "work", "shop:app", "--burst")
            assert 2 == done.returncode
            assert done.stderr.startswith("duly: a test has started this process")


        def test_a_program_on_the_server_for_tests(duly_server):
            code = "import os, duly; duly.Duly(os.environ['SERVER']).sync.enqueue('mail', {}); print('sent')"
            assert "sent\\n" == run("-c", code, SERVER=duly_server).stdout


        def send(answers):
            try:
                shop.app.sync.enqueue(shop.welcome.job(1))
            except Exception as error:
                answers.put(str(error))
            else:
                answers.put("sent")


        @pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
        @pytest.mark.parametrize("how", ["fork", "spawn"])
        def test_a_process_of_multiprocessing(how):
            context = multiprocessing.get_context(how)
            answers = context.Queue()
            process = context.Process(target=send, args=(answers,))
            process.start()
            assert "do not reach a configured queue" in answers.get(timeout=60)
            process.join()
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "5 passed" == outcome(run), run.stdout
    assert [] == keys()
    project.write(
        "test_shop.py",
        """
        import subprocess
        import sys

        from duly.testing import real_queue


        def test_it():
            with real_queue():
                assert b"sent\\n" == subprocess.run([sys.executable, "send.py"], capture_output=True).stdout
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 passed" == outcome(run), run.stdout
    assert keys()


def test_a_handler_in_a_process_of_its_own_does_not_reach_it_either(project, keys):
    shop = (project.folder / "shop.py").read_text()
    (project.folder / "shop.py").write_text(
        f"{shop}\n\n"
        '@app.handler("order.pay", run_in="process", max_attempts=1)\n'
        "def pay() -> None:\n"
        "    app.sync.enqueue(welcome.job(1))\n"
    )
    project.write(
        "test_shop.py",
        """
        import shop


        def test_it(duly):
            shop.app.sync.enqueue(shop.pay.job())
            [ran] = duly.sync.drain()
            assert "dead" == ran.ending
            assert "tests do not reach a configured queue" in ran.reason
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 passed" == outcome(run), run.stdout
    assert [] == keys()


def test_the_record_of_an_app_is_left_alone(project, tmp_path):
    pytest.importorskip("sqlalchemy")
    record = tmp_path / "record.db"
    project.write("shop.py", SHOP.format(arguments=f'"redis://queue.example", record="sqlite:///{record}"'))
    project.write(
        "test_shop.py",
        """
        import shop


        def test_it(duly):
            shop.app.sync.enqueue(shop.welcome.job(1))
            assert [1] == [ran.result for ran in duly.sync.drain()]
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 passed" == outcome(run), run.stdout
    assert not record.exists()


def test_a_record_for_tests_takes_its_place(project, tmp_path):
    pytest.importorskip("sqlalchemy")
    record = tmp_path / "record.db"
    project.write("shop.py", SHOP.format(arguments=f'"redis://queue.example", record="sqlite:///{record}"'))
    project.write(
        "test_shop.py",
        """
        import sqlite3

        import shop
        from duly.record.schema import migrate


        def test_it(duly_for, tmp_path):
            url = f"sqlite:///{tmp_path}/record.db"
            migrate(url)
            duly_for(shop.app, clock="server", record=url)
            shop.app.sync.enqueue(shop.welcome.job(1), id="in-the-record")
            shop.app.sync.close()
            found = sqlite3.connect(tmp_path / "record.db")
            assert "in-the-record" in str(found.execute("SELECT * FROM duly_jobs").fetchall())
            found.close()
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 passed" == outcome(run), run.stdout
    assert not record.exists()


UNITTEST_COMMAND = [sys.executable, "-m", "unittest", "test_shop"]
UNITTEST = """
    import os
    import time
    import unittest
    from pathlib import Path

    import shop
    from duly.testing import TestBed


    class Tests(unittest.TestCase):
        def setUp(self):
            self.duly = self.enterContext(TestBed(shop.app))

        def test_it(self):
            shop.app.sync.enqueue(shop.welcome.job(1), id="same")
            self.assertEqual([1], [ran.result for ran in self.duly.sync.drain()])
            if "WAIT" in os.environ:
                Path("there").touch()
                time.sleep(600)

        def test_it_again(self):
            self.test_it()


    class AsyncTests(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self):
            self.duly = await self.enterAsyncContext(TestBed(shop.app))

        async def test_it(self):
            await shop.app.enqueue(shop.welcome.job(1))
            self.assertEqual([1], [ran.result for ran in await self.duly.drain()])
"""


@pytest.mark.parametrize("runner", ["pytest", "unittest"])
def test_what_outlives_the_tests_does_not_reach_it_either(project, keys, runner):
    project.write(
        "test_shop.py",
        """
        import asyncio
        import atexit
        import threading
        import unittest
        from pathlib import Path

        import shop


        def send(name):
            try:
                asyncio.run(shop.app.enqueue(shop.welcome.job(1)))
            except BaseException as error:
                Path(name).write_text(f"{type(error).__name__}: {error}")


        def send_late():
            threading.main_thread().join()  # which is when the interpreter begins to end
            send("thread")


        class Tests(unittest.TestCase):
            def test_it(self):
                atexit.register(send, "atexit")
                threading.Thread(target=send_late).start()
                send("test")
        """,
    )
    run = subprocess.run(
        project.command("-p", "no:asyncio") if runner == "pytest" else UNITTEST_COMMAND,
        cwd=project.folder,
        env=project.environ,
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert 0 == run.returncode, run.stdout + run.stderr
    for name in ("test", "thread", "atexit"):
        assert (project.folder / name).read_text().startswith(f"UsageError: {REFUSED}")
    assert [] == keys()


def test_a_test_of_unittest_that_says_so_reaches_the_configured_queue(project, keys):
    project.write(
        "test_shop.py",
        """
        import unittest

        import shop
        from duly.testing import real_queue


        class Tests(unittest.TestCase):
            @real_queue()
            def test_it(self):
                shop.app.sync.enqueue(shop.welcome.job(1))
        """,
    )
    run = subprocess.run(
        UNITTEST_COMMAND, cwd=project.folder, env=project.environ, capture_output=True, text=True, timeout=100
    )
    assert run.stderr.endswith("OK\n"), run.stderr
    assert keys()


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_test_bed_without_a_url_has_a_server_that_goes_with_its_process(project, keys, tmp_path, how):
    project.write("test_shop.py", UNITTEST)
    temporary = tmp_path / "t"
    temporary.mkdir()
    environ = project.environ | {"TMPDIR": str(temporary)}
    command = UNITTEST_COMMAND
    if how == "ended":
        done = subprocess.run(
            command, cwd=project.folder, env=environ, capture_output=True, text=True, timeout=100
        )
        assert done.stderr.endswith("OK\n"), done.stderr
    else:
        run = subprocess.Popen(
            command, cwd=project.folder, env=environ | {"WAIT": "yes"}, stderr=subprocess.DEVNULL
        )
        try:
            _until((project.folder / "there").exists)
            assert 1 == len(list(temporary.glob("duly-tests-*")))
        finally:
            run.kill()
            run.wait()
    _until(lambda: not list(temporary.glob("duly-tests-*")))
    assert [] == keys()


def _until(check) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)
