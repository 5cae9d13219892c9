"""
``duly record reconcile``: compare the record with the queue, and mend what differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.cli.loop import session
from duly.cli.main import NO, OK
from duly.cli.options import app_of, as_json, examples, record_of, server
from duly.cli.output import jobs_of, print_json, print_table, progress

if TYPE_CHECKING:
    from duly.record.reconcile import Report


@click.command(epilog=examples("duly record reconcile --dry-run", "duly record reconcile --json"))
@click.option("--dry-run", is_flag=True, help="Only say what differs; exit code 1 if anything does.")
@server
@as_json
def reconcile(dry_run: bool, as_json: bool) -> int:
    """
    Compare every row with the queue, and every job of the queue with the rows, and mend what differs.

    What was promised and is missing is put back; what has ended is not run again; what nobody promised is
    adopted; where time or payload differ, the record wins. Workers may go on meanwhile. A second run finds
    nothing to do.
    """
    record_of()
    app = app_of()
    with session(app) as ask:
        record = ask(app.record())
        total = ask(record.size())
        with progress("comparing", total) as advance:
            seen = 0

            def tell(report: Report) -> None:
                nonlocal seen
                advance(report.rows + report.jobs - seen)
                seen = report.rows + report.jobs

            report = ask(record.reconcile(apply=not dry_run, tell=tell))
    if as_json:
        print_json(_document(report, dry_run=dry_run))
    else:
        _print(report, dry_run=dry_run)
    return NO if dry_run and report.found else OK


def _print(report: Report, *, dry_run: bool) -> None:
    from duly.record.rules import REPAIRS

    click.echo(f"{report.rows:,} rows of the record compared with {jobs_of(report.jobs)} of the queue")
    if report.on_its_way:
        click.echo(f"{report.on_its_way:,} rows wait for their time, or to be brought to the queue")
    if not report.found:
        click.echo("nothing differs")
        return
    print_table(
        ["difference", "jobs", "to do" if dry_run else "done", "for example"],
        [
            (kind.value, count, REPAIRS[kind], ", ".join(report.examples[kind][:3]))
            for kind, count in sorted(report.found.items())
        ],
    )


def _document(report: Report, *, dry_run: bool) -> dict[str, Any]:
    from duly.record.rules import REPAIRS

    return {
        "dry_run": dry_run,
        "rows": report.rows,
        "jobs": report.jobs,
        "on_its_way": report.on_its_way,
        "differences": {
            kind.value: {
                "found": count,
                "repaired": report.repaired[kind],
                "repair": REPAIRS[kind],
                "examples": report.examples[kind],
            }
            for kind, count in sorted(report.found.items())
        },
    }
