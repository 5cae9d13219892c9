"""
Moving jobs: by name, and many at once after a question.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from duly import JobState
from duly.cli import steer
from duly.failure import reason_document
from duly.job import shard_of
from duly.select import Selection
from tests.cli.schemas import read
from tests.cli.test_shapes import claim
from tests.shards import on_all


def states_of(duly, *ids):
    return [duly("jobs", "show", f"mail/{id_}", "--json").json["state"] for id_ in ids]


@pytest.fixture
def waiting(arrange):
    """
    Jobs a0 to a9 that wait for an hour, of two tenants, and one of another topic.
    """

    async def act(app):
        for at in range(10):
            context = {"tenant": "acme" if at % 2 else "other"}
            await app.enqueue("mail", {"n": at}, id=f"a{at}", delay=3_600, context=context)
        await app.enqueue("sms", id="s", delay=3_600)

    arrange(act)


def test_named_jobs_are_cancelled_one_by_one(duly, waiting):
    answer = duly("jobs", "cancel", "mail/a1", "mail/nobody", "mail/a2", "mail/a1")
    assert (1, "mail/a1 cancelled\nmail/a2 cancelled\n") == answer[:2]
    assert "duly: there is no job mail/nobody: it was pruned, or never was\n" == answer.err
    assert ["cancelled", "cancelled", "scheduled"] == states_of(duly, "a1", "a2", "a3")
    # Again is no mistake.
    assert 0 == duly("jobs", "cancel", "mail/a1").code


def test_a_job_that_may_wait_in_a_table_of_far_future_jobs_is_accepted(duly, arrange):
    async def act(app):
        store = await app.store()
        await on_all(store, "meta", "HSET", "horizon", "table")

    arrange(act)
    when = "2050-01-01T00:00:00Z"
    answer = duly("jobs", "reschedule", "mail/far", "--due-at", when)
    told = "mail/far accepted: rescheduled if it is in the table of far-future jobs"
    assert (0, f"{told}: scheduled, due 2050-01-01T00:00:00.000Z\n", "") == answer
    [line] = duly("jobs", "cancel", "mail/far", "--json").lines
    assert ("accepted", None, None) == (line["outcome"], line["state"], line["error"])


def test_what_has_ended_is_not_cancelled(duly, arrange):
    async def act(app):
        await app.enqueue("mail", id="a")
        [lease] = await claim(app)
        await (await app.store()).ack(lease)

    arrange(act)
    answer = duly("jobs", "cancel", "mail/a")
    assert (1, "", "duly: mail/a had ended before: succeeded\n") == answer
    answer = duly("jobs", "reschedule", "mail/a", "--delay", "1h")
    assert (1, "") == answer[:2]
    assert "duly: mail/a is succeeded at revision" in answer.err
    assert "mail/a requeued: ready, due " in duly("jobs", "requeue", "mail/a").out
    answer = duly("jobs", "requeue", "mail/a")
    assert 1 == answer.code
    assert "it cannot be requeued" in answer.err


def test_a_filter_cancels_only_what_it_lets_through(duly, waiting):
    where = "topic = mail and context.tenant = acme and payload.n > 2"
    answer = duly("jobs", "cancel", "--where", where, "--yes")
    assert (0, "4 jobs cancelled\n", "") == answer
    assert ["scheduled", "scheduled", "cancelled"] == states_of(duly, "a0", "a1", "a3")
    assert "0 jobs cancelled\n" == duly("jobs", "cancel", "--where", where, "--yes").out


def test_without_a_terminal_and_without_yes_nothing_happens(duly, waiting):
    for words in (
        ("jobs", "cancel", "--topic", "mail"),
        ("jobs", "reschedule", "--topic", "mail", "--delay", "0"),
        ("topics", "purge", "mail"),
    ):
        answer = duly(*words)
        assert (2, "") == answer[:2]
        assert "10 jobs" in answer.err
        assert "There is no terminal to ask at: say --yes" in answer.err
    assert {"scheduled": 11} == {
        name: count for name, count in duly("stats", "--json").json["totals"].items() if count
    }


def test_nothing_to_do_needs_no_question(duly, waiting):
    assert (0, "0 jobs requeued\n", "") == duly("jobs", "requeue", "--topic", "mail")
    assert (0, "0 jobs of none cancelled\n", "") == duly("topics", "purge", "none")


def test_many_jobs_are_rescheduled_once_each(duly, waiting):
    before = {id_: duly("jobs", "show", f"mail/{id_}", "--json").json for id_ in ("a0", "a9")}
    told = duly("jobs", "reschedule", "--topic", "mail", "--delay", "2h", "--yes", "--json")
    assert (10, 0) == (read("jobs reschedule", told.out, chosen=True).done, told.code)
    for id_, was in before.items():
        now = duly("jobs", "show", f"mail/{id_}", "--json").json
        assert now["due_at"] > was["due_at"]
    due = "2099-01-01T00:00:00Z"
    assert (
        "1 job rescheduled\n" == duly("jobs", "reschedule", "--where", "id = a3", "--due-at", due, "-y").out
    )
    assert "2099-01-01T00:00:00.000Z" == duly("jobs", "show", "mail/a3", "--json").json["due_at"]


def test_a_job_whose_run_fails_meanwhile_is_cancelled_too(arrange):
    async def act(app):
        store = await app.store()
        for id_ in ("waits", "fails"):
            await app.enqueue("mail", id=id_, delay=3_600)
        await app.job("mail", "fails").reschedule(delay=0)
        running = await claim(app)

        async def cancel(app, keys):
            # What is scheduled has been listed: this one goes back there before those that run are.
            while running:
                await store.retry(running.pop(), 60_000)
            return await steer.CANCEL.act(app, keys)

        verb = replace(steer.CANCEL, act=cancel)
        newest = await (await app.views()).newest()
        done = await steer._each(verb, app, Selection(steer.OPEN, ("mail",)), newest, None)
        return done.count, [(await app.job("mail", id_).get()).state for id_ in ("waits", "fails")]

    assert (2, [JobState.cancelled] * 2) == arrange(act)


async def _dead(app, topic, id_, kind, message):
    await app.enqueue(topic, id=id_)
    [lease] = await claim(app, topic)
    await (await app.store()).bury(lease, reason_document(kind, message))


@pytest.fixture
def dead(arrange):
    async def act(app):
        for at in range(3):
            await _dead(app, "mail", f"t{at}", "TimeoutError", f"no answer after {at} s")
        await _dead(app, "mail", "v", "ValueError", "no such user")
        await _dead(app, "sms", "t", "TimeoutError", "no answer after 9 s")

    arrange(act)


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (("--all",), 5),
        (("--topic", "mail"), 4),
        (("--error", "timeouterror"), 4),
        (("--error", "no answer after #"), 4),
        (("--topic", "mail", "--error", "Timeout"), 3),
        (("--topic", "mail", "--topic", "sms"), 5),
        (("--error", "nothing like it"), 0),
    ],
)
def test_dead_jobs_are_requeued_by_topic_and_error(duly, dead, words, done):
    assert done == read("dead requeue", duly("dead", "requeue", *words, "--yes", "--json").out).done
    assert 5 - done == sum(death["count"] for death in duly("dead", "ls", "--json").lines)


def test_the_dead_are_shown_by_what_they_died_of(duly, dead):
    head, first, *rest = duly("dead", "ls").out.splitlines()
    assert ["topic", "count", "error", "first", "last", "example"] == head.split()
    assert first.startswith("mail       3  TimeoutError: no answer after # s")
    assert first.endswith("t2")
    assert 2 == len(rest)


def test_requeue_takes_the_dead_unless_another_state_is_said(duly, dead, waiting):
    assert 0 == duly("jobs", "cancel", "mail/a0", "mail/a1").code
    assert "4 jobs requeued\n" == duly("jobs", "requeue", "--topic", "mail", "--yes").out
    assert "1 job requeued\n" == duly("jobs", "requeue", "--where", "state = cancelled and id = a0", "-y").out
    assert "1 job requeued\n" == duly("jobs", "requeue", "--topic", "mail", "--state", "cancelled", "-y").out


def test_a_filter_may_also_choose_what_is_listed(duly, dead, waiting, shards):
    words = ("jobs", "ls", "--where", "error ~ 'no answer' and topic != sms", "--json")
    answer = duly(*words, "--limit", "2")
    first, second = read("jobs ls", answer.out)
    one, two, three = sorted(("t0", "t1", "t2"), key=lambda id_: shard_of("mail", id_, shards))
    assert [one, two] == [first.id, second.id]
    again = duly(
        "jobs", "ls", "--where", "error ~ 'no answer' and topic != sms", "--json", "--after", second.cursor
    )
    assert [three] == [job.id for job in read("jobs ls", again.out)]


def test_a_list_says_how_to_go_on(duly, waiting):
    answer = duly("jobs", "ls", "--limit", "10")
    assert 11 == len(answer.out.splitlines())
    hint, _, cursor = answer.err.strip().partition(" --after ")
    assert "More:" == hint
    rest = duly("jobs", "ls", "--after", cursor.strip("'"))
    assert (2, "") == (len(rest.out.splitlines()), rest.err)
    everything = duly("jobs", "ls", "--all")
    assert (12, "") == (len(everything.out.splitlines()), everything.err)


def test_a_job_is_shown_line_by_line(duly, dead):
    answer = duly("jobs", "show", "mail/v")
    shown = dict(line.split(maxsplit=1) for line in answer.out.splitlines())
    assert ("dead", "ValueError: no such user") == (shown["state"], shown["error"])
    assert " ago)" in shown["finished_at"]


def test_what_others_wrote_does_not_steer_the_terminal(duly, arrange):
    async def act(app):
        await _dead(app, "mail", "a", "ValueError", "\x1b[2J gone\r\n\x9b31m")

    arrange(act)
    for words in (("jobs", "ls"), ("jobs", "show", "mail/a"), ("dead", "ls")):
        for more in ((), ("--json",)):
            out = duly(*words, *more).out
            assert "gone" in out
            assert not {"\x1b", "\r", "\x9b"} & set(out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("jobs", "cancel"), "say either which jobs, TOPIC/ID, or --where"),
        (("jobs", "cancel", "mail/a", "--topic", "mail"), "say either which jobs"),
        (("jobs", "cancel", "a"), "'a' does not name a job: write TOPIC/ID, e.g. mail/a"),
        (("jobs", "cancel", "mail/"), "invalid job id ''"),
        (("jobs", "cancel", "--state", "dead"), "dead jobs cannot be cancelled"),
        (("jobs", "reschedule", "mail/a"), "say either --delay or --due-at"),
        (("jobs", "reschedule", "mail/a", "--delay", "1s", "--due-at", "2099-01-01T00:00:00Z"), "say either"),
        (("jobs", "requeue", "--state", "running"), "running jobs cannot be requeued"),
        (("jobs", "ls", "--where", "topic is mail"), "'is' is no operator"),
        (("jobs", "ls", "--where", ""), "the filter ends where a field should follow"),
        (("jobs", "ls", "--state", "late"), "'late' is not one of"),
        (("jobs", "ls", "--after", "x"), "'x' is not a cursor of this list"),
        (("jobs", "ls", "--limit", "0"), "0 is not in the range"),
        (("dead", "requeue"), "say either --all, or --topic, --error or both"),
        (("dead", "requeue", "--all", "--topic", "mail"), "say either --all"),
        (("topics", "set", "mail"), "say what to set: --limit or --callback"),
        (("topics", "set", "mail", "--limit", "many"), "neither a whole number nor none"),
        (("topics", "set", "mail", "--limit", "0"), "backlog=0 must be a whole number from 1"),
        (("topics", "pause", "m@il"), "invalid topic 'm@il'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(duly, waiting, words, said):
    answer = duly(*words)
    assert (2, "") == answer[:2]
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_states_are_the_words_of_the_store():
    from duly.cli.options import STATES

    assert list(STATES) == [state.name for state in JobState]


def test_a_namespace_of_several_shards_is_walked_through(duly, monkeypatch):
    monkeypatch.setenv("DULY_SHARDS", "4")
    assert 0 == duly("submit", "mail", "--count", "40", "--within", "1h", "--id", "n").code
    ids, cursor = [], []
    while True:
        page = read("jobs ls", duly("jobs", "ls", "--json", "--limit", "7", *cursor).out)
        if not page:
            break
        ids += [job.id for job in page]
        cursor = ["--after", page[-1].cursor]
    assert sorted(f"n-{at}" for at in range(1, 41)) == sorted(ids)
    assert "40 jobs rescheduled\n" == duly("jobs", "reschedule", "--topic", "mail", "--delay", "2h", "-y").out
    assert 40 == duly("stats", "--json").json["totals"]["scheduled"]
    assert "40 jobs cancelled\n" == duly("jobs", "cancel", "--topic", "mail", "--yes").out
