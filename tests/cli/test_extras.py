"""
The base install: each command works, or names the extra that it needs.  In an environment without extras.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from duly.cli.main import cli
from tests.bare import bare_python
from tests.live.terminal import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RECORD = ("--record", "sqlite:///record.db")
SHORT = 20  #: lines of a traceback, with those of asyncio

#: What to type for each command, and the extra that it needs; what needs none finds no server, or is done.
COMMANDS: dict[tuple[str, ...], tuple[tuple[str, ...], str | None]] = {
    ("audit",): ((), None),
    ("bench",): (("http",), "server"),
    ("completion",): (("bash",), None),
    ("dead", "ls"): ((), None),
    ("dead", "requeue"): (("--all", "--yes"), None),
    ("doctor",): ((), None),
    ("enqueue",): (("mail",), None),
    ("init",): (("shop",), None),
    ("jobs", "cancel"): (("mail/a",), None),
    ("jobs", "ls"): ((), None),
    ("jobs", "quarantine", "drop"): (("mail/a", "--yes"), None),
    ("jobs", "quarantine", "ls"): ((), None),
    ("jobs", "quarantine", "show"): (("mail/a",), None),
    ("jobs", "requeue"): (("mail/a",), None),
    ("jobs", "reschedule"): (("mail/a", "--delay", "5m"), None),
    ("jobs", "show"): (("mail/a",), None),
    ("keys", "create"): (("ci", "--scope", "read"), None),
    ("keys", "ls"): ((), None),
    ("keys", "revoke"): (("abc",), None),
    ("listen",): (("--new-secret",), None),
    ("pipeline", "forecast"): ((), "spark"),
    ("pipeline", "history"): (("--table", "history"), "spark"),
    ("pipeline", "hydrate"): (("--table", "far", "--once"), "spark"),
    ("pipeline", "ledger"): (("--table", "history"), "spark"),
    ("pipeline", "reconcile"): ((), "spark"),
    ("pipeline", "replay"): (("--where", "state = 'dead'"), "spark"),
    ("pipeline", "report"): (("--table", "history"), "spark"),
    ("pipeline", "schedule"): (("--from", "jobs.csv"), "spark"),
    ("pipeline", "work"): (("-A", "shop:app"), "spark"),
    ("record", "check"): (RECORD, "record"),
    ("record", "export"): (RECORD, "record"),
    ("record", "grants"): ((*RECORD, "--to", "shop"), "record"),
    ("record", "migrate"): (RECORD, "record"),
    ("record", "partitions"): (RECORD, "record"),
    ("record", "reconcile"): (RECORD, "record"),
    ("record", "status"): (RECORD, "record"),
    ("replies",): (("answers",), None),
    ("serve",): (("--port", "0"), "server"),
    ("stats",): ((), None),
    ("submit",): (("mail", "--count", "1"), None),
    ("top",): (("--once",), None),
    ("topics", "ls"): ((), None),
    ("topics", "pause"): (("mail",), None),
    ("topics", "purge"): (("mail", "--yes"), None),
    ("topics", "resume"): (("mail",), None),
    ("topics", "set"): (("mail", "--limit", "5"), None),
    ("up",): (("shop:app", "--workers", "1"), None),
    ("work",): (("shop:app",), None),
    ("workers", "ls"): ((), None),
}
#: Has a test of its own: it starts processes, and takes its time.
APART = {("demo",)}

#: One process for all of them: each answers with its exit code, and with what it said.
PROGRAM = """
import contextlib, io, json, sys, traceback
from duly.cli.main import main

for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except BaseException:
            code = None
            traceback.print_exc(file=err)
    print(json.dumps([code, err.getvalue()]), file=sys.__stdout__, flush=True)
