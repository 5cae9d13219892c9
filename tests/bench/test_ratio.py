"""
What `bench/ratio.py` makes of two trees: which way is better, and what it does with a measure that fails.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from bench import ratio as script
from bench.ratio import ROOT, Comparison, Failed, Unknown, figures, ratio
from duly.bench.figure import Figure
from duly.bench.measures import Sizes, lateness_1000, single
from duly.bench.report import document
from duly.bench.rig import rig


def said(name: str, value: float, *, at_least: bool) -> dict[str, object]:
    """
    A figure as `duly bench --json` says it.
    """
    [each] = document([Figure(name, value, "", at_least=at_least)])["figures"]
    return each


@pytest.mark.parametrize(
    ("at_least", "new", "old", "expected"),
    [
        (True, 200, 100, 2.0),
        (True, 50, 100, 0.5),
        (False, 50, 100, 2.0),
        (False, 6.0, 4.5, 0.75),
        (True, 0, 0, 1.0),
        (False, 0, 0, 1.0),
        (False, 0, 5, math.inf),
        (False, 5, 0, 0.0),
        (True, 5, 0, math.inf),
    ],
)
def test_a_ratio_above_one_is_better_whichever_way_that_is(at_least, new, old, expected):
    assert expected == ratio(said("it", new, at_least=at_least), said("it", old, at_least=at_least))


def test_the_newer_tree_says_which_way_is_better():
    # Older commits say of a figure without a bound that more is better.
    assert 0.5 == ratio(said("max", 10, at_least=False), said("max", 5, at_least=True))


def test_a_figure_that_does_not_say_which_way_is_better_cannot_be_made():
    with pytest.raises(TypeError, match="at_least"):
        Figure("lateness, max", 6.5, "ms")


async def test_less_time_is_better_in_every_figure_with_a_bound_or_without():
    tiny = Sizes(one_by_one=100, seconds=0.05)
    async with rig(None) as each:
        found = await single(each, tiny)
        await each.clear()
        found += await lateness_1000(each, tiny)
    timed = {figure.name: figure.at_least for figure in found if figure.unit in {"ms", "µs"}}
    assert {
        "server CPU, one enqueue": False,
        "lateness at 1,000/s, p50": False,
        "lateness at 1,000/s, p99": False,
        "lateness at 1,000/s, max": False,
    } == timed


@pytest.mark.parametrize("path", sorted(ROOT.glob("bench/**/*.json")), ids=lambda path: path.name)
def test_the_figures_that_are_kept_say_that_less_time_is_better(path):
    kept = json.loads(path.read_text("utf-8"))
    told = kept.get("figures", [])
    less = [each["name"] for each in told if each["unit"] in {"ms", "s", "µs", "bytes", "MiB"}]
    assert less == [each["name"] for each in told if each["name"] in less and not each["at_least"]]
    for each in told:
        if each.get("ratio") is not None:
            now, before = each["now"]["median"], each["before"]["median"]
            expected = now / before if each["at_least"] else before / now
            assert pytest.approx(expected, abs=0.002) == each["ratio"], each["name"]


@pytest.fixture
def trees(tmp_path, monkeypatch):
    """
    A tree here and an older one, and what their measures say: figures, or what is raised.
    """
    here, older = tmp_path / "here", tmp_path / "older"
    answers: dict[tuple[str, str], list[object]] = {}
    asked: list[tuple[str, str]] = []

    def answer(tree, measure, *, quick):
        asked.append((tree.name, measure))
        each = answers[tree.name, measure].pop(0)
        if isinstance(each, Exception):
            raise each
        return {measure: said(measure, each, at_least=False)}

    monkeypatch.setattr(script, "figures", answer)
    return Comparison(here, older, quick=True), answers, asked


def test_trees_take_turns_at_going_first_and_the_medians_of_pairs_are_told(trees):
    comparison, answers, asked = trees
    answers["here", "lateness"] = [4, 1, 2]
    answers["older", "lateness"] = [2, 2, 2]
    for turn in range(3):
        comparison.add(turn, "lateness")
    assert ["older", "here", "here", "older", "older", "here"] == [tree for tree, _ in asked]
    [row] = comparison.rows()
    assert {
        "name": "lateness",
        "new": 2,
        "old": 2,
        "ratio": 1.0,
        "least": 0.5,
        "most": 2.0,
    } == row
    assert comparison.kept


def test_a_measure_that_a_tree_does_not_know_is_said_and_skipped(trees, capsys):
    comparison, answers, asked = trees
    answers["here", "single"] = [1, 1]
    answers["older", "single"] = [Unknown("there is no measure single")]
    answers["here", "life"] = [1, 1]
    answers["older", "life"] = [1, 1]
    for turn in range(2):
        for measure in ("single", "life"):
            comparison.add(turn, measure)
    assert {"single": "there is no measure single"} == comparison.skipped
    assert 1 == [measure for _, measure in asked].count("single"), "it was asked for again"
    assert "single is skipped: there is no measure single" in capsys.readouterr().err
    assert ["life"] == [row["name"] for row in comparison.rows()]
    assert comparison.kept


def test_a_measure_that_fails_loses_no_pair_of_the_others_nor_its_own(trees, tmp_path):
    comparison, answers, _ = trees
    answers["older", "life"] = answers["here", "life"] = [1] * 4
    answers["older", "herd"] = [3, 3]
    answers["here", "herd"] = [0, Failed("it took too long")]
    for turn in range(2):
        for measure in ("life", "herd"):
            comparison.add(turn, measure)
    path = tmp_path / "ratio.json"
    script.write(path, comparison, {"runs": 2})
    told = json.loads(path.read_text("utf-8"), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert {"herd": "it took too long"} == told["failed"]
    # Nothing is infinitely better than something.
    assert {"herd": None, "life": 1.0} == {row["name"]: row["ratio"] for row in told["ratios"]}
    assert not comparison.kept


def test_what_was_compared_is_written_after_each_turn(monkeypatch, tmp_path):
    path = tmp_path / "ratio.json"
    seen = []

    def answer(tree, measure, *, quick):
        seen.append(json.loads(path.read_text("utf-8"))["runs"] if path.exists() else 0)
        if len(seen) == 5:
            raise KeyboardInterrupt
        return {measure: said(measure, 1, at_least=True)}

    monkeypatch.setattr(script, "figures", answer)
    monkeypatch.setattr(sys, "argv", ["ratio.py", "HEAD", "life", "--runs", "3", "--json", str(path)])
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert [0, 0, 1, 1, 2] == seen
    told = json.loads(path.read_text("utf-8"))
    assert (2, ["life"]) == (told["runs"], [row["name"] for row in told["ratios"]])
    describe = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(describe, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert described.strip() == told["machine"]["commit"]


def test_a_tree_without_the_measure_is_told_from_one_that_fails(tmp_path):
    with pytest.raises(Unknown, match="there is no measure nonesuch"):
        figures(ROOT, "nonesuch", quick=True)
    package = tmp_path / "src" / "duly"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('the server went away')")
    with pytest.raises(Failed, match="the server went away") as raised:
        figures(tmp_path, "life", quick=True)
    assert Failed is raised.type
