"""
What a FastAPI server with a worker inside writes to stderr, whether or not the program has set up logging.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time

import pytest

from duly import Duly

SHOP = """
    import os

    from fastapi import FastAPI

    from duly import Duly
    from duly.contrib.fastapi import lifespan

    queue = Duly(os.environ["QUEUE"], namespace=os.environ["QUEUE_NAMESPACE"], drain_grace=1)


    @queue.handler("mail", max_attempts=1)
    async def mail(user: str) -> None:
        raise ValueError("no such user")


    api = FastAPI(lifespan=lifespan(queue, work=True, tracebacks="TRACEBACKS" in os.environ))
"""

LINE = re.compile(
    r"^[0-9-]+ [0-9:,]+ ERROR duly\.runs: (mail/\S+), attempt 1: dead: "
    r"ValueError at shop\.py:\d+: no such user$",
    re.MULTILINE,
)


@pytest.fixture
def serve(tmp_path, valkey, namespace):
    """
    Run the API with uvicorn while a number of jobs end dead; return what it wrote to stderr.
    """

    def run(jobs: int, *, before: str = "", **environ: str) -> str:
        (tmp_path / "shop.py").write_text(f"{before}\n{textwrap.dedent(SHOP)}")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        log = tmp_path / "stderr"
        with log.open("w") as output:
            server = subprocess.Popen(
                # On a socket below the folder: no port has to be free.
                [sys.executable, "-m", "uvicorn", "shop:api", "--uds", "s.sock", "--log-level", "warning"],
                cwd=tmp_path,
                env=clean | {"QUEUE": valkey.url, "QUEUE_NAMESPACE": namespace} | environ,
                stderr=output,
            )
        try:
            with Duly(valkey.url, namespace=namespace).sync as sender:
                for number in range(jobs):
                    sender.enqueue("mail", {"user": "s3cr3t"}, id=f"j{number}")
                deadline = time.monotonic() + 100
                while sum(sender.job("mail", f"j{n}").get().state.name == "dead" for n in range(jobs)) < jobs:
                    assert time.monotonic() < deadline, log.read_text()
                    time.sleep(0.05)
            server.terminate()
            server.wait(60)
        finally:
            server.kill()
            server.wait()
        return log.read_text()

    return run


def test_without_logging_set_up_each_dead_job_is_one_line_and_no_more(serve):
    text = serve(50)
    assert {f"mail/j{number}" for number in range(50)} == set(LINE.findall(text)), text
    assert 50 == len(text.splitlines()), text


def test_tracebacks_are_there_where_they_are_asked_for(serve):
    text = serve(2, TRACEBACKS="yes")
    assert 2 == len(LINE.findall(text)), text
    assert 2 == text.count("Traceback (most recent call last)")


def test_with_logging_set_up_each_line_is_written_once_and_by_that(serve):
    text = serve(3, before="import logging; logging.basicConfig(format='MINE %(name)s %(message)s')")
    assert [] == LINE.findall(text)
    assert 3 == len(re.findall(r"^MINE duly\.runs mail/j\d, attempt 1: dead: ", text, re.MULTILINE)), text
    assert 3 == text.count(", attempt 1: dead: ")


def test_a_program_that_wants_no_lines_gets_none(serve):
    assert "" == serve(2, before="import logging; logging.lastResort = None")
    assert "" == serve(
        2, before="import logging; logging.getLogger('duly').addHandler(logging.NullHandler())"
    )
