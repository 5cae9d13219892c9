"""
``manage.py duly_work``: ``duly work`` within the project.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from django.core.management.base import BaseCommand

from duly.cli.main import main
from duly.cli.work import work

if TYPE_CHECKING:
    import argparse


class Command(BaseCommand):
    """
    Takes the options of ``duly work``.
    """

    help = "Run the jobs of this project's handlers until SIGTERM or Ctrl-C, then drain."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """
        Take over what ``duly work`` takes; it checks the values itself.
        """
        for option in _options():
            text = (getattr(option, "help", "") or "").replace("%", "%%")
            if option.is_flag:
                parser.add_argument(*option.opts, action="store_true", dest=f"duly_{option.name}", help=text)
            else:
                parser.add_argument(
                    *option.opts, action="append", dest=f"duly_{option.name}", metavar="X", help=text
                )

    def handle(self, *_args: Any, **options: Any) -> None:
        """
        Work until told to stop.
        """
        argv = ["work", "duly.contrib.django:app"]
        for option in _options():
            said = options.get(f"duly_{option.name}")
            if option.is_flag:
                argv += [option.opts[0]] if said else []
            else:
                argv += [word for value in said or () for word in (option.opts[0], value)]
        if code := main(argv):
            sys.exit(code)


def _options() -> list[click.Option]:
    # Not --reload: it starts `duly` anew by its command line, and that would know nothing of the project.
    return [option for option in work.params if isinstance(option, click.Option) and option.name != "reload"]
