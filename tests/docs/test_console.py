"""
What the how-to pages show at a shell is run, page by page and in order, and prints what the page says.

``<!-- run at a shell -->`` above a console block says that its commands run, ``<!-- file: NAME -->`` above a
block that it is a file there.  ``…`` stands for anything.  The Python blocks of the page run, too, and
commands go on with what they did.
"""

from __future__ import annotations

import re
import shlex

import pytest
import redis

from duly.cli.main import main
from tests.docs.pages import PAGES, Block, blocks, name_of

SHELL = "run at a shell"
CONSOLE = [page for page in PAGES if any(block.mark == SHELL for block in blocks(page))]


def _commands(block: Block) -> list[tuple[str, str]]:
    """
    Each command and what it prints.
    """
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in block.text.split("$ ")[1:]]


def _even(text: str) -> str:
    # How wide a column is depends on what stands in it, times among it.
    return re.sub(r" +", " ", text)


@pytest.mark.parametrize("page", CONSOLE, ids=name_of)
def test_a_page_prints_what_it_says(page, valkey, monkeypatch, tmp_path, capsys):
    with redis.Redis(unix_socket_path=str(valkey.socket)) as raw:
        raw.flushall()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", valkey.url)
    for block in blocks(page):
        if block.mark.startswith("file: "):
            (tmp_path / block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.mark == "run" and block.language == "python":
            exec(compile(block.text, str(page), "exec"), {"__name__": "__main__"})  # noqa: S102  # our own pages
        elif block.mark == SHELL:
            for command, expected in _commands(block):
                capsys.readouterr()
                words = shlex.split(command)
                assert "duly" == words[0], f"{block}: only duly is run here"
                main(words[1:])
                out, err = capsys.readouterr()
                pattern = ".*".join(re.escape(part) for part in _even(expected).split("…"))
                # … alone on a line stands for lines.
                assert re.fullmatch(pattern, _even(out + err), re.DOTALL), (
                    f"{block} says\n{expected}\nbut it printed\n{out}{err}"
                )


def test_the_pages_of_everyday_use_are_among_them():
    names = {page.stem for page in CONSOLE}
    assert {"cancel", "reschedule", "priorities", "dead-jobs", "bulk-submit"} <= names
