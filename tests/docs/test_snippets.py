"""
What the documentation shows is run, and prints what the documentation says it prints.

``<!-- run -->`` above a Python block says that it runs as it stands; ``<!-- prints -->`` above the text block
below it says that this is its output, in which ``…`` stands for anything within a line.  A Python block that
cannot be run by itself says why, ``<!-- not run: … -->``, or is a file of a walk, see walks.py.
"""

from __future__ import annotations

import re

import pytest
import redis

from tests.docs.pages import PAGES, Block, blocks
from tests.servers import Server, binary


def _snippets() -> list[tuple[Block, Block | None]]:
    found: list[tuple[Block, Block | None]] = []
    for page in PAGES:
        for block in blocks(page):
            if block.mark == "run":
                found.append((block, None))
            elif block.mark == "prints":
                assert found, f"{block} shows the output of nothing"
                assert found[-1][0].page == page, f"{block} shows the output of nothing on its page"
                found[-1] = (found[-1][0], block)
    return found


@pytest.fixture(scope="module")
def url():
    server = Server(binary("valkey")).start()
    yield server.url
    server.stop()


@pytest.mark.parametrize(
    ("snippet", "output"), [pytest.param(*each, id=str(each[0])) for each in _snippets()]
)
def test_a_snippet_runs_and_prints_what_its_page_says(snippet, output, url, monkeypatch, tmp_path, capsys):
    with redis.Redis.from_url(url) as raw:
        raw.flushall()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", url)
    # Padded, so that a traceback names the line of the page.
    code = compile("\n" * snippet.line + snippet.text, str(snippet.page), "exec")
    exec(code, {"__name__": "__main__"})  # noqa: S102  # our own pages
    printed = capsys.readouterr().out
    if output is not None:
        pattern = ".*".join(re.escape(part) for part in output.text.split("…"))
        assert re.fullmatch(pattern, printed), f"{output} says\n{output.text}\nbut it printed\n{printed}"


def test_every_python_block_runs_or_says_why_not():
    python = [block for page in PAGES for block in blocks(page) if block.language == "python"]
    assert python
    assert [] == [
        str(block)
        for block in python
        if block.mark != "run" and not block.mark.startswith(("not run: ", "file: "))
    ]
