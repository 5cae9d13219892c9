"""
Checks of the server.
"""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.doctor.finding import Finding, listed
from duly.errors import DulyError
from duly.figures import amount
from duly.namespace import OLDEST_REDIS, OLDEST_VALKEY
from duly.scripts import library

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.settings import Settings
    from duly.store import Store

ROUNDS = 20
SLOW_MS, TOO_SLOW_MS = 5.0, 50.0
APART_MS, FAR_APART_MS = 100.0, 1_000.0
FULL, NEARLY_FULL = 0.9, 0.7


@dataclass(frozen=True, slots=True)
class Patient:
    """
    A server that answers, and what it said of itself.
    """

    store: Store
    settings: Settings
    info: dict[str, str]
    local: bool  #: whether it runs on this machine


async def version(patient: Patient) -> Finding:
    """
    Whether it is new enough.
    """
    info = patient.info
    valkey = "valkey_version" in info
    name, oldest = ("Valkey", OLDEST_VALKEY) if valkey else ("Redis", OLDEST_REDIS)
    text = info.get("valkey_version") or info.get("redis_version", "0")
    return judge_version(name, text, oldest)


def judge_version(name: str, text: str, oldest: tuple[int, int]) -> Finding:
    """
    Compare a version with the oldest that will do.
    """
    numbers = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    if numbers < oldest:
        needed = f"{name} {oldest[0]}.{oldest[1]}"
        return Finding("version", "problem", f"{name} {text} is too old", f"update it to {needed} or later")
    return Finding("version", "ok", f"{name} {text}")


async def persistence(patient: Patient) -> Finding:
    """
    Whether jobs outlive a restart.
    """
    info = patient.info
    if info.get("aof_enabled", "0") == "0":
        return Finding(
            "persistence",
            "problem",
            "there is no append-only file: a restart loses jobs",
            "appendonly yes, by CONFIG SET and in the server's configuration file",
        )
    if info.get("aof_last_write_status", "ok") != "ok":
        return Finding(
            "persistence", "problem", "the append-only file could not be written", "look for a full disk"
        )
    sync = ""
    # A user without the right to ask goes without this part.
    with suppress(DulyError):
        told = await patient.store.link.call("CONFIG", "GET", "appendfsync")
        sync = told[1].decode() if len(told) > 1 else ""
    if sync == "no":
        return Finding(
            "persistence",
            "hint",
            "appendfsync is no: a power loss may cost half a minute of jobs",
            "appendfsync everysec, or always",
        )
    return Finding("persistence", "ok", f"append-only file{f', synced {sync}' if sync else ''}")


async def eviction(patient: Patient) -> Finding:
    """
    Whether it would delete jobs when memory is short.
    """
    policy = patient.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return Finding(
            "eviction",
            "problem",
            f"maxmemory-policy is {policy}: under memory pressure it would delete jobs",
            "maxmemory-policy noeviction, by CONFIG SET and in the server's configuration file",
        )
    return Finding("eviction", "ok", "noeviction")


async def memory(patient: Patient) -> Finding:
    """
    Whether there is room for more jobs.
    """
    used, most = int(patient.info.get("used_memory", "0")), int(patient.info.get("maxmemory", "0"))
    text = f"{used / (1 << 20):,.1f} MiB used"
    if not most:
        if patient.settings.url is None:
            return Finding("memory", "ok", f"{text}, no limit")
        return Finding(
            "memory",
            "hint",
            f"{text}, and no limit: a full machine ends the server instead of refusing jobs",
            "set maxmemory below the memory of the machine",
        )
    text = f"{text} of {most / (1 << 20):,.1f}"
    share = used / most
    if share < NEARLY_FULL:
        return Finding("memory", "ok", text)
    return Finding(
        "memory",
        "problem" if share >= FULL else "hint",
        f"{text}: at the limit new jobs are refused",
        "raise maxmemory, or keep less: keep_succeeded_bytes, keep_dead_bytes, events_bytes",
    )


async def round_trip(patient: Patient) -> Finding:
    """
    How long the way to the server and back takes.
    """
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        # As cheap as PING, and allowed to users who may do no more than duly does.
        await patient.store.link.call("TIME")
        times.append((time.perf_counter() - began) * 1000)
    return judge_round_trip(statistics.median(times), max(times))


def judge_round_trip(median_ms: float, worst_ms: float) -> Finding:
    """
    Say what a round trip of this length means.
    """
    text = f"{median_ms:.2f} ms, the slowest of {ROUNDS} {worst_ms:.2f} ms"
    if median_ms < SLOW_MS:
        return Finding("round trip", "ok", text)
    return Finding(
        "round trip",
        "problem" if median_ms >= TOO_SLOW_MS else "hint",
        f"{text}: every job starts at least this much later",
        "run workers near the server, and look at its load",
    )


async def clock(patient: Patient, now: Callable[[], float] = time.time) -> Finding:
    """
    Whether this machine and the server agree on what time it is.
    """
    offsets = []
    for _ in range(5):
        before = now()
        seconds, micros = await patient.store.link.call("TIME")
        after = now()
        # The server looked at its clock at some time between the two; the shortest trip says it best.
        server_s = int(seconds) + int(micros) / 1e6
        offsets.append((after - before, (before + after) / 2 - server_s))
    trip_s, offset_s = min(offsets)
    apart_ms = max(0.0, abs(offset_s) - trip_s / 2) * 1000
    way = "ahead of" if offset_s > 0 else "behind"
    if apart_ms < APART_MS:
        return Finding("clock", "ok", f"this machine and the server agree to within {APART_MS:g} ms")
    return Finding(
        "clock",
        "problem" if apart_ms >= FAR_APART_MS else "hint",
        f"this machine is {amount(apart_ms)} {way} the server: due_at is taken from here and kept there",
        "let both keep their time by NTP; delay= is not affected",
    )


async def functions(patient: Patient) -> Finding:
    """
    Whether functions of other versions were left behind.
    """
    found = await patient.store.link.call("FUNCTION", "LIST", "LIBRARYNAME", "duly_*")
    names = [dict(zip(each[::2], each[1::2], strict=True))[b"library_name"].decode() for each in found]
    others = [name for name in names if name != library().name]
    if others:
        return Finding(
            "functions",
            "hint",
            f"another version of duly works here, or has: {listed(others)}",
            "once all processes run this version: "
            + "; ".join(f"FUNCTION DELETE {name}" for name in others[:5]),
        )
    return Finding("functions", "ok", f"{library().name} is loaded" if names else "none loaded yet")
