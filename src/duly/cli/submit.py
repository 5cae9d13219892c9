"""
``duly submit``: many jobs, from a file or made up.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from duly.cli.enqueue import read_payload
from duly.cli.lines import Read, batches, read_lines
from duly.cli.loop import session
from duly.cli.main import COMMANDS, NO, OK
from duly.cli.options import DURATION, TOPIC, app_of, as_json, examples, server
from duly.cli.output import print_json, progress, say
from duly.errors import SERVER_ERRORS, DulyError, OutcomeUnknown, UsageError
from duly.newjob import NewJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from duly.app import Duly
    from duly.cli.loop import Ask

SHOWN = 10  #: refused lines that are shown; all are counted


@dataclass(slots=True)
class Tally:
    """
    What became of the jobs so far.
    """

    read: int = 0
    words: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: int = 0  #: may have been stored or not
    first: list[dict[str, Any]] = field(default_factory=list)

    def refuse(self, line: Read, error: DulyError) -> None:
        """
        Count a line that was refused, and keep the first ones to show.
        """
        self.refused[type(error).__name__] += 1
        if len(self.first) < SHOWN:
            self.first.append({"line": line.number, "error": str(error)})


@click.command(
    short_help=COMMANDS["submit"][1],
    epilog=examples(
        "duly submit greet --count 50 --within 20s --payload '\"Ada\"'",
        "duly submit --from reminders.jsonl --rejects wrong.jsonl",
        "export-users | duly submit mail.welcome --from - --json",
    ),
)
@click.argument("topic", type=TOPIC, required=False)
@click.option("--from", "file", type=click.File("rb"), metavar="FILE", help="JSON lines to read; - is stdin.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Make up this many jobs of TOPIC.")
@click.option("--within", type=DURATION, help="With --count: spread their due times evenly over this.")
@click.option("--payload", metavar="JSON", help="With --count: what each is given.")
@click.option("--id", "prefix", metavar="PREFIX", help="With --count: ids PREFIX-1, PREFIX-2, …")
@click.option(
    "--rejects",
    type=click.File("wb"),
    metavar="FILE",
    help="With --from: keep refused and unknown lines here.",
)
@server
@as_json
def submit(
    topic: str | None,
    file: BinaryIO | None,
    count: int | None,
    within: timedelta | None,
    payload: str | None,
    prefix: str | None,
    rejects: BinaryIO | None,
    as_json: bool,
) -> int:
    """
    Send many jobs: those of a file of JSON lines, or COUNT made up ones of TOPIC.

    A line is an object: topic (or TOPIC), id, payload, delay or due_at, and the other options of a job.
    A refused line stops nothing; exits with 1 if there was one. Lines whose answer was lost are unknown: they
    may be stored or not. Lines with an id can be submitted again: what is there already is kept.
    """
    if (file is None) == (count is None):
        raise UsageError("say either --from FILE or TOPIC and --count")
    if count is not None:
        if topic is None:
            raise UsageError("say the TOPIC of the jobs to make up")
        if rejects is not None:
            raise UsageError("--rejects is for --from")
        lines = _made_up(NewJob(topic, read_payload(payload, "--payload")), count, within, prefix)
    else:
        for name, value in (("--within", within), ("--payload", payload), ("--id", prefix)):
            if value is not None:
                raise UsageError(f"{name} is for --count; with --from each line says it for itself")
        assert file is not None  # noqa: S101  # one of the two is there
        lines = read_lines(file, topic)
    app = app_of()
    tally, began = Tally(), time.monotonic()
    stopped: DulyError | None = None
    with session(app) as ask, progress("submitting", count) as advance:
        ask(app.queue())  # who cannot be reached at all is not worth a summary
        for batch in batches(lines):
            stopped = _send(ask, app, batch, tally, rejects)
            advance(len(batch))
            if stopped is not None:
                break
    _report(tally, time.monotonic() - began, as_json=as_json)
    if stopped is not None:
        raise type(stopped)(
            f"{stopped}. Stopped after line {tally.read}; submit all of it again: lines with an id make no "
            "second job"
        ) from stopped
    return NO if tally.refused else OK


def _made_up(job: NewJob[Any], count: int, within: timedelta | None, prefix: str | None) -> Iterator[Read]:
    for at in range(count):
        options: dict[str, Any] = {}
        if within is not None:
            options["delay"] = within * at / count
        if prefix is not None:
            options["id"] = f"{prefix}-{at + 1}"
        yield Read(at + 1, b"", job.options(**options) if options else job)


def _send(ask: Ask, app: Duly, batch: list[Read], tally: Tally, rejects: BinaryIO | None) -> DulyError | None:
    """
    Send one batch and count what became of it; the error is one after which there is no use in going on.
    """
    sent = [line for line in batch if isinstance(line.job, NewJob)]
    answers: dict[int, Any] = {line.number: line.job for line in batch if not isinstance(line.job, NewJob)}
    stopped: DulyError | None = None
    try:
        found = ask(app.enqueue_many([line.job for line in sent if isinstance(line.job, NewJob)]))
    except SERVER_ERRORS as error:
        return error
    answers |= {line.number: answer for line, answer in zip(sent, found, strict=True)}
    for line in batch:
        tally.read += 1
        answer = answers[line.number]
        if not isinstance(answer, DulyError):
            tally.words[answer.placed.word] += 1
            continue
        if isinstance(answer, SERVER_ERRORS):
            stopped = answer
        if isinstance(answer, OutcomeUnknown):
            tally.unknown += 1
        else:
            tally.refuse(line, answer)
        if rejects is not None and line.text:
            rejects.write(line.text + b"\n")
    return stopped


def _report(tally: Tally, seconds: float, *, as_json: bool) -> None:
    refused = sum(tally.refused.values())
    if as_json:
        print_json(
            {
                "read": tally.read,
                "created": tally.words["created"],
                "kept": tally.words["kept"],
                "replaced": tally.words["replaced"],
                "refused": refused,
                "unknown": tally.unknown,
                "refusals": dict(tally.refused),
                "first_refused": tally.first,
                "seconds": round(seconds, 3),
            }
        )
        return
    for each in tally.first:
        say(f"line {each['line']}: {each['error']}")
    if refused > len(tally.first):
        say(f"… and {refused - len(tally.first):,} more")
    words = [f"{number:,} {word}" for word, number in tally.words.items()]
    if refused:
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in tally.refused.items())
        words.append(f"{refused:,} refused ({kinds})")
    if tally.unknown:
        words.append(f"{tally.unknown:,} unknown")
    print(f"{tally.read:,} read in {seconds:.1f} s: {', '.join(words) or 'nothing to do'}")
