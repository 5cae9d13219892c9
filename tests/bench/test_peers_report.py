"""
The arithmetic and the tables of the comparison with other systems.
"""

from __future__ import annotations

import argparse

import pytest

from bench.peers.__main__ import chosen, write
from bench.peers.arithmetic import Figure, Run, between, figure, late_figures, window
from bench.peers.environments import ROOT
from bench.peers.report import ROWS, Findings, markdown


def test_a_rate_has_neither_the_start_nor_the_end_of_a_run_in_it():
    slow_start = [Run(n, n * 1.0, 0) for n in range(10)]
    steady = [Run(n, 10 + (n - 10) * 0.01, 0) for n in range(10, 96)]
    slow_end = [Run(n, 100.0 + n, 0) for n in range(96, 100)]
    found = window([*slow_end, *slow_start, *steady])
    assert 85 == found.jobs
    assert 100 == pytest.approx(found.rate)


def test_a_rate_of_two_workers_begins_when_both_run():
    alone = [Run(n, n * 0.1, 0) for n in range(30)]
    both = [Run(n, 3 + (n - 30) * 0.05, n % 2) for n in range(30, 100)]
    assert 20 == pytest.approx(window([*alone, *both]).rate, rel=0.05)


def test_a_worker_that_gets_nothing_until_the_end_is_not_waited_for():
    runs = [Run(n, n * 0.1, int(n == 99)) for n in range(100)]
    assert 85 == window(runs).jobs


def test_a_few_runs_are_no_rate():
    with pytest.raises(ValueError, match="5 runs are too few"):
        window([Run(n, n, 0) for n in range(5)])


def test_a_quantity_is_interpolated_between_samples():
    samples = [(10.0, 1.0), (12.0, 2.0), (14.0, 6.0)]
    assert [1.0, 1.5, 4.0, 6.0, 6.0] == [between(samples, at_s) for at_s in (9, 11, 13, 14, 20)]


def test_lateness_counts_first_starts_early_ones_by_their_distance_and_jobs_that_never_start():
    due_ms = {n: 1_000 * n for n in range(1, 5)}
    starts = [(1, 1.002), (1, 9.0), (2, 2.004), (3, 2.9), (-1, 0.1)]
    runs = [Run(n, at_s, 0) for n, at_s in starts]
    found = late_figures("late", due_ms, runs, cut_s=10.0)
    assert {"late_p50": 4.0, "late_p99": 6_000.0, "late_early": 1, "late_unstarted": 0.25} == pytest.approx(
        found
    )


def test_a_ratio_is_taken_round_by_round():
    # The third round fell into a slow minute, of both.
    assert Figure(200, 20, 220, 2.0) == figure({0: 200, 1: 220, 2: 20}, {0: 100, 1: 110, 2: 10})
    assert figure({0: 3.0}, {}).ratio is None
    assert figure({0: 3.0}, {0: 0.0}).ratio is None


@pytest.fixture
def findings():
    settings = {"words": "as it comes", "links": ["https://example.org"]}
    about = {
        "default": settings,
        "best": settings,
        "bulk": "one by one",
        "delays": "none",
        "crash": "is lost",
    }
    machine = {"commit": "abc", "cores": 2, "cpu": "a processor", "python": "3.11", "load": 0.0}
    made = Findings.begin(
        date="2026-01-31", machine=machine, server="Valkey 9", options={"save": ""}, sizes={}, rounds=2
    )
    for system, lacks in (("duly", {}), ("other", {"bulk": "no bulk call"})):
        for profile in ("default", "best"):
            made.add(system, profile, about | {"name": system, "versions": {system: "1.0"}, "lacks": lacks})
    for turn in (0, 1):
        made.note(
            "duly", "default", turn, {"bulk": 1_000.0, "single": 1_000.0, "memory": 300.0, "late_p99": 2.0}
        )
        made.note("other", "default", turn, {"bulk": 100.0 + turn, "single": 1_010.0})
        made.note("other", "default", turn, {"memory": 150.0, "late_p99": 4.0})
    made.note("other", "default", 1, {"late_p50": 3.0, "late_unstarted": 0.02})
    made.fail("other", "default", "idle", "the worker ended\nTraceback")
    return made


def test_commands_are_noted_as_anybody_could_repeat_them(findings):
    worker = [f"{ROOT}/.venv/bin/python", "-m", "duly"]
    findings.add("third", "best", {"name": "third", "commands": {"worker": worker, "beside": None}})
    noted = findings.document["systems"]["third"]["about"]["commands"]
    assert {"worker": [".venv/bin/python", "-m", "duly"], "beside": None} == noted


def test_tables_say_where_others_are_better_worse_or_have_no_such_thing(findings):
    text = markdown(findings)
    assert "| other | 100 (100 to 101) (no bulk call), 0.1x | 1,010, 1x |" in text
    assert "**150, 0.5x**" in text
    assert "- other, default: Cost for the server, memory of a waiting job: 150 bytes, 0.5x duly's" in text
    assert "| other | 3 | ≥ 4, 2x |" in text
    assert "| failed |" in text
    assert "- failed, default, idle: the worker ended\n" in text
    assert "Traceback" not in text


def test_a_summary_has_medians_beside_the_rounds(findings):
    document = findings.summed()
    assert {"median": 100.5, "least": 100.0, "most": 101.0, "ratio": 0.1005} == pytest.approx(
        document["summary"]["other"]["default"]["bulk"]
    )
    assert {"0": 100.0, "1": 101.0} == document["systems"]["other"]["figures"]["default"]["bulk"]


def test_json_tables_and_plots_are_written_side_by_side(findings, tmp_path):
    pytest.importorskip("matplotlib")
    files = write(findings, tmp_path / "peers-2026-01-31-abc")
    assert [".json", ".md", ".png", ".svg"] == [file.suffix for file in files]
    assert all(file.stat().st_size > 100 and file.stem == "peers-2026-01-31-abc" for file in files)


def test_every_figure_has_one_place():
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_a_choice_keeps_the_order_and_names_what_is_unknown():
    assert ["a", "c"] == chosen("c,a", ("a", "b", "c"))
    with pytest.raises(argparse.ArgumentTypeError, match="d: choose from a,b,c"):
        chosen("a,d", ("a", "b", "c"))
