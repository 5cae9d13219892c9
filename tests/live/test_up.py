"""
``duly up``: server and workers in one terminal, supervised.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress

import pytest

from duly import Duly, StoreUnavailable
from duly.cli.up import PORT
from duly.supervise.child import Child, Program
from duly.supervise.supervisor import Supervisor, said
from tests.acceptance.harness import gone
from tests.eventually import eventually

LEASE = "15s"  #: a worker may be held up for nearly as long and is live all the same; nothing waits for it


async def worker_pids(app: Duly) -> set[int]:
    stats = await (await app.views()).stats()
    return {worker["pid"] for worker in stats.workers if worker["live"]}


@pytest.fixture
async def sender(shop):
    async with Duly(data=shop / ".duly", lease=LEASE) as app:
        yield app


@pytest.fixture
def up(start, shop):
    def up(*words: str, workers: int = 2, http: tuple[str, ...] = ("--no-http",)):
        words = (*words, *http)
        return start("up", "shop:app", "--workers", str(workers), *words, DULY_LEASE=LEASE)

    return up


async def test_it_brings_up_a_server_and_workers_and_takes_them_down(up, shop):
    running = up(workers=3)
    await asyncio.to_thread(running.until_said, "working on", 3)
    text = running.said()
    assert re.search(
        rf"^up +\| jobs wait at the embedded server in {shop}/.duly; starting 3 workers", text, re.MULTILINE
    )
    for number in (1, 2, 3):
        assert re.search(rf"^worker-{number} \| .*working on quick, slow, again, exit at", text, re.MULTILINE)
    async with Duly(data=shop / ".duly") as app:
        await eventually(lambda: _have(app, 3), within_s=60)
        pids = await worker_pids(app)
        await app.enqueue("quick", None, id="a")
        await asyncio.to_thread(running.until_noted, "ran")
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)
    assert 3 == running.said().count("duly.work: drained")
    assert "up       | all have ended" in running.said()
    assert all(gone(pid) for pid in pids)
    await eventually(lambda: not (shop / ".duly" / "valkey.sock").exists())


async def _have(app: Duly, count: int) -> bool:
    return len(await worker_pids(app)) == count


async def test_a_worker_that_dies_is_started_again_and_the_others_go_on(up, sender):
    running = up()
    await eventually(lambda: _have(sender, 2), within_s=60)
    before = await worker_pids(sender)
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    await asyncio.to_thread(
        running.until_said, f"(pid {victim}) was ended by SIGKILL; starting it again in 0.5 s"
    )
    await asyncio.to_thread(running.until_said, "working on", 3)

    async def replaced() -> bool:
        # Who was killed counts as live until it has been silent for a lease.
        now = await worker_pids(sender) - {victim}
        return len(now) == 2 and before - {victim} < now

    await eventually(replaced, within_s=60)
    running.send(signal.SIGINT)
    assert 0 == await asyncio.to_thread(running.wait)


@pytest.mark.parametrize("options", [(), ("--tracebacks",)], ids=["without", "with"])
async def test_tracebacks_of_failures_show_where_they_are_asked_for(up, sender, options):
    running = up(*options, workers=1)
    job = await sender.enqueue("again", None)
    await job.result(timeout=60)
    await asyncio.to_thread(running.until_said, "attempt 2: failed")
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)
    text = running.said()
    assert 2 == len(re.findall(r"RuntimeError at shop\.py:\d+: not yet", text))
    assert 2 * len(options) == text.count("Traceback (most recent call last)")


async def test_ctrl_c_lets_running_jobs_finish(terminal, shop, sender):
    screen = terminal("up", "shop:app", "--workers", "2", "--no-http", columns=160, DULY_LEASE=LEASE)
    await asyncio.to_thread(screen.until, r"working on(?s:.*)working on")
    await sender.enqueue("slow", {"seconds": 1.0}, id="a")
    ledger = shop / "ledger"
    await eventually(lambda: ledger.exists() and "started a" in ledger.read_text(), within_s=60)
    # Typed once: the terminal sends it to all in the foreground, and for workers it must not be the second.
    screen.type("\x03")
    assert 0 == await asyncio.to_thread(screen.wait)
    assert ["started", "finished"] == [line.split()[0] for line in ledger.read_text().splitlines()]
    assert "giving running jobs back" not in screen.text()


async def test_a_second_signal_gives_running_jobs_back_at_once(up, shop, sender):
    running = up()
    await asyncio.to_thread(running.until_said, "working on", 2)
    job = await sender.enqueue("slow", {"seconds": 600}, id="a")
    await asyncio.to_thread(running.until_noted, "started")
    running.send(signal.SIGINT)
    await asyncio.to_thread(running.until_said, "draining: no more jobs are claimed", 3)
    running.send(signal.SIGINT)
    assert 0 == await asyncio.to_thread(running.wait)
    assert "ending at once" in running.said()
    assert ("ready", 0, 0) == ((now := await job.get()).state.name, now.attempts, now.crashes)


async def test_workers_end_with_a_supervisor_that_was_killed(up, sender):
    running = up()
    await eventually(lambda: _have(sender, 2), within_s=60)
    pids = await worker_pids(sender)
    running.process.kill()
    await eventually(lambda: all(gone(pid) for pid in pids), within_s=60)


async def test_the_queue_is_served_over_http_beside_its_workers(up, start):
    running = up(workers=1, http=("--port", "0"))
    text = await asyncio.to_thread(running.until_said, "serving on http://127.0.0.1:")
    assert "starting 1 worker and the HTTP service" in text
    url = re.search(r"^http     \| .*serving on (http://127\.0\.0\.1:\d+)", text, re.MULTILINE)[1]
    async with Duly(url) as remote:
        sent = await remote.enqueue("quick", None, id="a")
        await sent.result(timeout=60)
    assert ["ran"] == [line.split()[0] for line in running.ledger()]
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)
    with pytest.raises(StoreUnavailable):
        await Duly(url).enqueue("quick")


async def test_the_usual_port_is_left_to_who_has_it(up):
    with ExitStack() as stack:

        def held() -> bool:
            with suppress(OSError):
                return bool(stack.enter_context(socket.create_server(("127.0.0.1", PORT))))
            return False

        # Who has it for good will do as well; other tests let it go in the midst of this one.
        with suppress(AssertionError):
            await eventually(held, within_s=30)
        running = up(workers=1, http=())
        await asyncio.to_thread(running.until_said, "serving on http://127.0.0.1:")
        assert f"serving on http://127.0.0.1:{PORT}\n" not in running.said()
        running.send(signal.SIGTERM)
        assert 0 == await asyncio.to_thread(running.wait)


def test_a_port_without_the_service_is_a_contradiction(run, shop):
    done = run("up", "shop:app", "--port", "1", "--no-http")
    assert (2, True) == (done.returncode, "either --port or --no-http" in done.stderr)


def test_an_app_that_is_not_there_is_a_sentence(run):
    done = run("up", "nowhere:app")
    assert 2 == done.returncode
    assert "no module nowhere" in done.stderr


def test_a_server_that_is_not_there_is_a_sentence(run, shop):
    done = run("up", "shop:app", DULY_URL=f"unix://{shop}/nobody.sock")
    assert 3 == done.returncode
    assert "cannot use" in done.stderr


def test_a_port_that_is_taken_ends_it_with_a_sentence(run, shop):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("up", "shop:app", "--port", str(port))
    assert (2, "") == (done.returncode, done.stdout)
    assert f"duly: port {port} is taken: choose another with --port, or 0 for a free one\n" == done.stderr


async def test_one_that_was_called_wrongly_ends_all_of_them():
    told: list[str] = []
    programs = [
        Program("wrong", (sys.executable, "-c", "import sys; print('duly: no such thing'); sys.exit(2)")),
        Program("right", (sys.executable, "-c", "import time; time.sleep(600)")),
    ]
    supervisor = Supervisor(programs, tell=lambda name, line: told.append(f"{name}:{line}"), grace_s=60)
    assert await asyncio.wait_for(supervisor.run(), 100)
    assert "wrong:duly: no such thing" in told
    assert any(re.match(r":wrong \(pid \d+\) cannot start: see what it said", line) for line in told)
    assert not any("starting it again" in line for line in told)


def test_a_worker_that_cannot_start_ends_it_with_its_exit_code(run, shop):
    (shop / "idle.py").write_text("from duly import Duly\n\napp = Duly()\n")
    done = run("up", "idle:app", "--no-http")
    assert 2 == done.returncode
    assert "duly: there is no handler: decorate a function with @app.handler(topic)" in done.stdout
    assert "starting it again" not in done.stdout


async def test_the_queue_of_server_and_workers_may_be_named(up, start, shop, own_server):
    running = start("up", "shop:app", "--no-http", "--url", own_server.url, "--namespace", "other")
    text = await asyncio.to_thread(running.until_said, "working on", 1)
    place = "at the server at .*, namespace other"
    assert re.search(rf"^up +\| jobs wait {place}; starting 1 worker", text, re.MULTILINE)
    assert re.search(rf"^worker-1 \| .*working on quick, slow, again, exit {place}", text, re.MULTILINE)
    async with Duly(own_server.url, namespace="other") as app:
        await (await app.enqueue("quick", None, id="a")).result(timeout=60)
    running.send(signal.SIGTERM)
    assert 0 == await asyncio.to_thread(running.wait)
    assert not (shop / ".duly").exists()


async def test_what_ends_again_and_again_is_started_at_growing_distances():
    told: list[tuple[float, str]] = []
    program = Program("ends", (sys.executable, "-c", "print('here')"))
    supervisor = Supervisor(
        [program], tell=lambda name, line: told.append((time.monotonic(), f"{name}:{line}")), grace_s=5
    )
    running = asyncio.create_task(supervisor.run())
    await eventually(lambda: sum("starting it again" in line for _, line in told) >= 3, within_s=60)
    supervisor.stop()
    await running
    pauses = [re.search(r"ended with 0; starting it again in ([\d.]+) s", line) for _, line in told]
    assert ["0.5", "1", "2"] == [each[1] for each in pauses if each][:3]
    assert sum(line == "ends:here" for _, line in told) >= 3


async def test_what_does_not_end_is_killed_after_the_grace():
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    told: list[str] = []
    program = Program("deaf", (sys.executable, "-c", deaf))
    supervisor = Supervisor([program], tell=lambda name, line: told.append(f"{name}:{line}"), grace_s=0.3)
    running = asyncio.create_task(supervisor.run())
    await eventually(lambda: "deaf:up" in told, within_s=60)
    supervisor.stop()
    await asyncio.wait_for(running, 60)
    assert any("does not end: killing it" in line for line in told)


async def test_a_line_without_end_is_passed_on_in_parts():
    lines: list[str] = []
    program = Program("long", (sys.executable, "-c", "print('x' * 3_000_000); print('end', end='')"))
    child = await Child.start(program, lines.append)
    await child.wait(60)
    await child.close()
    assert 3_000_000 == sum(len(line) for line in lines if line != "end")
    assert "end" == lines[-1]


def test_how_a_process_ended_is_said_in_words():
    assert ["ended with 3", "was ended by SIGKILL", "was ended by signal 99"] == [
        said(code) for code in (3, -9, -99)
    ]
