"""
An app that is named on the command line works on the queue that is named beside it.
"""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from duly import UsageError
from duly.cli.loading import load_app


@pytest.fixture
def load(tmp_path, monkeypatch):
    """
    Load an app that says a URL itself, with flags of a command.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_URL", raising=False)
    monkeypatch.delenv("DULY_NAMESPACE", raising=False)
    code = "from duly import Duly\n\napp = Duly('redis://there:6379', lease='5s', namespace='shop')\n"

    def load(**flags: str):
        name = f"an_app_{'_'.join(flags)}"
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)
        with click.Context(click.Command("work")) as context:
            context.meta["duly.flags"] = flags
            return load_app(f"{name}:app").settings

    return load


def test_without_flags_the_app_keeps_what_it_says(load):
    settings = load()
    assert ("redis://there:6379", "shop", 5_000) == (settings.url, settings.namespace, settings.lease_ms)


def test_a_flag_wins_and_everything_else_stays(load):
    settings = load(url="redis://here:6379", namespace="other")
    assert ("redis://here:6379", "other", 5_000) == (settings.url, settings.namespace, settings.lease_ms)


def test_a_folder_is_that_of_an_embedded_server(load):
    settings = load(data="queue")
    assert (None, Path("queue"), "shop") == (settings.url, settings.data, settings.namespace)


def test_a_wrong_flag_is_a_sentence(load):
    with pytest.raises(UsageError, match="namespace='a b' must be"):
        load(namespace="a b")
