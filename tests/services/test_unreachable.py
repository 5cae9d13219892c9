"""
A server that is not there, or a job that nobody takes: a few lines that say so, and where.
"""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys

import pytest

from duly import Duly, Retry, Snooze, StoreUnavailable, UsageError
from duly.connection import unreachable
from tests.live.terminal import environment
from tests.services.conftest import becomes, working

LINES = 24  #: of a traceback: the caller's own, those of asyncio or of the twin, and the sentence

PROGRAMS = {
    "async": """
import asyncio
from duly import Duly

async def main():
    await Duly({url!r}, socket_timeout="100ms").enqueue("greet", "Ada")

asyncio.run(main())
""",
    "async with": """
import asyncio
from duly import Duly

async def main():
    async with Duly({url!r}, socket_timeout="100ms"):
        ...

asyncio.run(main())
""",
    "handle": """
import asyncio
from duly import Duly

asyncio.run(Duly({url!r}, socket_timeout="100ms").job("greet", "a").cancel())
""",
    "sync": """
from duly import Duly

Duly({url!r}, socket_timeout="100ms").sync.enqueue("greet", "Ada")
""",
    "work": """
import asyncio
from duly import Duly

app = Duly({url!r}, socket_timeout="100ms")


@app.handler("greet")
async def greet() -> None: ...


asyncio.run(app.work())
""",
}


def ran(code: str, folder) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("url", ["unix:///nowhere/duly.sock", "http://127.0.0.1:9"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_that_is_not_there_costs_a_few_lines(program, url, tmp_path):
    if url.startswith("http") and program == "work":
        pytest.skip("a worker needs the queue's own server, which is another sentence")
    done = ran(PROGRAMS[program].format(url=url), tmp_path)
    lines = done.stderr.splitlines()
    assert 1 == done.returncode
    assert len(lines) <= LINES, done.stderr
    assert lines[-1].startswith("duly.errors.StoreUnavailable: cannot "), done.stderr
    assert 1 == done.stderr.count("Traceback")


def test_a_record_that_is_not_there_costs_a_few_lines(tmp_path):
    code = "from duly import Duly; Duly(record='postgresql://duly@127.0.0.1:9/duly').sync.enqueue('greet')"
    done = ran(code, tmp_path)
    lines = done.stderr.splitlines()
    assert len(lines) <= LINES, done.stderr
    assert lines[-1].startswith("duly.errors.RecordUnavailable: the record cannot be reached: "), done.stderr


async def test_the_cause_is_there_for_a_debugger_and_in_the_log(caplog):
    caplog.set_level(logging.DEBUG, "duly")
    with pytest.raises(StoreUnavailable) as caught:
        await Duly("unix:///nowhere/duly.sock", socket_timeout="100ms").enqueue("greet")
    error = caught.value
    assert (None, True) == (error.__cause__, error.__suppress_context__)
    assert error.__context__ is not None
    assert unreachable(error)
    [line] = [record for record in caplog.records if record.exc_info and record.name == "duly"]
    assert line.exc_info[1] is error
    assert "DEBUG" == line.levelname


# -- a job that nobody takes ------------------------------------------------------------------------------


async def timed_out(job) -> str:
    with pytest.raises(TimeoutError) as caught:
        await job.result(timeout="50ms")
    return str(caught.value)


async def test_a_timeout_names_the_queue_and_that_no_worker_takes_the_topic_there(app, namespace):
    said = await timed_out(await app.enqueue("nobody", {}, id="n-1"))
    assert re.fullmatch(
        r"nobody/n-1 has not ended within 50ms: it is ready, and no worker takes nobody on the server at \S+"
        rf", namespace {namespace}; start one there, in the same folder or with the same --url: "
        r"duly work MODULE:APP",
        said,
    )


async def test_a_timeout_names_the_folder_of_an_embedded_server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with Duly(data="queue", durability="everysec") as app:
        said = await timed_out(await app.enqueue("nobody", {}))
        assert f"on the embedded server in {tmp_path / 'queue'}; start one there" in said


async def test_a_timeout_tells_of_workers_that_take_the_topic(app):
    @app.handler("slow")
    async def slow() -> None:
        await asyncio.sleep(3600)

    async with working(app):
        job = await app.enqueue(slow.job())
        while (await job.get()).state.name != "running":
            await asyncio.sleep(0.01)
        assert "it is running, and 1 worker takes slow on the server at" in await timed_out(job)
        await job.cancel()


async def test_a_timeout_tells_when_a_job_is_due(app):
    said = await timed_out(await app.enqueue("later", delay="1h"))
    assert re.search(r"it is scheduled for \d{4}-\d\d-\d\dT[\d:.]+Z, and no worker takes later", said)


async def test_a_time_that_is_over_is_a_timeout_and_text_that_is_none_a_sentence(app):
    job = await app.enqueue("nobody")
    with pytest.raises(TimeoutError, match="within 0ms"):
        await job.result(timeout=-1)
    with pytest.raises(UsageError, match="timeout='a while' is no duration"):
        await job.result(timeout="a while")


async def test_durations_are_text_wherever_python_takes_one(app):
    @app.handler("greet", ttr="1m30s", backoff=lambda _: "10ms", max_attempts=2)
    async def greet(fail: bool) -> str:
        if fail:
            raise RuntimeError("not yet")
        return "done"

    assert 90_000 == greet.ttr_ms
    job = await app.enqueue(greet.job(fail=False), delay="50ms", retain="1h", ttr="5s")
    assert 5_000 == (await job.get()).ttr_ms
    await job.reschedule(delay="1m")
    await job.reschedule(delay="0s")
    failing = await app.enqueue(greet.job(fail=True))
    async with working(app):
        assert "done" == await job.result(timeout="1m")
        with pytest.raises(Exception, match="not yet"):
            await failing.result(timeout="1m")
    assert [] == [reply async for reply in app.replies("answers", wait="10ms")]
    assert [] == [event async for event in app.events(wait="10ms")]


async def test_durations_are_text_in_what_a_handler_asks_for(app):
    @app.handler("ask", max_attempts=3)
    async def ask(again: bool) -> None:
        raise Retry("5m", "not yet") if again else Snooze("5m")

    sent = [await app.enqueue(ask.job(again=again)) for again in (True, False)]
    async with working(app):
        for each in sent:
            await becomes(each, "scheduled")
    waits = [job.due_ms - job.updated_ms for job in [await each.get() for each in sent]]
    # From the end of the run on, which is told in whole milliseconds.
    assert [300_000, 300_000] == [wait // 10 * 10 for wait in waits]
