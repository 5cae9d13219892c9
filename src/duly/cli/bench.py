"""
``duly bench``: measure this machine.
"""

from __future__ import annotations

import logging

import click

from duly.bench import postgres
from duly.bench.measures import DATABASE, HTTP, MEASURES, QUICK, Sizes, possible
from duly.bench.report import document, machine, measure, table
from duly.bench.rig import CONCURRENCY
from duly.cli.loop import collect_less, run
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import as_json
from duly.cli.output import print_json
from duly.errors import UsageError
from duly.extras import need


@click.command(epilog="Example: duly bench --quick", short_help=COMMANDS["bench"][1])
@click.argument("only", nargs=-1, metavar="[WHAT]...")
@click.option("--url", help="A server to measure; default an embedded one in a temporary directory.")
@click.option(
    "--record",
    help="A database of record to measure with; default a PostgreSQL of its own, with fsync on, where "
    "that is installed.",
)
@click.option("--quick", is_flag=True, help="Small sizes, for a first look.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Repeat each and report the median.",
)
@as_json
def bench(
    only: tuple[str, ...], url: str | None, record: str | None, quick: bool, runs: int, as_json: bool
) -> int:
    """
    Measure this machine: rates, lateness, memory, idle cost, HTTP, a record; or only WHAT.

    Exits with 1 if a goal is missed.
    """
    # What services say while they start and stop is not news here.
    logging.getLogger("duly").setLevel(logging.ERROR)
    for name in only:
        if name not in MEASURES:
            raise UsageError(f"there is no measure {name}; known are {', '.join(MEASURES)}")
    if "http" in only:
        need("duly bench http", *HTTP)
    if "record" in only:
        _need_database(record)
    names = list(only or possible(record=record is not None))
    collect_less(CONCURRENCY)  # as `duly work` does
    figures = run(measure(names, QUICK if quick else Sizes(), runs, url, record))
    if as_json:
        print_json(document(figures))
    else:
        about = ", ".join(f"{name} {value}" for name, value in machine().items())
        print(f"{about}; median of {runs}")
        print(table(figures))
    return NO if any(figure.kept is False for figure in figures) else OK


def _need_database(record: str | None) -> None:
    need("duly bench record", *DATABASE)
    if record is None and postgres.program("initdb") is None:
        raise UsageError(f"no PostgreSQL to measure with: {postgres.REMEDY}")
