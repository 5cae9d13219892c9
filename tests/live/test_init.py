"""
``duly init``: what it writes runs.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import tomllib

import pytest

from duly.cli.init import FILES
from duly.settings import Settings
from tests.live.terminal import environment


def test_it_writes_an_app_and_says_what_to_do_next(run, here):
    done = run("init", "shop")
    assert (0, "") == (done.returncode, done.stderr)
    assert set(FILES) == {path.name for path in (here / "shop").iterdir()}
    commands = re.findall(r"^  (\S.*?)(?:  +#.*)?$", done.stdout, re.MULTILINE)
    assert ["cd shop", "duly up app:app", "python app.py", "duly top"] == commands


def test_in_the_directory_itself_there_is_nowhere_to_go(run, here):
    done = run("init")
    assert 0 == done.returncode
    assert "cd " not in done.stdout
    assert 3 == len(re.findall(r"^  \S", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_overwritten_and_nothing_half_done(run, here, name):
    (here / name).write_text("mine")
    done = run("init")
    assert 2 == done.returncode
    assert f"{name} is there already, and nothing was written" in done.stderr
    assert [name] == [path.name for path in here.iterdir()]
    assert "mine" == (here / name).read_text()


def test_a_directory_that_cannot_be_is_a_sentence(run, here):
    (here / "file").touch()
    done = run("init", "file/below")
    assert 2 == done.returncode
    assert "duly: cannot write to file/below: Not a directory\n" == done.stderr


def test_the_app_runs_as_it_says(run, start, here):
    run("init")
    up = start("up", "app:app")
    up.until_said("working on greet, report")
    sender = subprocess.run(
        [sys.executable, "app.py"], cwd=here, env=environment(), capture_output=True, text=True, timeout=90
    )
    assert ("", 0) == (sender.stderr, sender.returncode)
    assert ["sent; a worker runs them when they are due", "Hello, Ada!", "6"] == sender.stdout.splitlines()
    # From the worker through its supervisor to us: longer than the sender takes to end, maybe.
    up.until_said("Hello, Ada! (attempt 1)")
    up.until_said("The report for Monday is done")
    up.process.terminate()
    assert 0 == up.wait()


def test_its_test_passes(run, here):
    run("init")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey", "--rootdir", "."],
        cwd=here,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_its_settings_are_the_defaults_and_are_known(run, here, monkeypatch):
    run("init")
    text = (here / "duly.toml").read_text()
    assert {} == tomllib.loads(text)
    every = re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE)
    assert len(tomllib.loads(every)) >= 9
    (here / "every.toml").write_text(every)
    loaded = Settings.load(here / "every.toml", {})
    assert Settings() == dataclasses.replace(loaded, url=None)


def test_the_data_of_the_server_is_not_committed(run, here):
    run("init")
    assert ".duly/" in (here / ".gitignore").read_text().splitlines()
