"""
Django's tasks: the backend in a real project, with the package that brings them to this Django.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.eventually import eventually

TASKS = """
    INSTALLED_APPS += ["django_tasks"]
    TASKS = {
        "default": {
            "BACKEND": "duly.contrib.django.tasks.DulyBackend",
            "QUEUES": ["default", "mail"],
        },
        "patient": {
            "BACKEND": "duly.contrib.django.tasks.DulyBackend",
            "OPTIONS": {"max_attempts": 3, "backoff": __import__("duly").Fixed(0.01)},
        },
        "hasty": {"BACKEND": "duly.contrib.django.tasks.DulyBackend", "OPTIONS": {"ttr": 1}},
    }
"""

SHOP_TASKS = """
    import asyncio
    from datetime import date

    from django.dispatch import receiver
    from django_tasks import task
    from django_tasks.signals import task_finished
    from shop.models import Order


    @receiver(task_finished)
    def note(task_result, **_):
        errors = [each.exception_class.__name__ for each in task_result.errors]
        print("finished", task_result.task.name, task_result.status.name, *errors, flush=True)
        if task_result.task.name == "answer":
            Order.objects.create(name=f"{task_result.args[0]} {task_result.status.name}")


    @task
    def pay(order, *, by="card"):
        found = Order.objects.get(pk=order)
        found.state = f"paid by {by}"
        found.save()
        return found.state


    @task(queue_name="mail", priority=7, takes_context=True)
    async def write(context, to):
        found = await Order.objects.aget(name=to)
        return [context.attempt, context.task_result.task.queue_name, found.name]


    @task
    async def nap(seconds):
        print("nap begins", flush=True)
        await asyncio.sleep(seconds)


    @task
    def fail(number):
        raise LookupError(f"no order {number}")


    def deep():
        value = None
        for _ in range(3_000):
            value = [value]
        return value


    @task
    def answer(kind, _=()):
        large = "x" * 2**21
        return {"plain": (1, {2: b"two"}), "date": date(2030, 1, 2), "large": large, "deep": deep()}[kind]


    @task(backend="patient", takes_context=True)
    def third_time(context):
        if context.attempt < 3:
            raise ConnectionError("not yet")
        return context.attempt
"""

PROGRAM = """
    from datetime import timedelta
    import asyncio, time

    from django.utils import timezone
    from django_tasks import default_task_backend, task_backends
    from django_tasks.exceptions import InvalidTaskError, TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued
    from duly.contrib.django import app
    from shop.models import Order
    from duly import UsageError
    from shop.tasks import answer, deep, fail, pay, third_time, write

    KINDS = ("plain", "date", "large", "deep")
    enqueued = []
    task_enqueued.connect(lambda task_result, **_: enqueued.append(task_result.id), weak=False)

    def ended(result):
        deadline = time.monotonic() + 60
        while not result.is_finished and time.monotonic() < deadline:
            time.sleep(0.02)
            result.refresh()
        return result

    order = Order.objects.create(name="Ada")
    result = pay.enqueue(order.pk, by="cheque")
    print("sent", result.status, result.args == [order.pk], result.kwargs, enqueued == [result.id])
    ended(result)
    order.refresh_from_db()
    print("plain", result.status, result.return_value, order.state, result.attempts, result.errors)
    print("times", result.enqueued_at <= result.started_at <= result.finished_at)
    print("same", pay.get_result(result.id) == result)

    sent = asyncio.run(write.aenqueue("Ada"))
    job = app.sync.job(*sent.id.split("/")).get()
    print("async", ended(sent).return_value, sent.task.priority, job.priority)

    failed = ended(fail.enqueue(7))
    [error] = failed.errors
    print("failed", failed.status, error.exception_class.__name__, "no order 7" in error.traceback)

    answers = [ended(answer.using(backend="patient").enqueue(kind)) for kind in KINDS]
    names = [each.errors[0].exception_class.__name__ for each in answers[1:]]
    print("answers", answers[0].return_value, names, [each.attempts for each in answers])
    print(*Order.objects.filter(name__contains=" ").order_by("pk").values_list("name", flat=True), sep=", ")
    print("given", answer.enqueue("date", ({1: "a"},)).args)

    print("retried", ended(third_time.enqueue()).return_value)

    due = timezone.now() + timedelta(hours=1)
    later = pay.using(run_after=due, priority=-1).enqueue(order.pk)
    job = app.sync.job(*later.id.split("/")).get()
    again = default_task_backend.get_result(later.id)
    print("later", job.state.name, abs(job.due_at - due) < timedelta(seconds=1), job.priority, again.status)
    print(again.task.run_after == later.task.run_after == due, again.task.priority, again.attempts)
    app.sync.job(*later.id.split("/")).cancel()
    later.refresh()
    print("cancelled", later.status, [each.exception_class.__name__ for each in later.errors])

    elsewhere = later.id.replace("default", "patient", 1)
    for wrong in ("nobody", "task.default.default/none", "order.pay/1", elsewhere):
        try:
            default_task_backend.get_result(wrong)
        except TaskResultDoesNotExist:
            print("none")
    try:
        pay.using(queue_name="unheard-of")
    except InvalidTaskError as error:
        print(error)
    try:
        pay.enqueue(object())
    except (TypeError, ValueError) as error:
        print(type(error).__name__)
    try:
        pay.enqueue(deep())
    except UsageError as error:
        print(error)
