"""
``duly audit``: who changed what; and the records of what commands change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from duly.audit import Audit, Change, this_user
from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import app_of, as_json, examples, server
from duly.cli.output import print_json_line, print_table

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.audit import AuditRecord


async def note(app: Duly, *changes: Change) -> None:
    """
    Record what a command has changed, and who ran it; a service records what is changed through it.
    """
    if changes and not app.settings.remote:
        await Audit(await app.store()).note(this_user(), "cli", *changes)


@click.command(
    short_help=COMMANDS["audit"][1], epilog=examples("duly audit", "duly audit --limit 1000 --json")
)
@click.option(
    "--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many records."
)
@server
@as_json
def audit(limit: int, as_json: bool) -> int:
    """
    Show who paused, resumed, limited, purged, cancelled, rescheduled or requeued what, or made keys.

    The newest first. Changes over HTTP are by an API key, or where there is none by an address; those by
    commands are by the user who ran them. The newest 10,000 are kept.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        found = ask(app.audit(limit))
    if as_json:
        for record in found:
            print_json_line(record)
    else:
        print_table(["at", "by", "via", "action", "on", "details"], [_row(record) for record in found])
    return OK


def _row(record: AuditRecord) -> tuple[Any, ...]:
    on = "/".join(part for part in (record.topic, record.id) if part) or record.key
    details = ", ".join(f"{name}={value}" for name, value in record.details.items())
    return (record.at, f"{record.by.kind} {record.by.name}", record.via, record.action, on, details)
