"""
A trial: the tests of one mutant, run on a copy of the project that has it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.mutants.catalogue import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tools.mutants.catalogue import Mutant

COPIED = ("src", "tests", "tools", "docs", "examples", "pyproject.toml", "Makefile", "README.md")
TEST_S = 120  #: how long one test may take: with a fault in it, some would wait for ever
#: Runs pytest so that SIGINT ends it, which a shell has its children in the background ignore.
INTERRUPTIBLE = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
)
WITHIN_S = 900.0  #: how long the tests of one mutant may take
MOST_REPEATED = 5  #: how many that fail without a mutant are repeated: of more, the cause is another
LAST_WORDS_S = 30.0  #: how long tests that are stopped may take to tell where they were
PASSED, FAILED = 0, 1  #: as pytest ends


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    What became of a mutant.
    """

    mutant: Mutant
    caught: bool
    by: str  #: the test that failed first; else what happened instead


class Copy:
    """
    The project in a folder of its own, for one trial after the other.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".duly"))
            elif source.exists():
                shutil.copy(source, folder / name)

    def try_out(self, mutant: Mutant) -> Verdict:
        """
        Plant a mutant, run its tests, and take it out again.

        Raises:
            Unfit: It does not fit the code.
        """
        file = self.folder / mutant.file
        source = file.read_text("utf-8")
        file.write_text(mutant.planted_in(source), "utf-8")
        try:
            code, told = self.run(mutant.tests)
        finally:
            file.write_text(source, "utf-8")
        if code is None:
            return Verdict(mutant, caught=True, by="a test that did not end")
        failed = first_failure(told)
        if code == FAILED and failed:
            return Verdict(mutant, caught=True, by=failed)
        return Verdict(
            mutant, caught=False, by="survived" if code == PASSED else f"pytest ended with {code}:\n{told}"
        )

    def run_without(self, tests: Sequence[str]) -> str | None:
        """
        Run tests without any mutant: None if all of them pass, else what was said.

        What fails among so many is run once more, alone: a busy machine may have been too slow for it.
        """
        code, told = self.run(tests, WITHIN_S + TEST_S * len(tests), most_failures=MOST_REPEATED + 1)
        failed = failures(told)
        if code == FAILED and 1 <= len(failed) <= MOST_REPEATED:
            for test in failed:
                code, told = self.run([test])
                if code != PASSED:
                    break
        return None if code == PASSED else told

    def run(
        self, tests: Sequence[str], within_s: float = WITHIN_S, most_failures: int = 1
    ) -> tuple[int | None, str]:
        """
        Run tests until so many have failed; the exit code, None if they took too long, and what was said.
        """
        options = (
            f"--maxfail={most_failures}",
            *("-q", "-rfE", "--no-header", "-p", "no:cacheprovider", f"--timeout={TEST_S}"),
        )
        environment = os.environ | {
            "PYTHONPATH": str(self.folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Two that share pytest's own folder clear it away from each other.
            "PYTEST_DEBUG_TEMPROOT": str(self.folder),
        }
        with subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, *options, *tests],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                return _ended(process, within_s)
            finally:
                # Whatever it started ends with it.
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _ended(process: subprocess.Popen[str], within_s: float) -> tuple[int | None, str]:
    try:
        told, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then says which test was running, and where
        try:
            told, _ = process.communicate(timeout=LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            told = ""
        return None, f"not done after {within_s:.0f} s\n{told}"
    return process.returncode, told


def failures(told: str) -> list[str]:
    """
    Return the tests that failed, as pytest names them: the values in brackets may have spaces.
    """
    found = re.findall(r"^(?:FAILED|ERROR) (\S+\.py.*?)(?: - .*)?$", told, re.MULTILINE)
    return list(dict.fromkeys(found))


def first_failure(told: str) -> str | None:
    """
    Return the test that failed first.
    """
    return next(iter(failures(told)), None)
