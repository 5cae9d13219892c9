"""
``duly enqueue`` sends what its words say.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from duly import JobState
from tests.eventually import eventually


def job_of(arrange, topic, id_):
    async def get(app):
        return await app.job(topic, id_).get()

    return arrange(get)


@pytest.mark.parametrize(
    ("words", "stdin", "payload"),
    [
        ((), b"", b"{}"),
        (('{"a": [1, 2.50]}',), b"", b'{"a": [1, 2.50]}'),
        (("null",), b"", b"null"),
        (("-",), b' {"big": 123456789012345678901234567890}\n', b'{"big": 123456789012345678901234567890}'),
        (
            ("--arg", "user_id=42", "--arg", "name=Ada=B", "--arg", "tags=[1]"),
            b"",
            b'{"user_id":42,"name":"Ada=B","tags":[1]}',
        ),
        (("--arg", 'id="42"', "--arg", "empty="), b"", b'{"id":"42","empty":""}'),
    ],
)
def test_a_payload_arrives_as_it_was_written(duly, arrange, words, stdin, payload):
    answer = duly("enqueue", "mail", *words, "--id", "a", stdin=stdin)
    assert (0, "") == (answer.code, answer.err)
    assert answer.out.startswith("mail/a created: ready, due ")
    assert payload == job_of(arrange, "mail", "a").payload


def test_every_option_arrives(duly, arrange):
    words = (
        *("--id", "a", "--due-at", "2099-01-31T10:00:00+01:00", "--expires", "2099-02-01T00:00:00Z"),
        *("--priority", "high", "--ttr", "1m30s", "--max-attempts", "8", "--retain", "1d"),
        *("--context", "tenant=acme", "--context", "n=1", "--reply-to", "inbox"),
    )
    assert 0 == duly("enqueue", "mail", *words).code
    job = job_of(arrange, "mail", "a")
    assert datetime(2099, 1, 31, 9, tzinfo=UTC) == job.due_at
    assert (JobState.scheduled, "high", 90_000) == (job.state, job.priority, job.ttr_ms)
    assert datetime(2099, 2, 1, tzinfo=UTC).timestamp() * 1000 == job.expires_ms
    assert "inbox" == job.envelope.reply_to
    assert (8, {"tenant": "acme", "n": 1}) == (job.envelope.max_attempts, job.envelope.context)


def test_a_delay_is_counted_from_now(duly, arrange):
    before = datetime.now(UTC)
    assert 0 == duly("enqueue", "mail", "--id", "a", "--delay", "1h30m").code
    waits = job_of(arrange, "mail", "a").due_at - before
    assert 5_400 <= waits.total_seconds() < 5_460


def test_what_happens_to_an_id_that_is_taken(duly):
    assert "created" in duly("enqueue", "mail", "1", "--id", "a", "--delay", "1h").out
    assert "kept" in duly("enqueue", "mail", "2", "--id", "a").out
    assert "replaced" in duly("enqueue", "mail", "2", "--id", "a", "--on-conflict", "replace").out
    refused = duly("enqueue", "mail", "3", "--id", "a", "--on-conflict", "raise")
    assert (1, "", "duly: mail/a exists already, ready\n") == refused


def test_waiting_prints_the_result(duly, arrange):
    async def act(app):
        @app.handler("sum")
        async def add(numbers: list[int]) -> dict[str, int]:
            return {"sum": sum(numbers)}

        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        plain = await asyncio.to_thread(duly, "enqueue", "sum", "[1, 2]", "--wait", "30")
        told = await asyncio.to_thread(duly, "enqueue", "sum", "[3]", "--wait", "30", "--json")
        dead = await asyncio.to_thread(
            duly, "enqueue", "sum", '"no"', "--id", "bad", "--wait", "30", "--max-attempts", "1"
        )
        stop.set()
        await work
        return plain, told, dead

    plain, told, dead = arrange(act)
    assert (0, '{"sum":3}\n') == plain[:2]
    assert "created" in plain.err
    assert {"sum": 3} == told.json["result"]
    assert (1, "") == dead[:2]
    assert "duly: sum/bad is dead: unreadable" in dead.err


def test_who_waits_has_a_result_that_is_not_kept_and_others_are_told_that_it_is_gone(duly, arrange):
    async def act(app):
        @app.handler("sum")
        async def add(numbers: list[int]) -> dict[str, int]:
            return {"sum": sum(numbers)}

        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        words = ("enqueue", "sum", "[1, 2]", "--retain", "0")
        waited = await asyncio.to_thread(duly, *words, "--wait", "30")
        job = await app.enqueue("sum", [3], id="a", retain=0)
        await eventually(lambda: _is_over(job))
        shown = [await asyncio.to_thread(duly, "jobs", "show", "sum/a", *more) for more in ((), ("--json",))]
        again = await asyncio.to_thread(duly, *words, "--id", "a", "--wait", "30")
        stop.set()
        await work
        return waited, *shown, again

    waited, plain, told, again = arrange(act)
    assert (0, '{"sum":3}\n') == waited[:2]
    assert ["result_gone", "true"] in [line.split() for line in plain.out.splitlines()]
    assert (None, True) == (told.json["result"], told.json["result_gone"])
    assert (1, "") == again[:2]
    assert "duly: sum/a has succeeded, but its result was not kept" in again.err


async def _is_over(job):
    assert (await job.get()).state.ended


def test_who_waits_too_short_is_told_where_to_look(duly):
    answer = duly("enqueue", "mail", "--id", "a", "--delay", "1h", "--wait", "0.01")
    assert (1, "") == answer[:2]
    assert "duly: mail/a has not ended within 10ms: it is scheduled for 2" in answer.err
    assert "no worker takes mail on the server at" in answer.err
    assert answer.err.endswith("; the job stays there: duly jobs show mail/a\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mail", "{oops"), "PAYLOAD is no JSON: JSON is malformed"),
        (("mail", "n=1"), "arguments are a JSON object: '{\"n\": 1}'"),
        (("mail", "1e999"), "PAYLOAD has a value that workers cannot read (number out of range)"),
        (("mail", "[" * 501 + "]" * 501), "PAYLOAD is nested 501 levels deep, the limit is 500"),
        (("mail", "Ada"), "text needs quotes of its own: '\"Ada\"'"),
        (("mail", "-"), "what stdin says is no JSON"),
        (("mail", "1", "--arg", "a=1"), "say either PAYLOAD or --arg, not both"),
        (("mail", "--arg", "a"), "--arg 'a' is no pair: write --arg name=value"),
        (("mail", "--arg", "=1"), "is no pair"),
        (("mail", "--arg", "a=1", "--arg", "a=2"), "--arg a is said twice"),
        (("mail", "--context", "a"), "--context 'a' is no pair"),
        (("m@il",), "invalid topic 'm@il': use 1 to 100"),
        (("duly.canary",), "invalid topic 'duly.canary': names that begin with duly. are duly's own"),
        (("mail", "--id", "a/b"), "invalid job id 'a/b'"),
        (("mail", "--delay", "5 parsecs"), "'5 parsecs' is no duration; write 500ms, 15s, 1h30m"),
        (("mail", "--delay", "-5"), "'-5' is no duration"),
        (
            ("mail", "--delay", "1s", "--due-at", "2099-01-01T00:00:00Z"),
            "say either delay or due_at, not both",
        ),
        (("mail", "--due-at", "2099-01-01T00:00:00"), "has no offset from UTC"),
        (("mail", "--due-at", "tomorrow"), "'tomorrow' is no time; write 2026-01-31T09:00:00Z"),
        (("mail", "--ttr", "0"), "ttr must be more than zero"),
        (("mail", "--priority", "urgent"), "'urgent' is not one of"),
        (("mail", "--max-attempts", "0"), "0 is not in the range"),
        (("mail", "--context", f"a={'x' * 9_000}"), "context is 9"),
        (("mail", f'"{"x" * 300_000}"'), "payload is 300002 bytes, the limit is 262144"),
        (("mail", "--wait", "soon"), "'soon' is no duration; write 500ms, 15s, 1h30m"),
        ((), "Missing argument 'TOPIC'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(duly, words, said, monkeypatch):
    # Before a server is looked for.
    monkeypatch.setenv("DULY_URL", "unix:///nowhere/at/all")
    answer = duly("enqueue", *words, stdin=b"\xff")
    assert (2, "") == answer[:2]
    assert said in answer.err
    assert "Traceback" not in answer.err
