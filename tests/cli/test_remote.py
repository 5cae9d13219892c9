"""
Commands that send and look take the URL of a service, too; the others say what they need.
"""

from __future__ import annotations

import asyncio
import json

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


def test_commands_that_look_print_the_same_through_a_service(duly, url):
    for number in range(3):
        duly("enqueue", "mail", "--id", f"m{number}", "--delay", "1h")
        duly("enqueue", "sms", "--id", f"s{number}")
    duly("topics", "set", "mail", "--limit", "10", "--callback", "https://example.com/hook")
    for words in (
        ("topics", "ls"),
        ("workers", "ls"),
        ("dead", "ls"),
        ("audit",),
        ("jobs", "quarantine", "ls"),
    ):
        direct, told = duly(*words), duly(*words, "--url", url)
        assert (0, direct.out) == (told.code, told.out), words
    direct, told = duly("stats", "--json").json, duly("stats", "--json", "--url", url).json
    for topic in (*direct["topics"], *told["topics"]):
        topic.pop("overdue_ms")  # it grows
    assert (direct["topics"], direct["totals"]) == (told["topics"], told["totals"])
    assert "total" in duly("stats", "--url", url).out
    filtered = duly("jobs", "ls", "--where", "topic = mail", "--json", "--url", url).out.splitlines()
    assert {"m0", "m1", "m2"} == {json.loads(line)["id"] for line in filtered}
    first = duly("jobs", "ls", "--limit", "2", "--url", url)
    assert "More: --after" in first.err
    after = first.err.split("'")[1]
    assert 4 == len(duly("jobs", "ls", "--after", after, "--json", "--url", url).out.splitlines())


def test_commands_that_move_jobs_do_it_through_a_service(duly, url):
    for number in range(5):
        duly("enqueue", "mail", "--id", f"m{number}", "--delay", "1h")
    through = ("--url", url)
    moved = duly("jobs", "reschedule", "--topic", "mail", "--delay", "2h", "--yes", "--json", *through)
    assert (0, 5) == (moved.code, moved.json["done"])
    told = duly("jobs", "cancel", "--where", "id in (m1, m2)", "--yes", "--json", *through)
    assert (0, 2) == (told.code, told.json["done"])
    again = duly("jobs", "requeue", "--topic", "mail", "--state", "cancelled", "--yes", "--json", *through)
    assert (0, 2) == (again.code, again.json["done"])
    paused = duly("topics", "pause", "mail", *through)
    assert (0, "mail is paused; 2 jobs ready\n") == (paused.code, paused.out)
    assert "mail is resumed" in duly("topics", "resume", "mail", *through).out
    assert 7 == duly("topics", "set", "mail", "--limit", "7", "--json", *through).json["limit"]
    hook = "https://example.com/hook"
    assert hook == duly("topics", "set", "mail", "--callback", hook, "--json", *through).json["callback"]
    assert 5 == duly("topics", "purge", "mail", "--yes", "--json", *through).json["purged"]
    assert 0 == duly("dead", "requeue", "--all", "--yes", "--json", *through).json["done"]


@pytest.mark.parametrize(
    "words",
    [
        ("top", "--once"),
        ("serve",),
        ("keys", "ls"),
        ("pipeline", "history", "--table", "table"),
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
