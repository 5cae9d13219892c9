"""
``duly work``: until the work is done, or anew with each change.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from duly import Duly
from duly.cli.burst import until_idle
from tests.live.terminal import ROOT
from tests.store.kit import claim


@pytest.fixture
async def sender(own_server):
    async with Duly(own_server.url) as app:
        yield app


@pytest.fixture
def burst(run, shop, own_server):
    async def burst(*words: str):
        return await asyncio.to_thread(run, "work", "shop:app", "--burst", *words, DULY_URL=own_server.url)

    return burst


def words_of(shop) -> list[str]:
    ledger = shop / "ledger"
    return [" ".join(line.split()[:2]) for line in ledger.read_text().splitlines()] if ledger.exists() else []


async def test_a_burst_ends_at_once_where_there_is_nothing_to_do(burst, shop, sender):
    await sender.enqueue("quick", None, id="tomorrow", delay=86_400)
    done = await burst()
    assert 0 == done.returncode
    assert "nothing is due, ready or running" in done.stderr
    assert [] == words_of(shop)


async def test_a_burst_runs_what_is_due_and_what_comes_of_it_to_the_end(burst, shop, sender):
    for number in range(20):
        await sender.enqueue("quick", None, id=f"q{number}")
    await sender.enqueue("slow", {"seconds": 0.5}, id="s")
    await sender.enqueue("quick", None, id="tomorrow", delay=86_400)
    done = await burst()
    assert 0 == done.returncode
    assert {*(f"ran q{number}" for number in range(20)), "started s", "finished s"} == set(words_of(shop))


async def test_a_burst_leaves_paused_topics_alone_and_ends(burst, shop, sender):
    await sender.pause("quick")
    await sender.enqueue("quick", None, id="waits")
    assert 0 == (await burst()).returncode
    assert [] == words_of(shop)


async def test_a_burst_looks_only_at_the_topics_it_takes(burst, shop, sender):
    await sender.enqueue("slow", {"seconds": 0}, id="of-others")
    await sender.enqueue("quick", None, id="mine")
    assert 0 == (await burst("--topic", "quick")).returncode
    assert ["ran mine"] == words_of(shop)


async def test_a_burst_waits_for_jobs_that_run_elsewhere(sender):
    store = await sender.store()
    await sender.enqueue("slow", {"seconds": 0}, id="a")
    [lease] = await claim(store, "slow")
    waiting = asyncio.create_task(until_idle(sender, ["slow"]))
    done, _ = await asyncio.wait((waiting,), timeout=1.0)
    assert not done
    await store.ack(lease, b"")
    await asyncio.wait_for(waiting, 30)


async def test_the_queue_may_be_named_in_the_command(run, shop, own_server, sender):
    await sender.enqueue("quick", None, id="a")
    done = await asyncio.to_thread(run, "work", "shop:app", "--burst", "--url", own_server.url)
    assert 0 == done.returncode
    assert ["ran a"] == words_of(shop)
    assert not (shop / ".duly").exists(), "no server of its own was started"


async def test_a_sender_in_another_folder_than_the_worker_is_told_where_it_sent(start, shop):
    worker = start("work", "shop:app")
    await asyncio.to_thread(worker.until_said, "working on")
    with tempfile.TemporaryDirectory(prefix="duly-cli-", dir="/tmp") as folder:
        data = Path(folder).resolve() / ".duly"
        async with Duly(data=data) as app:
            sent = await app.enqueue("quick", None, id="a")
            with pytest.raises(TimeoutError) as timeout:
                await sent.result(timeout=0.2)
    said = str(timeout.value)
    assert f"it is ready, and no worker takes quick on the embedded server in {data}; start one there" in said
    assert str(shop) not in said


@pytest.fixture
def reloading(start, shop, own_server):
    def start_it(*words: str):
        return start(
            "work", "shop:app", "--reload", *words, DULY_URL=own_server.url, PYTHONDONTWRITEBYTECODE="1"
        )

    return start_it


def change(shop, old: str, new: str) -> None:
    file = shop / "shop.py"
    # At once, as editors do it: a half-written file would be a change, too.
    (shop / "shop.new").write_text(file.read_text().replace(old, new))
    (shop / "shop.new").replace(file)


async def test_a_change_of_code_starts_the_worker_anew(reloading, shop, sender):
    running = reloading()
    await asyncio.to_thread(running.until_said, "working on")
    await sender.enqueue("quick", None, id="a")
    await asyncio.to_thread(running.until_noted, "ran", 1)
    change(shop, "VERSION = 1", "VERSION = 2")
    await asyncio.to_thread(running.until_said, "working on", 2)
    await sender.enqueue("quick", None, id="b")
    lines = await asyncio.to_thread(running.until_noted, "ran", 2)
    assert ["1", "2"] == [line.split()[3] for line in lines]
    assert "reload: shop.py changed; starting the worker anew" in running.said()
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)


async def test_a_running_job_is_finished_by_the_old_code(reloading, shop, sender):
    running = reloading()
    await asyncio.to_thread(running.until_said, "working on")
    await sender.enqueue("slow", {"seconds": 1.5}, id="a")
    await asyncio.to_thread(running.until_noted, "started")
    change(shop, "VERSION = 1", "VERSION = 2")
    await asyncio.to_thread(running.until_said, "working on", 2)
    assert ["started a", "finished a"] == words_of(shop)
    running.send(signal.SIGINT)
    assert 0 == await asyncio.to_thread(running.wait)


async def test_broken_code_waits_for_the_next_change(reloading, shop, sender):
    running = reloading()
    await asyncio.to_thread(running.until_said, "working on")
    change(shop, "VERSION = 1", "VERSION = (")
    await asyncio.to_thread(running.until_said, "waiting for a change")
    change(shop, "VERSION = (", "VERSION = 3")
    await asyncio.to_thread(running.until_said, "working on", 2)
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)


async def test_other_files_are_no_reason(reloading, shop, sender):
    running = reloading()
    await asyncio.to_thread(running.until_said, "working on")
    (shop / "notes.txt").write_text("nothing to do with it")
    (shop / "other.py").write_text("VERSION = 9\n")
    said = await asyncio.to_thread(running.until_said, "working on", 2)
    assert "reload: other.py changed" in said
    assert "notes.txt" not in said
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)


def test_an_app_that_never_was_there_is_not_waited_for(run):
    done = run("work", "nowhere:app", "--reload")
    assert 2 == done.returncode
    assert "no module nowhere" in done.stderr


def test_without_watchfiles_the_remedy_is_told(run, here):
    # As if it were not installed: the name leads to a module that says so.
    (here / "watchfiles.py").write_text(
        "raise ModuleNotFoundError('no module named watchfiles', name='watchfiles')\n"
    )
    paths = os.pathsep.join([str(here), str(ROOT / "src")])
    done = run("work", "shop:app", "--reload", PYTHONPATH=paths)
    said = "duly: --reload needs watchfiles, which is not installed: pip install 'duly[reload]'\n"
    assert (2, said) == (done.returncode, done.stderr)


def test_burst_and_reload_exclude_each_other(run):
    done = run("work", "shop:app", "--reload", "--burst")
    assert 2 == done.returncode
    assert "choose one" in done.stderr
