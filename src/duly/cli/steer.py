"""
``duly jobs cancel``, ``reschedule`` and ``requeue``: jobs by name, or many by a filter.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from duly.audit import Change
from duly.cli.audit import note
from duly.cli.loop import session
from duly.cli.main import NO, OK
from duly.cli.options import DURATION, KEY, TIME, app_of, as_json, examples, server, state, topic, where, yes
from duly.cli.output import confirm, jobs_of, print_json, print_json_line, progress, say
from duly.durations import say_time
from duly.errors import SERVER_ERRORS, DulyError, JobNotFound, UsageError
from duly.job import JobKey, JobState, moment
from duly.select import Selection, select

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime, timedelta

    from duly.app import Duly
    from duly.cli.loop import Ask
    from duly.job import Accepted, Job, Placed
    from duly.where import Where

OPEN = (JobState.scheduled, JobState.ready, JobState.running)
WAITING = (JobState.scheduled, JobState.ready)
ENDED = (JobState.dead, JobState.cancelled, JobState.succeeded)
AT_ONCE = 16  #: calls under way for a verb that takes one job at a time
SHOWN = 10
LOOKS = 3  #: at most, for jobs that may run; the last of them finds nothing, or next to nothing


@dataclass(frozen=True, slots=True)
class Verb:
    """
    Something to do to jobs.
    """

    name: Literal["cancel", "requeue", "reschedule"]
    done: str
    states: tuple[JobState, ...]  #: that it applies to
    act: Callable[[Duly, Sequence[JobKey]], Awaitable[Sequence[Placed | JobState | Accepted | DulyError]]]


@dataclass(slots=True)
class Found:
    """
    How many jobs there are to act on, by topic.
    """

    topics: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """
        All of them.
        """
        return sum(self.topics.values())


async def _cancel(app: Duly, keys: Sequence[JobKey]) -> list[JobState | Accepted | DulyError]:
    states = await (await app.queue()).cancel(keys)
    return [
        JobNotFound(f"there is no job {key}: it was pruned, or never was")
        if state is None
        else state
        if state == "accepted" or state is JobState.cancelled
        else DulyError(f"{key} had ended before: {state.name}")
        for key, state in zip(keys, states, strict=True)
    ]


async def _requeue(app: Duly, keys: Sequence[JobKey]) -> Sequence[Placed | DulyError]:
    return await (await app.queue()).requeue(keys)


def _rescheduling(
    delay: timedelta | None, due_at: datetime | None
) -> Callable[[Duly, Sequence[JobKey]], Awaitable[list[Placed | DulyError]]]:
    async def act(app: Duly, keys: Sequence[JobKey]) -> list[Placed | DulyError]:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(key: JobKey) -> Placed | DulyError:
            async with gate:
                try:
                    return await app.job(*key).reschedule(delay=delay, due_at=due_at)
                except SERVER_ERRORS:
                    raise
                except DulyError as error:
                    return error

        return await asyncio.gather(*(one(key) for key in keys))

    return act


CANCEL = Verb("cancel", "cancelled", OPEN, _cancel)
REQUEUE = Verb("requeue", "requeued", ENDED, _requeue)


def steer(
    verb: Verb, keys: Sequence[JobKey], selection: Selection | None, *, sure: bool, as_json: bool
) -> int:
    """
    Do *verb* to the jobs named, or after a question to those selected.

    Raises:
        UsageError: Neither or both were said.
    """
    if bool(keys) == (selection is not None):
        raise UsageError("say either which jobs, TOPIC/ID, or --where, --topic or --state")
    app = app_of(existing=True)
    with session(app) as ask:
        if selection is None:
            return _named(verb, ask, app, keys, as_json=as_json)
        return many(verb, ask, app, selection, sure=sure, as_json=as_json)


def _named(verb: Verb, ask: Ask, app: Duly, keys: Sequence[JobKey], *, as_json: bool) -> int:
    keys = list(dict.fromkeys(keys))
    code = OK
    answers = ask(_act(verb, app, keys))
    changes = [
        Change(action=verb.name, topic=key.topic, id=key.id, details=_moved_to(verb, answer))
        for key, answer in zip(keys, answers, strict=True)
        if not isinstance(answer, DulyError)
    ]
    ask(note(app, *changes))
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, DulyError):
            code = NO
            if not as_json:
                say(f"duly: {answer}")
        elif not as_json:
            print(f"{key} {_done(verb, answer)}{_when(answer)}")
        if as_json:
            print_json_line(_outcome(verb, key, answer))
    return code


async def _act(
    verb: Verb, app: Duly, keys: Sequence[JobKey]
) -> Sequence[Placed | JobState | Accepted | DulyError]:
    return await verb.act(app, keys)


def _done(verb: Verb, answer: Any) -> str:
    accepted = getattr(answer, "word", answer) == "accepted"
    return f"accepted: {verb.done} if it is in the table of far-future jobs" if accepted else verb.done


def _moved_to(verb: Verb, answer: Any) -> dict[str, str]:
    due = moment(getattr(answer, "due_ms", None))
    return {"due_at": say_time(due)} if due and verb.name == "reschedule" else {}


def _when(answer: Any) -> str:
    due = moment(getattr(answer, "due_ms", None))
    return f": {answer.state.name}, due {say_time(due)}" if due else ""


def _outcome(verb: Verb, key: JobKey, answer: Any) -> dict[str, Any]:
    refused, accepted = isinstance(answer, DulyError), getattr(answer, "word", answer) == "accepted"
    due = None if refused else moment(getattr(answer, "due_ms", None))
    return {
        "topic": key.topic,
        "id": key.id,
        "outcome": "refused" if refused else "accepted" if accepted else verb.done,
        "state": None if refused or accepted else getattr(answer, "state", answer).name,
        "due_at": say_time(due) if due else None,
        "error": str(answer) if refused else None,
    }


def many(
    verb: Verb,
    ask: Ask,
    app: Duly,
    selection: Selection,
    *,
    sure: bool,
    as_json: bool,
    matches: Callable[[Job], bool] | None = None,
) -> int:
    """
    Count the jobs that are meant, ask, and do *verb* to them, a bounded number at a time.
    """
    # Jobs that change from here on are left alone: nobody was asked about them, and a list that is walked
    # while its jobs are moved would bring them again.
    newest = ask(ask(app.views()).newest())
    if not sure:
        found = ask(_count(app, selection, newest, matches))
        if not found.count:
            return _report(verb, found, as_json=as_json)
        by_topic = ", ".join(f"{count:,} of {name}" for name, count in found.topics.most_common(5))
        if len(found.topics) > 5:
            by_topic += f" and {len(found.topics) - 5} more topics"
        confirm(f"{verb.name.capitalize()} {jobs_of(found.count)} ({by_topic})?", yes=False)
    done = ask(_each(verb, app, selection, newest, matches))
    if done.count:
        # Without the filter, which may quote what a job was given.
        details = {"count": done.count, "topics": dict(done.topics.most_common(SHOWN))}
        ask(note(app, Change(action=verb.name, details=details)))
    return _report(verb, done, as_json=as_json)


async def _count(
    app: Duly, selection: Selection, newest: Sequence[int], matches: Callable[[Job], bool] | None
) -> Found:
    found = Found()
    views = await app.views()
    with progress("counting", await _total(app, selection)) as advance:
        async for part in select(views, selection, newest=newest):
            found.topics.update(job.topic for job in part.jobs if matches is None or matches(job))
            advance(part.seen)
    return found


async def _each(
    verb: Verb,
    app: Duly,
    selection: Selection,
    newest: Sequence[int],
    matches: Callable[[Job], bool] | None,
) -> Found:
    done = Found()
    with progress(verb.name, await _total(app, selection)) as advance:
        # A run that fails meanwhile leaves its job where this has been.
        for _ in range(LOOKS if JobState.running in selection.narrowed().states else 1):
            before = done.count
            await _once(verb, app, selection, newest, matches, done, advance)
            if done.count == before:
                break
    return done


async def _once(
    verb: Verb,
    app: Duly,
    selection: Selection,
    newest: Sequence[int],
    matches: Callable[[Job], bool] | None,
    done: Found,
    advance: Callable[[int], None],
) -> None:
    async for part in select(await app.views(), selection, newest=newest):
        keys = [job.key for job in part.jobs if matches is None or matches(job)]
        try:
            answers = await verb.act(app, keys)
        except SERVER_ERRORS as error:
            # What of this part was done nobody knows; to ask for it again changes nothing.
            before = f"{jobs_of(done.count)} {verb.done} before that, or more; run it again for the rest"
            raise type(error)(f"{error}. {before}") from error
        for key, answer in zip(keys, answers, strict=True):
            if not isinstance(answer, DulyError):
                done.topics[key.topic] += 1
                continue
            # It moved on between being found and being asked.
            done.refused[type(answer).__name__] += 1
            if len(done.first) < SHOWN:
                done.first.append(str(answer))
        advance(part.seen)


async def _total(app: Duly, selection: Selection) -> int:
    """
    How many jobs have to be looked at.
    """
    chosen = selection.narrowed()
    topics = (await (await app.views()).stats()).topics
    return sum(
        about.counts[state.name]
        for about in topics
        for state in chosen.states
        if chosen.topics is None or about.topic in chosen.topics
    )


def _report(verb: Verb, done: Found, *, as_json: bool) -> int:
    count = sum(done.refused.values())
    if as_json:
        print_json(
            {
                "verb": verb.name,
                "done": done.count,
                "refused": count,
                "topics": dict(done.topics),
                "first_refused": done.first,
            }
        )
    else:
        for sentence in done.first:
            say(f"duly: {sentence}")
        print(f"{jobs_of(done.count)} {verb.done}" + (f", {count:,} refused" if count else ""))
    return NO if count else OK


def _selection(
    verb: Verb,
    default: tuple[JobState, ...],
    topics: tuple[str, ...],
    states: tuple[str, ...],
    where: Where | None,
) -> Selection | None:
    if not topics and not states and where is None:
        return None
    chosen = tuple(JobState[name] for name in states)
    for each in chosen:
        if each not in verb.states:
            raise UsageError(f"{each.name} jobs cannot be {verb.done}")
    if not chosen:
        chosen = verb.states if where is not None and "state" in where.only else default
    return Selection(chosen, topics or None, where)


_keys = click.argument("keys", type=KEY, nargs=-1, metavar="[TOPIC/ID]...")


@click.command(
    epilog=examples(
        "duly jobs cancel mail/42 mail/43",
        "duly jobs cancel --where 'topic = mail and context.tenant = acme'",
    )
)
@_keys
@topic
@state
@where
@yes
@server
@as_json
def cancel(
    keys: tuple[JobKey, ...],
    topics: tuple[str, ...],
    states: tuple[str, ...],
    where: Where | None,
    yes: bool,
    as_json: bool,
) -> int:
    """
    End jobs that have not ended, running ones, too.

    Either those named, or all that --where, --topic and --state choose; then they are counted, and you are
    asked.
    """
    selection = _selection(CANCEL, OPEN, topics, states, where)
    return steer(CANCEL, keys, selection, sure=yes, as_json=as_json)


@click.command(
    epilog=examples(
        "duly jobs reschedule mail/42 --delay 2h",
        "duly jobs reschedule --topic mail --where 'due < now+1h' --due-at 2026-02-01T06:00:00Z --yes",
    )
)
@_keys
@click.option("--delay", type=DURATION, help="How long from now: 90, 90s, 1h30m, PT1H30M; 0 is at once.")
@click.option("--due-at", type=TIME, help="When: RFC 3339 with an offset, 2026-01-31T09:00:00Z.")
@topic
@state
@where
@yes
@server
@as_json
def reschedule(
    keys: tuple[JobKey, ...],
    delay: timedelta | None,
    due_at: datetime | None,
    topics: tuple[str, ...],
    states: tuple[str, ...],
    where: Where | None,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Give jobs that have not started another due time.

    Either those named, or all that --where, --topic and --state choose; then they are counted, and you are
    asked.
    """
    if (delay is None) == (due_at is None):
        raise UsageError("say either --delay or --due-at")
    verb = Verb("reschedule", "rescheduled", WAITING, _rescheduling(delay, due_at))
    selection = _selection(verb, WAITING, topics, states, where)
    return steer(verb, keys, selection, sure=yes, as_json=as_json)


@click.command(
    epilog=examples(
        "duly jobs requeue mail/42",
        "duly jobs requeue --where 'error ~ timeout and finished > now-1h'",
        "duly jobs requeue --topic mail --state cancelled",
    )
)
@_keys
@topic
@state
@where
@yes
@server
@as_json
def requeue(
    keys: tuple[JobKey, ...],
    topics: tuple[str, ...],
    states: tuple[str, ...],
    where: Where | None,
    yes: bool,
    as_json: bool,
) -> int:
    """
    Run ended jobs again.

    Either those named, or all that --where, --topic and --state choose: dead ones, unless another state is
    said. Then they are counted, and you are asked.
    """
    selection = _selection(REQUEUE, (JobState.dead,), topics, states, where)
    return steer(REQUEUE, keys, selection, sure=yes, as_json=as_json)
