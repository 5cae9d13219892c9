"""
The help of `--url` says whether a command takes the URL of `duly serve`.
"""

from __future__ import annotations

import click
import pytest

from duly.cli.main import cli

TAKES_NO_SERVICE = ("work", "serve", "up", "top", "keys create", "keys ls", "keys revoke", "pipeline work")
TAKES_ONE = ("enqueue", "jobs ls", "stats")


def _about_url(words: str) -> str | None:
    command: click.Command = cli
    context = click.Context(cli)
    for word in words.split():
        assert isinstance(command, click.Group)
        found = command.get_command(context, word)
        assert found is not None
        command = found
    [option] = [each for each in command.params if each.name == "url"]
    return option.help if isinstance(option, click.Option) else None


@pytest.mark.parametrize("words", TAKES_NO_SERVICE)
def test_a_command_that_refuses_a_service_says_so(words):
    assert "Of a server of your own; not of duly serve." == _about_url(words)


@pytest.mark.parametrize("words", TAKES_ONE)
def test_a_command_that_takes_a_service_says_so(words):
    assert "Of a server of your own, or of duly serve." == _about_url(words)
