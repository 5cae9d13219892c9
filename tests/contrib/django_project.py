"""
A Django project with a database of its own, and its manage.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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
def interpreter():
    """
    The Python that the project runs on, with Django and duly.
    """
    return sys.executable


@pytest.fixture
def project(tmp_path, valkey, namespace, interpreter):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    foreign = ("DULY_", "DJANGO_", "PYTEST")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environ = clean | {"QUEUE": valkey.url, "QUEUE_NAMESPACE": namespace}

    def manage(*words: str, code: int = 0, **more: str) -> str:
        done = subprocess.run(
            [interpreter, *(words if words[0] == "-m" else ("manage.py", *words))],
            cwd=tmp_path,
            env=environ | more,
            capture_output=True,
            text=True,
            timeout=300,  # for what hangs, on a machine with much else to do
        )
        assert code == done.returncode, done.stdout + done.stderr
        return done.stdout if not code else done.stdout + done.stderr

    def start(*words: str) -> tuple[subprocess.Popen[bytes], object]:
        log = tmp_path / "worker.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [interpreter, "manage.py", *words], cwd=tmp_path, env=environ, stdout=output, stderr=output
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
