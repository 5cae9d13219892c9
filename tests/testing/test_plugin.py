"""
The pytest plugin, as users have it: loaded by itself, on a project of theirs, with whatever plugins they use.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.servers import binary
from tests.testing.projects import Project, outcome


@pytest.fixture
def project(tmp_path):
    binary("valkey")
    return Project(tmp_path)


SHOP = """
    from datetime import timedelta

    from duly import Duly

    app = Duly("redis://queue.example:6379/0")
    sent = []


    @app.handler("mail.welcome")
    async def welcome(user: int) -> None:
        sent.append(user)


    async def sign_up(user: int) -> None:
        await app.enqueue(welcome.job(user), delay=timedelta(hours=1))
"""

CONFTEST = """
    import pytest

    import shop


    @pytest.fixture
    def duly_app():
        return shop.app
"""

ASYNC_TESTS = """
    import pytest

    import shop


    {mark}
    @pytest.mark.parametrize("user", range(10))
    async def test_a_new_user_is_welcomed_after_an_hour(duly, user):
        shop.sent.clear()
        await shop.sign_up(user)
        duly.assert_enqueued(shop.welcome, {{"user": user}}, delay=3600, count=1)
        assert not await duly.drain()
        duly.clock.advance(hours=1)
        await duly.drain()
        assert [user] == shop.sent
"""

SYNC_TESTS = """
    import pytest

    import shop


    @pytest.mark.parametrize("user", range(10))
    def test_a_new_user_is_welcomed_after_an_hour(duly, user):
        shop.sent.clear()
        duly.sync.run(shop.sign_up(user))
        duly.assert_enqueued(shop.welcome, {"user": user}, delay=3600, count=1)
        duly.clock.advance(hours=1)
        duly.sync.drain()
        assert [user] == shop.sent
