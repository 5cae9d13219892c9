"""
What `--json` prints: a promise to programs.  The reference shows it; tests hold every command to it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

State = Literal["scheduled", "ready", "running", "succeeded", "dead", "cancelled"]


class Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """
    Every field is there, and no other.
    """


class Error(Strict):
    """
    Why a job failed.
    """

    type: str  #: of the exception, or a word of duly's: cancelled, expired, crashed, unreadable, …
    message: str | None = None
    traceback: str | None = None


class Job(Strict):
    """
    One job.
    """

    topic: str
    id: str
    state: State
    revision: int  #: grows with every new version of the job
    priority: Literal["high", "normal", "low"]
    attempts: int  #: runs that were counted
    crashes: int
    due_at: str | None  #: all times are RFC 3339 in UTC
    scheduled_for: str | None  #: when its first run was due; retries leave it
    created_at: str | None  #: when its id was accepted first
    updated_at: str | None  #: when it changed its state or its due time last
    started_at: str | None
    finished_at: str | None
    lateness_ms: int | None  #: from due to start, of the last run
    expires: str | None
    ttr: float | None  #: seconds; null: the handler's
    max_attempts: int | None  #: its own, else the handler's, else that of the settings
    backoff: dict[str, Any] | None  #: null: the handler's
    retain: float | None  #: seconds; null: the namespace's
    callback: str | None
    reply_to: str | None  #: the queue that is told when it has ended
    context: dict[str, Any] | None
    worker: str | None  #: who ran it last
    lease_until: str | None  #: of a running job
    progress: Any
    payload: Any
    unreadable: str | None  #: the payload, if it is no JSON
    result: Any  #: of a succeeded job
    result_gone: bool  #: true: it has succeeded, and its result was not kept (`retain=0`)
    error: Error | None  #: of the last attempt, or why it ended


class ListedJob(Job):
    """
    One job of a list.
    """

    cursor: str  #: what --after takes to go on behind it


class EndedJob(Strict):
    """
    A job as it was when it ended.
    """

    topic: str
    id: str
    state: Literal["succeeded", "dead", "cancelled"]
    revision: int
    priority: Literal["high", "normal", "low"]
    attempts: int
    crashes: int
    due_at: str | None
    scheduled_for: str | None  #: when its first run was due
    created_at: str | None  #: when its id was accepted first
    updated_at: str | None  #: when it ended
    started_at: str | None
    finished_at: str | None
    lateness_ms: int | None
    expires: str | None
    ttr: float | None  #: seconds; null: the handler's
    max_attempts: int | None  #: its own, else the handler's, else that of the settings
    backoff: dict[str, Any] | None  #: null: the handler's
    retain: float | None  #: seconds; null: the namespace's
    callback: str | None
    reply_to: str | None
    context: dict[str, Any] | None
    result: Any
    error: Error | None


class Reply(Strict):
    """
    What became of one job.
    """

    id: str  #: of the reply: the same when it comes again
    job: EndedJob


class Enqueued(Strict):
    """
    A job that was sent.
    """

    topic: str
    id: str
    outcome: Literal["created", "kept", "replaced"]
    revision: int
    state: State
    due_at: str
    result: Any | msgspec.UnsetType = msgspec.UNSET  #: with --wait only


class RefusedLine(Strict):
    """
    A line that was refused.
    """

    line: int
    error: str


class Submitted(Strict):
    """
    What became of many jobs.
    """

    read: int
    created: int
    kept: int
    replaced: int
    refused: int
    unknown: int  #: may have been stored or not
    refusals: dict[str, int]  #: by the kind of error
    first_refused: list[RefusedLine]  #: the first ten
    seconds: float


class Steered(Strict):
    """
    A job that was named.
    """

    topic: str
    id: str
    outcome: Literal["cancelled", "rescheduled", "requeued", "accepted", "refused"]
    state: State | None
    due_at: str | None
    error: str | None  #: why it was refused


class SteeredMany(Strict):
    """
    Jobs that were chosen by a filter.
    """

    verb: Literal["cancel", "reschedule", "requeue"]
    done: int
    refused: int  #: that moved on between being found and being asked
    topics: dict[str, int]  #: done, by topic
    first_refused: list[str]  #: why, for the first ten


class Quarantined(Strict):
    """
    A stored job that cannot be read.
    """

    topic: str
    id: str
    shard: int
    bytes: int  #: stored of it, without a body that is kept apart
    since: str | None  #: when it was put aside; null if that was long ago


class QuarantinedContent(Quarantined):
    """
    What may still be true of it: what stands where the state and the numbers of a job should stand.
    """

    state: State | None
    attempts: int | None
    crashes: int | None
    revision: int | None
    text: str  #: what looks like text in it
    record: str  #: all that is stored, as base64
    body: str  #: likewise, where it is kept apart


class Dropped(Strict):
    """
    A job in quarantine that was named.
    """

    topic: str
    id: str
    outcome: Literal["dropped", "refused"]
    error: str | None  #: why it was refused


class DroppedAll(Strict):
    """
    All jobs in quarantine.
    """

    dropped: int


class Topic(Strict):
    """
    A topic, with how many jobs are in which state.
    """

    topic: str
    scheduled: int
    ready: int
    running: int
    succeeded: int
    dead: int
    cancelled: int
    paused: bool
    limit: int | None
    workers: int  #: live ones that take it
    callback: str | None  #: where its jobs are delivered to


class Paused(Strict):
    """
    A topic that was paused or resumed.
    """

    topic: str
    paused: bool


class Limited(Strict):
    """
    A topic after it was set.
    """

    topic: str
    limit: int | None
    callback: str | None  #: where its jobs are delivered to


class Purged(Strict):
    """
    A topic that was purged.
    """

    topic: str
    purged: int


class Death(Strict):
    """
    Dead jobs of one topic and one kind of error.
    """

    topic: str
    error: str  #: type and message, numbers and ids shown as #
    count: int
    first_at: str
    last_at: str
    example: str  #: the id of the last one


class Worker(Strict):
    """
    A worker.
    """

    worker: str
    host: str
    pid: int  #: 0 for one that works over HTTP
    topics: list[str]
    concurrency: int  #: how many jobs it takes at once
    running: int
    claimed: int
    finished: int
    fenced: int  #: runs whose outcome came too late to count
    silent_ms: int  #: since it was heard last
    live: bool


class TopicNow(Topic):
    """
    A topic, and how long the oldest of its ready jobs has waited.
    """

    overdue_ms: int | None


class Totals(Strict):
    """
    Jobs of all topics.
    """

    scheduled: int
    ready: int
    running: int
    succeeded: int
    dead: int
    cancelled: int


class Workers(Strict):
    """
    How many work.
    """

    live: int
    silent: int
    running: int  #: jobs
    slots: int


class Events(Strict):
    """
    The event stream.
    """

    fill: float  #: of its bound, 0 to 1
    consumers: dict[str, int]  #: how many script calls each is behind


class Server(Strict):
    """
    The server.
    """

    name: Literal["Redis", "Valkey"]
    version: str
    uptime_s: int
    memory_bytes: int
    max_memory_bytes: int | None
    clients: int
    warnings: list[str]


class Run(Strict):
    """
    The last run of a pipeline.
    """

    name: str
    ended_at: str
    seconds: float
    counts: dict[str, int]
    error: str | None  #: what was wrong


class Stats(Strict):
    """
    The queue at a glance.
    """

    namespace: str
    topics: list[TopicNow]
    totals: Totals
    next_due_at: str | None
    unpromoted_ms: int  #: how long a due job has waited for a timer; more than five seconds: no worker runs
    workers: Workers
    events: Events
    server: Server
    quarantined: int  #: stored jobs that cannot be read
    runs: list[Run]
    more_topics: int  #: that are not told here: over HTTP, of very many


class Actor(Strict):
    """
    Who changed something.
    """

    kind: Literal["key", "user", "address"]  #: an API key, a user of the operating system, or an address
    name: str
    id: str  #: of the key; of the user, its number and machine


class AuditRecord(Strict):
    """
    A change.
    """

    at: str
    action: Literal[
        "pause",
        "resume",
        "limit",
        "purge",
        "cancel",
        "requeue",
        "reschedule",
        "drop",
        "create-key",
        "revoke-key",
    ]
    via: Literal["http", "cli"]
    by: Actor
    topic: str | None
    id: str | None  #: of the job
    key: str | None  #: the id of the API key
    details: dict[str, Any]  #: what else is known, such as the limit, or how many jobs


class Completion(Strict):
    """
    A script for a shell.
    """

    shell: Literal["bash", "zsh", "fish"]
    script: str


class Key(Strict):
    """
    An API key, without its secret.
    """

    id: str
    name: str
    scopes: list[Literal["enqueue", "work", "read", "admin"]]
    topics: list[str] | None  #: patterns; null means every topic
    created_at: str | None  #: null for one that the environment brings


class NewKey(Key):
    """
    An API key that was just made.
    """

    key: str  #: what to send; shown this once


#: What each command prints: one document, or (lines) one on each line.
SHAPES: dict[str, tuple[type[Strict], Literal["document", "lines"]]] = {
    "audit": (AuditRecord, "lines"),
    "completion": (Completion, "document"),
    "dead ls": (Death, "lines"),
    "dead requeue": (SteeredMany, "document"),
    "enqueue": (Enqueued, "document"),
    "jobs cancel": (Steered, "lines"),
    "jobs ls": (ListedJob, "lines"),
    "jobs quarantine drop": (Dropped, "lines"),
    "jobs quarantine ls": (Quarantined, "lines"),
    "jobs quarantine show": (QuarantinedContent, "document"),
    "jobs requeue": (Steered, "lines"),
    "jobs reschedule": (Steered, "lines"),
    "jobs show": (Job, "document"),
    "keys create": (NewKey, "document"),
    "keys ls": (Key, "lines"),
    "keys revoke": (Key, "lines"),
    "replies": (Reply, "lines"),
    "stats": (Stats, "document"),
    "submit": (Submitted, "document"),
    "topics ls": (Topic, "lines"),
    "topics pause": (Paused, "document"),
    "topics purge": (Purged, "document"),
    "topics resume": (Paused, "document"),
    "topics set": (Limited, "document"),
    "workers ls": (Worker, "lines"),
}

#: What the same commands print where jobs are chosen instead of named.
CHOSEN: dict[str, type[Strict]] = {
    **dict.fromkeys(("jobs cancel", "jobs requeue", "jobs reschedule"), SteeredMany),
    "jobs quarantine drop": DroppedAll,
}


def read(command: str, out: str, *, chosen: bool = False) -> Any:
    """
    What a command printed, if it has the shape that was promised.
    """
    kind, form = (CHOSEN[command], "document") if chosen else SHAPES[command]
    if form == "document":
        return msgspec.json.decode(out, type=kind)
    return [msgspec.json.decode(line, type=kind) for line in out.splitlines()]
