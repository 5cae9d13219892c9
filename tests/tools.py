"""
Programs that tests run and duly itself does without.
"""

from __future__ import annotations

import os
import shutil

import pytest

REMEDY = {
    "curl": "apt-get install curl",
    "nginx": "make nginx",
    "pgbouncer": "make pgbouncer",
    "node": "apt-get install nodejs (18 or later)",
}


def tool(name: str) -> str:
    """
    The path of a program, or a skip on a laptop, or a failure in CI, with the remedy.
    """
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if found:
        return found
    text = f"no {name} here: {REMEDY[name]}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)