"""


def leaves(group: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if not isinstance(group, click.Group):
        yield path
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        yield from leaves(group.get_command(context, name), (*path, name))


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return bare_python(tmp_path_factory.mktemp("bare") / "venv")


@pytest.fixture(scope="module")
def answers(bare: Path, tmp_path_factory) -> dict[tuple[str, ...], tuple[int | None, str]]:
    here = tmp_path_factory.mktemp("here")
    (here / "shop.py").write_text(
        "from duly import Duly\n\napp = Duly()\n\n@app.handler('a')\ndef a(): ...\n"
    )
    nowhere = {
        "DULY_URL": f"unix://{here}/nobody.sock",
        "DULY_SOCKET_TIMEOUT": "100ms",
    }
    calls = [[*command, *words] for command, (words, _) in COMMANDS.items()]
    done = subprocess.run(
        [bare, "-c", PROGRAM],
        input=json.dumps(calls),
        cwd=here,
        env=environment(PYTHONPATH="", **nowhere),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = done.stdout.splitlines()
    assert len(calls) == len(lines), done.stderr
    return dict(zip(COMMANDS, (tuple(json.loads(line)) for line in lines), strict=True))


def test_every_command_is_tried():
    assert set(leaves(cli)) == COMMANDS.keys() | APART


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_works_without_extras_or_names_the_one_it_needs(answers, command):
    code, said = answers[command]
    extra = COMMANDS[command][1]
    assert "Traceback" not in said, said
    assert "No such option" not in said, said
    if extra is None:
        assert code in (0, 1, 3), said
        assert "pip install" not in said
    else:
        [line] = said.splitlines()
        assert 2 == code
        assert line.endswith(f"which is not installed: pip install 'duly[{extra}]'")


def test_the_demonstration_needs_none(bare, tmp_path):
    done = subprocess.run(
        [bare, "-m", "duly", "demo", "--count", "4", "--within", "1s", "--lease", "1s", "--workers", "2"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=""),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (0, "") == (done.returncode, done.stderr), done.stdout
    assert "(pyspark is missing): pip install 'duly[spark,java]'" in done.stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("work", "shop:app", "--metrics-port", "0"), "metrics"),
        (("work", "shop:app", "--reload"), "reload"),
        (("up", "shop:app", "--port", "0"), "server"),
        (("bench", "record"), "record"),
        (("enqueue", "mail", "--url", "http://127.0.0.1:9"), "client"),
        (("enqueue", "mail", *RECORD), "record"),
    ],
)
def test_a_flag_names_the_extra_that_it_needs(bare, tmp_path, words, extra):
    (tmp_path / "shop.py").write_text("from duly import Duly\n\napp = Duly()\n")
    done = subprocess.run(
        [bare, "-m", "duly", *words],
        cwd=tmp_path,
        env=environment(PYTHONPATH=""),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines())), done.stderr
    assert done.stderr.endswith(f"which is not installed: pip install 'duly[{extra}]'\n")


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import asyncio, duly; asyncio.run(duly.Duly('https://queue.example').enqueue('mail'))", "client"),
        ("import duly; duly.Duly('https://queue.example').sync.enqueue('mail')", "client"),
        ("import duly; duly.Duly(record='sqlite:///r.db').sync.enqueue('mail')", "record"),
        ("import asyncio, duly; asyncio.run(duly.Duly(record='sqlite:///r.db').queue())", "record"),
        ("from duly.record.schema import migrate", "record"),
        ("import duly.spark; duly.spark.session()", "spark"),
        ("from duly.spark.horizon import put_off", "spark"),
        ("from duly.spark.history.reading import read_history", "spark"),
        ("from duly.spark.report.transforms import on_time", "spark"),
        ("from duly.spark.ledger import ledger", "spark"),
        ("import duly.metrics", "metrics"),
        ("from duly.http import async_endpoint", "server"),
        ("from duly.record import lend", "record"),
        ("import duly; duly.Duly().trace_with(None)", "telemetry"),
    ],
)
def test_in_python_the_last_line_of_a_short_traceback_names_the_extra(bare, tmp_path, code, extra):
    done = subprocess.run(
        [bare, "-c", code],
        cwd=tmp_path,
        env=environment(PYTHONPATH=""),
        capture_output=True,
        text=True,
        timeout=100,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("duly.extras.ExtraMissing: ")
    assert last.endswith(f"which is not installed: pip install 'duly[{extra}]'")
    assert "During handling" not in done.stderr
    assert len(done.stderr.splitlines()) <= SHORT, done.stderr
