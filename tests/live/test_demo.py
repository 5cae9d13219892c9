"""
``duly demo``: what it shows, what it proves, and that it leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from dataclasses import replace

import pytest
from rich.console import Console

from duly.demo.frame import WorkerLine
from duly.demo.ledger import Ledger, Line, prove
from duly.demo.report import document, render
from duly.demo.scene import Plan, Played
from duly.errors import UsageError
from tests.acceptance.harness import gone, until

# The lease is long enough for workers that live to keep theirs on a busy machine, and there are jobs enough
# after half-way for one of them to be caught.
SMALL = ("--count", "40", "--within", "7", "--lease", "3", "--no-report")
# How each of its workers is shown, with a number of its process.
WORKERS = tuple(rf"worker-{number} +\d+ +\d" for number in (1, 2, 3))
DUE = {"a": 1_000, "b": 2_000}
LEASE_MS = 2_000


def line(word, id_, at_ms, pid=1):
    return Line(word, id_, at_ms, pid)


ONCE = [
    line("started", "a", 1_002),
    line("finished", "a", 1_100),
    line("started", "b", 2_004),
    line("finished", "b", 2_100),
]


def test_what_ran_once_and_on_time_is_proof():
    proof = prove(DUE, ONCE, LEASE_MS)
    assert proof.holds
    assert (2, 2, (2.0, 4.0), ()) == (proof.submitted, proof.completed, proof.on_time_ms, proof.again)


def test_a_job_that_never_ended_is_lost():
    proof = prove(DUE, ONCE[:3], LEASE_MS)
    assert (False, ("b",), 1) == (proof.holds, proof.lost, proof.completed)


def test_a_job_that_started_before_it_was_due_is_early():
    proof = prove(DUE, [line("started", "a", 999.9), *ONCE[1:]], LEASE_MS)
    assert (False, ("a",)) == (proof.holds, proof.early)


def test_a_job_that_ended_twice_is_told():
    proof = prove(DUE, [*ONCE, line("finished", "a", 3_000)], LEASE_MS)
    assert (False, ("a",)) == (proof.holds, proof.twice)


def test_a_job_that_nobody_submitted_is_told():
    proof = prove(DUE, [*ONCE, line("started", "x", 3_000), line("finished", "x", 3_000)], LEASE_MS)
    assert (False, ("x",), 2) == (proof.holds, proof.unknown, proof.completed)


def test_a_job_that_was_started_again_counts_apart():
    proof = prove(DUE, [line("started", "a", 1_001, pid=2), line("started", "a", 4_000), *ONCE[1:]], LEASE_MS)
    assert proof.holds
    assert (("a",), (4.0,), (3_000.0,)) == (proof.again, proof.on_time_ms, proof.recovered_ms)


def test_a_job_that_waited_for_the_lease_of_the_killed_worker_is_not_on_time():
    # Claimed by it, and not started: the ledger knows of one start only.
    proof = prove(DUE, [line("started", "a", 3_100), *ONCE[1:]], LEASE_MS)
    assert proof.holds
    assert ((), (4.0,), (2_100.0,)) == (proof.again, proof.on_time_ms, proof.recovered_ms)


def test_the_reader_of_a_ledger_waits_for_the_rest_of_a_line(tmp_path):
    path = tmp_path / "ledger"
    ledger = Ledger(path)
    assert [] == ledger.read()
    path.write_text("started a 1002000 7\nfini")
    assert [Line("started", "a", 1_002.0, 7)] == ledger.read()
    assert {"a": Line("started", "a", 1_002.0, 7)} == ledger.open_runs()
    with path.open("a") as file:
        file.write("shed a 1100500 7\n")
    assert Line("finished", "a", 1_100.5, 7) == ledger.read()[1]
    assert {} == ledger.open_runs()


VICTIM = WorkerLine("worker-1", 7, "killed", 1)


def played(lines=ONCE, counts=None, killed=VICTIM):
    return Played(
        Plan(count=4),
        prove(DUE, lines, LEASE_MS),
        {"succeeded": 2} if counts is None else counts,
        killed,
        1.0,
    )


def said(played):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123  # nowhere
    console.print(render(played))
    console.file.close()
    return console.export_text()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (played(ONCE[:3]), "The proof failed"),
        (played(killed=None), "No worker could be caught"),
        (played(counts={"succeeded": 1}), "the store counts 1 successes"),
    ],
)
def test_a_demonstration_that_did_not_show_it_says_so(wrong, words):
    assert not wrong.shown
    assert words in said(wrong)
    assert document(wrong)["ok"] is False
    assert played().shown
    assert "Every job ran to its end once" in said(played())


def test_lost_jobs_are_named():
    assert re.search(r"lost +1 +b\b", said(played(ONCE[:3])))


@pytest.mark.parametrize("wrong", [{"workers": 1}, {"count": 3}, {"within_s": 0.5}])
def test_a_plan_that_cannot_show_anything_is_refused(wrong):
    with pytest.raises(UsageError):
        Plan(**wrong)


def test_jobs_of_a_plan_are_spread_and_the_same_each_time():
    jobs = Plan().jobs()
    assert jobs == Plan().jobs()
    assert jobs != replace(Plan(), seed=2).jobs()
    assert (50, 50) == (len(jobs), len({job[1] for job in jobs}))
    assert {"mail.send", "invoice.print", "reminder.call"} == {job[0] for job in jobs}
    assert all(0 < job[2] <= 12 and 50 <= job[3] <= 300 for job in jobs)


def test_without_a_terminal_it_prints_lines_and_the_same_table(run, here):
    done = run("demo", *SMALL, TMPDIR=str(here))
    assert (0, "") == (done.returncode, done.stderr)
    assert "\x1b" not in done.stdout
    for pattern in (
        r"3 workers are up: \d+, \d+, \d+",
        r"the queue is served at http://127\.0\.0\.1:\d+",
        r"40 jobs are submitted over HTTP, due within 7 s",
        r"worker-\d \(pid \d+\) is killed with SIGKILL while it runs job-\d+",
        r"job-\d+ was taken back by its lease and started again",
        r"on time +\d+ +\d",
        r"submitted +40\b",
        r"completed +40\b",
        r"lost +0\b",
        r"early +0\b",
        r"completed twice +0\b",
        r"started again after the kill +[1-9]",
        r"Every job ran to its end once",
    ):
        assert re.search(pattern, done.stdout), f"{pattern} is not in\n{done.stdout}"
    pids = re.search(r"workers are up: (.+)", done.stdout)[1].split(", ")
    assert all(gone(int(pid)) for pid in pids)
    assert [] == list(here.iterdir())


def test_without_the_packages_for_http_and_spark_it_goes_on_and_says_what_is_missing(run, here):
    (here / "sitecustomize.py").write_text(
        "import sys\nfor name in ('httpx', 'starlette', 'uvicorn', 'pyspark'): sys.modules[name] = None\n"
    )
    path = f"{here}:{os.environ.get('PYTHONPATH', '')}"
    done = run("demo", *SMALL[:-1], TMPDIR=str(here), PYTHONPATH=path)
    assert (0, "") == (done.returncode, done.stderr)
    assert "40 jobs are submitted, due within 7 s" in done.stdout
    assert done.stdout.endswith(
        "For a report of it as a page (pyspark is missing): pip install 'duly[spark,java]'\n"
    )


def test_it_ends_with_a_report_of_the_jobs_that_just_ran(run, here, spark_is_here):
    done = run("demo", *SMALL[:-1], TMPDIR=str(here), within_s=380)
    assert (0, "") == (done.returncode, done.stderr)
    [page] = here.iterdir()
    assert done.stdout.endswith(f"How late, hour by hour, as a page: {page}\n")
    html = page.read_text("utf-8")
    assert re.search(r"<dt>jobs started</dt><dd[^>]*>4[1-9]</dd>", html), "forty, and who started again"
    assert {"mail.send", "invoice.print", "reminder.call"} <= set(re.findall(r"<td>([a-z.]+)</td>", html))
    # The worker that was killed: what it ran is told, and is not on time.
    again = int(re.search(r"started again after the kill +(\d+)", done.stdout)[1])
    assert re.search(rf'<dt>lost with a worker</dt><dd class="bad">{again}</dd>', html)
    assert re.search(r'<dt>on time</dt><dd class="bad">[0-9.]+%</dd>', html)
    assert "No worker was lost" not in html


@pytest.mark.long
async def test_ctrl_c_while_spark_is_at_work_leaves_nothing_behind(terminal, here, spark_is_here):
    screen = terminal("demo", *SMALL[:-1], lines=60, TMPDIR=str(here))
    screen.until("Spark writes down")
    await until(lambda: [*here.glob("duly-demo-*/history/_delta_log")], 200, "Spark is at work")
    screen.type("\x03")
    assert 130 == screen.wait(120)
    assert [] == list(here.iterdir())


def test_a_report_that_could_not_be_made_is_a_sentence_and_no_failure():
    told = replace(played(), no_page="Spark made no report: no space left")
    assert told.shown
    assert "Spark made no report: no space left" in said(told)
    assert document(told)["report"] is None


def test_its_summary_for_programs_has_these_fields(run, here):
    done = run("demo", *SMALL, "--json", TMPDIR=str(here))
    assert (0, "") == (done.returncode, done.stderr)
    summary = json.loads(done.stdout)
    figures = {"jobs", "p50_ms", "p90_ms", "p99_ms", "max_ms"}
    assert {
        *("ok", "submitted", "completed", "succeeded", "lost", "early", "completed_twice", "unknown"),
        *("started_again", "killed", "lateness", "workers", "within_s", "lease_s", "took_s", "report"),
    } == set(summary)
    assert {"on_time", "recovered"} == set(summary["lateness"])
    assert [figures, figures] == [set(group) for group in summary["lateness"].values()]
    assert (True, 40, 40, 40) == tuple(summary[k] for k in ("ok", "submitted", "completed", "succeeded"))
    assert ([], [], [], []) == tuple(summary[k] for k in ("lost", "early", "completed_twice", "unknown"))
    assert summary["killed"]["running"] >= 1
    # Late by its lease, since nobody could know earlier that the worker is gone.
    assert 1 <= len(summary["started_again"]) <= summary["lateness"]["recovered"]["jobs"]
    assert summary["lateness"]["recovered"]["p50_ms"] >= 3000


def test_on_a_terminal_one_sees_the_kill_and_the_way_back(terminal, here):
    screen = terminal("demo", *SMALL, lines=60, TMPDIR=str(here))
    screen.until(
        r"─ duly demo ─",
        r"\d+/40 jobs +━",
        r"scheduled \d+ +ready \d+ +running \d+ +succeeded \d+ +dead 0",
        r"lateness +p50 [\d.]+ ms",
        r"worker-\d +\d+ +0 +\d+ +killed",
        r"killed with SIGKILL while it runs",
    )
    assert 0 == screen.wait()
    end = screen.text()
    assert re.search(r"40/40 jobs", end)
    assert re.search(r"recovered +[1-9]", end)
    assert "Every job ran to its end once" in end


@pytest.mark.parametrize("when", ["3 workers are up", "killed with SIGKILL"])
async def test_ctrl_c_leaves_nothing_behind(terminal, here, when):
    screen = terminal("demo", *SMALL, lines=60, TMPDIR=str(here))
    seen = screen.until(*WORKERS, when)
    pids = [int(pid) for pid in re.findall(r"worker-\d +(\d+)", seen)]
    [keeper] = [int(path.read_text()) for path in here.glob("duly-demo-*/data/keeper.lock")]
    [server] = [int(path.read_text()) for path in here.glob("duly-demo-*/data/server.lock")]
    assert 3 == len(set(pids))
    # Again and again, as the impatient do: tidying up is not to be interrupted.
    while screen.process.poll() is None:
        screen.type("\x03")
        await asyncio.sleep(0.05)
    assert 130 == screen.wait()
    assert [] == [pid for pid in (*pids, keeper, server) if not gone(pid)]
    assert [] == list(here.iterdir())


async def test_a_killed_demonstration_takes_its_processes_with_it(terminal, here):
    screen = terminal("demo", *SMALL, lines=60, TMPDIR=str(here))
    seen = screen.until(*WORKERS, "40 jobs are submitted")
    pids = [int(pid) for pid in re.findall(r"worker-\d +(\d+)", seen)]
    [server] = [int(path.read_text()) for path in here.glob("duly-demo-*/data/server.lock")]
    screen.process.kill()
    await until(lambda: all(gone(pid) for pid in (*pids, server)), 30, "all processes end")


def test_a_wrong_option_is_a_sentence(run):
    done = run("demo", "--workers", "1")
    assert 2 == done.returncode
    assert "1 is not in the range" in done.stderr
