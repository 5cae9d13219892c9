"""
Django: a real project with a database of its own, and a worker started by manage.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

FILES = {
    "manage.py": """
        import os, sys
        os.environ["DJANGO_SETTINGS_MODULE"] = "project"
        from django.core.management import execute_from_command_line
        execute_from_command_line(sys.argv)
    """,
    "project.py": """
        import os
        from pathlib import Path

        SECRET_KEY = "for-tests-only"
        INSTALLED_APPS = ["duly.contrib.django", "shop"]
        DATABASES = {
            "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent / "db.sqlite3"}
        }
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        ROOT_URLCONF = "shop.urls"
        ALLOWED_HOSTS = ["*"]
        USE_TZ = True
        DULY = {"url": os.environ["QUEUE"], "namespace": os.environ["QUEUE_NAMESPACE"], "drain_grace": 1}
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models


        class Order(models.Model):
            name = models.CharField(max_length=50)
            state = models.CharField(max_length=20, default="new")
    """,
    "shop/jobs.py": """
        from duly.contrib.django import app
        from shop.models import Order


        @app.handler("order.pay")
        def pay(order: int) -> str:
            found = Order.objects.get(pk=order)  # there, because it was committed before the job was sent
            found.state = "paid"
            found.save()
            return found.name


        @app.handler("order.ship")
        async def ship(order: int) -> str:
            found = await Order.objects.aget(pk=order)
            found.state = "shipped"
            await found.asave()
            return found.name
    """,
    "shop/urls.py": """
        from django.db import transaction
        from django.http import JsonResponse
        from django.urls import path

        from duly.contrib.django import app, enqueue_on_commit
        from shop.jobs import pay
        from shop.models import Order


        @transaction.atomic
        def buy(request, name):
            order = Order.objects.create(name=name)
            key = enqueue_on_commit(pay.job(order.pk))
            return JsonResponse({"order": order.pk, "id": key.id}, status=202)


        def paid(request, id):
            return JsonResponse({"name": app.sync.job("order.pay", id).result(timeout=60)})


        urlpatterns = [path("buy/<name>", buy), path("paid/<id>", paid)]
    """,
}


@pytest.fixture
def project(tmp_path, valkey, namespace):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DULY_", "DJANGO_"))}
    environ = clean | {"QUEUE": valkey.url, "QUEUE_NAMESPACE": namespace}

    def manage(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert code == done.returncode, done.stderr
        return done.stdout if not code else done.stderr

    def start(*words: str) -> tuple[subprocess.Popen[bytes], object]:
        log = tmp_path / "worker.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *words], cwd=tmp_path, env=environ, stdout=output, stderr=output
            )
        started.append(process)
        return process, log

    started: list[subprocess.Popen[bytes]] = []
    manage("migrate", "--run-syncdb", "--verbosity", "0")
    manage.start = start
    yield manage
    for process in started:
        process.kill()
        process.wait()


def run(project, code: str) -> str:
    return project("shell", "--no-imports", "-c", textwrap.dedent(code))


def test_a_view_sends_on_commit_and_the_worker_of_the_project_runs_it(project):
    worker, log = project.start("duly_work", "--concurrency", "3", "--log-level", "INFO")
    printed = run(
        project,
        """
        from django.test import Client
        from duly.contrib.django import app
        from shop.jobs import ship
        from shop.models import Order

        client = Client()
        sent = client.post("/buy/Ada").json()
        print(client.get(f"/paid/{sent['id']}").json())
        print(Order.objects.get().state)
        print(app.sync.enqueue(ship.job(sent["order"])).result(timeout=60), Order.objects.get().state)
        """,
    )
    assert "{'name': 'Ada'}\npaid\nAda shipped\n" == printed
    deadline = time.monotonic() + 60
    while "working on order.pay, order.ship" not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    worker.send_signal(signal.SIGTERM)
    assert 0 == worker.wait(60), log.read_text()


def test_what_is_rolled_back_is_never_sent(project):
    printed = run(
        project,
        """
        from django.db import transaction
        from duly import JobNotFound, JobState
        from duly.contrib.django import app, enqueue_on_commit
        from shop.jobs import pay

        def state(key):
            try:
                return app.sync.job(*key).get().state.name
            except JobNotFound:
                return "none"

        with transaction.atomic():
            kept = enqueue_on_commit(pay.job(1), id="kept", delay=3600)
            print(kept, state(kept))
            try:
                with transaction.atomic():
                    inner = enqueue_on_commit("order.pay", {"order": 2})
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        print(state(kept), state(inner))
        print(state(enqueue_on_commit("order.pay", {"order": 3}, id="now")))
        """,
    )
    assert "order.pay/kept none\nscheduled none\nready\n" == printed


def test_what_is_wrong_is_told_at_the_call_and_not_after_the_commit(project):
    printed = run(
        project,
        """
        from django.db import transaction
        from duly import UsageError
        from duly.contrib.django import app, enqueue_on_commit
        from shop.jobs import pay

        with transaction.atomic():
            for options in ({"delay": -1}, {"id": "no spaces"}, {"dealy": 1}):
                try:
                    enqueue_on_commit(pay.job(1), **options)
                except UsageError as error:
                    print(type(error).__name__)
        print(app.sync.views().stats().topics)
        """,
    )
    assert "UsageError\n" * 3 + "[]\n" == printed


def test_handlers_close_connections_that_are_too_old(project):
    printed = run(
        project,
        """
        from django.db import connection
        from duly.contrib.django import app
        from duly.context import CURRENT
        from shop.jobs import pay
        from shop.models import Order

        order = Order.objects.create(name="Ada")
        held = connection.connection
        pay(order.pk)  # a plain call is part of whatever goes on here
        print(held is connection.connection)
        CURRENT.set(object())  # as if a worker ran it
        pay(order.pk)
        print(connection.connection)  # CONN_MAX_AGE is 0: closed after each, as after each request
        """,
    )
    assert "True\nNone\n" == printed


def test_wrong_settings_are_named(project, tmp_path):
    path = tmp_path / "project.py"
    path.write_text(path.read_text() + "\nDULY = {'leese': 5}\n")
    assert "did you mean lease?" in project("duly_work", code=1)
    path.write_text(path.read_text() + "\nDULY = 'redis://localhost'\n")
    assert "the setting DULY must be a dict such as" in project("duly_work", code=1)


def test_the_command_takes_the_options_of_duly_work(project):
    printed = project("duly_work", "--help")
    for option in ("--concurrency", "--topic", "--metrics-port", "--log-format"):
        assert option in printed
    assert "duly: there is no handler of topic nobody" in project("duly_work", "--topic", "nobody", code=2)
