"""
What the page on running the HTTP service shows is run against a service, and prints what the page says.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import redis

from duly import Duly
from duly.http.api import OPERATIONS
from duly.metrics import METRICS
from tests.docs.pages import ROOT, blocks
from tests.http.service import Served

PAGE = ROOT / "docs" / "how-to" / "http-operations.md"
PLACE = "http://127.0.0.1:8420"


def _commands():
    for block in blocks(PAGE):
        if block.mark == "run at a service":
            for part in block.text.split("$ ")[1:]:
                command, _, printed = part.partition("\n")
                yield block, command, printed


def _even(text):
    # How wide a column is depends on what stands in it.
    return re.sub(r" +", " ", text)


def test_the_page_prints_what_it_says(valkey, tmp_path, monkeypatch):
    if shutil.which("curl") is None:
        assert not os.environ.get("CI"), "apt-get install curl"
        pytest.skip("no curl here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", valkey.url)
    with redis.Redis(unix_socket_path=str(valkey.socket)) as raw:
        raw.flushall()
    with Served(Duly()) as served:
        ran = 0
        for block, command, expected in _commands():
            words = command.replace(PLACE, served.url)
            if words.startswith("duly "):
                words = f"{sys.executable} -m {words}"
            out = subprocess.run(
                ["sh", "-c", words], capture_output=True, text=True, timeout=60, env=os.environ
            ).stdout
            pattern = ".*".join(re.escape(part) for part in _even(expected.rstrip("\n")).split("…"))
            assert re.fullmatch(pattern, _even(out).rstrip("\n"), re.DOTALL), (
                f"{block} says\n{expected}\nbut {command} printed\n{out}"
            )
            ran += 1
        assert ran > 8


def test_the_page_names_paths_and_metrics_that_exist():
    text = PAGE.read_text("utf-8")
    known = [re.sub(r"\{\w+\}", "[^/]+", operation.path) for operation in OPERATIONS]
    paths = set(re.findall(r"(?:`(?:GET |POST )?|8420|path: )(/[\w/.{}-]+)", text))
    assert {"/healthz", "/readyz", "/v1/events", "/metrics", "/v1/audit"} <= paths
    assert [] == [path for path in paths if not any(re.fullmatch(each, path) for each in known)]
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bduly_[a-z_]+\w", text)}
    assert names
    assert set() == names - METRICS.keys()
