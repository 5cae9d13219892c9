"""
``duly jobs quarantine``: look at stored jobs that cannot be read, and drop them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from duly.audit import Change
from duly.cli.audit import note
from duly.cli.loop import session
from duly.cli.main import NO, OK
from duly.cli.options import KEY, app_of, as_json, examples, server, yes
from duly.cli.output import confirm, jobs_of, plain, print_json, print_json_line, print_table, say, size
from duly.errors import UsageError
from duly.quarantine import hex_lines, quarantined

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.cli.loop import Ask
    from duly.job import JobKey
    from duly.quarantine import QuarantinedDocument


@click.group(short_help="look at stored jobs that cannot be read, and drop them")
def quarantine() -> None:
    """
    Look at stored jobs that cannot be read, and drop them.

    What meets a damaged job puts it here and goes on with the rest. Its id is free again.
    """


@quarantine.command("ls", epilog=examples("duly jobs quarantine ls", "duly jobs quarantine ls --json"))
@server
@as_json
def ls(as_json: bool) -> int:
    """
    List jobs in quarantine.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        found = ask(_ls(app, as_json=as_json))
    if not as_json:
        rows = [(f"{each.topic}/{each.id}", each.shard, size(each.bytes), each.since) for each in found]
        print_table(["job", "shard", "size", "since"], rows)
    return OK


async def _ls(app: Duly, *, as_json: bool) -> list[QuarantinedDocument]:
    seen: list[QuarantinedDocument] = []
    async for part in quarantined(await app.quarantine()):
        if as_json:
            for document in part:
                print_json_line(document)
        else:
            seen += part
    return seen


@quarantine.command(
    "show",
    epilog=examples(
        "duly jobs quarantine show mail/42",
        "duly jobs quarantine show mail/42 --json | jq -r .record | base64 -d",
    ),
)
@click.argument("job", type=KEY, metavar="TOPIC/ID")
@server
@as_json
def show(job: JobKey, as_json: bool) -> int:
    """
    Show what is stored of a job in quarantine, and what may still be true of it.

    What is damaged may be wrong: state and numbers are those at the places where they should stand. With
    --json, what is stored is there as base64.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        found = ask(ask(app.quarantine()).content(job))
    if as_json:
        print_json(found)
        return OK
    told = msgspec.structs.asdict(found)
    record, body = told.pop("record"), told.pop("body")
    for name, value in told.items():
        if value not in (None, ""):
            print(f"{name:<8}  {plain(str(value))}")
    for name, data in (("record", record), ("body", body)):
        if data:
            lines = hex_lines(data)
            print(f"\n{name}\n" + "\n".join(lines))
            if len(data) > 16 * len(lines):
                say(f"{size(len(data) - 16 * len(lines))} more of the {name}: --json has all of it")
    return OK


@quarantine.command(
    "drop",
    epilog=examples("duly jobs quarantine drop mail/42 mail/43", "duly jobs quarantine drop --all --yes"),
)
@click.argument("jobs", type=KEY, nargs=-1, metavar="[TOPIC/ID]...")
@click.option("--all", "everything", is_flag=True, help="Every job in quarantine.")
@yes
@server
@as_json
def drop(jobs: tuple[JobKey, ...], everything: bool, yes: bool, as_json: bool) -> int:
    """
    Remove jobs from quarantine for good; first you are asked.
    """
    if bool(jobs) == everything:
        raise UsageError("say either which jobs, TOPIC/ID, or --all")
    app = app_of(existing=True)
    with session(app) as ask:
        if everything:
            return _drop_all(ask, app, sure=yes, as_json=as_json)
        return _drop(ask, app, list(dict.fromkeys(jobs)), sure=yes, as_json=as_json)


def _drop_all(ask: Ask, app: Duly, *, sure: bool, as_json: bool) -> int:
    found = ask(app.quarantine())
    count, dropped = ask(found.size()), 0
    if count:
        confirm(f"Drop {jobs_of(count)} from quarantine, for good?", yes=sure)
        dropped = ask(found.drop_all())
        ask(note(app, Change(action="drop", details={"count": dropped})))
    if as_json:
        print_json({"dropped": dropped})
    else:
        print(f"{jobs_of(dropped)} dropped")
    return OK


def _drop(ask: Ask, app: Duly, keys: list[JobKey], *, sure: bool, as_json: bool) -> int:
    found = ask(app.quarantine())
    names = str(keys[0]) if len(keys) == 1 else jobs_of(len(keys))
    confirm(f"Drop {names} from quarantine, for good?", yes=sure)
    code = OK
    for key in keys:
        [there] = ask(found.drop([key]))
        error = None if there else f"{key} is not in quarantine"
        if there:
            ask(note(app, Change(action="drop", topic=key.topic, id=key.id)))
        else:
            code = NO
        if as_json:
            outcome = "dropped" if there else "refused"
            print_json_line({"topic": key.topic, "id": key.id, "outcome": outcome, "error": error})
        elif error:
            say(f"duly: {error}")
        else:
            print(f"{key} dropped")
    return code
