"""
Tests of a Django project never reach its queue: with Django's runner, in parallel, with pytest-django.
"""

from __future__ import annotations

import textwrap
import time

import pytest
import redis

TESTS = """
    import os

    from django.test import TestCase, TransactionTestCase

    from duly.contrib.django import app
    from duly.testing import TestBed
    from shop.jobs import pay
    from shop.models import Order


    class Sending:
        def test_the_documented_way(self):
            with self.captureOnCommitCallbacks(execute=True):
                sent = self.client.post("/buy/Ada").json()
            self.assertEqual("ready", app.sync.job("order.pay", sent["id"]).get().state.name)

        def test_at_once(self):
            job = app.sync.enqueue(pay.job(1), id=f"{type(self).__name__}-{os.getpid()}")
            self.assertTrue(job.created)

        async def test_async(self):
            job = await app.enqueue(pay.job(1), delay=3600)
            self.assertEqual("scheduled", (await job.get()).state.name)
            await app.aclose()


    class FirstTests(Sending, TestCase): ...


    class SecondTests(Sending, TestCase): ...


    class BedTests(TestCase):
        def setUp(self):
            self.duly = self.enterContext(TestBed(app))

        def test_a_bed_has_a_queue_of_its_own(self):
            with self.captureOnCommitCallbacks(execute=True):
                self.client.post("/buy/Ada")
            [job] = self.duly.assert_enqueued(pay, count=1)
            self.assertEqual("Ada", pay(**job.payload))


    class CommittedTests(TransactionTestCase):
        def test_a_job_runs_on_the_database_of_the_tests(self):
            with TestBed(app) as duly:
                order = Order.objects.create(name="Ada")
                app.sync.enqueue(pay.job(order.pk))
                self.assertEqual(["Ada"], [ran.result for ran in duly.sync.drain(raises=True)])
            order.refresh_from_db()
            self.assertEqual("paid", order.state)
"""

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--ds", "project", "test_shop.py")

PYTEST_TESTS = """
    import pytest

    from duly.contrib.django import app
    from shop.jobs import pay


    @pytest.mark.django_db
    def test_the_documented_way(client, django_capture_on_commit_callbacks):
        with django_capture_on_commit_callbacks(execute=True):
            sent = client.post("/buy/Ada").json()
        assert "ready" == app.sync.job("order.pay", sent["id"]).get().state.name


    @pytest.fixture
    def duly_app():
        return app


    def test_the_fixture(duly):
        app.sync.enqueue(pay.job(1))
        duly.assert_enqueued(pay, count=1)
"""


@pytest.fixture
def keys(valkey, namespace):
    """
    What the configured queue holds.
    """
    with redis.Redis.from_url(valkey.url) as raw:
        yield lambda: raw.keys(f"{{{namespace}:*")


@pytest.fixture
def tests(project, tmp_path):
    """
    The project with tests, and a function that runs them.
    """

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(textwrap.dedent(text))

    write("shop/tests.py", TESTS)
    (tmp_path / "t").mkdir()
    project.write = write
    project.temporary = lambda: list((tmp_path / "t").glob("duly-tests-*"))
    project.test = lambda *words, **more: project("test", *words, TMPDIR=str(tmp_path / "t"), **more)
    return project


def until(check) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("words", "start_method"),
    [((), "fork"), (("--parallel", "2"), "fork"), (("--parallel", "2"), "spawn")],
    ids=["one-process", "fork", "spawn"],
)
def test_tests_leave_the_configured_queue_alone(tests, keys, words, start_method):
    tests.write(
        "manage.py",
        f"""
        import multiprocessing, os, sys
        os.environ["DJANGO_SETTINGS_MODULE"] = "project"
        from django.core.management import execute_from_command_line
        if __name__ == "__main__":
            multiprocessing.set_start_method("{start_method}")
            execute_from_command_line(sys.argv)
        """,
    )
    tests.test(*words)
    assert [] == keys()
    until(lambda: not tests.temporary())


def test_an_app_that_was_connected_before_the_tests_leaves_it_then(tests, keys, valkey):
    tests.write(
        "shop/apps.py",
        """
        from django.apps import AppConfig

        class ShopConfig(AppConfig):
            name = "shop"

            def ready(self):
                from duly.contrib.django import app
                app.sync.enqueue("started", {}, id="at-start")
        """,
    )
    tests.test("shop.tests.FirstTests")
    with redis.Redis.from_url(valkey.url) as raw:
        held = b"".join(raw.dump(key) for key in keys())
    assert b"at-start" in held
    assert b"order.pay" not in held


QUEUES = {
    "of-the-settings": "from duly.contrib.django import app",
    "of-its-own": """
        import os
        from duly import Duly
        app = Duly(os.environ["QUEUE"], namespace=os.environ["QUEUE_NAMESPACE"])
    """,
}