"""


@pytest.fixture
def tasks(project, tmp_path):
    return add_tasks(project, tmp_path)


def add_tasks(project, tmp_path):
    """
    Let the project have tasks.
    """
    path = tmp_path / "project.py"
    path.write_text(path.read_text() + textwrap.dedent(TASKS))
    (tmp_path / "shop/tasks.py").write_text(textwrap.dedent(SHOP_TASKS))
    return project


def test_tasks_are_sent_run_and_looked_up(tasks):
    _, log = tasks.start("duly_work", "--log-level", "INFO")
    printed = tasks("shell", "--no-imports", "-c", textwrap.dedent(PROGRAM)).splitlines()
    assert [
        "sent READY True {'by': 'cheque'} True",
        "plain SUCCESSFUL paid by cheque paid by cheque 1 []",
        "times True",
        "same True",
        "async [1, 'mail', 'Ada'] 7 high",
        "failed FAILED LookupError True",
        "answers [1, {'2': 'two'}] ['TypeError', 'UsageError', 'UsageError'] [1, 1, 1, 1]",
        "plain SUCCESSFUL, date FAILED, large FAILED, deep FAILED",
        "given ['date', [{'1': 'a'}]]",
        "retried 3",
        "later scheduled True low READY",
        "True -1 0",
        "cancelled FAILED ['JobFailed']",
        *["none"] * 4,
        "Queue 'unheard-of' is not valid for backend.",
        "TypeError",
        "a value is nested too deeply: make it flatter",
    ] == printed, log.read_text()


async def test_a_task_that_a_drain_interrupted_has_not_finished(tasks):
    process, log = tasks.start("duly_work")
    send = "from shop.tasks import nap; sent = nap.enqueue(3600); print(sent.id)"
    sent = tasks("shell", "--no-imports", "-c", send).strip()
    await eventually(lambda: "nap begins" in log.read_text(), within_s=30)
    process.terminate()
    process.wait(30)
    assert ["nap begins"] == [line for line in log.read_text().splitlines() if " INFO " not in line]
    look = f"from shop.tasks import nap; print(nap.get_result({sent!r}).status)"
    assert "READY\n" == tasks("shell", "--no-imports", "-c", look)


async def test_a_task_that_is_over_its_time_has_failed(tasks):
    _, log = tasks.start("duly_work")
    tasks(
        "shell", "--no-imports", "-c", "from shop.tasks import nap; nap.using(backend='hasty').enqueue(3600)"
    )
    await eventually(lambda: "finished nap FAILED TimeoutError\n" in log.read_text(), within_s=30)


def test_what_is_wrong_with_a_backend_is_said_by_the_checks(tasks, tmp_path):
    path = tmp_path / "project.py"
    path.write_text(
        path.read_text()
        + textwrap.dedent("""
        TASKS["default"]["QUEUES"] = ["no spaces, please"]
        TASKS["patient"]["OPTIONS"] = {"attempts": 3}
        """)
    )
    (tmp_path / "shop/tasks.py").unlink()
    printed = tasks("check", code=1)
    assert "(duly.E002) TASKS['default']: invalid topic for a queue of tasks" in printed
    assert "(duly.E002) TASKS['patient']: unknown option attempts; known are backoff," in printed
    assert "Traceback" not in printed
