"""
What every command says to programs has the shape that was promised to them.
"""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from duly.failure import reason_document
from duly.job import JobState
from duly.store import Want
from tests.cli.schemas import CHOSEN, SHAPES, read
from tests.docs.commands import commands
from tests.eventually import eventually
from tests.shards import claim_all

GROUPS = ("dead", "jobs", "keys", "topics", "workers")
ABOUT = {
    "host": "host",
    "pid": 1,
    "topics": ["mail"],
    "concurrency": 16,
    "running": 1,
    "claimed": 3,
    "finished": 2,
    "fenced": 0,
}
_claims = itertools.count(1)


async def claim(app, topic="mail", limit=10):
    store = await app.store()
    return await claim_all(store, [Want(topic, limit, 60_000)], worker="w")


async def one_of_each(app):
    """
    A job in each state, named after it; the topic is paused, and a worker was heard just now.
    """
    store = await app.store()
    for name in ("running", "succeeded", "dead"):
        await app.enqueue("mail", {"to": name}, id=name, context={"tenant": "acme"}, ttr=60, max_attempts=3)
    leases = {lease.key.id: lease for lease in await claim(app)}
    await store.ack(leases["succeeded"], b'{"sent": true}', lateness_ms=3)
    await store.bury(leases["dead"], reason_document("ValueError", "no user 42"))
    await app.enqueue("mail", id="cancelled")
    await app.job("mail", "cancelled").cancel()
    await app.enqueue("mail", id="ready", priority="high")
    await app.enqueue("mail", id="scheduled", delay=3_600)
    await app.pause("mail")
    await store.beat("host:1:a", msgspec.json.encode(ABOUT))


@pytest.fixture
def queue(arrange):
    arrange(one_of_each)


def test_every_command_of_these_groups_says_its_shape():
    mine = {name for name, _ in commands() if name.split()[0] in GROUPS}
    assert set() == mine - SHAPES.keys()
    assert set() == SHAPES.keys() - {name for name, _ in commands()}


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_is_that_of_a_command_with_json(name):
    [command] = [command for words, command in commands() if words == name]
    assert "as_json" in {parameter.name for parameter in command.params}
    assert command.help
    assert "Example" in (command.epilog or ""), "a help text ends with an example"


def test_jobs_ls(duly, queue):
    answer = duly("jobs", "ls", "--json")
    found = read("jobs ls", answer.out)
    assert (0, "") == (answer.code, answer.err)
    in_order = ["running", "ready", "scheduled", "dead", "cancelled", "succeeded"]
    assert in_order == [job.id for job in found] == [job.state for job in found]
    after = duly("jobs", "ls", "--json", "--limit", "2", "--after", found[1].cursor)
    assert ["scheduled", "dead"] == [job.id for job in read("jobs ls", after.out)]


@pytest.mark.parametrize("state", [state.name for state in JobState])
def test_jobs_show(duly, queue, state):
    answer = duly("jobs", "show", f"mail/{state}", "--json")
    job = read("jobs show", answer.out)
    assert (0, "", state) == (answer.code, answer.err, job.state)
    assert (state in ("running", "succeeded", "dead")) == (job.started_at is not None)
    assert (state == "running") == (job.lease_until is not None)
    assert (state in ("dead", "cancelled")) == (job.error is not None)
    assert ({"sent": True} if state == "succeeded" else None) == job.result
    if state == "dead":
        assert ("ValueError", "no user 42", {"tenant": "acme"}, 3, 60) == (
            job.error.type,
            job.error.message,
            job.context,
            job.max_attempts,
            job.ttr,
        )


@pytest.mark.parametrize(
    ("words", "outcome", "state"),
    [
        (("cancel", "mail/scheduled"), "cancelled", "cancelled"),
        (("reschedule", "mail/scheduled", "--delay", "1h"), "rescheduled", "scheduled"),
        (("requeue", "mail/dead"), "requeued", "ready"),
    ],
)
def test_moving_jobs_by_name_and_by_filter(duly, queue, words, outcome, state):
    verb, name, *rest = words
    answer = duly("jobs", verb, name, "mail/none", *rest, "--json")
    done, refused = read(f"jobs {verb}", answer.out)
    assert (1, "") == (answer.code, answer.err)
    assert (outcome, state, None) == (done.outcome, done.state, done.error)
    assert ("refused", None) == (refused.outcome, refused.state)
    assert "there is no job mail/none" in refused.error
    answer = duly("jobs", verb, "--topic", "sms", *rest, "--json", "--yes")
    assert f"jobs {verb}" in CHOSEN
    many = read(f"jobs {verb}", answer.out, chosen=True)
    assert (0, verb, 0, {}) == (answer.code, many.verb, many.done, many.topics)


