"""
Every mutant still fits the code, and the page in the reference names them all; with --long, each is caught.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from tools.mutants.__main__ import note_verdict, read_verdicts, try_all
from tools.mutants.catalogue import ROOT, Mutant, Unfit, mutants
from tools.mutants.trial import Copy, Verdict, failures, first_failure

MUTANTS = mutants()


def test_there_are_at_least_forty_with_different_names():
    assert 40 <= len(MUTANTS) == len({mutant.name for mutant in MUTANTS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_tests_that_exist(mutant):
    source = (ROOT / mutant.file).read_text("utf-8")
    assert source != mutant.planted_in(source)
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8")


def test_a_mutant_whose_text_is_gone_or_repeated_is_refused():
    mutant = Mutant("x", "f.py", "a == b", "a != b", ("t.py",))
    with pytest.raises(Unfit, match="0 times"):
        mutant.planted_in("a = b")
    with pytest.raises(Unfit, match="2 times"):
        mutant.planted_in("a == b or a == b")


def test_the_page_of_the_reference_has_a_row_for_each():
    page = (ROOT / "docs/reference/mutants.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", page, re.MULTILINE)
    assert [(mutant.name, mutant.file) for mutant in MUTANTS] == [(name, file) for name, file, _ in rows]
    for mutant, (_, _, test) in zip(MUTANTS, rows, strict=True):
        assert mutant.catches(test), (mutant.name, test)
        path, _, name = test.partition("::")
        assert name.count("[") == name.count("]")
        assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8")


def test_a_test_is_named_with_the_spaces_of_its_values():
    told = "FAILED tests/a.py::test_it[valkey-by the timer] - Error: a - b\nFAILED tests/b.py::test_no\n"
    assert "tests/a.py::test_it[valkey-by the timer]" == first_failure(told)
    assert "tests/b.py::test_no[a b]" == first_failure("1 failed\nERROR tests/b.py::test_no[a b]\n")
    assert None is first_failure("1 passed")
    logged = "ERROR    asyncio:base_events.py:1771 Task exception was never retrieved\n"
    assert "tests/a.py::test_it" == first_failure(f"{logged}FAILED tests/a.py::test_it - no\n")


def test_every_test_that_failed_is_named_once_in_their_order():
    told = "FAILED tests/b.py::test_b[1] - no\nFAILED tests/a.py::test_a\nERROR tests/b.py::test_b[1] - no\n"
    assert ["tests/b.py::test_b[1]", "tests/a.py::test_a"] == failures(told)


@pytest.fixture
def copy(tmp_path):
    """
    A folder for tests, instead of a copy of the project.
    """
    copy = object.__new__(Copy)
    copy.folder = tmp_path
    return copy


def test_what_fails_once_without_a_mutant_is_run_again(copy):
    (copy.folder / "test_it.py").write_text(
        "from pathlib import Path\n\n"
        "def test_that_is_slow_once():\n"
        "    seen = Path('seen').exists()\n"
        "    Path('seen').touch()\n"
        "    assert seen\n\n"
        "def test_that_is_broken():\n    assert False\n\n"
        "def test_good():\n    pass\n"
    )
    assert None is copy.run_without(["test_it.py::test_that_is_slow_once", "test_it.py::test_good"])
    told = copy.run_without(["test_it.py::test_that_is_broken", "test_it.py::test_good"])
    assert told is not None
    assert ["test_it.py::test_that_is_broken"] == failures(told)


def test_a_run_goes_on_where_one_broke_off(tmp_path):
    file = tmp_path / "verdicts"
    first, second = MUTANTS[:2]
    assert {} == read_verdicts(file, MUTANTS)
    note_verdict(file, Verdict(first, caught=True, by="tests/a.py::test_it"))
    assert {first: Verdict(first, caught=True, by="tests/a.py::test_it")} == read_verdicts(file, MUTANTS)
    other = dataclasses.replace(first, new="something else")
    assert {} == read_verdicts(file, [other, second])
    # Nothing is left to do: neither copies are made nor tests run.
    assert ["tests/a.py::test_it"] == [verdict.by for verdict in try_all([first], 1, file)]


def test_tests_that_do_not_end_say_where_they_were(copy, tmp_path):
    (tmp_path / "test_slow.py").write_text(
        "import time\n\ndef test_that_hangs():\n    open('begun', 'w').close()\n    time.sleep(600)\n"
    )
    code, told = copy.run(["test_slow.py"], within_s=5)
    assert None is code
    assert "not done after 5 s" in told
    assert not (tmp_path / "begun").exists() or "test_slow.py:5" in told


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(11_000)
def test_the_tests_catch_every_mutant():
    run = subprocess.run(
        [sys.executable, "-m", "tools.mutants"], cwd=ROOT, capture_output=True, text=True, timeout=10_800
    )
    assert 0 == run.returncode, run.stdout + run.stderr
