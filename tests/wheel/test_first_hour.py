"""
What somebody does in the first hour, on the wheel that they install: nothing but what the page shows appears.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.walks import Shell, walk
from tests.ports import held_port
from tests.servers import Server, binary

SEND = """
from duly import Duly

app = Duly()
print(app.sync.enqueue("greet", {"name": "Ada"}, id="a").created)
"""
#: Plain scripts without an event loop; none closes anything by hand.
SCRIPTS = {
    "send one": SEND,
    "send and look": f"""{SEND}
print(app.sync.job("greet", "a").get().state.name)
""",
    "send in a with block": """
from duly import Duly

with Duly().sync as queue:
    print(queue.enqueue("greet", {"name": "Ada"}, id="a").created)
""",
    "send from a thread": """
import threading

from duly import Duly

app = Duly()
thread = threading.Thread(target=lambda: print(app.sync.enqueue("greet", id="a").created))
thread.start()
thread.join()
""",
    "a daemon thread waits": f"""{SEND}
import threading

threading.Thread(target=app.sync.job("greet", "a").result, daemon=True).start()
""",
    "send while the interpreter ends": f"""{SEND}
import atexit

atexit.register(lambda: app.sync.enqueue("greet", id="b"))
""",
    "two apps": f"""{SEND}
Duly(namespace="other").sync.enqueue("greet", id="a")
""",
    "leave with a code": f"""{SEND}
raise SystemExit(0)
""",
}


def test_the_quick_start_says_hello(installed, here):
    binary("valkey")
    shutil.copy(ROOT / "examples" / "hello" / "app.py", here)
    log = here / "work.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            [installed.bin / "duly", "work", "app:app"],
            cwd=here,
            env=installed.environ(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        _until(lambda: "working on greet at" in log.read_text(), log.read_text)
        sender = installed.run("python", "app.py", cwd=here)
        worker.send_signal(signal.SIGINT)
        assert 0 == worker.wait(60), log.read_text()
    finally:
        worker.kill()
        worker.wait()
    assert (0, "Hello, Ada!\n", "") == (sender.returncode, sender.stdout, sender.stderr)
    assert [] == [line for line in log.read_text().splitlines() if " INFO " not in line]


def test_the_tutorial_can_be_followed_to_the_letter(installed, here):
    page = ROOT / "docs" / "tutorial" / "first-steps.md"
    with held_port() as port:
        server = Server(binary("valkey"), "--bind", "127.0.0.1", "--port", str(port)).start()
        # The shell's own environment is the tests'; what it is told here wins.
        shell = Shell(here, **installed.environ(PYTHONPATH="", PYTHONUNBUFFERED="1"))
        try:
            code, found = shell.type("python -c 'import duly, sys; print(duly.__file__, sys.version)'")
            assert (0, True, True) == (code, str(installed.folder) in found, installed.version in found), (
                found
            )
            assert walk(page, shell, here, {"redis://localhost:6379/0": f"redis://localhost:{port}/0"})
        finally:
            shell.close()
            server.stop()


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_plain_script_ends_without_a_word(installed, here, script):
    binary("valkey")
    (here / "send.py").write_text(script)
    done = installed.run("python", "send.py", cwd=here)
    assert (0, "") == (done.returncode, done.stderr), done.stderr
    assert "True" == done.stdout.split()[0]


def test_the_page_about_scripts_shows_what_they_print(installed, here):
    binary("valkey")
    [snippet] = [
        block for block in blocks(ROOT / "docs" / "how-to" / "without-a-loop.md") if block.mark == "run"
    ]
    [output] = [
        block for block in blocks(ROOT / "docs" / "how-to" / "without-a-loop.md") if block.mark == "prints"
    ]
    (here / "script.py").write_text(snippet.text)
    done = installed.run("python", "script.py", cwd=here)
    assert (0, output.text, "") == (done.returncode, done.stdout, done.stderr)


def test_it_has_no_extras_and_says_so_of_itself(installed, here):
    """
    What the other tests of this folder rely on: the environment is that of ``pip install duly``.
    """
    check = (
        "import importlib.util as u; print([n for n in ('starlette', 'httpx', 'pyspark') if u.find_spec(n)])"
    )
    assert "[]\n" == installed.run("python", "-c", check, cwd=here).stdout
    assert f"duly {_version()}\n" == installed.run("duly", "--version", cwd=here).stdout


def _version() -> str:
    import duly

    return duly.__version__


def _until(check, what):
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
