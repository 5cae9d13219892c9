"""
Django's admin: the list of jobs in a real project, by users with and without permissions.
"""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.ports import held_port

SETTINGS = """
    INSTALLED_APPS += [
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
        "django.contrib.sessions", "django.contrib.messages",
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
    STATIC_URL = "static/"
    ROOT_URLCONF = "urls"
"""

URLS = """
    from django.contrib import admin
    from django.urls import path

    urlpatterns = [path("admin/", admin.site.urls)]
"""

PROGRAM = """
    import html, re
    from django.contrib.auth.models import Permission, User
    from django.test import Client
    from duly.contrib.django import app
    from shop.jobs import pay

    def client(name, *permissions, **more):
        user = User.objects.create_user(name, is_staff=True, **more)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        made = Client()
        made.force_login(user)
        return made

    def listed(answer):
        return sorted(re.findall(r"<td>(job-\\d+)</td>", answer.content.decode()))

    def said(**data):
        answer = admin.post(URL, data, follow=True)
        return re.findall(r'<li class="(?:success|warning|error)">([^<]*)</li>', answer.content.decode())

    def state(id):
        return app.sync.job("order.pay", id).get().state.name

    URL = "/admin/duly/job/"
    admin = client("admin", is_superuser=True)
    reader, stranger = client("reader", "view_job"), client("stranger")
    for number in range(60):
        app.sync.enqueue(pay.job(number), id=f"job-{number:02}", delay=3600)
    app.sync.enqueue("other", {}, id="job-99", delay=3600)

    first = admin.get(URL)
    second = admin.get(URL + html.unescape(re.search(r'href="(\\?state=[^"]+)"', first.content.decode())[1]))
    print(len(listed(first)), len(listed(second)), len({*listed(first), *listed(second)}))
    print(listed(admin.get(URL, {"topic": "other"})), listed(admin.get(URL, {"state": "dead"})))
    print(["No such jobs" in page.content.decode() for page in (first, admin.get(URL, {"state": "dead"}))])
    print("order.pay" in first.content.decode(), "Jobs" in admin.get("/admin/").content.decode())

    chosen = {"action": "cancel", "job": ["order.pay/job-01", "order.pay/job-02", "order.pay/none"]}
    print(reader.get(URL).status_code, 'value="cancel"' in reader.get(URL).content.decode())
    print(reader.post(URL, chosen).status_code, stranger.get(URL).status_code)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.get(username="admin"))
    print(stranger.post(URL, chosen).status_code, strict.post(URL, chosen).status_code)
    print(state("job-01"))

    print(said(**chosen), state("job-01"), listed(admin.get(URL, {"state": "cancelled"})))
    print(said(**chosen))
    print(said(action="requeue", job=["order.pay/job-01", "order.pay/job-03"]), state("job-01"))
    print(said(action="delete", job=["order.pay/job-03"]), said(action="cancel"))
    print(admin.get(URL + "add/").status_code, admin.get(URL, {"cursor": "nonsense"}).status_code)
"""


@pytest.fixture
def administered(project, tmp_path):
    """
    The project, with an admin.
    """
    path = tmp_path / "project.py"
    path.write_text(path.read_text() + textwrap.dedent(SETTINGS))
    (tmp_path / "urls.py").write_text(textwrap.dedent(URLS))
    project("migrate", "--run-syncdb", "--verbosity", "0")
    return project


UNREACHABLE = """
    import re
    from django.contrib.auth.models import User
    from django.test import Client

    admin = Client()
    admin.force_login(User.objects.create_superuser("admin"))
    URL = "/admin/duly/job/"

    def tell(answer):
        page = answer.content.decode()
        errors = re.findall(r'<li class="error">([^<]*)</li>', page)
        print(answer.status_code, "No such jobs" in page, errors)

    tell(admin.get(URL))
    tell(admin.post(URL, {"action": "cancel", "job": ["order.pay/a"]}, follow=True))
"""


def test_the_admin_lists_jobs_and_acts_for_those_who_may(administered):
    project = administered
    printed = project("shell", "--no-imports", "-c", textwrap.dedent(PROGRAM)).splitlines()
    assert [
        "50 11 61",
        "['job-99'] []",
        "[False, True]",
        "True True",
        "200 False",
        "403 403",
        "403 403",
        "scheduled",
        "['Jobs cancelled: 2', 'Jobs that have ended, or are gone: 1'] cancelled ['job-01', 'job-02']",
        "['Jobs that have ended, or are gone: 3']",
        "['Jobs requeued: 1', 'Jobs that have not ended, or are gone: 1'] ready",
        "['Choose an action: cancel or requeue'] ['Choose at least one job']",
        "403 200",
    ] == printed
    # A model without a table is no obstacle for commands that go over all models.
    assert '"username": "reader"' in project("dumpdata")
    assert "No changes detected" in project("makemigrations", "--check")


def test_a_server_that_is_away_is_a_message_and_no_page_of_an_error(administered):
    with held_port() as port:
        url = f"redis://127.0.0.1:{port}/0"
        printed = administered("shell", "--no-imports", "-c", textwrap.dedent(UNREACHABLE), QUEUE=url)
    away = f"Cannot use 127.0.0.1:{port}: .*; nothing was changed"
    listed, cancelled = printed.splitlines()
    assert re.fullmatch(rf"200 False \['{away}'\]", listed)
    assert re.fullmatch(rf"200 False \['{away}; jobs done before: 0', '{away}'\]", cancelled)
