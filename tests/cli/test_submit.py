"""
``duly submit``: every line has an outcome, and nothing is sent twice.
"""

from __future__ import annotations

import io
import json

import pytest

from duly import Duly
from duly.cli import lines
from duly.cli.lines import batches, read_lines
from duly.errors import OutcomeUnknown, UsageError
from duly.job import JobState
from tests.cli.schemas import read


def submitted(duly, *words, stdin=b""):
    answer = duly("submit", *words, "--json", stdin=stdin)
    return answer.code, read("submit", answer.out)


def jobs_of(arrange, state):
    async def all_of(app):
        return [job async for job in (await app.views()).each(state)]

    return arrange(all_of)


@pytest.mark.one_shard("delays count from the call that sends them, and each shard has a call of its own")
def test_a_load_is_spread_evenly(duly, arrange):
    made_up = ("--count", "50", "--within", "1h", "--payload", '{"n": 1}', "--id", "load")
    code, told = submitted(duly, "mail", *made_up)
    assert (0, 50, 50) == (code, told.read, told.created)
    first, *rest = sorted(
        [*jobs_of(arrange, JobState.scheduled), *jobs_of(arrange, JobState.ready)], key=lambda job: job.due_ms
    )
    assert ("load-1", b'{"n": 1}') == (first.id, first.payload)
    waits = [job.due_ms - first.due_ms for job in rest]
    # What is due at once is due at the server's time rounded down, what waits at its time rounded up.
    assert [72_000 * at for at in range(1, 50)] == [wait - wait % 2 for wait in waits]
    code, told = submitted(duly, "mail", *made_up)
    assert (0, 0, 50) == (code, told.created, told.kept)


def test_lines_with_ids_can_be_submitted_again(duly, arrange):
    data = b'{"id": "a", "payload": {"x": 1}}\n\n{"topic": "sms", "id": "b", "delay": "1h"}\n{"id": "c"}'
    code, told = submitted(duly, "mail", "--from", "-", stdin=data)
    assert (0, 3, 3, 0) == (code, told.read, told.created, told.kept)
    code, told = submitted(duly, "mail", "--from", "-", stdin=data)
    assert (0, 3, 0, 3) == (code, told.read, told.created, told.kept)
    assert ["sms/b"] == [str(job.key) for job in jobs_of(arrange, JobState.scheduled)]
    assert {"mail/a": b'{"x": 1}', "mail/c": b"{}"} == {
        str(job.key): job.payload for job in jobs_of(arrange, JobState.ready)
    }


def test_a_line_of_too_many_levels_is_refused_by_itself(duly, arrange):
    def line(id_, levels):
        return b'{"id": "%b", "delay": 60, "context": {"a": %b}}' % (id_, b"[" * levels + b"]" * levels)

    data = b"\n".join([line(b"a", 1), line(b"b", 499), line(b"c", 500), line(b"d", 1)])
    code, told = submitted(duly, "mail", "--from", "-", stdin=data)
    assert (1, 4, 3, 1) == (code, told.read, told.created, told.refused)
    [refused] = told.first_refused
    assert "context is nested 501 levels deep, the limit is 500: make it flatter" == refused.error
    assert {"a", "b", "d"} == {job.id for job in jobs_of(arrange, JobState.scheduled)}


def test_whatever_reading_a_line_raises_it_is_refused_by_itself(monkeypatch):
    def check(payload):
        if payload == b"2":
            raise LookupError("nobody foresaw it")

    monkeypatch.setattr(lines, "check_json", check)
    data = io.BytesIO(b'{"payload": 1}\n{"payload": 2}\n{"payload": 3}')
    first, broken, last = [line.job for line in read_lines(data, "mail")]
    assert (b"1", b"3") == (first.payload, last.payload)
    assert "cannot be read: LookupError: nobody foresaw it" == str(broken)


