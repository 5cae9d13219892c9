"""
Who follows a page to the letter sees what it says.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, blocks, name_of
from tests.docs.walks import Shell, environ, shows, unmarked, walk
from tests.ports import held_port
from tests.servers import Server, binary
from tests.spark.conftest import missing
from tests.testing.projects import install
from tests.tools import REMEDY, tool

WALKS = [page for page in PAGES if any(block.mark.startswith("walk") for block in blocks(page))]
EXAMPLES = ROOT / "examples"
SPARK = {"reminders"}  #: examples that need it
TUTORIAL = sorted((ROOT / "docs" / "tutorial").glob("*.md"))


@pytest.fixture
def own_server():
    with held_port() as port:
        server = Server(binary("valkey"), "--bind", "127.0.0.1", "--port", str(port))
        yield server.start(), f"redis://localhost:{port}/0"
        server.stop()


@pytest.fixture
def port():
    with held_port() as port:
        yield str(port)


@pytest.mark.parametrize("page", WALKS, ids=name_of)
def test_a_page_can_be_followed_to_the_letter(page, own_server, tmp_path, port):
    for name in REMEDY:
        if any(re.search(rf"^\$ .*\b{name} ", block.text, re.MULTILINE) for block in blocks(page)):
            tool(name)
    if page.parent.name in SPARK and (why := missing()):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    _, url = own_server
    # The port that `duly serve` takes unasked may be taken.
    ports = {"8420": port, "duly serve ": f"duly serve --port {port} "}
    # A short path: the embedded server's socket is below it.
    with tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if page.is_relative_to(EXAMPLES):
            shutil.copytree(
                page.parent, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".duly", "run")
            )
        here = environ(install(tmp_path / "installed"))
        shell = Shell(folder, **here, QUEUE_URL=f"http://127.0.0.1:{port}")
        try:
            assert walk(page, shell, folder, {"redis://localhost:6379/0": url, **ports})
        finally:
            shell.close()


def test_every_example_is_run():
    # These need several terminals, and have tests of their own.
    own = {"hello", "async-endpoint"}
    folders = {path.name for path in EXAMPLES.iterdir() if (path / "README.md").exists()} - own
    assert set() == folders - {page.parent.name for page in WALKS}


@pytest.mark.parametrize("page", [*TUTORIAL, ROOT / "docs" / "how-to" / "testing.md"], ids=name_of)
def test_nothing_to_type_or_copy_is_untried(page):
    assert [] == unmarked(page)


@pytest.mark.parametrize(
    ("shown", "printed", "fits"),
    [
        ("", "", True),
        ("", "noise", False),
        ("one\ntwo", "one\ntwo", True),
        ("one", "one\ntwo", False),
        ("one …", "one 17", True),
        ("…", "any\nlines", True),
        ("a\n…\nz", "a\nb\nc\nz", True),
        ("a\n…\nz", "b\nz", False),
    ],
)
def test_what_a_page_shows_is_compared_line_by_line(shown, printed, fits):
    assert fits is shows(shown, printed)
