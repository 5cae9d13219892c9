"""
Commands that send and look take the URL of a service, too; the others say what they need.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Duly
from duly.doctor.examine import examine
from tests.http.service import Served


@pytest.fixture
def url(here, valkey, namespace):
    with Served(Duly(valkey.url, namespace=namespace)) as served:
        yield served.url


def test_a_job_is_sent_shown_and_cancelled_through_a_service(duly, url):
    sent = duly("enqueue", "mail", "--arg", "user=1", "--id", "a", "--delay", "1h", "--url", url, "--json")
    assert (0, "created", "scheduled") == (sent.code, sent.json["outcome"], sent.json["state"])
    direct = duly("jobs", "show", "mail/a", "--json").json
    assert direct == duly("jobs", "show", "mail/a", "--json", "--url", url).json
    assert sent.json["due_at"] == direct["due_at"]
    assert "due_at" in duly("jobs", "show", "mail/a", "--url", url).out
    assert "kept" in duly("enqueue", "mail", "--id", "a", "--url", url).out
    assert "mail/a cancelled" in duly("jobs", "cancel", "mail/a", "--url", url).out
    absent = duly("jobs", "show", "mail/absent", "--url", url)
    assert (1, True) == (absent.code, "there is no job mail/absent" in absent.err)


def test_many_jobs_are_submitted_through_a_service(duly, url):
    lines = b'{"id":"x","payload":{\n"id":"y","delay":60}\n{"id":"z","delay":60,"payload":[1, 2]}'
    told = duly("submit", "mail", "--count", "600", "--within", "1h", "--url", url, "--json")
    assert (0, 600) == (told.code, told.json["created"])
    told = duly("submit", "mail", "--from", "-", "--url", url, "--json", stdin=lines)
    assert (1, 1, 2) == (told.code, told.json["created"], told.json["refused"])
    assert [1, 2] == duly("jobs", "show", "mail/z", "--json").json["payload"]


@pytest.mark.parametrize(
    "words",
    [
        ("stats",),
        ("jobs", "ls", "--topic", "mail"),
        ("jobs", "cancel", "--topic", "mail", "--yes"),
        ("topics", "ls"),
        ("top", "--once"),
        ("serve",),
    ],
)
def test_what_needs_the_server_says_so(duly, url, words):
    told = duly(*words, "--url", url)
    assert (2, "") == (told.code, told.out)
    assert "redis:// URL" in told.err


def test_nobody_there_is_exit_code_3(duly, here):
    told = duly("enqueue", "mail", "--url", "http://127.0.0.1:1")
    assert 3 == told.code
    assert "cannot use http://127.0.0.1:1" in told.err


def test_the_doctor_finds_a_service_or_says_that_there_is_none(url):
    for place, level in ((url, "ok"), ("http://127.0.0.1:1", "problem")):
        findings = asyncio.run(examine({"url": place, "api_key": "topsecret"}, {}))
        assert ("service", level) == (findings[-1].check, findings[-1].level)
        assert "topsecret" not in str(findings)