def test_every_option_of_a_line_arrives(duly, arrange):
    line = {
        "topic": "mail",
        "id": "a",
        "payload": [1],
        "due_at": "2099-01-01T00:00:00Z",
        "expires": "2099-01-02T00:00:00Z",
        "priority": "low",
        "ttr": "PT2M",
        "max_attempts": 9,
        "backoff": {"kind": "fixed", "delay": 5},
        "context": {"tenant": "acme"},
        "on_conflict": "raise",
        "retain": 3600,
        "max_crashes": 2,
        "reply_to": "inbox",
    }
    # What has a callback has no priority.
    assert set(lines.Line.__struct_fields__) - {"delay", "callback"} == line.keys()
    code, told = submitted(duly, "--from", "-", stdin=json.dumps(line).encode())
    assert (0, 1) == (code, told.created)
    [job] = jobs_of(arrange, JobState.scheduled)
    assert "inbox" == job.envelope.reply_to
    assert ("low", 120_000, b"[1]") == (job.priority, job.ttr_ms, job.payload)
    assert (9, {"kind": "fixed", "delay": 5}, {"tenant": "acme"}) == (
        job.envelope.max_attempts,
        job.envelope.backoff,
        job.envelope.context,
    )
    code, told = submitted(duly, "--from", "-", stdin=json.dumps(line).encode())
    assert (1, {"JobExists": 1}) == (code, told.refusals)


def test_a_line_may_name_a_callback(duly, arrange):
    submitted(
        duly, "mail", "--from", "-", stdin=b'{"id": "a", "delay": 60, "callback": "https://example.com/"}'
    )
    [job] = jobs_of(arrange, JobState.scheduled)
    assert "https://example.com/" == job.envelope.callback


BAD = [
    (b"{oops", "no JSON: JSON is malformed"),
    (b'{"topic": "mail", "payload": 1e999}', "payload has a value that workers cannot read"),
    (b'"text"', "Expected `object`, got `str`"),
    (b'{"payload": 1}', "no topic"),
    (b'{"topic": "m@il"}', "invalid topic"),
    (b'{"topic": "mail", "id": "a/b"}', "invalid job id"),
    (b'{"topic": "mail", "dealy": 3}', "Object contains unknown field `dealy`"),
    (b'{"topic": "mail", "delay": "5 parsecs"}', "is no duration"),
    (b'{"topic": "mail", "delay": -1}', "delay=-1.0 must be zero or more"),
    (b'{"topic": "mail", "delay": 1, "due_at": "2099-01-01T00:00:00Z"}', "say either delay or due_at"),
    (b'{"topic": "mail", "due_at": "2099-01-01T00:00:00"}', "has no offset"),
    (b'{"topic": "mail", "priority": "urgent"}', "must be one of high"),
    (b'{"topic": "mail", "payload": "\xff"}', "not UTF-8"),
    (b'{"topic": "mail", "backoff": {"kind": "none"}}', "backoff must be"),
    (b'{"topic": "mail", "max_attempts": 0}', "max_attempts=0 must be"),
]


def test_bad_lines_are_counted_and_kept_and_stop_nothing(duly, tmp_path):
    (tmp_path / "jobs.jsonl").write_bytes(
        b"".join(b'{"topic": "mail", "id": "%d"}\n%s\n' % (at, bad) for at, (bad, _) in enumerate(BAD))
    )
    answer = duly("submit", "--from", "jobs.jsonl", "--rejects", "wrong.jsonl")
    assert 1 == answer.code
    assert f"{2 * len(BAD)} read in" in answer.out
    assert f"{len(BAD)} created, {len(BAD)} refused ({len(BAD)} UsageError)" in answer.out
    *shown, more = answer.err.splitlines()
    assert 10 == len(shown)
    for at, (sentence, (_, said)) in enumerate(zip(shown, BAD, strict=False)):
        assert sentence.startswith(f"line {2 * at + 2}: ")
        assert said in sentence
    assert f"… and {len(BAD) - 10} more" == more
    assert b"".join(bad + b"\n" for bad, _ in BAD) == (tmp_path / "wrong.jsonl").read_bytes()


@pytest.mark.parametrize(("bad", "said"), BAD)
def test_each_mistake_of_a_line_is_said(duly, bad, said):
    code, told = submitted(duly, "--from", "-", stdin=bad)
    [refused] = told.first_refused
    assert (1, 1, 1) == (code, told.refused, refused.line)
    assert said in refused.error


