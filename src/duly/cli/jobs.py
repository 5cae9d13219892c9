"""
``duly jobs``: look at jobs, and move them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from duly.cli.loop import session
from duly.cli.main import COMMANDS, OK
from duly.cli.options import KEY, STATES, app_of, as_json, examples, server, state, topic, where
from duly.cli.output import ago, plain, print_json, print_json_line, print_table, say
from duly.cli.quarantine import quarantine
from duly.cli.steer import cancel, requeue, reschedule
from duly.documents import error_line, job_document
from duly.job import JobState
from duly.select import Selection, select
from duly.views import PAGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from duly.job import Job, JobKey
    from duly.views import Views
    from duly.where import Where

LIMIT = 50


@click.group(short_help=COMMANDS["jobs"][1])
def jobs() -> None:
    """
    List, show, cancel, reschedule and requeue jobs; look after damaged ones.
    """


jobs.add_command(cancel)
jobs.add_command(reschedule)
jobs.add_command(requeue)
jobs.add_command(quarantine)


@jobs.command(
    "ls",
    epilog=examples(
        "duly jobs ls --state dead --topic mail",
        "duly jobs ls --where 'attempts > 3 and error ~ timeout'",
        "duly jobs ls --all --json | jq -r .id",
    ),
)
@topic
@state
@where
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    default=LIMIT,
    show_default=True,
    help="At most this many.",
)
@click.option("--all", "everything", is_flag=True, help="Without a limit.")
@click.option("--after", metavar="CURSOR", help="Go on behind a job of an earlier list.")
@server
@as_json
def ls(
    topics: tuple[str, ...],
    states: tuple[str, ...],
    where: Where | None,
    limit: int,
    everything: bool,
    after: str | None,
    as_json: bool,
) -> int:
    """
    List jobs: running, ready, scheduled, dead, cancelled, succeeded.

    With --json, one document on each line; its cursor is what --after takes.
    """
    chosen = Selection(tuple(JobState[name] for name in states or STATES), topics or None, where)
    most = None if everything else limit
    app = app_of(existing=True)
    with session(app) as ask:
        views = ask(app.views())
        cursor = ask(_ls(views, chosen, after, most, as_json=as_json))
    if cursor is not None and not as_json:
        say(f"More: --after '{cursor}'")
    return OK


async def _ls(
    views: Views, chosen: Selection, after: str | None, most: int | None, *, as_json: bool
) -> str | None:
    """
    Show jobs, and return the cursor behind the last one if there may be more.
    """
    now_ms = await views.now_ms()
    page: list[Job] = []
    cursor: str | None = None
    left = most
    more = False
    async for job, place in _each(views, chosen, after, most):
        if left == 0:
            more = True
            break
        left = None if left is None else left - 1
        cursor = place
        if as_json:
            print_json_line(msgspec.structs.asdict(job_document(job)) | {"cursor": place})
        else:
            page.append(job)
            if len(page) == PAGE:
                # A list without a limit is shown in parts: it need not fit into memory.
                _table(page, now_ms)
                page.clear()
    if not as_json and (page or cursor is None):
        _table(page, now_ms)
    return cursor if more else None


async def _each(
    views: Views, chosen: Selection, after: str | None, most: int | None
) -> AsyncIterator[tuple[Job, str]]:
    # One more than asked for tells whether there are more; with a filter, most may be passed over.
    page = PAGE if chosen.where or most is None else min(most + 1, PAGE)
    async for part in select(views, chosen, after=after, page=page):
        for found in zip(part.jobs, part.cursors, strict=True):
            yield found


def _table(page: list[Job], now_ms: int) -> None:
    print_table(
        ["job", "state", "due", "attempts", "error"],
        [
            (job.key, job.state.name, ago(job.due_ms, now_ms), job.attempts, error_line(job)[:200])
            for job in page
        ],
    )


@jobs.command("show", epilog=examples("duly jobs show mail/42", "duly jobs show mail/42 --json | jq .error"))
@click.argument("job", type=KEY, metavar="TOPIC/ID")
@server
@as_json
def show(job: JobKey, as_json: bool) -> int:
    """
    Show everything that is known of one job.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        found = ask(app.job(*job).get())
        now_ms = ask(ask(app.views()).now_ms())
    document = job_document(found)
    if as_json:
        print_json(document)
        return OK
    moments = {"due_at": found.due_ms, "started_at": found.started_ms, "finished_at": found.ended_ms}
    shown: list[tuple[str, str]] = []
    for name, value in msgspec.structs.asdict(document).items():
        if (value is None and name != "payload") or value is False:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if name == "error":
            text = error_line(found)
        if name in moments:
            text += f" ({ago(moments[name], now_ms)})"
        shown.append((name, text))
    width = max(len(name) for name, _ in shown)
    for name, text in shown:
        print(f"{name:<{width}}  {plain(text)}")
    trace: Any = (document.error or {}).get("traceback")
    if trace:
        print("\n" + "\n".join(plain(line) for line in str(trace).splitlines()))
    return OK
