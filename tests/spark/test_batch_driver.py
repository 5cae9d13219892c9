"""
The driver as a process of its own: killed in the middle, and told to stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duly import Duly
from duly.events import Verb
from duly.feed import Feed
from duly.job import JobState
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LONG_S = 90.0


@pytest.fixture
def start(valkey, namespace, spark_conf, tmp_path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    drivers: list[subprocess.Popen[bytes]] = []

    def start(*flags: str, module: str = "duly", lease: str = "15s") -> subprocess.Popen[bytes]:
        command = ["duly", "pipeline", "work"] if module == "duly" else [module]
        conf = [word for name, value in spark_conf.items() for word in ("--conf", f"{name}={value}")]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        environ |= {
            "DULY_URL": valkey.url,
            "DULY_NAMESPACE": namespace,
            "DULY_LEASE": lease,
            "FOLDER": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(HERE)]),
        }
        with (tmp_path / f"log-{len(drivers)}").open("wb") as out:
            drivers.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        *command,
                        "-A",
                        "batch_app:app",
                        "--master",
                        "local[2]",
                        *conf,
                        *flags,
                    ],
                    env=environ,
                    cwd=tmp_path,
                    stdout=out,
                    stderr=out,
                    stdin=subprocess.DEVNULL,
                )
            )
        return drivers[-1]

    yield start
    for driver in drivers:
        if driver.poll() is None:
            driver.kill()
        driver.wait()


@pytest.fixture
async def app(valkey, namespace):
    app = Duly(valkey.url, namespace=namespace)
    # Read at the end: nothing may be trimmed before.
    await Feed(await app.store()).commit("test", 0, None)
    yield app
    await app.aclose()


async def send(app: Duly, count: int) -> None:
    from duly.newjob import new_job

    limits = app.settings.limits
    await app.enqueue_many([new_job("score", {"n": n}, limits).options(id=f"j{n}") for n in range(count)])


def begun(folder: Path, driver: subprocess.Popen[bytes]) -> int:
    return len(list(folder.glob(f"{driver.pid}-*")))


def said(folder: Path) -> str:
    return "\n".join(log.read_text(errors="replace")[-3000:] for log in folder.glob("log-*"))


async def all_ended(app: Duly, count: int) -> Counter[str]:
    async def check() -> Counter[str]:
        found: Counter[str] = Counter()
        for topic in (await (await app.views()).stats()).topics:
            found.update(topic.counts)
        assert count == found["succeeded"] + found["dead"], found
        return found

    return await eventually(check, LONG_S)


async def endings(app: Duly) -> Counter[Any]:
    feed, offset, found = Feed(await app.store()), None, Counter()
    while True:
        offset, events = await feed.read(0, offset, limit=500)
        if not events:
            return found
        found.update((event.id, event.verb) for event in events if event.verb in (Verb.acked, Verb.buried))


async def test_each_outcome_of_a_killed_driver_is_stored_exactly_once(app, start, tmp_path):
    await send(app, 1_200)
    (tmp_path / "hold-2").touch()
    # What it held comes back soon; what the next one holds is not lost when the machine stands still.
    victim = start(lease="3s")
    # Some outcomes are stored, and a batch is under way, when it dies.
    await eventually(lambda: begun(tmp_path, victim) >= 2 or victim.poll() is not None, LONG_S)
    assert victim.poll() is None, said(tmp_path)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    running = [topic.counts["running"] for topic in (await (await app.views()).stats()).topics]
    assert sum(running) > 0
    (tmp_path / "hold-2").unlink()

    driver = start()
    try:
        counts = await all_ended(app, 1_200)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{said(tmp_path)}") from None
    assert len([n for n in range(1_200) if n % 7 == 0]) == counts["dead"]
    driver.send_signal(signal.SIGTERM)
    assert 0 == driver.wait(LONG_S), said(tmp_path)
    found = await endings(app)
    assert 1_200 == len(found) == found.total()


@pytest.mark.long
async def test_sigterm_lets_the_batch_finish(app, start, tmp_path):
    await send(app, 100)
    (tmp_path / "hold-1").touch()
    driver = start(module="duly.spark.work")
    await eventually(lambda: begun(tmp_path, driver) >= 1 or driver.poll() is not None, LONG_S)
    driver.send_signal(signal.SIGTERM)
    await eventually(lambda: "draining" in said(tmp_path), LONG_S)
    (tmp_path / "hold-1").unlink()
    assert 0 == driver.wait(LONG_S), said(tmp_path)
    job = await app.job("score", "j1").get()
    assert JobState.succeeded is job.state
    assert b'{"twice":2}' == job.outcome


def test_a_driver_without_batch_handlers_is_told_so_before_spark_starts(start, tmp_path):
    (tmp_path / "plain.py").write_text("from duly import Duly\napp = Duly()\n")
    driver = start("-A", "plain:app")
    assert 2 == driver.wait(LONG_S)
    assert "duly: there is no batch handler: decorate a function with @app.batch_handler(topic)\n" in said(
        tmp_path
    )
