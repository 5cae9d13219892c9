"""
The hello example works as its README and the first page say.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.servers import binary

HELLO = ROOT / "examples" / "hello"


@pytest.fixture
def here():
    binary("valkey")
    # A short path: the embedded server's socket is below it.
    with tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        shutil.copy(HELLO / "app.py", folder)
        yield Path(folder)


def _environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
    return clean | {"PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}


def _until(check, what):
    deadline = time.monotonic() + 30
    while not check():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_hello_is_said_three_seconds_later_by_a_worker(here):
    python, environ = sys.executable, _environment()
    log = here / "work.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [python, "-m", "duly", "work", "app:app"], cwd=here, env=environ, stdout=output, stderr=output
        )
    try:
        _until(lambda: "working on greet at" in log.read_text(), log.read_text)
        began = time.monotonic()
        sender = subprocess.run(
            [python, "app.py"], cwd=here, env=environ, capture_output=True, text=True, timeout=60
        )
        took_s = time.monotonic() - began
        worker.send_signal(signal.SIGINT)
        assert 0 == worker.wait(30)
    finally:
        worker.kill()
        worker.wait()
    assert ("Hello, Ada!\n", "") == (sender.stdout, sender.stderr)
    assert 3 <= took_s
    # What the first page shows, but for times and paths.
    [shown] = [block.text for block in blocks(ROOT / "README.md") if block.mark == "prints: duly work"]
    assert _lines(shown) == _lines(log.read_text())
    _until(lambda: not (here / ".duly" / "valkey.sock").exists(), "the embedded server goes with its users")


def _lines(text: str) -> list[str]:
    """
    Log lines without their times and paths, and without one that depends on when the worker looked.
    """
    said = [re.sub(r"^[-0-9]+ [:,0-9]+ ", "", line) for line in text.splitlines() if not line.startswith("$")]
    said = [re.sub(r"\S+/\.duly", "….duly", line) for line in said]
    return [line for line in said if "holding back recovery" not in line]


def test_the_first_page_shows_the_example():
    [shown] = [block.text for block in blocks(ROOT / "README.md") if block.mark.startswith("not run: ")]
    code = [line for line in shown.splitlines() if line.strip()]
    assert [line for line in (HELLO / "app.py").read_text().splitlines() if line.strip()] == code
    assert 12 == len(code)
