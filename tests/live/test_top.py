"""
``duly top``: what it sees, how it looks, what it costs, and that it outlives the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from dataclasses import asdict

import pytest
import redis

from duly import Duly
from duly.connection import Link
from duly.events import Event, Verb
from duly.job import JobState
from duly.store import Store
from duly.top.snapshot import Failure, Lateness, Rate, Topic
from duly.top.watcher import ENTRIES, Watcher
from duly.top.window import Window
from tests.docs.pages import ROOT, blocks
from tests.live.pictures import top_lines
from tests.live.terminal import duly, environment
from tests.shards import one_id_on_each, promote_all
from tests.store.kit import claim, enqueue

NOW_MS = 1_000_000


def event(verb, at_ms, lateness_ms=None, reason="", topic="mail"):
    return Event(
        *(0, "e", 1, 0, at_ms, verb, topic, "a", 1, JobState.ready, "normal", 1, 0, at_ms),
        *(lateness_ms, None, "", reason),
    )


# -- the last minute --------------------------------------------------------------------------------------


def test_lateness_is_that_of_runs_which_ended_within_the_last_minute():
    window = Window()
    window.add(event(Verb.acked, NOW_MS - 61_000, 9_999) for _ in range(100))
    window.add(event(Verb.acked, NOW_MS - 1_000 * (n % 50), n) for n in range(100))
    window.add([event(Verb.claimed, NOW_MS, 7_777), event(Verb.acked, NOW_MS)])
    window.forget(NOW_MS)
    assert Lateness(100, 49, 98, 99) == window.lateness()


def test_a_rate_leaves_out_the_second_under_way():
    window = Window()
    window.add(event(Verb.acked, NOW_MS - 1_000 * n) for n in range(30))
    assert (Rate("acked", 1.0, 30),) == window.rates(NOW_MS + 999)


def test_a_rate_counts_only_the_time_that_is_known():
    window = Window()
    window.add(event(Verb.acked, NOW_MS - 1_000) for n in range(30))
    window.begin(NOW_MS - 2_000)
    assert (Rate("acked", 15.0, 30),) == window.rates(NOW_MS)
    assert window.sampled(NOW_MS)
    assert not window.sampled(NOW_MS + 60_000)


def test_a_sample_stands_for_what_was_not_read():
    window = Window()
    window.add([event(Verb.acked, NOW_MS - 1_000, 5)] * 10, weight=4.0)
    assert (40, 5) == (window.lateness().runs, window.lateness().p99_ms)
    assert (Rate("acked", 4.0, 40),) == window.rates(NOW_MS)


def test_failures_are_grouped_by_error_and_what_was_planned_is_none():
    window = Window()
    window.add([event(Verb.retried, NOW_MS - 3_000, reason="E: a")] * 2)
    window.add([event(Verb.buried, NOW_MS - 1_000, reason="E: a")])
    window.add([event(Verb.recovered, NOW_MS - 9_000, reason="crashed", topic="print")])
    window.add([event(Verb.retried, NOW_MS, reason="snoozed"), event(Verb.recovered, NOW_MS, reason="clock")])
    assert [("mail", "E: a", 3, 1_000), ("print", "crashed", 1, 9_000)] == [
        tuple(asdict(failure).values()) for failure in window.failures(NOW_MS)
    ]


def test_a_second_with_many_errors_is_bounded():
    window = Window()
    window.add(event(Verb.retried, NOW_MS, reason=f"E: {n}") for n in range(10_000))
    assert 50 == len(window.failures(NOW_MS))


# -- what it sees of a server -----------------------------------------------------------------------------


@pytest.fixture
def server(valkey):
    return valkey


@pytest.mark.several_shards
async def test_it_counts_what_is_due_in_each_of_the_next_minutes(store, clock):
    for id_, due_ms in (("a", 1), ("b", 59_999), ("c", 60_000), ("d", 599_999), ("e", 600_000)):
        await enqueue(store, id_, due_ms=clock() + due_ms)
    snapshot = await Watcher(store).look()
    assert (2, 1, 0, 0, 0, 0, 0, 0, 0, 1) == snapshot.due
    assert (Topic("mail", 5, 0, 0, 0, 0),) == snapshot.topics


@pytest.mark.several_shards
async def test_due_jobs_are_counted_from_a_bound_on_and_before_the_next(store, views, clock):
    for id_, due_ms in (("a", 10), ("b", 20), ("c", 20), ("d", 30)):
        await enqueue(store, id_, due_ms=clock() + due_ms)
    bounds = [clock() + ms for ms in (10, 20, 30, 40)]
    assert [1, 2, 1] == await views.due_counts(bounds)


@pytest.mark.several_shards
async def test_the_oldest_that_waits_is_found_behind_those_that_run(store, clock):
    for id_ in ("a", "b", "c"):
        await enqueue(store, id_, due_ms=clock())
        clock.advance(ms=100)
    await promote_all(store)
    [lease] = await claim(store, limit=1)
    assert "a" == lease.key.id
    snapshot = await Watcher(store).look()
    assert (200, "mail") == (snapshot.overdue_ms, snapshot.overdue_topic)


@pytest.mark.several_shards
async def test_a_job_that_nobody_promotes_is_overdue(store, clock):
    await enqueue(store, "a", due_ms=clock() + 10)
    clock.advance(ms=5_010)
    snapshot = await Watcher(store).look()
    assert (5_000, "") == (snapshot.overdue_ms, snapshot.overdue_topic)


async def test_the_newest_events_can_be_read_first(store, feed, clock):
    assert (None, []) == await feed.latest(0)
    for id_ in "abc":
        await enqueue(store, id_, due_ms=clock() + 10)
    offset, events = await feed.latest(0, limit=2)
    assert (["b", "c"], await feed.last(0)) == ([each.id for each in events], offset)


@pytest.mark.several_shards
async def test_events_are_counted_once_also_over_several_looks(store, clock):
    watcher = Watcher(store)
    for id_ in one_id_on_each(store, "mail"):
        await enqueue(store, id_, due_ms=clock())
    for _ in range(3):
        snapshot = await watcher.look()
    for id_ in one_id_on_each(store, "mail", "more"):
        await enqueue(store, id_, due_ms=clock())
    snapshot = await watcher.look()
    assert [("enqueued", 2 * store.shards)] == [(rate.verb, rate.last_minute) for rate in snapshot.rates]
    assert not snapshot.sampled


async def test_more_than_a_look_may_read_is_projected(store, clock):
    watcher = Watcher(store)
    await enqueue(store, "first", due_ms=clock() + 10)
    await watcher.look()
    for n in range(2 * ENTRIES):
        await enqueue(store, str(n), due_ms=clock() + 10)
    snapshot = await watcher.look()
    assert snapshot.sampled
    assert [("enqueued", 2 * ENTRIES + 1)] == [(rate.verb, rate.last_minute) for rate in snapshot.rates]
    await enqueue(store, "last", due_ms=clock() + 10)
    assert 2 * ENTRIES + 2 == (await watcher.look()).rates[0].last_minute


async def test_a_server_that_was_emptied_is_seen_as_it_is(store, link, clock):
    watcher = Watcher(store)
    await enqueue(store, "a", due_ms=clock() + 10)
    await watcher.look()
    await link.call("FLUSHALL")
    snapshot = await watcher.look()
    assert ((), (0,) * 10) == (snapshot.topics, snapshot.due)


async def test_a_user_with_no_more_rights_than_needed_can_watch(own_server):
    page = ROOT / "docs" / "how-to" / "own-server.md"
    [*_, rule] = [block.text.split() for block in blocks(page) if block.language == "acl"]
    with redis.Redis.from_url(own_server.url) as raw:
        raw.execute_command("ACL", "SETUSER", *rule[1:])
    link = Link(f"unix://duly:a-long-password@{own_server.socket}")
    try:
        store = Store(link)
        await store.create()
        await enqueue(store, "a", due_ms=0)
        watcher = Watcher(store)
        await watcher.look()
        assert "mail" == (await watcher.look()).overdue_topic
    finally:
        await link.aclose()


# docs/how-to/watching.md says so.
@pytest.mark.parametrize(
    ("topics", "ready", "most"), [(1, False, 17), (200, False, 17), (1, True, 35), (200, True, 60)]
)
async def test_a_look_costs_a_bounded_number_of_commands(own_server, topics, ready, most):
    link = Link(own_server.url)
    store = Store(link, namespace="cost")
    try:
        await store.create()
        for topic in range(topics):
            await enqueue(store, "a", topic=f"topic-{topic}", due_ms=0 if ready else 2**41)
        watcher = Watcher(store)
        await watcher.look()
        with redis.Redis.from_url(own_server.url) as raw:
            raw.config_resetstat()
            await watcher.look()
            calls = {name: stat["calls"] for name, stat in raw.info("commandstats").items()}
        # Those inside scripts count too; the last questions are the test's own.
        for own in ("cmdstat_info", "cmdstat_config|resetstat", "cmdstat_hello", "cmdstat_client|setinfo"):
            calls.pop(own, None)
        assert 5 < sum(calls.values()) <= most, calls
    finally:
        await link.aclose()


# -- how it looks -----------------------------------------------------------------------------------------


def test_everything_is_in_the_picture():
    text = "\n".join(top_lines())
    for pattern in (
        r"duly top  shop at queue.internal:6379  \d\d:\d\d:\d\d UTC",
        r"lateness  p50 1 ms  p99 6 ms  max 212 ms  2,940 runs in the last minute",
        r"overdue +oldest waits 8.4 s  invoice.print",
        r"jobs +scheduled 20,487  ready 15  running 13  dead 3",
        r"acked +49.1 +2,902",
        r" 6 min █{24} +1,024",
        r"mail.welcome +18,204 +3 +9 +0 +3",
        r"invoice.print +310 +12 +0 +0 +none",
        r"report.nightly paused",
        r"web-1-811-5f0c2a91 +811 +web-1 +6/16 +1.2 s ago",
        r"web-3-802-c19e60f8 +802 .* silent for 41 s",
        r"34 +2 s ago +payment.check +ConnectionError: the bank does not answer",
    ):
        assert re.search(pattern, text), f"{pattern} is not in\n{text}"


MANY = tuple(Topic(f"topic-{number:03d}", 1, 0, 0, 0, 1) for number in range(200))


@pytest.mark.parametrize("height", [36, 45, 60, 300])
def test_many_topics_fit_onto_the_screen(height):
    lines = top_lines(height=height, topics=MANY)
    assert len(lines) <= height
    shown = [line for line in lines if line.startswith("topic-")]
    rest = next((int(line.split()[1]) for line in lines if line.endswith("more topics")), 0)
    assert 200 == len(shown) + rest
    assert shown
    # Others are not pushed off the screen.
    assert any("web-1-811" in line for line in lines)
    assert any("the bank does not answer" in line for line in lines)


def test_all_topics_are_shown_where_there_is_no_screen():
    assert 200 == sum(line.startswith("topic-") for line in top_lines(topics=MANY))


def test_an_empty_queue_is_no_riddle():
    text = "\n".join(
        top_lines(
            topics=(), workers=(), failures=(), rates=(), due=(0,) * 10, overdue_ms=0, lateness=Lateness()
        )
    )
    for words in ("no topics yet", "no workers", "no failures", "overdue   nothing", "p50 -", "enqueued"):
        assert words in text


@pytest.mark.parametrize("width", [20, 40, 60, 80, 89, 90, 200])
def test_no_line_is_wider_than_the_terminal(width):
    lines = top_lines(width=width, topics=MANY)
    assert max(len(line) for line in lines) <= width
    assert any("lateness" in line for line in lines)


@pytest.mark.parametrize("width", [60, 100])
def test_on_a_small_screen_backlog_and_workers_come_first(width):
    shown = "\n".join(top_lines(width=width, height=24)[:24])
    for words in ("lateness", "overdue", "mail.welcome", "web-1-811", "failures"):
        assert words in shown, shown


def test_a_server_that_is_away_is_told_with_the_reason():
    lines = top_lines(reached=False, away_s=12.3, problem="Connection refused")
    assert "server away for 12 s: Connection refused" == lines[1]


def test_errors_of_others_do_not_steer_the_terminal():
    lines = top_lines(failures=(Failure("mail", "E: \x1b[2J\x07gone\nx", 1, 0),))
    assert any("E: \\x1b[2J\\x07gone\\nx" in line for line in lines)


# -- the command ------------------------------------------------------------------------------------------

FIELDS = {
    *("at_ms", "place", "namespace", "lateness", "rates", "sampled", "topics", "due", "overdue_ms"),
    *("overdue_topic", "workers", "failures", "reached", "away_s", "problem", "totals"),
}
INNER = {
    "lateness": {"runs", "p50_ms", "p99_ms", "max_ms"},
    "rates": {"verb", "per_s", "last_minute"},
    "topics": {"topic", "scheduled", "ready", "running", "dead", "workers", "paused"},
    "workers": {"worker", "pid", "host", "running", "concurrency", "silent_ms", "live"},
    "failures": {"topic", "error", "count", "ago_ms"},
    "totals": {"scheduled", "ready", "running", "dead"},
}


@pytest.fixture
async def busy(own_server):
    """
    A queue with a job that succeeded, one that failed, one that waits for nobody, and a worker.
    """
    app = Duly(own_server.url)

    @app.handler("mail", max_attempts=1)
    async def mail(address: str) -> None:
        if not address:
            raise ValueError("no address")

    async with app:
        stop = asyncio.Event()
        work = asyncio.create_task(app.work(stop=stop))
        await (await app.enqueue(mail.job("a"))).result(timeout=20)
        failed = await app.enqueue(mail.job(""))
        await app.enqueue("orphan", None)
        await app.enqueue(mail.job("later"), delay=90)

        async def dead() -> None:
            while (await failed.get()).state is not JobState.dead:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(dead(), 20)
        yield own_server
        stop.set()
        await work


async def test_one_document_has_these_fields(run, busy):
    done = await asyncio.to_thread(run, "top", "--once", "--json", "--url", busy.url)
    assert (0, "") == (done.returncode, done.stderr)
    document = json.loads(done.stdout)
    assert FIELDS == set(document)
    for name, fields in INNER.items():
        rows = document[name] if isinstance(document[name], list) else [document[name]]
        assert rows, name
        assert all(fields == set(row) for row in rows), name
    assert 10 == len(document["due"])
    assert 1 == document["due"][1]
    assert {"scheduled": 1, "ready": 1, "running": 0, "dead": 1} == document["totals"]
    assert [("mail", "ValueError: no address", 1)] == [
        (each["topic"], each["error"], each["count"]) for each in document["failures"]
    ]
    assert "orphan" == document["overdue_topic"]


async def test_once_prints_a_frame_without_a_terminal(run, busy):
    done = await asyncio.to_thread(run, "top", "--once", "--url", busy.url)
    assert (0, "") == (done.returncode, done.stderr)
    assert "\x1b" not in done.stdout
    assert re.search(r"orphan +0 +1 +0 +0 +none", done.stdout)


async def test_without_a_terminal_frames_or_lines_follow_each_other(here, busy):
    def watch(*words: str) -> str:
        process = subprocess.Popen(
            duly("top", "--every", "0.1", "--url", busy.url, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=here,
            env=environment(),
        )
        lines: list[str] = []
        while sum(line.startswith(("duly top", '{"at_ms"')) for line in lines) < 3:
            lines.append(process.stdout.readline())
            assert lines[-1], lines
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        # Ended on purpose, be it in the middle of a line that nobody reads any more.
        process.wait(30)
        return "".join(lines)

    assert 3 == (await asyncio.to_thread(watch)).count("duly top")
    documents = [json.loads(line) for line in (await asyncio.to_thread(watch, "--json")).splitlines()]
    assert 3 == len(documents)
    assert all(FIELDS == set(document) for document in documents)


@pytest.mark.parametrize("key", ["q", "\x03"])
async def test_on_a_terminal_it_shows_the_queue_until_a_key_ends_it(terminal, busy, key):
    def watch() -> int:
        screen = terminal("top", "--every", "0.2", "--url", busy.url)
        screen.until(
            r"duly top  duly at .*s.sock",
            r"lateness  p50 \d+ ms",
            r"orphan +0 +1 +0 +0 +none",
            r"acked +[\d.]+ +1\b",
            r"ValueError: no address",
            r" 2 min █+ +1\b",
        )
        assert not screen.echoes
        screen.type("x")
        screen.type(key)
        code = screen.wait()
        assert screen.echoes
        return code

    assert 0 == await asyncio.to_thread(watch)


async def test_it_says_that_the_server_is_away_and_goes_on_when_it_is_back(terminal, busy):
    screen = terminal("top", "--every", "0.2", "--url", busy.url)
    await asyncio.to_thread(screen.until, "orphan")
    busy.kill()
    # First it only does not answer, then the reason is known.
    await asyncio.to_thread(screen.until, r"server away for \d+ s: (?!no answer yet)\w+", "orphan")
    busy.start()
    await asyncio.to_thread(screen.until, "orphan", unwanted="server away for")
    screen.type("q")
    assert 0 == await asyncio.to_thread(screen.wait)


def test_no_server_at_all_is_a_sentence_and_the_code_for_it(run, here):
    done = run("top", "--once", "--url", f"unix://{here}/nobody.sock")
    assert 3 == done.returncode
    assert done.stderr.startswith("duly: cannot use ")
    assert "Traceback" not in done.stderr


async def test_a_narrow_terminal_shows_the_backlog(terminal, busy):
    screen = terminal("top", "--every", "0.2", "--url", busy.url, columns=44, lines=24)
    await asyncio.to_thread(screen.until, r"topic +sched +ready +run +dead +work", "orphan")
    screen.type("q")
    assert 0 == await asyncio.to_thread(screen.wait)