def test_dead(duly, queue):
    [death] = read("dead ls", duly("dead", "ls", "--json").out)
    assert ("mail", "ValueError: no user #", 1, "dead") == (
        death.topic,
        death.error,
        death.count,
        death.example,
    )
    answer = read("dead requeue", duly("dead", "requeue", "--all", "--yes", "--json").out)
    assert (1, {"mail": 1}) == (answer.done, answer.topics)
    assert "" == duly("dead", "ls", "--json").out


def test_topics(duly, queue):
    [topic] = read("topics ls", duly("topics", "ls", "--json").out)
    assert [1] * 6 == [getattr(topic, state.name) for state in JobState]
    assert (True, None, 1) == (topic.paused, topic.limit, topic.workers)
    assert not read("topics resume", duly("topics", "resume", "mail", "--json").out).paused
    assert read("topics pause", duly("topics", "pause", "sms", "--json").out).paused
    assert 5 == read("topics set", duly("topics", "set", "mail", "--limit", "5", "--json").out).limit
    mail, sms = read("topics ls", duly("topics", "ls", "--json").out)
    assert (5, False, True) == (mail.limit, mail.paused, sms.paused)
    assert read("topics set", duly("topics", "set", "mail", "--limit", "none", "--json").out).limit is None
    assert 2 == read("topics purge", duly("topics", "purge", "mail", "--yes", "--json").out).purged


def test_workers(duly, queue):
    [worker] = read("workers ls", duly("workers", "ls", "--json").out)
    assert ("host:1:a", True, ["mail"], 16) == (worker.worker, worker.live, worker.topics, worker.concurrency)


async def _heard(views):
    return bool(await views.workers(await views.now_ms()))


def test_what_a_real_worker_says_has_the_same_shape(duly, arrange):
    async def act(app):
        @app.handler("mail")
        async def mail() -> None: ...

        views, stop = await app.views(), asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        await eventually(lambda: _heard(views))
        out = await asyncio.to_thread(lambda: duly("workers", "ls", "--json").out)
        stop.set()
        await work
        return out

    [worker] = read("workers ls", arrange(act))
    assert (True, ["mail"]) == (worker.live, worker.topics)


def test_stats(duly, queue, namespace):
    answer = duly("stats", "--json")
    stats = read("stats", answer.out)
    assert (0, "", namespace) == (answer.code, answer.err, stats.namespace)
    [topic] = stats.topics
    assert topic.overdue_ms is not None
    assert (6, 16) == (sum(getattr(stats.totals, state.name) for state in JobState), stats.workers.slots)
    assert stats.next_due_at
    assert stats.server.memory_bytes > 0


def test_stats_of_a_queue_without_anything(duly, arrange):
    async def act(app):
        await app.store()

    arrange(act)
    stats = read("stats", duly("stats", "--json").out)
    assert ([], None, 0, {}) == (stats.topics, stats.next_due_at, stats.unpromoted_ms, stats.events.consumers)


def test_enqueue(duly):
    answer = duly("enqueue", "mail", "--id", "a", "--json")
    job = read("enqueue", answer.out)
    assert (0, "", "created", "ready") == (answer.code, answer.err, job.outcome, job.state)
    assert "kept" == read("enqueue", duly("enqueue", "mail", "--id", "a", "--json").out).outcome


def test_submit(duly):
    answer = duly("submit", "mail", "--count", "3", "--json")
    told = read("submit", answer.out)
    assert (0, "", 3, 3, 0) == (answer.code, answer.err, told.read, told.created, told.refused)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(duly, shell):
    told = read("completion", duly("completion", shell, "--json").out)
    assert told.script == duly("completion", shell).out.removesuffix("\n")
    assert "_DULY_COMPLETE" in told.script
