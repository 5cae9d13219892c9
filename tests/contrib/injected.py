"""
A handler with a dependency for a child process, which imports this module.
"""

from __future__ import annotations

import os
from typing import Annotated

from fastapi import Depends

from duly import Duly
from duly.contrib.dependencies import inject

app = Duly("redis://nobody.invalid")


def process_id() -> int:
    return os.getpid()


@app.handler("inject.process", run_in="process")
@inject
def where(name: str, pid: Annotated[int, Depends(process_id)]) -> tuple[str, bool, int]:
    return name, pid == os.getpid(), pid
