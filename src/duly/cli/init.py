"""
``duly init``: a first app, ready to run.
"""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

import click

from duly.cli.main import COMMANDS, OK
from duly.errors import UsageError

#: What is written, and the file of `duly.starter` that it is made from.
FILES = {
    "app.py": "app.py.txt",
    "test_app.py": "test_app.py.txt",
    "duly.toml": "duly.toml.txt",
    ".gitignore": "gitignore.txt",
}


@click.command(epilog="\b\nExample:\n  duly init shop", short_help=COMMANDS["init"][1])
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
def init(folder: Path) -> int:
    """
    Write a starter app into DIR, or here: two handlers, settings with their defaults, a test, .gitignore.

    Nothing is overwritten: if one of the files is there, none is written.
    """
    there = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise UsageError(
            f"{', '.join(str(folder / name) for name in there)} is there already, and nothing was written: "
            "choose an empty directory, e.g. duly init shop"
        )
    starter = files("duly.starter")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, template in FILES.items():
            # Refused once more if somebody else was faster.
            with (folder / name).open("x", encoding="utf-8") as file:
                file.write((starter / template).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}") from error
    click.echo(f"Wrote {', '.join(FILES)} to {folder.absolute()}")
    click.echo("\nNext:\n")
    if folder.absolute() != Path.cwd():
        click.echo(f"  cd {shlex.quote(str(folder))}")
    click.echo("  duly up app:app      # a server and a worker, until Ctrl-C")
    click.echo("  python app.py        # in another terminal: sends two jobs and waits for them")
    click.echo("  duly top             # in a third: watches")
    return OK
