"""
The comparison at its smallest, for each system, and what it leaves behind: nothing.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import processes
from bench.peers.environments import ROOT, SYSTEMS, Unavailable, prepare
from bench.peers.measures import MEASURES, Bench, Sizes, Subject
from bench.peers.report import PROFILES, ROWS
from bench.peers.server import free_port
from tests.eventually import eventually

TINY = Sizes(
    bulk=100,
    one_by_one=20,
    jobs=200,
    seconds=1.0,
    rate=50,
    sparse_rate=10,
    sparse_seconds=1.0,
    waiting=200,
    idle_seconds=0.5,
    patience_s=120.0,  # one system reads its schedule once a minute
)

linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes in /proc")


def marked(mark: str) -> list[int]:
    """
    Processes that were started, directly or not, by one with *mark* in its environment.
    """
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found


def subject(system: str, profile: str, folder: Path) -> Subject:
    try:
        environment = prepare(system)
    except Unavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    return Subject(environment, profile, free_port(), folder)


def figures(system: str, profile: str, folder: Path, measures: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    one = subject(system, profile, folder / profile)
    for measure in measures:
        found |= MEASURES[measure](one, TINY)
    return found


def test_duly_gives_figures_of_what_is_sent_run_and_scheduled(tmp_path):
    found = figures("duly", "default", tmp_path, ["bulk", "single", "process-1", "late"])
    assert all(found[key] > 0 for key in ("bulk", "single", "process_1", "late_p50", "single_cpu"))
    assert (0, 0) == (found["late_early"], found["late_unstarted"])


@pytest.mark.long
@pytest.mark.timeout(900)  # packages are downloaded
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_gives_every_figure(system, profile, tmp_path):
    found = figures(system, profile, tmp_path, list(MEASURES))
    assert {row.key for row in ROWS} <= found.keys()
    rates = ("bulk", "single", "process_1", "process_2", "memory")
    assert [] == [key for key in rates if found[key] <= 0]
    assert (0, 0) == (found["late_unstarted"], found["sparse_unstarted"])


async def test_a_worker_that_ends_or_logs_errors_gives_no_figure(tmp_path):
    one = subject("duly", "default", tmp_path / "duly")
    for script, words in (("exit 1", "ended by itself"), ("echo Traceback; sleep 600", "logged errors")):
        one.about["commands"]["worker"] = ["sh", "-c", script]
        with one.bench() as bench, bench.workers(1):
            error = await eventually(lambda: complaint(bench), 60)
        assert words in error


def complaint(bench: Bench) -> str | bool:
    try:
        bench.check()
    except processes.Failed as error:
        return str(error)
    return False


@linux
async def test_a_process_is_ended_with_its_children_although_it_does_not_want_to(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE_S", 0.5)
    mark = secrets.token_hex(8)
    script = "trap '' TERM; sleep 600 & sleep 600 & wait"
    with processes.running(["sh", "-c", script], {"MARK": mark}, tmp_path / "log"):
        await eventually(lambda: len(marked(mark)) == 3, 60)
    await eventually(lambda: not marked(mark), 60)


@linux
async def test_a_child_without_its_parent_is_ended_too(tmp_path):
    mark = secrets.token_hex(8)
    with processes.running(["sh", "-c", "sleep 600 & exit 1"], {"MARK": mark}, tmp_path / "log") as process:
        await eventually(lambda: processes.ended(process), 60)
    await eventually(lambda: not marked(mark), 60)


@linux
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_run_that_is_told_to_stop_leaves_no_process_and_no_file(number, tmp_path):
    mark = secrets.token_hex(8)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "bench.peers", "--systems", "duly", "--measures", "idle"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"MARK": mark, "TMPDIR": str(scratch), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        # The comparison, the server, the worker.
        await eventually(lambda: len(marked(mark)) >= 3, 60)
        process.send_signal(number)
        process.wait(60)
    finally:
        process.kill()
        _, said = process.communicate()
    assert process.returncode in {130, 143}, said.decode()
    await eventually(lambda: not marked(mark), 60)
    assert [] == list(scratch.iterdir())
