"""
The canary: a job of our own that goes all the way through the queue, to see whether others could.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import DulyError, LeaseLost, OutcomeUnknown, QueueFull, StoreUnavailable
from duly.job import JobKey, JobState, Order, shard_of
from duly.store import Want
from duly.views import CANARY, Views

if TYPE_CHECKING:
    from duly.store import Store

log = logging.getLogger("duly.canary")

FRESH_S = 1.0  #: how long an answer serves all who ask: asking often costs no more than asking once a second
LIMIT_S = 2.0  #: how long it may take
PAUSE_S = 0.02
TRIES = 10  #: claims that bring nothing although there is a job
AT_ONCE = 20  #: canaries that one claim takes: those of others that died are cleared away


class Sang(NamedTuple):
    """
    What became of a canary.
    """

    reason: str = ""  #: empty: it is well
    detail: str = ""


class _Silent(Exception):
    """
    A canary that did not come back.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.sang = Sang(reason, detail)


class Canary:
    """
    Enqueues, claims and finishes a job on every shard.

    Its jobs have the same ids each time, so that a process leaves one record on each shard at most, for a
    minute; and it prunes, in case nobody else does.
    """

    def __init__(self, store: Store, *, limit_s: float = LIMIT_S, fresh_s: float = FRESH_S) -> None:
        self._store, self._views = store, Views(store)
        self._limit_s, self._fresh_s = limit_s, fresh_s
        self.worker = f"canary-{os.getpid()}-{secrets.token_hex(4)}"
        self._keys = [_key_on(shard, store.shards, self.worker) for shard in range(store.shards)]
        self._lock = asyncio.Lock()
        self._sang = Sang()
        self._at_s = float("-inf")

    async def sing(self) -> Sang:
        """
        How the last canary is, or if that was more than a moment ago, how a new one is.
        """
        async with self._lock:
            if time.monotonic() - self._at_s >= self._fresh_s:
                before, self._sang = self._sang, await self._send()
                if self._sang.reason != before.reason:
                    log.warning("%s", self._sang.detail or "jobs get through the queue again")
                self._at_s = time.monotonic()
            return self._sang

    async def _send(self) -> Sang:
        try:
            async with asyncio.timeout(self._limit_s):
                await asyncio.gather(*(self._through(key) for key in self._keys))
                await self._store.beat(self.worker, b"")
        except TimeoutError:
            return Sang("slow", f"a job did not get through the queue within {self._limit_s:g} s")
        except _Silent as silent:
            return silent.sang
        except (StoreUnavailable, OutcomeUnknown):
            return Sang("unreachable", "the queue's server cannot be reached, or refused a call")
        except QueueFull:
            return Sang("full", f"topic {CANARY} is at its backlog limit; lift it")
        except DulyError as error:
            return Sang("failed", f"a job did not get through the queue: {type(error).__name__}")
        return Sang()

    async def _through(self, key: JobKey) -> None:
        store = self._store
        shard = shard_of(key.topic, key.id, store.shards)
        # Another payload each time, or an earlier one that has not ended would be kept.
        payload = f'"{secrets.token_hex(8)}"'.encode()
        await store.enqueue(Order(key, payload, retain_s=0, on_conflict="replace"))
        await self._claim_and_finish(shard, key)
        await store.prune(shard, limit=AT_ONCE)

    async def _claim_and_finish(self, shard: int, key: JobKey) -> None:
        store, tries = self._store, 0
        while True:
            claimed = await store.claim(
                shard,
                [Want(CANARY, AT_ONCE, 10_000)],
                worker=self.worker,
                limit=AT_ONCE,
            )
            mine = False
            for lease in claimed.leases:
                try:
                    await store.ack(lease)
                except LeaseLost:
                    # Its process has sent it anew.
                    continue
                mine = mine or lease.key == key
            if mine:
                return
            job = await self._views.get(key)
            if job is None or job.state is JobState.succeeded:
                # Another process met it first, and finished it.
                return
            tries += job.state is JobState.ready and not claimed.leases
            if tries == TRIES:
                raise _Silent("not-claimed", f"a job of topic {CANARY} cannot be claimed: is it paused?")
            await asyncio.sleep(PAUSE_S)


def _key_on(shard: int, shards: int, name: str) -> JobKey:
    ids = (f"{name}-{number}" for number in itertools.count())
    return JobKey(CANARY, next(id_ for id_ in ids if shard_of(CANARY, id_, shards) == shard))
