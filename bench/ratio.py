"""
Measure this tree beside an older commit, in turns, and print the ratio of each figure.

python bench/ratio.py 8c6e889 processed lateness --runs 5 --json bench/ratio.json
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.bench.measures import possible
from duly.bench.report import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
GOAL = 0.97  #: of the older commit's figure


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """
    The files of *commit* in a folder of their own.
    """
    with tempfile.TemporaryDirectory(prefix="duly-ratio-") as folder:
        archive = ["git", "archive", "--format=tar", commit]
        files = subprocess.run(archive, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        with tarfile.open(fileobj=io.BytesIO(files)) as tar:
            tar.extractall(folder, filter="data")
        yield Path(folder)


class Failed(Exception):
    """
    A measure said no figures.
    """


class Unknown(Failed):
    """
    A tree has no such measure.
    """


def figures(tree: Path, measure: str, *, quick: bool) -> dict[str, dict[str, Any]]:
    """
    What ``duly bench`` of *tree* says of one *measure*, one run, by name.

    Raises:
        Unknown: The tree has no such measure.
        Failed: It ended without figures.
    """
    command = [sys.executable, "-m", "duly", "bench", measure, "--runs", "1", "--json"]
    # A missed goal is no failure here: only the ratio counts.
    done = subprocess.run(
        command + ["--quick"] * quick,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        check=False,
        capture_output=True,
        text=True,
    )
    try:
        return {each["name"]: each for each in json.loads(done.stdout)["figures"]}
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        kind = Unknown if f"there is no measure {measure}" in done.stderr else Failed
        raise kind(last) from None


def ratio(new: dict[str, Any], old: dict[str, Any]) -> float:
    """
    How good *new* is beside *old*: above 1 is better, whether more or less is wanted.

    Which of both is said by *new*: older commits took more for better wherever there was no goal.
    """
    better, worse = (new, old) if new["at_least"] else (old, new)
    if better["value"] == worse["value"]:
        return 1.0
    return better["value"] / worse["value"] if worse["value"] else math.inf


class Comparison:
    """
    The figures of two trees, pair by pair, and what could not be compared.
    """

    def __init__(self, here: Path, older: Path, *, quick: bool) -> None:
        self.pairs: dict[str, list[tuple[float, float, float]]] = {}
        self.skipped: dict[str, str] = {}  #: measures that a tree does not know, with what it said
        self.failed: dict[str, str] = {}  #: measures without figures in some turn, likewise
        self._here = here
        self._older = older
        self._quick = quick

    def add(self, turn: int, measure: str) -> None:
        """
        Measure both trees once more, unless one of them does not know *measure*.
        """
        if measure in self.skipped:
            return
        # Each goes first half of the time, so that neither always finds the cooler machine.
        order = (self._here, self._older) if turn % 2 else (self._older, self._here)
        try:
            found = {tree: figures(tree, measure, quick=self._quick) for tree in order}
        except Unknown as error:
            self.skipped[measure] = str(error)
            print(f"\n{measure} is skipped: {error}", file=sys.stderr)
            return
        except Failed as error:
            self.failed[measure] = str(error)
            print(f"\n{measure} failed: {error}", file=sys.stderr)
            return
        here, older = found[self._here], found[self._older]
        for name in here.keys() & older.keys():
            new, old = here[name], older[name]
            self.pairs.setdefault(name, []).append((new["value"], old["value"], ratio(new, old)))

    def rows(self) -> list[dict[str, Any]]:
        """
        The medians of each figure.
        """
        return [_row(name, same) for name, same in sorted(self.pairs.items())]

    @property
    def kept(self) -> bool:
        """
        Whether something was compared, nothing failed, and every median reaches the goal.
        """
        rows = self.rows()
        return bool(rows) and not self.failed and all(row["ratio"] >= GOAL for row in rows)


def main() -> int:
    """
    Measure, print, and exit with 1 if a median is under the goal or a measure failed.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("measures", nargs="*", help="of duly bench; default all")
    parser.add_argument("--runs", type=int, default=5, help="pairs (5)")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--json", type=Path, help="a file for the ratios, written after each turn")
    said = parser.parse_args()
    # Before anything is written: a file of figures in the tree would make it dirty.
    about = {"machine": machine(ROOT), "beside": said.commit}
    with tree_of(said.commit) as older:
        comparison = Comparison(ROOT, older, quick=said.quick)
        for turn in range(said.runs):
            for measure in said.measures or possible():
                comparison.add(turn, measure)
                print(".", end="", file=sys.stderr, flush=True)
            if said.json:
                write(said.json, comparison, about | {"runs": turn + 1})
    print(file=sys.stderr)
    for row in comparison.rows():
        print(
            f"{row['name']:44} {row['new']:>12,.2f} {row['old']:>12,.2f}  "
            f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        )
    return 0 if comparison.kept else 1


def write(path: Path, comparison: Comparison, about: dict[str, Any]) -> None:
    """
    Write down what there is so far; JSON has no infinity, so it is null there.
    """
    rows = [
        {name: None if value == math.inf else value for name, value in row.items()}
        for row in comparison.rows()
    ]
    told = about | {"ratios": rows, "skipped": comparison.skipped, "failed": comparison.failed}
    path.write_text(json.dumps(told, indent=2, allow_nan=False) + "\n", "utf-8")


def _row(name: str, same: list[tuple[float, float, float]]) -> dict[str, Any]:
    new, old, ratios = zip(*same, strict=True)
    return {
        "name": name,
        "new": statistics.median(new),
        "old": statistics.median(old),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
    }


if __name__ == "__main__":
    raise SystemExit(main())