"""


@pytest.fixture
def shop(project):
    project.write("shop.py", SHOP)
    project.write("conftest.py", CONFTEST)
    return project


def test_plain_tests_need_no_other_plugin(shop):
    shop.write("test_shop.py", SYNC_TESTS)
    assert "10 passed" == outcome(shop.pytest("-p", "no:asyncio", "-p", "no:anyio", "-p", "no:xdist"))


def test_async_tests_run_by_pytest_asyncio(shop):
    shop.write("test_shop.py", ASYNC_TESTS.format(mark=""))
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    assert "10 passed" == outcome(shop.pytest(*options))


def test_async_tests_run_by_pytest_asyncio_on_one_loop_for_all(shop):
    shop.write("test_shop.py", ASYNC_TESTS.format(mark='@pytest.mark.asyncio(loop_scope="session")'))
    assert "10 passed" == outcome(shop.pytest("-o", "asyncio_default_fixture_loop_scope=session"))


def test_async_tests_run_by_anyio(shop):
    pytest.importorskip("anyio")
    shop.write("test_shop.py", ASYNC_TESTS.format(mark="@pytest.mark.anyio"))
    shop.write(
        "conftest.py",
        CONFTEST + '\n\n    @pytest.fixture\n    def anyio_backend():\n        return "asyncio"\n',
    )
    assert "10 passed" == outcome(shop.pytest("-p", "no:asyncio"))


def test_two_processes_of_xdist_share_one_server(shop):
    shop.write("test_sync.py", SYNC_TESTS)
    shop.write(
        "test_more.py",
        """
        import os

        import pytest


        @pytest.mark.parametrize("number", range(20))
        def test_where(duly, duly_server, number):
            worker = os.environ["PYTEST_XDIST_WORKER"]
            with open("seen", "a") as seen:
                seen.write(f"{worker} {duly_server} {duly.namespace}\\n")
            duly.sync.run(duly.app.enqueue("mail.welcome", {"user": number}, id="same"))
            duly.assert_enqueued("mail.welcome", {"user": number}, count=1)
        """,
    )
    assert "30 passed" == outcome(shop.pytest("-n", "2", "-p", "no:asyncio"))
    rows = [line.split() for line in (shop.folder / "seen").read_text().splitlines()]
    assert {"gw0", "gw1"} == {worker for worker, _, _ in rows}
    assert 1 == len({url for _, url, _ in rows})
    assert 20 == len({namespace for _, _, namespace in rows})


def test_an_app_made_for_the_test_is_there_without_any_setup(project):
    project.write(
        "test_it.py",
        """
        def test_it(duly):
            @duly.app.handler("double")
            def double(number: int) -> int:
                return 2 * number

            duly.sync.run(duly.app.enqueue(double.job(4)))
            [ran] = duly.sync.drain()
            assert 8 == ran.result
        """,
    )
    assert "1 passed" == outcome(project.pytest("-p", "no:asyncio"))


def test_a_failed_assertion_shows_the_line_of_the_test_and_what_was_enqueued(shop):
    shop.write(
        "test_shop.py",
        """
        import shop

        def test_it(duly):
            duly.sync.run(shop.sign_up(7))
            duly.assert_enqueued(shop.welcome, {"user": 8})
        """,
    )
    run = shop.pytest("-p", "no:asyncio")
    assert "1 failed" == outcome(run)
    assert '>       duly.assert_enqueued(shop.welcome, {"user": 8})' in run.stdout
    assert "E       AssertionError: no job of mail.welcome with {'user': 8} waits. What waits:" in run.stdout
    assert "<- user is 7, not 8" in run.stdout
    assert "bed.py" not in run.stdout


def test_a_server_of_ones_own_takes_the_place_of_the_embedded_one(project, valkey):
    project.write(
        "conftest.py",
        f"""
        import pytest


        @pytest.fixture(scope="session")
        def duly_server():
            return "{valkey.url}"
        """,
    )
    project.write(
        "test_it.py",
        """
        def test_it(duly, duly_server):
            duly.sync.run(duly.app.enqueue("mail", {}))
            assert duly_server == duly.app.settings.url
            duly.assert_enqueued("mail", count=1)
        """,
    )
    assert "1 passed" == outcome(project.pytest("-p", "no:asyncio"))
    assert not (project.folder.parent / "temporary" / "duly-server").exists()


def test_a_server_that_cannot_start_is_told_in_a_sentence(project):
    project.write(
        "test_it.py",
        """
        import pytest

        @pytest.fixture(autouse=True, scope="session")
        def in_the_way(tmp_path_factory):
            (tmp_path_factory.getbasetemp() / "duly-server").write_text("a file")

        def test_it(in_the_way, duly): ...
        """,
    )
    run = project.pytest("-p", "no:asyncio")
    assert "1 error" == outcome(run)
    assert "no server for tests: cannot use " in run.stdout
    assert "override the fixture duly_server and return its URL" in run.stdout
    assert "Traceback" not in run.stdout


def test_who_uses_no_fixture_pays_nothing(project):
    project.write(
        "test_it.py",
        """
        import sys

        def test_it(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("duly")
            assert "duly.testing.plugin" in sys.modules
            costly = ("redis", "hiredis", "msgspec", "click", "duly.app", "duly.errors", "duly.embedded")
            assert [] == [name for name in costly if name in sys.modules]
        """,
    )
    # Without the plugins of others, which import what they like.
    options = [
        option for name in ("valkey", "anyio", "hypothesispytest", "xdist") for option in ("-p", f"no:{name}")
    ]
    assert "1 passed" == outcome(project.pytest("-p", "no:asyncio", *options))
    assert not (project.folder.parent / "temporary" / "duly-server").exists()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _until(check, what):
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="only there a killed keeper takes its server along")
@pytest.mark.parametrize("how", ["ended", "killed"])
def test_the_server_ends_with_the_run(project, how):
    project.write(
        "test_it.py",
        """
        import pathlib, time

        def test_it(duly):
            duly.sync.run(duly.app.enqueue("mail", {}))
            pathlib.Path("there").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
        """,
    )
    lock = project.folder.parent / "temporary" / "duly-server" / "server.lock"
    run = subprocess.Popen(
        project.command("-q", "-p", "no:asyncio"),
        cwd=project.folder,
        env=project.environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _until((project.folder / "there").exists, "the test of the project runs")
        server = int(lock.read_text())
        assert _alive(server)
        if how == "killed":
            run.send_signal(signal.SIGKILL)
        else:
            (project.folder / "go").touch()
        assert (-signal.SIGKILL if how == "killed" else 0) == run.wait(60)
        _until(lambda: not _alive(server), "the server has ended")
    finally:
        run.kill()
        run.wait()
