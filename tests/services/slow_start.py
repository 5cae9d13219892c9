"""
A handler whose process is ready when a file is there: its name is in the environment of those that must wait.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from duly import Duly, current_job

GATE = "SLOW_START_GATE"

while (gate := os.environ.get(GATE)) and not Path(gate).exists():
    time.sleep(0.02)

app = Duly("redis://nobody.invalid")


@app.handler("slow-start", run_in="process", max_attempts=1)
def slow_start(begun: str, end: str) -> float:
    Path(begun).touch()
    while not Path(end).exists():
        time.sleep(0.02)
    return current_job().remaining()
