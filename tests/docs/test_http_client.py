"""
What docs/how-to/http-client.md shows runs against a service, and prints what the page says.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from duly import Duly
from tests.docs.pages import ROOT, blocks
from tests.http.service import Served

PAGE = ROOT / "docs" / "how-to" / "http-client.md"
BLOCKS = blocks(PAGE)
SHOWN = [
    (block, BLOCKS[at + 1])
    for at, block in enumerate(BLOCKS)
    if block.language == "python" and BLOCKS[at + 1].language == "text"
]


def test_the_page_shows_something():
    assert len(SHOWN) == sum(block.language == "python" for block in BLOCKS) > 0


@pytest.mark.parametrize(("code", "output"), [pytest.param(*each, id=str(each[0])) for each in SHOWN])
def test_a_snippet_prints_what_the_page_says(code, output, valkey, namespace, tmp_path):
    with Served(Duly(valkey.url, namespace=namespace)) as served:
        text = code.text.replace("https://queue.example", served.url)
        assert text != code.text
        clean = {name: value for name, value in os.environ.items() if not name.startswith("DULY_")}
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=60
        )
    assert ("", output.text) == (done.stderr, done.stdout)
