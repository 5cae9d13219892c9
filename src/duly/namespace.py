"""
A namespace: the shards that belong together, made on first use and checked on every start.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from duly.errors import LayoutMismatch, ServerUnsuitable
from duly.keys import LAYOUT, ShardKeys

if TYPE_CHECKING:
    from duly.connection import Link

OLDEST_REDIS = (7, 0)
OLDEST_VALKEY = (7, 2)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """
    What the server says of itself, as far as jobs depend on it.
    """

    name: Literal["Redis", "Valkey"]
    version: tuple[int, ...]
    run_id: str
    uptime_s: int = 0
    memory_bytes: int = 0
    max_memory_bytes: int = 0  #: 0 means no limit
    clients: int = 0
    warnings: tuple[str, ...] = field(default=())


async def create(
    link: Link,
    namespace: str,
    shards: int,
    *,
    clock: Literal["server", "test"] = "server",
    max_event_rows: int = 1_000_000,
    max_event_bytes: int = 256 * 1024 * 1024,
) -> list[str]:
    """
    Make the shards of *namespace*, or check that they are as this client thinks; the answer is their epochs.

    Raises:
        LayoutMismatch: The namespace exists with another layout, shard count or clock.
    """
    epochs = []
    for shard in range(shards):
        args = [LAYOUT, shards, clock, secrets.token_hex(8), max_event_rows, max_event_bytes]
        answer = await link.run("create", [ShardKeys(namespace, shard).fixed["meta"]], args)
        layout, its_shards, its_clock, epoch = (part.decode() for part in answer)
        _match_layout(namespace, layout)
        _match(namespace, "shard count", its_shards, str(shards), f"set shards = {its_shards}")
        _match(namespace, "clock", its_clock, clock, "a namespace keeps the clock that it was created with")
        epochs.append(epoch)
    return epochs


async def require(link: Link, namespace: str) -> None:
    """
    Insist that somebody has made *namespace*, for those who only look at it.

    Raises:
        LayoutMismatch: Nobody has, or a release of duly with another layout.
    """
    layout = await link.call("HGET", ShardKeys(namespace, 0).fixed["meta"], "layout")
    if layout is None:
        msg = (
            f"there is no namespace {namespace!r} at {link.place}: no app has used it yet; "
            "check the namespace and the server"
        )
        raise LayoutMismatch(msg)
    _match_layout(namespace, layout.decode())


def _match_layout(namespace: str, layout: str) -> None:
    remedy = (
        f"let the duly that made it run its jobs to their end and delete its keys ({{{namespace}:*), "
        "or choose another namespace"
    )
    _match(namespace, "layout version", layout, LAYOUT, remedy)


def _match(namespace: str, what: str, theirs: str, ours: str, remedy: str) -> None:
    if theirs != ours:
        msg = f"namespace {namespace!r} has {what} {theirs}, this client expects {ours}: {remedy}"
        raise LayoutMismatch(msg)


async def inspect(link: Link) -> ServerFacts:
    """
    Ask the server whether jobs are safe with it.

    Raises:
        ServerUnsuitable: It is too old, or would evict jobs.
    """
    info = _fields(await link.call("INFO", "everything"))
    # Valkey reports a Redis version for compatibility: ask for its own first.
    name: Literal["Redis", "Valkey"] = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get("valkey_version") or info.get("redis_version", "0")
    version = tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
    oldest = OLDEST_VALKEY if name == "Valkey" else OLDEST_REDIS
    if version < oldest:
        msg = f"{link.place} runs {name} {text}; duly needs {name} {oldest[0]}.{oldest[1]} or later"
        raise ServerUnsuitable(msg)
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        msg = (
            f"{link.place} has maxmemory-policy {policy}: under memory pressure it would delete jobs. "
            "Set `maxmemory-policy noeviction` (by CONFIG SET, and in its configuration file)"
        )
        raise ServerUnsuitable(msg)
    warnings = []
    if info.get("aof_enabled", "0") == "0":
        warnings.append(
            f"{link.place} has no append-only file: a restart loses jobs. "
            "Set `appendonly yes` (by CONFIG SET, and in its configuration file)"
        )
    elif info.get("aof_last_write_status", "ok") != "ok":
        warnings.append(f"{link.place} could not write its append-only file: is the disk full?")
    return ServerFacts(
        name,
        version,
        info.get("run_id", ""),
        int(info.get("uptime_in_seconds", "0")),
        int(info.get("used_memory", "0")),
        int(info.get("maxmemory", "0")),
        int(info.get("connected_clients", "0")),
        tuple(warnings),
    )


def _fields(text: bytes) -> dict[str, str]:
    lines = (line for line in text.decode().splitlines() if line and not line.startswith("#"))
    return dict(line.partition(":")[::2] for line in lines)
