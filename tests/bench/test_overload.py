"""
The load of `bench/http/overload.py`, very small: every line is stored and answered, no word about speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "http" / "overload.py"


@pytest.mark.timeout(300)
def test_batches_are_stored_and_answered_whole_beside_slow_connections_and_endless_headers(tmp_path):
    found = tmp_path / "found.json"
    words = ("--slow", "20", "--headers", "2", "--lines", "2000", "--json", str(found))
    run = subprocess.run(
        [sys.executable, str(SCRIPT), *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert found.exists(), run.stdout + run.stderr
    told = json.loads(found.read_text("utf-8"))
    assert told["answered"], run.stdout
    assert {2000} == set(told["answered"].values()), told["seconds"]
    assert 2000 * len(told["answered"]) == told["stored"]
