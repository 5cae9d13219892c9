"""
Handlers that return the lines that they log, in a module of their own that a child process imports.
"""

from __future__ import annotations

import asyncio
import json
import time

import structlog
from loguru import logger

from duly import Duly
from duly.contrib import loguru as duly_loguru
from duly.contrib.structlog import add_job

app = Duly("redis://nobody.invalid")

lines = structlog.wrap_logger(
    structlog.ReturnLogger(), processors=[add_job, structlog.processors.JSONRenderer()]
)
logger.remove()
logger.configure(patcher=duly_loguru.add_job)


def both(**bound: object) -> list[dict]:
    """
    What a line has by structlog, and what by loguru.
    """
    caught: list[dict] = []
    mark = object()  # what runs beside this logs to the same sinks
    sink = logger.add(
        lambda message: caught.append(dict(message.record["extra"])),
        filter=lambda record: record["extra"].get("mark") is mark,
    )
    logger.bind(mark=mark, **bound).info("paid")
    logger.remove(sink)
    [extra] = caught
    del extra["mark"]
    return [json.loads(lines.bind(**bound).info("paid")), extra | {"event": "paid"}]


@app.handler("log.loop", max_attempts=1)
async def on_loop() -> list[dict]:
    await asyncio.sleep(0.01)  # others begin meanwhile
    return both()


@app.handler("log.thread", max_attempts=1)
def in_thread() -> list[dict]:
    time.sleep(0.01)
    return both()


@app.handler("log.process", max_attempts=1, run_in="process")
def in_process() -> list[dict]:
    return both()


@app.handler("log.bound", max_attempts=1)
async def bound() -> list[dict]:
    return both(id=7, order="A-1")
