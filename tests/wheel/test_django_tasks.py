"""
Django's own tasks: the backend in a project of Django 6, which needs a newer Python than the rest.
"""

from __future__ import annotations

import pytest

from tests.contrib import test_django_tasks as earlier
from tests.contrib.django_project import project  # noqa: F401  # what pytest finds here, it uses
from tests.wheel import pythons
from tests.wheel.installed import install

DJANGO = "Django>=6,<7"
SINCE = "3.12"  #: the oldest Python that it runs on


@pytest.fixture
def interpreter(shared):
    return str(install(pythons.oldest(SINCE), shared, DJANGO).bin / "python")


@pytest.fixture
def tasks(project, tmp_path, monkeypatch):  # noqa: F811  # the fixture
    monkeypatch.setattr(earlier, "TASKS", earlier.TASKS.replace('INSTALLED_APPS += ["django_tasks"]', ""))
    for name in ("SHOP_TASKS", "PROGRAM"):
        text = getattr(earlier, name).replace("django_tasks", "django.tasks")
        monkeypatch.setattr(earlier, name, text.replace("InvalidTaskError", "InvalidTask"))
    return earlier.add_tasks(project, tmp_path)


def test_tasks_are_sent_run_and_looked_up(tasks):
    earlier.test_tasks_are_sent_run_and_looked_up(tasks)
    said = "import django, django.tasks, sys; print(django.VERSION >= (6,), 'django_tasks' in sys.modules)"
    assert "True False" == tasks("shell", "--no-imports", "-c", said).strip()


def test_what_is_wrong_with_a_backend_is_said_by_the_checks(tasks, tmp_path):
    earlier.test_what_is_wrong_with_a_backend_is_said_by_the_checks(tasks, tmp_path)


@pytest.mark.parametrize(
    ("named", "outcome"),
    [("3.12", pytest.fail.Exception), ("3.11,3.13", pytest.fail.Exception), ("3.11", pytest.skip.Exception)],
)
def test_a_python_that_is_missing_fails_where_it_is_named_and_is_skipped_elsewhere(
    monkeypatch, named, outcome
):
    monkeypatch.setattr(pythons, "find_python", lambda _: None)
    monkeypatch.setenv("TEST_PYTHONS", named)
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match=r"no Python 3\.1\d") as raised:
        pythons.python(pythons.oldest(SINCE))
    assert outcome is raised.type