@pytest.mark.one_shard("of several, each has a part of the limit, and where jobs go is left to chance")
def test_a_full_topic_refuses_the_rest(duly):
    assert 0 == duly("topics", "set", "mail", "--limit", "3").code
    code, told = submitted(duly, "mail", "--count", "5", "--within", "1h")
    assert (1, 3, {"QueueFull": 2}) == (code, told.created, told.refusals)


def test_many_lines_pass_in_bounded_memory(duly, monkeypatch):
    monkeypatch.setattr(lines, "BATCH_JOBS", 10)
    sizes = []
    real = lines.batches

    def watched(read):
        for batch in real(read):
            sizes.append(len(batch))
            yield batch

    monkeypatch.setattr("duly.cli.submit.batches", watched)
    code, told = submitted(duly, "mail", "--from", "-", stdin=b'{"payload": 1}\n' * 95)
    assert (0, 95) == (code, told.created)
    assert [10] * 9 + [5] == sizes


def test_a_line_without_an_end_does_not_fill_the_memory(monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 100)
    monkeypatch.setattr(lines, "BATCH_BYTES", 25)
    file = io.BytesIO(b'{"topic": "a"}\n' + b"x" * 1_000 + b'\n{"topic": "b"}\n' * 3 + b"y" * 500)
    found = list(batches(read_lines(file, None)))
    flat = [(line.number, isinstance(line.job, UsageError)) for batch in found for line in batch]
    assert [(1, False), (2, True), (3, False), (5, False), (7, False), (8, True)] == flat
    assert len(found) > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say either --from FILE or TOPIC and --count"),
        (("mail", "--count", "1", "--from", "-"), "say either --from FILE or TOPIC and --count"),
        (("--count", "1"), "say the TOPIC"),
        (("mail", "--from", "-", "--payload", "1"), "--payload is for --count"),
        (("mail", "--from", "-", "--within", "1s"), "--within is for --count"),
        (("mail", "--count", "1", "--rejects", "x"), "--rejects is for --from"),
        (("mail", "--count", "1", "--payload", "{"), "--payload is no JSON"),
        (("mail", "--count", "0"), "0 is not in the range"),
        (("--from", "missing.jsonl"), "No such file"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(duly, words, said):
    answer = duly("submit", *words)
    assert (2, "") == answer[:2]
    assert said in answer.err


def test_a_server_that_goes_away_stops_it_and_leaves_a_count(duly, monkeypatch, own_server, impatient):
    monkeypatch.setattr(lines, "BATCH_JOBS", 10)
    real = lines.batches

    def killed(read):
        for at, batch in enumerate(real(read)):
            if at == 2:
                own_server.kill()
            yield batch

    monkeypatch.setattr("duly.cli.submit.batches", killed)
    answer = duly("submit", "mail", "--count", "95", "--id", "n", "--url", own_server.url, "--json")
    told = read("submit", answer.out)
    assert (3, 20, 20) == (answer.code, told.read, told.created)
    assert "Stopped after line 20; submit all of it again" in answer.err
    own_server.start()
    monkeypatch.setattr("duly.cli.submit.batches", real)
    code, told = submitted(duly, "mail", "--count", "95", "--id", "n", "--url", own_server.url)
    assert (0, 20, 75) == (code, told.kept, told.created)


def test_lines_whose_answer_was_lost_are_counted_as_unknown_and_kept_to_be_sent_again(
    duly, monkeypatch, tmp_path
):
    send = Duly.enqueue_many

    async def lose_the_second(app, jobs):
        first, _, *rest = await send(app, jobs)
        return [first, OutcomeUnknown("lost"), *rest]

    monkeypatch.setattr(Duly, "enqueue_many", lose_the_second)
    words = ("submit", "mail", "--from", "-", "--rejects", str(tmp_path / "again.jsonl"))
    data = b'{"id": "a"}\n{"id": "b"}\n{"dely": 1}\n'
    answer = duly(*words, "--json", stdin=data)
    told = read("submit", answer.out)
    assert (3, 3, 1, 1, 1) == (answer.code, told.read, told.created, told.refused, told.unknown)
    assert [3] == [each.line for each in told.first_refused]
    assert b'{"id": "b"}\n{"dely": 1}\n' == (tmp_path / "again.jsonl").read_bytes()
    said = duly(*words, stdin=data).out
    assert "1 kept, 1 refused (1 UsageError), 1 unknown" in said
