"""
Defaults: each is written once, and a setting changes it for every handler and every worker.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import pytest

import duly
from duly import Duly, Fixed, Intervals, UsageError
from duly.backoff import DEFAULT
from duly.defaults import DEFAULTS
from duly.settings import Settings
from duly.store import Keeping, Store

FIXED = '{"kind": "fixed", "delay": 5}'


async def plain() -> None: ...


def test_a_handler_that_says_nothing_has_what_the_settings_say(monkeypatch):
    monkeypatch.setenv("DULY_MAX_ATTEMPTS", "9")
    monkeypatch.setenv("DULY_BACKOFF", FIXED)
    monkeypatch.setenv("DULY_TTR", "10m")
    app = Duly()
    handler = app.handler("plain")(plain)
    assert (9, Fixed(5), 600_000) == (handler.max_attempts, handler.backoff, handler.ttr_ms)
    own = app.handler("own", max_attempts=2, backoff=Fixed(1), ttr=3)(plain)
    assert (2, Fixed(1), 3_000) == (own.max_attempts, own.backoff, own.ttr_ms)


def test_the_settings_and_the_store_have_the_defaults(monkeypatch):
    settings = Settings()
    assert DEFAULTS == settings.defaults
    assert DEFAULT == settings.backoff
    assert {"done_ms": settings.keep_succeeded_ms, "dead_ms": settings.keep_dead_ms} == {
        name: value for name, value in asdict(Keeping()).items() if name.endswith("_ms")
    }
    assert settings.lease_ms == Store.__init__.__kwdefaults__["lease_ms"]


def test_a_backoff_is_written_in_the_words_of_a_request(tmp_path):
    file = tmp_path / "duly.toml"
    file.write_text('backoff = {kind = "intervals", delays = ["10s", 60]}\n')
    assert Intervals([10, 60]) == Settings.load(file, {}).backoff
    assert Fixed(5) == Settings.load(None, {"DULY_BACKOFF": FIXED}).backoff


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("max_attempts", "0", "max_attempts=0 must be from 1 to 65535"),
        ("ttr", "0", "ttr_ms=0 must be at least 1"),
        ("backoff", "5s", "is no JSON"),
        ("backoff", "5", "backoff must be an object whose kind is one of"),
        ("backoff", '{"kind": "fixed"}', "does not fit its kind"),
    ],
)
def test_a_default_that_makes_no_sense_is_refused_in_a_sentence(name, wrong, why):
    with pytest.raises(UsageError, match=re.escape(why)):
        Settings.load(None, {f"DULY_{name.upper()}": wrong})


#: Each default, and where it is written.
ONCE = {
    r"(?<!_)(?:max_attempts|ttr|ttr_ms|max_crashes|lease_ms): \w+ = [0-9]": "defaults.py",
    r"(?:MAX_ATTEMPTS|TTR_MS) = ": "defaults.py",
    r"(?i)(?:succeeded|dead|done)_(?:ms|bytes)(?:: \w+)? = [0-9]": "defaults.py",
    r"\b(?:base|cap|factor|jitter): [\w\[\], ()=]+ = [0-9]": "backoff.py",
    r"Exponential\((?:base=|cap=|factor=|jitter=)?[0-9]": "defaults.py",
    r"\bburst: int = [0-9]|--burst\", (?:\w+=.*)?default=": "http/settings.py",
}


@pytest.mark.parametrize(("spelt", "home"), ONCE.items())
def test_no_other_module_writes_a_default_again(spelt, home):
    root = Path(duly.__file__).parent
    # A zero stands for nothing at all: it is no default of anybody's.
    found = {
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if re.search(spelt, file.read_text("utf-8").replace(": int = 0", ""))
    }
    assert found <= {home}, spelt
