"""
``duly doctor``: what is wrong, and what to do about it.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import run
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import as_json, server
from duly.cli.output import console, print_json
from duly.doctor.examine import examine
from duly.spark.checks import findings as findings_of_spark

if TYPE_CHECKING:
    from duly.doctor.finding import Finding

STYLES = {"ok": "green", "hint": "yellow", "problem": "bold red"}


@click.command(
    epilog="\b\nExamples:\n  duly doctor\n  duly doctor --url redis://queue.internal:6379 --json",
    short_help=COMMANDS["doctor"][1],
)
@server
@as_json
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> int:
    """
    Check machine, settings, data directory, server, queue and Spark, and say what to do about what is wrong.

    Changes nothing in the queue.  Levels are ok, hint (worth a look) and problem (jobs are lost, late or
    stuck, or will be).  Exits with 1 if there is a problem.
    """
    logging.getLogger("duly").setLevel(logging.CRITICAL)
    flags: dict[str, Any] = context.meta.get("duly.flags", {})
    findings = [*run(examine(flags)), *findings_of_spark()]
    count = Counter(finding.level for finding in findings)
    if as_json:
        print_json(
            {
                "ok": not count["problem"],
                "problems": count["problem"],
                "hints": count["hint"],
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        _print(findings)
        click.echo()
        click.echo(f"{_number(count['problem'], 'problem')}, {_number(count['hint'], 'hint')}")
    return NO if count["problem"] else OK


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(
            Text(finding.level, style=STYLES[finding.level]), Text(finding.check), Text(finding.message)
        )
        if finding.remedy:
            table.add_row("", "", Text(f"→ {finding.remedy}", style="cyan"))
    out = console()
    if not out.is_terminal:
        out.width = 10_000
    out.print(table)


def _number(count: int, what: str) -> str:
    return f"{count or 'no'} {what}" if count == 1 else f"{count or 'no'} {what}s"
