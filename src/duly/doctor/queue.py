"""
Checks of a namespace: its layout, its workers, its jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.apikeys import KeyRing
from duly.doctor import record
from duly.doctor.finding import Finding, listed
from duly.feed import Feed
from duly.figures import amount
from duly.idempotency import Entries, callers_of
from duly.keys import LAYOUT, ShardKeys
from duly.settings import MIB
from duly.views import Views

if TYPE_CHECKING:
    from duly.doctor.server import Patient
    from duly.views import Stats

OVERDUE_MS = 5_000
FILL_HINT, FILL_PROBLEM = 0.5, 0.9
KEYS_HINT, KEYS_PROBLEM = 0.8, 0.95


async def namespace(patient: Patient) -> Finding:
    """
    Whether it is what this client thinks.
    """
    store = patient.store
    told = await store.link.call("HMGET", store.keys[0].fixed["meta"], "layout", "shards", "clock")
    layout, shards, clock = (value.decode() if value else None for value in told)
    name = store.namespace
    if layout is None or shards is None:
        return Finding(
            "namespace",
            "hint",
            f"there is no namespace {name!r}: no app has used it yet",
            "check the namespace and the server; the first use makes it",
        )
    if layout != LAYOUT:
        return Finding(
            "namespace",
            "problem",
            f"{name!r} has layout version {layout}, this client speaks {LAYOUT}",
            "use a duly that speaks it, or another namespace",
        )
    if int(shards) != store.shards:
        return Finding(
            "namespace",
            "problem",
            f"{name!r} has {shards} shards, the settings say {store.shards}",
            f"set shards = {shards}: it is fixed when the namespace is made",
        )
    if clock == "test":
        return Finding(
            "namespace",
            "problem",
            f"{name!r} was made for tests: its time stands still unless a test moves it",
            "use another namespace",
        )
    lacking = [
        str(shard)
        for shard in range(store.shards)
        if not await store.link.call("EXISTS", ShardKeys(name, shard).fixed["meta"])
    ]
    if lacking:
        return Finding(
            "namespace",
            "problem",
            f"{name!r} lacks shards {listed(lacking)}: a part of the server's data is gone",
            "restore it; a worker that starts makes the shards anew, and empty",
        )
    count = "1 shard" if store.shards == 1 else f"{store.shards} shards"
    return Finding("namespace", "ok", f"{name!r}, layout {layout}, {count}")


async def stats_of(patient: Patient) -> Stats:
    """
    Counters, workers and what is overdue: asked once for all checks below.
    """
    return await Views(patient.store).stats()


def workers(stats: Stats, place: str) -> Finding:
    """
    Whether anybody works on the queue at *place*: a worker in another folder has another queue.
    """
    live = [worker for worker in stats.workers if worker["live"]]
    silent = len(stats.workers) - len(live)
    note = f"; {silent} fell silent within a day, killed or cut off" if silent else ""
    if live:
        return Finding("workers", "ok", f"{len(live)} alive, on {place}{note}")
    waiting = sum(topic.counts["ready"] for topic in stats.topics) or stats.overdue_ms > 0
    return Finding(
        "workers",
        "problem" if waiting else "hint",
        f"none is alive on {place}{', and jobs wait' if waiting else ''}{note}",
        "start one there, in the same folder or with the same --url: duly work module:app",
    )


def orphans(stats: Stats) -> Finding:
    """
    Whether jobs wait that no worker takes.
    """
    alone = [
        f"{topic.topic} ({topic.counts['ready']:,} ready)"
        for topic in stats.topics
        if topic.counts["ready"] and not topic.workers and not topic.paused
    ]
    if alone:
        return Finding(
            "topics without worker",
            "problem",
            f"due jobs wait for a worker that takes them: {listed(alone)}",
            "start a worker with a handler for the topic, or cancel its jobs: duly topics purge NAME",
        )
    return Finding("topics without worker", "ok", "none has due jobs")


def overdue(stats: Stats) -> Finding:
    """
    Whether due jobs are made ready.
    """
    if stats.overdue_ms > OVERDUE_MS:
        return Finding(
            "overdue",
            "problem",
            f"a job has been due for {amount(stats.overdue_ms)} and was not made ready: no timer runs",
            "start a worker, and see that not all have --role follower",
        )
    return Finding("overdue", "ok", "what is due is made ready")


def dead(stats: Stats) -> Finding:
    """
    Whether jobs have given up.
    """
    found = [f"{topic.topic} ({topic.counts['dead']:,})" for topic in stats.topics if topic.counts["dead"]]
    if found:
        return Finding(
            "dead jobs",
            "hint",
            f"{sum(topic.counts['dead'] for topic in stats.topics):,}: {listed(found)}",
            "duly dead ls says why, duly dead requeue runs them again",
        )
    return Finding("dead jobs", "ok", "none")


def quarantine(stats: Stats) -> Finding:
    """
    Whether stored jobs are damaged.
    """
    if stats.quarantined:
        return Finding(
            "damaged jobs",
            "problem",
            f"{stats.quarantined:,} in quarantine: what is stored of them cannot be read",
            "duly jobs quarantine ls and show tell what is left, drop removes it; look for the cause: "
            "the server's disk or memory, or another program that writes to its keys",
        )
    return Finding("damaged jobs", "ok", "none")


def paused(stats: Stats) -> Finding:
    """
    Whether topics stand still on purpose.
    """
    found = [f"{topic.topic} ({topic.counts['ready']:,} ready)" for topic in stats.topics if topic.paused]
    if found:
        return Finding(
            "paused topics", "hint", listed(found), "duly topics resume NAME, if nobody needs them paused"
        )
    return Finding("paused topics", "ok", "none")


async def consumers(patient: Patient) -> Finding:
    """
    Whether those who read events keep up.
    """
    feed = Feed(patient.store)
    behind: dict[str, int] = {}
    fill = 0.0
    for shard in range(patient.store.shards):
        registered = await feed.consumers(shard)
        if not registered:
            continue
        last = await feed.last(shard)
        fill = max(fill, await feed.fill(shard))
        for name, counter in registered.items():
            behind[name] = behind.get(name, 0) + ((last.counter if last else 0) - counter)
    if not behind:
        return Finding("event consumers", "ok", "none is registered")
    told = [f"{name} ({lag:,} behind)" for name, lag in sorted(behind.items(), key=lambda item: -item[1])]
    if fill >= FILL_HINT:
        return Finding(
            "event consumers",
            "problem" if fill >= FILL_PROBLEM else "hint",
            f"events are kept for {listed(told)}, and the stream is {fill:.0%} full: at 100 % they are lost",
            "start the consumer, or forget it (Feed.forget), or raise events_rows and events_bytes",
        )
    return Finding("event consumers", "ok", listed(told))


async def request_keys(patient: Patient) -> Finding:
    """
    Whether there is room for requests that may be sent again.
    """
    settings, names = patient.settings, callers_of(await KeyRing(patient.store).all())
    if settings.record is None:
        most, keep_ms = settings.idempotency_bytes, settings.idempotency_ms
        used = await Entries(patient.store, keep_ms=keep_ms, most=most).used(names)
    else:
        used = await record.request_keys(settings, patient.store, names)
    full = sorted((-fill, names[caller]) for caller, fill in used.fills.items() if fill >= KEYS_HINT)
    if not full:
        return Finding("request keys", "ok", f"{used.bytes / MIB:.1f} MiB are kept of requests with a key")
    return Finding(
        "request keys",
        "problem" if -full[0][0] >= KEYS_PROBLEM else "hint",
        f"the share of {listed([f'{name} is {-fill:.0%} full' for fill, name in full])}: at 100 % new "
        "Idempotency-Keys and X-Async-Request-Ids are refused",
        "raise idempotency_bytes, lower idempotency, or find out who sends so many",
    )
