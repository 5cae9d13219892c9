"""
CI insists on the Pythons that its machine has.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.wheel.pythons import VERSIONS, find_python

RUN = Path(__file__).parents[2] / ".ci" / "run"


def told_by_ci(folder, **env):
    """
    What `make test` is told of Pythons.
    """
    make = folder / "make"
    make.write_text('#!/bin/sh\necho "make $1: $TEST_PYTHONS"\n')
    make.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    environ = {name: value for name, value in os.environ.items() if name != "TEST_PYTHONS"}
    done = subprocess.run(
        [str(RUN)], capture_output=True, text=True, check=True, env=environ | {"PATH": path} | env
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("make test: ")]
    return line.removeprefix("make test: ")


def test_ci_fails_where_a_python_of_this_machine_is_not_found(tmp_path):
    assert [each for each in VERSIONS if find_python(each)] == told_by_ci(tmp_path).split(",")


def test_ci_asks_for_those_that_it_was_told(tmp_path):
    assert "3.13" == told_by_ci(tmp_path, TEST_PYTHONS="3.13")
