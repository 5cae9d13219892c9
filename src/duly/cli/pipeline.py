"""
``duly pipeline``: jobs in bulk, with Spark.  Each pipeline is a module of `duly.cli.pipelines`.
"""

from __future__ import annotations

import importlib
import pkgutil

import click

from duly.cli import pipelines
from duly.cli.main import COMMANDS


class Pipelines(click.Group):
    """
    Pipelines are found by their modules, and imported when they are asked for.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """
        Name them, in the order of the alphabet.
        """
        return sorted(module.name for module in pkgutil.iter_modules(pipelines.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """
        Import one.
        """
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{pipelines.__name__}.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command


@click.group(cls=Pipelines, short_help=COMMANDS["pipeline"][1])
def pipeline() -> None:
    """
    Move and read jobs in bulk, with Spark: on this machine, or on a cluster by --master.

    Needs duly[spark] and a Java; `duly doctor` says whether they are there.
    """
