"""
Django: a real project with a database of its own, and a worker started by manage.py.
"""

from __future__ import annotations

import signal
import textwrap
import time


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
        CURRENT.set(object())  # also in a job
        pay(order.pk)
        print(held is connection.connection)
        pay.entry(order.pk)  # as a worker calls it
        print(connection.connection)  # CONN_MAX_AGE is 0: closed after each, as after each request
        """,
    )
    assert "True\nNone\n" == printed


def test_wrong_settings_are_named(project, tmp_path):
    path = tmp_path / "project.py"
    sound = path.read_text()
    path.write_text(f"{sound}\nDULY = {{'leese': 5}}\n")
    printed = project("check", code=1)  # which imports jobs and views, that ask for the app
    assert "settings.DULY: (duly.E001) unknown setting leese; did you mean lease?" in printed
    assert "Traceback" not in printed
    path.write_text(f"{sound}\nDULY = 'redis://localhost'\n")
    assert "(duly.E001) the setting DULY must be a dict such as" in project("duly_work", code=1)
    code = "from duly.contrib.django import app; app.sync.enqueue('t')"
    assert "UsageError: the setting DULY must be" in project("shell", "--no-imports", "-c", code, code=1)


def test_a_deployment_is_warned_of_a_queue_for_each_machine(project, tmp_path):
    check = ("check", "--deploy", "--tag", "duly", "--fail-level", "WARNING")
    assert "no issues" in project(*check)
    path = tmp_path / "project.py"
    path.write_text(path.read_text() + "\nDULY = {'data': 'queue'}\n")
    assert "(duly.W001) jobs wait in the embedded server in" in project(*check, code=1)


def test_async_code_sends_on_commit(project):
    printed = run(
        project,
        """
        import asyncio
        from asgiref.sync import sync_to_async
        from django.db import transaction
        from duly import JobNotFound, UsageError
        from duly.contrib.django import aenqueue_on_commit, app
        from shop.jobs import pay

        async def state(key):
            try:
                return (await app.job(*key).get()).state.name
            except JobNotFound:
                return "none"

        async def main():
            print(await state(await aenqueue_on_commit(pay.job(1), delay=3600)))
            for fails in (False, True):
                atomic = transaction.atomic()
                await sync_to_async(atomic.__enter__)()
                key = await aenqueue_on_commit(pay.job(1))
                before = await state(key)
                error = (ValueError, ValueError(), None) if fails else (None, None, None)
                await sync_to_async(atomic.__exit__)(*error)
                print(before, await state(key))
            try:
                await aenqueue_on_commit(pay.job(1), delay=-1)
            except UsageError as error:
                print(error)
            await app.aclose()

        asyncio.run(main())
        """,
    )
    assert ["scheduled", "none ready", "none none"] == printed.splitlines()[:3]
    assert "delay" in printed.splitlines()[3]


def test_the_command_takes_the_options_of_duly_work(project):
    printed = project("duly_work", "--help")
    for option in ("--concurrency", "--topic", "--metrics-port", "--log-format"):
        assert option in printed
    assert "duly: there is no handler of topic nobody" in project("duly_work", "--topic", "nobody", code=2)
