"""
``duly record``: the database that remembers what was promised.
"""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import click

from duly.cli.loop import run
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import STATES, TOPIC, as_json, examples, flags_of, record_of, server
from duly.cli.output import jobs_of, print_json, print_json_line, print_table
from duly.cli.reconcile import reconcile
from duly.durations import say_ms

if TYPE_CHECKING:
    from duly.record.target import Target


@click.group(short_help=COMMANDS["record"][1])
def record() -> None:
    """
    The database of record, which `--record`, DULY_RECORD or duly.toml names.

    All but reconcile need no queue: they speak to the database.
    """


record.add_command(reconcile)


@record.command(
    epilog=examples("duly record migrate --record postgresql://duly@db/shop", "duly record migrate --json")
)
@server
@as_json
def migrate(as_json: bool) -> int:
    """
    Make the tables, or bring those of an earlier duly up to date.

    Run it before the new version is started. Any number may run at once; what is up to date is left as it is.
    """
    from duly.record import schema

    target, _ = record_of()
    before, now = schema.migrate(target)
    if as_json:
        print_json({"before": before, "version": now})
    elif before == now:
        click.echo(f"the record is up to date, at version {now}")
    else:
        click.echo(f"the record is at version {now} now, {f'before {before}' if before else 'made anew'}")
    return OK


@record.command(epilog=examples("duly record check"))
@server
@as_json
def check(as_json: bool) -> int:
    """
    Say whether the tables are there, as this duly needs them, and those of the queue; exit code 1 if not.

    The queue is only asked which record it belongs to, if --url, DULY_URL or duly.toml names its server.
    """
    from duly.record import schema

    target, _ = record_of()
    found = schema.check(target)
    if not found and (other := run(_stranger(target))):
        found = [other]
    if as_json:
        print_json({"version": schema.newest(), "problems": found})
    else:
        for sentence in found or [f"the record fits, at version {schema.newest()}"]:
            click.echo(sentence)
    return NO if found else OK


async def _stranger(target: Target) -> str | None:
    from duly.app.opening import new_store
    from duly.errors import StoreUnavailable
    from duly.record.identity import stranger
    from duly.settings import Settings

    settings = Settings.load(**flags_of())
    if settings.url is None or settings.remote:
        return None
    store = new_store(settings, None, None)
    try:
        return await stranger(store, target)
    except StoreUnavailable as error:
        click.echo(f"duly: which record the queue belongs to could not be looked at: {error}", err=True)
        return None
    finally:
        await store.link.aclose()


@record.command(epilog=examples("duly record status", "duly record status --json"))
@server
@as_json
def status(as_json: bool) -> int:
    """
    Show which generation of the queue counts, what was brought back to it, and what waits for it.

    A generation is one life of the queue's servers. A new one begins after a restart or a failover; if the
    queue has lost something, its open jobs are brought back, by due time.
    """
    from duly.record.status import COUNTED, status_of

    target, namespace = record_of()
    found = status_of(target, namespace)
    if as_json:
        print_json(found)
        return OK
    generation = found["generation"]
    if generation is None:
        click.echo("no queue has used this record yet")
        return OK
    since = say_ms(generation["since_ms"])
    click.echo(f"generation {generation['number']} since {since}: {generation['reason']}")
    for back in found["brought_back"]:
        how_far = "all that was open" if back["done"] else "still going on"
        click.echo(f"generation {back['generation']}: {jobs_of(back['jobs'])} brought back, {how_far}")
    more = "or more " if found["waiting"] == COUNTED else ""
    click.echo(f"waiting to be brought: {jobs_of(found['waiting'])} {more}".rstrip())
    if not found["led"]:
        click.echo("no process brings them: start a worker or `duly serve` with this record")
    return OK


@record.command(epilog=examples("duly record grants --to shop", "duly record grants --to shop | psql shop"))
@server
@click.option("--to", "role", required=True, metavar="ROLE", help="Of MariaDB USER@HOST; no host means any.")
def grants(role: str) -> int:
    """
    Print the statements that give ROLE what processes with the record need, for the owner of the tables.

    It speaks to no database. Without DELETE a worker goes on, but old rows stay. SQLite has no roles.
    """
    from duly.record import schema

    target, _ = record_of()
    for statement in schema.grants(target, role):
        click.echo(statement)
    return OK


@record.command(epilog=examples("duly record partitions"))
@server
@as_json
def partitions(as_json: bool) -> int:
    """
    List the parts that tables are kept in, with the rows of each as the database estimates them.

    Jobs and attempts are spread by job id over sixteen parts, on SQLite over one.
    """
    from duly.record import schema

    target, _ = record_of()
    found = schema.partitions(target)
    if as_json:
        for table, part, rows in found:
            print_json_line({"table": table, "part": part, "rows": rows})
    else:
        print_table(["table", "part", "rows"], found)
    return OK


@record.command(
    epilog=examples(
        "duly record export > jobs.ndjson", "duly record export --format csv --state dead > dead.csv"
    )
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "csv"]),
    default="ndjson",
    show_default=True,
    help="A JSON document on each line, or CSV with a line of names.",
)
@click.option(
    "--topic", "topics", type=TOPIC, multiple=True, metavar="NAME", help="Only this topic; repeatable."
)
@click.option(
    "--state",
    "states",
    type=click.Choice([each for each in STATES if each not in ("ready", "running")]),
    multiple=True,
    help="Only this state, scheduled for all that have not ended; repeatable.",
)
@server
def export(form: str, topics: tuple[str, ...], states: tuple[str, ...]) -> int:
    """
    Print every job that the record knows of, by topic and id.

    Rows are read a thousand at a time, each as it is at that moment.
    """
    from duly.job import JobState
    from duly.record.export import FIELDS, cells, document, rows

    target, namespace = record_of()
    found = rows(target, namespace, topics=topics, states=[JobState[state] for state in states])
    if form == "ndjson":
        for row in found:
            print_json_line(document(row))
    else:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(FIELDS)
        for row in found:
            writer.writerow(cells(row))
    return OK
