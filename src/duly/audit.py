"""
The audit: who changed what, over HTTP or at the command line.  Never what a job was given.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import secrets
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from duly.durations import say_time
from duly.errors import DulyError, UsageError
from duly.job import moment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from duly.store import Store

    Ask = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Awaitable[Any]]

log = logging.getLogger("duly.audit")

KEPT = 10_000  #: records of a namespace; older ones are dropped
SAME_MS = 600_000  #: two records of one mark that are no further apart are about one change
WRITE_S = 2.0  #: how long a change that was made waits for its record

Action = Literal[
    "pause",
    "resume",
    "limit",
    "callback",
    "purge",
    "cancel",
    "requeue",
    "reschedule",
    "drop",
    "create-key",
    "revoke-key",
]
Via = Literal["http", "cli"]

_CURSOR = re.compile(r"\d{1,19}-\d{1,19}")


async def _ask(question: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async with asyncio.timeout(WRITE_S):
        return await question()


class Actor(msgspec.Struct, frozen=True):
    """
    Who did it: an API key, a user of the operating system, or where no keys are set up, an address.
    """

    kind: Literal["key", "user", "address"]
    name: str
    id: str = ""  #: of the key; of the user, its number and machine


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    What was done, to what.
    """

    action: Action
    topic: str | None = None
    id: str | None = None  #: of the job
    key: str | None = None  #: the id of the API key
    details: dict[str, Any] = {}


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """
    One change: when, who, how, what, to what.
    """

    at: str
    action: Action
    via: Via
    by: Actor
    topic: str | None
    id: str | None
    key: str | None
    details: dict[str, Any]


class _Stored(msgspec.Struct, frozen=True):
    by: Actor
    via: Via
    change: Change
    mark: str  #: of the change: a record that was written twice is told once


def this_user() -> Actor:
    """
    Who runs this process.
    """
    try:
        import pwd  # noqa: PLC0415  # not everywhere

        number = os.getuid()
        name = pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        number = os.getuid() if hasattr(os, "getuid") else 0
        name = str(number)
    return Actor("user", name, f"{number}@{socket.gethostname()}")


class Audit:
    """
    The changes of a namespace, the newest of them kept.
    """

    def __init__(self, store: Store, ask: Ask | None = None) -> None:
        """
        Prepare; *ask* asks a queue that may be away, and gives up on it by itself.
        """
        self._store = store
        self._ask = ask or _ask

    async def note(self, by: Actor, via: Via, *changes: Change, mark: str | None = None) -> None:
        """
        Keep and log that changes were made; one that is noted again with the same *mark* is told once.

        They stand, whether or not a record can be written; the lines in the log are there in any case.
        """
        away = False
        for number, change in enumerate(changes):
            on = "/".join(part for part in (change.topic, change.id) if part) or change.key or "many jobs"
            who = f"{by.kind} {by.name}" + (f" ({by.id})" if by.id else "")
            fields = {"action": change.action, "topic": change.topic, "id": change.id, "key": change.key}
            told = {name: value for name, value in fields.items() if value} | {"by": by.name, "via": via}
            log.info("%s of %s by %s over %s", change.action, on, who, via, extra=told)
            own = secrets.token_hex(6) if mark is None else f"{mark}-{number}"
            away = away or not await self._write(_Stored(by, via, change, own))
            if away:
                log.error("%s of %s was done and could not be recorded", change.action, on, extra=told)

    async def _write(self, stored: _Stored) -> bool:
        about = msgspec.json.encode(stored)
        try:
            await self._ask(
                partial(self._store.link.call, "XADD", self._key, "MAXLEN", "=", KEPT, "*", "about", about)
            )
        except (DulyError, TimeoutError) as error:
            log.warning("the audit: %s", str(error) or "no answer in time")
            return False
        return True

    async def newest(
        self, limit: int = 100, before: str | None = None
    ) -> tuple[list[AuditRecord], str | None]:
        """
        Up to *limit* records, the newest first, with *before* those behind a cursor; and where to go on.

        Raises:
            UsageError: The cursor is not one of ours.
        """
        if before is not None and not _CURSOR.fullmatch(before):
            raise UsageError(f"cursor={before!r} is not one that a page of this list gave")
        if before is not None and not before.strip("0-"):
            return [], None  # the server refuses to look before the first id there can be
        end = "+" if before is None else f"({before}"
        entries = await self._store.link.call("XREVRANGE", self._key, end, "-", "COUNT", limit)
        found: list[AuditRecord] = []
        known: dict[str, tuple[int, int]] = {}
        for entry, fields in entries:
            stored = msgspec.json.decode(fields[1], type=_Stored)
            at_ms, record = int(entry.partition(b"-")[0]), _record(entry.decode(), stored)
            later_ms, place = known.get(stored.mark, (math.inf, 0))
            if later_ms - at_ms > SAME_MS:
                place = len(found)
                found.append(record)
            else:  # its reply was lost, or the change was asked for again: the older one tells when
                found[place] = record
            known[stored.mark] = at_ms, place
        return found, entries[-1][0].decode() if len(entries) == limit else None

    @property
    def _key(self) -> str:
        return self._store.keys[0].fixed["audit"]


def _record(entry: str, stored: _Stored) -> AuditRecord:
    at = moment(int(entry.partition("-")[0]))
    change = stored.change
    return AuditRecord(
        at=say_time(at) if at else "",
        action=change.action,
        via=stored.via,
        by=stored.by,
        topic=change.topic,
        id=change.id,
        key=change.key,
        details=change.details,
    )
