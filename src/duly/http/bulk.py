"""
Many jobs in one call: cancel and requeue them by name, with an outcome for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from duly.durations import say_time
from duly.errors import DulyError
from duly.http import idempotency
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.grammar import ID_PATTERN, TOPIC_PATTERN
from duly.http.jobs import queue_for
from duly.http.operations import Answer, Operation
from duly.http.problems import Problem, problem_of
from duly.job import JobKey, JobState, Placed, check_id, check_topic, moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from duly.audit import Action
    from duly.http.service import Service
    from duly.ids import Repeatable

MOST = 1000  #: jobs of one call


class JobName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Which job.
    """

    topic: Annotated[str, msgspec.Meta(pattern=TOPIC_PATTERN, min_length=1, max_length=100)]
    id: Annotated[str, msgspec.Meta(pattern=ID_PATTERN, min_length=1, max_length=200)]


class JobNames(msgspec.Struct, forbid_unknown_fields=True):
    """
    Which jobs.
    """

    jobs: Annotated[list[JobName], msgspec.Meta(max_length=MOST)]


class JobOutcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What became of one job: it was cancelled or requeued, had ended before, was accepted for the table of
    far-future jobs, or was refused with a problem.
    """

    topic: str
    id: str
    outcome: Literal["cancelled", "requeued", "ended", "accepted", "refused"]
    state: str | None = None
    revision: int | None = None
    due_at: str | None = None
    problem: dict[str, Any] | None = None


class JobOutcomes(msgspec.Struct):
    """
    One outcome for each job, in their order.
    """

    jobs: list[JobOutcome]


_names = msgspec.json.Decoder(JobNames)


async def cancel(service: Service, request: Request) -> Response:
    """
    End jobs, also while they run.
    """

    async def act(keys: list[JobKey], call: Repeatable | None) -> list[JobOutcome | None]:
        states = await (await queue_for(service, call)).cancel(keys)
        return [
            None if state is None else _cancelled(key, state) for key, state in zip(keys, states, strict=True)
        ]

    return await _each(service, request, "cancel", act)


def _cancelled(key: JobKey, state: JobState | str) -> JobOutcome:
    if not isinstance(state, JobState):
        return JobOutcome(topic=key.topic, id=key.id, outcome="accepted")
    outcome: Literal["cancelled", "ended"] = "cancelled" if state is JobState.cancelled else "ended"
    return JobOutcome(topic=key.topic, id=key.id, outcome=outcome, state=state.name)


async def requeue(service: Service, request: Request) -> Response:
    """
    Run jobs again that have ended.
    """

    async def act(keys: list[JobKey], call: Repeatable | None) -> list[JobOutcome | None]:
        placed = await (await queue_for(service, call)).requeue(keys)
        return [_requeued(key, each) for key, each in zip(keys, placed, strict=True)]

    return await _each(service, request, "requeue", act)


def _requeued(key: JobKey, answered: Placed | DulyError) -> JobOutcome:
    if isinstance(answered, DulyError):
        return _refused(key, problem_of(answered))
    due = moment(answered.due_ms)
    return JobOutcome(
        topic=key.topic,
        id=key.id,
        outcome="requeued",
        state=answered.state.name,
        revision=answered.revision,
        due_at=say_time(due) if due else None,
    )


def _refused(key: JobKey, problem: Problem) -> JobOutcome:
    return JobOutcome(topic=key.topic, id=key.id, outcome="refused", problem=problem.document())


async def _each(
    service: Service,
    request: Request,
    verb: Action,
    act: Callable[[list[JobKey], Repeatable | None], Awaitable[Sequence[JobOutcome | None]]],
) -> Response:
    """
    Do something to the jobs that a request names, as far as its key allows it.
    """
    wanted = await read_json(request, _names, service.settings.body_limit)
    names = [JobKey(check_topic(each.topic), check_id(each.id)) for each in wanted.jobs]
    key = request.state.key
    allowed = [name for name in dict.fromkeys(names) if key is None or key.sees(name.topic)]
    call = idempotency.call_of(request, verb, wanted)
    done = dict(zip(allowed, await act(allowed, call) if allowed else (), strict=True))
    outcomes: list[JobOutcome] = []
    for name in names:
        if name not in done:
            detail = f"key {key.name} does not see topic {name.topic}"
            outcomes.append(_refused(name, Problem("forbidden", detail)))
            continue
        detail = f"there is no job {name}: it was pruned, or never was"
        outcomes.append(done[name] or _refused(name, Problem("job-not-found", detail)))
    changed = sum(each.outcome in ("cancelled", "requeued", "accepted") for each in outcomes)
    request.state.audited, request.state.changed = {"count": changed}, changed > 0
    return answer(JobOutcomes(outcomes))


def _operation(name: str, verb: Action, about: str, run: Any) -> Operation:
    return Operation(
        name=name,
        method="POST",
        path=f"/v1/jobs:{verb}",
        about=about,
        run=run,
        scope="enqueue",
        of_topics=True,
        audit=verb,
        parameters=(idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        body=JobNames,
        answers={200: Answer("one outcome for each job, in their order", JobOutcomes)},
        problems=("too-large", "unsupported", "invalid"),
    )


OPERATIONS = [
    _operation(
        "cancelJobs",
        "cancel",
        f"End jobs by name, up to {MOST}, also while they run. Each has an outcome of its own.",
        cancel,
    ),
    _operation(
        "requeueJobs",
        "requeue",
        f"Run jobs again that have ended, by name, up to {MOST}. Each has an outcome of its own.",
        requeue,
    ),
]
