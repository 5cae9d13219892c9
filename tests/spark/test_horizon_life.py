"""
Far-future jobs, many of them, hour by hour, while people change their minds: the program that measures it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "spark" / "hydrate.py"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]


def test_memory_is_flat_and_each_job_runs_once_whatever_is_changed_on_either_side(spark_conf, tmp_path):
    words = ("--rows", "400000", "--passes", "18", "--json", str(tmp_path / "told.json"))
    ended = subprocess.run([sys.executable, PROGRAM, *words], capture_output=True, text=True, check=False)
    assert 0 == ended.returncode, ended.stdout + ended.stderr[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    figures = {figure["name"]: figure["value"] for figure in told["figures"]}
    assert (0, 0, 0) == tuple(
        figures[name] for name in ("ran early", "ran twice", "missed, or ran when they should not")
    )
    changes = told["machine"]["changes"]
    assert {"cancelled in the queue", "cancelled in the table"} <= changes.keys()
    assert {"put later in the queue", "put later in the table", "put sooner in the table"} <= changes.keys()
    assert 30 == changes["rows added after their pass"]
    # Of 400,000 rows over 90 days, 185 are due in an hour.
    assert told["machine"]["ran"] > 18 * 100
