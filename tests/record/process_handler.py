"""
A handler that runs in a process of its own, which finds it here.
"""

from __future__ import annotations

from duly import Duly, current_job

app = Duly()


@app.handler("mail", run_in="process", max_attempts=1)
def mail() -> None:
    with current_job().transaction():
        raise AssertionError("no block begins here")
