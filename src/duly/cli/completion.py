"""
``duly completion``: the words of duly, completed by the shell.
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from duly.cli.main import COMMANDS, OK, cli
from duly.cli.options import as_json, examples

SHELLS = ("bash", "zsh", "fish")


@click.command(
    short_help=COMMANDS["completion"][1],
    epilog=examples(
        'eval "$(duly completion bash)"  # in ~/.bashrc; for zsh the same in ~/.zshrc',
        "duly completion fish > ~/.config/fish/completions/duly.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@as_json
def completion(shell: str, as_json: bool) -> int:
    """
    Print the script by which SHELL completes commands and options.
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell  # noqa: S101  # click has all three
    completer = kind(cli, {}, "duly", "_DULY_COMPLETE")
    # Not `source()`: it would run bash to ask for its version, and the script may be for another machine.
    script = completer.source_template % completer.source_vars()
    if as_json:
        from duly.cli.output import print_json

        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
    return OK