@pytest.fixture(params=QUEUES)
def uninstalled(tests, request, tmp_path):
    """
    The project with its own app alone in INSTALLED_APPS, and an app in ``shop.queue``.
    """
    settings = tmp_path / "project.py"
    settings.write_text(settings.read_text().replace('"duly.contrib.django", ', ""))
    tests.write("shop/queue.py", QUEUES[request.param])
    tests.write(
        "shop/tests.py",
        """
        import atexit

        from django.test import SimpleTestCase

        from shop.queue import app

        atexit.register(lambda: print("after:", app.sync.enqueue("order.pay", {}).created))


        class Tests(SimpleTestCase):
            def test_it(self):
                self.assertTrue(app.sync.enqueue("order.pay", {"order": 1}).created)
        """,
    )
    return tests


def test_duly_need_not_be_an_installed_app(uninstalled, keys):
    assert "after: True" in uninstalled.test()
    assert [] == keys()


def test_a_runner_of_the_projects_own_is_known(uninstalled, keys, tmp_path):
    uninstalled.write(
        "runtests.py",
        """
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "project"
        import django
        django.setup()
        from django.test.runner import DiscoverRunner
        from shop.queue import app
        print("failures:", DiscoverRunner().run_tests(["shop"]))
        """,
    )
    tests = tmp_path / "shop" / "tests.py"
    tests.write_text(tests.read_text().replace("atexit.register", "str"))
    assert "failures: 0" in uninstalled("-m", "runtests")
    assert [] == keys()


def test_a_program_that_a_test_starts_is_refused(uninstalled, keys):
    uninstalled.write(
        "send.py",
        """
        import os, sys
        from duly import Duly
        app = Duly(sys.argv[1], namespace=os.environ["QUEUE_NAMESPACE"])
        app.sync.enqueue("order.pay", {}, id="by-the-program")
        """,
    )
    uninstalled.write(
        "shop/tests.py",
        """
        import os
        import subprocess
        import sys

        from django.test import SimpleTestCase

        from duly.testing import TestBed
        from shop.queue import app


        def send(url):
            done = subprocess.run([sys.executable, "send.py", url], capture_output=True, text=True)
            return done.stderr.strip().rpartition("\\n")[2]


        class Tests(SimpleTestCase):
            def test_a(self):  # before any app is used
                self.assertIn("a test has started this process", send(os.environ["QUEUE"]))

            def test_b(self):
                app.sync.enqueue("order.pay", {}, id="by-the-test")
                self.assertIn("a test has started this process", send(os.environ["QUEUE"]))

            def test_c(self):
                with TestBed(app):
                    self.assertEqual("", send(app.settings.url))
        """,
    )
    uninstalled.test()
    assert [] == keys()


def test_spark_is_refused_the_queue_of_the_settings(tests, valkey):
    tests.write(
        "shop/tests.py",
        """
        from django.test import SimpleTestCase

        from duly import UsageError
        from duly.testrun import TEST_RUN
        from duly.settings import Settings


        class Tests(SimpleTestCase):
            def test_it(self):
                with self.assertRaisesRegex(UsageError, "tests do not reach a configured queue"):
                    TEST_RUN.check(Settings.load())
        """,
    )
    tests.test(DULY_URL=valkey.url)


def test_a_test_that_says_so_reaches_the_configured_queue(tests, keys):
    tests.write(
        "shop/tests.py",
        """
        from django.test import SimpleTestCase

        from duly.contrib.django import app
        from duly.testing import real_queue


        class RealTests(SimpleTestCase):
            def test_it(self):
                with real_queue():
                    app.sync.enqueue("order.pay", {"order": 1}, id="meant")
                self.assertEqual([], app.sync.views().topics())
        """,
    )
    tests.test()
    assert keys()


def test_outside_of_tests_the_queue_is_the_configured_one(project, keys):
    project(
        "shell",
        "--no-imports",
        "-c",
        "from duly.contrib.django import app; app.sync.enqueue('order.pay', {})",
    )
    assert keys()


def test_a_django_that_keeps_its_state_elsewhere_is_known_by_its_outbox(project):
    code = """
    import django.test.utils as utils
    from duly.testrun import in_django_tests

    print(in_django_tests())
    utils.setup_test_environment()
    print(in_django_tests())
    state = utils._TestState
    del utils._TestState
    print(in_django_tests())
    utils._TestState = state
    utils.teardown_test_environment()
    del utils._TestState
    print(in_django_tests())
    """
    printed = project("shell", "--no-imports", "-c", textwrap.dedent(code))
    assert ["False", "True", "True", "False"] == printed.split()


def test_with_pytest_django_it_is_the_same(tests, keys):
    pytest.importorskip("pytest_django")
    tests.write("test_shop.py", PYTEST_TESTS)
    assert "2 passed" in tests(*PYTEST)
    assert [] == keys()


def test_with_pytest_django_nothing_is_sent_while_tests_are_collected(tests, keys):
    pytest.importorskip("pytest_django")
    tests.write("test_shop.py", "from duly.contrib.django import app\napp.sync.enqueue('order.pay', {})\n")
    assert "tests do not reach a configured queue" in tests(*PYTEST, code=2)
    assert [] == keys()
