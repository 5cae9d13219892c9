"""
The real process: what it imports, and how it gets on with pipes and terminals.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.docs.pages import ROOT

COMMAND = (sys.executable, "-m", "duly")
CTRL_C = b"\x03"
_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def environ(here) -> dict[str, str]:
    # Buffered as in a shell: what is still in the buffer when a pipe closes is part of what is tested.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return kept | {"PYTHONPATH": str(ROOT / "src"), "TERM": "xterm-256color"}


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("jbos",)])
def test_a_glance_does_not_import_the_queue(environ, words):
    code = (
        "import sys; from duly.cli.main import main; main(sys.argv[1:]); "
        "print('modules:', *sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], env=environ, capture_output=True, text=True, timeout=60
    )
    modules = set(done.stderr.rpartition("modules:")[2].split())
    assert "click" in modules
    assert set() == modules & {"asyncio", "redis", "rich", "msgspec", "uvloop", "duly.app", "duly.errors"}


def test_completing_a_word_does_not_import_the_queue(environ):
    code = (
        "import sys; from duly.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sorted(sys.modules), file=sys.stderr)"
    )
    asked = {"_DULY_COMPLETE": "bash_complete", "COMP_WORDS": "duly j", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ | asked, capture_output=True, text=True, timeout=60
    )
    assert "plain,jobs\n" == done.stdout
    assert set() == set(done.stderr.split()) & {"asyncio", "redis", "rich", "duly.app"}


def test_the_shell_completes_commands_and_options(environ):
    def complete(words: str) -> list[str]:
        at = len(words.split(" ")) - 1
        asked = {"_DULY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        done = subprocess.run(COMMAND, env=environ | asked, capture_output=True, text=True, timeout=60)
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert ["jobs"] == complete("duly jo")
    assert ["requeue", "reschedule"] == sorted(complete("duly jobs re"))
    assert ["--where"] == complete("duly jobs ls --wh")
    assert ["dead"] == complete("duly jobs ls --state d")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_reader_that_has_seen_enough_is_no_mistake(environ, form):
    subprocess.run([*COMMAND, "submit", "mail", "--count", "3000"], env=environ, check=True, timeout=60)
    listing = subprocess.Popen(
        [*COMMAND, "jobs", "ls", "--all", *form], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert listing.stdout
    assert listing.stderr
    assert listing.stdout.readline()
    listing.stdout.close()
    said = listing.stderr.read()
    listing.stderr.close()
    assert (0, b"") == (listing.wait(60), said)


def test_a_reader_that_left_before_the_first_word_is_no_mistake(environ):
    subprocess.run([*COMMAND, "enqueue", "mail"], env=environ, check=True, capture_output=True, timeout=60)
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [*COMMAND, "topics", "ls"], env=environ, stdout=theirs, stderr=subprocess.PIPE, timeout=60
        )
    finally:
        os.close(theirs)
    assert (0, b"") == (done.returncode, done.stderr)


def on_terminal(words, environ, typed=b"", columns=80):
    """
    Run a command at a terminal, type once it asks; what the terminal got, and the exit code.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *words], env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    pressed = float("-inf")
    try:
        while time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    read = os.read(ours, 65_536)
                except OSError:  # Linux says so when the other side has gone
                    break
                if not read:
                    break
                seen += read
            if typed and b"[y/N]" in seen:
                if typed != CTRL_C:
                    os.write(ours, typed)
                    typed = b""
                elif time.monotonic() > pressed + 3:
                    # Python misses a signal between prompt and read; people press again, and so do we.
                    process.send_signal(signal.SIGINT)
                    pressed = time.monotonic()
        code = process.wait(10)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return code, seen.decode().replace("\r\n", "\n")


def waiting(environ) -> int:
    done = subprocess.run(
        [*COMMAND, "stats", "--json"], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    return int(re.search(r'"scheduled": (\d+)', done.stdout)[1])  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "question", "done"),
    [
        (("jobs", "cancel", "--where", "topic = mail"), "Cancel 20 jobs (20 of mail)?", "20 jobs cancelled"),
        (("topics", "purge", "mail"), "Cancel 20 jobs of mail that wait?", "20 jobs of mail cancelled"),
    ],
)
def test_a_question_is_asked_at_a_terminal(environ, words, question, done):
    made = ("submit", "mail", "--from", "-")
    lines = b'{"delay": "1h"}\n' * 20
    subprocess.run([*COMMAND, *made], env=environ, input=lines, check=True, capture_output=True, timeout=60)
    code, seen = on_terminal(words, environ, typed=b"n\n")
    assert (1, 20) == (code, waiting(environ))
    assert question in seen
    assert "Nothing was changed." in seen
    code, seen = on_terminal(words, environ, typed=CTRL_C)
    assert (130, 20) == (code, waiting(environ))
    assert "Traceback" not in seen
    code, seen = on_terminal(words, environ, typed=b"y\n")
    assert (0, 0) == (code, waiting(environ))
    assert done in _STEERING.sub("", seen)


def test_a_bar_is_shown_at_a_terminal_and_leaves_the_result(environ):
    code, seen = on_terminal(("submit", "mail", "--count", "50"), environ)
    assert 0 == code
    assert "submitting" in seen
    assert "50/50" in seen
    assert "50 read in" in seen


def test_no_color_is_respected(environ):
    subprocess.run([*COMMAND, "enqueue", "mail"], env=environ, check=True, capture_output=True, timeout=60)
    colours = re.compile(r"\x1b\[[0-9;]*m")
    assert colours.search(on_terminal(("topics", "ls"), environ)[1])
    _, plain = on_terminal(("topics", "ls"), environ | {"NO_COLOR": "1"})
    assert {"\x1b[1m", "\x1b[0m"} >= set(colours.findall(plain)), "bold is no colour"


def test_nothing_is_lost_at_a_narrow_terminal(environ):
    id_ = "a-rather-long-id-" + "0123456789" * 6
    subprocess.run(
        [*COMMAND, "enqueue", "mail.welcome", "--id", id_],
        env=environ,
        check=True,
        capture_output=True,
        timeout=60,
    )
    code, seen = on_terminal(("jobs", "ls"), environ, columns=30)
    text = _STEERING.sub("", seen)
    assert 0 == code
    assert all(len(line) <= 30 for line in text.splitlines())
    # The first column, put together again.
    width = text.splitlines()[0].index("sta")
    first = "".join(line[:width].strip() for line in text.splitlines()[1:])
    assert first.endswith(f"mail.welcome/{id_}"), first


def test_a_terminal_of_few_characters_gets_the_rest_spelt_out(environ):
    old = environ | {"PYTHONIOENCODING": "ascii"}
    for words in (("enqueue", "mail", '"Zoë 😀"', "--id", "a"), ("jobs", "show", "mail/a")):
        done = subprocess.run([*COMMAND, *words], env=old, capture_output=True, text=True, timeout=60)
        assert (0, "") == (done.returncode, done.stderr)
    assert "Zo\\xeb \\U0001f600" in done.stdout
