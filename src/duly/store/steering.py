"""
What people ask for: of jobs cancel, reschedule and requeue; of topics pause, resume and callbacks.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from duly.errors import DulyError
from duly.ids import new_nonce
from duly.store.agreement import Agreement
from duly.store.answers import cancelled_of, held_of, moved_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.connection import Tries
    from duly.job import Accepted, JobKey, JobState, Placed
    from duly.store.values import Held


class Steering(Agreement):
    """
    What operators need.
    """

    async def cancel(
        self, keys: Sequence[JobKey], *, reason: str = "cancelled", revision: int | None = None
    ) -> list[JobState | Accepted | None]:
        """
        End jobs that have not ended; the answer is the state each is in now, None where there is no job.

        It is "accepted" where the job may wait in a table of far-future jobs, never to come from there.
        With a *revision* only that one is ended.

        Raises:
            Conflict: Another revision stands.
            OutcomeUnknown: The reply was lost, and others had changed a job when the call was repeated.
        """

        def row(key: JobKey) -> tuple[Any, ...]:
            return key.member, "" if revision is None else revision

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            said = {"keep_ms": self.keeping.done_ms, "reason": reason}
            return await self._change("cancel", shard, [(key, row(key)) for key in batch], said)

        words = await self._scatter(keys, send)
        return [cancelled_of(key, word) for key, word in zip(keys, words, strict=True)]

    async def reschedule(
        self,
        key: JobKey,
        *,
        delay_ms: int | None = None,
        due_ms: int | None = None,
        revision: int | None = None,
    ) -> Placed:
        """
        Give a job that has not started another due time.

        The word is "accepted" where the job may wait in a table of far-future jobs.

        Raises:
            JobNotFound: There is no such job.
            Conflict: It runs or has ended, or *revision* does not stand any more.
        """
        when = f"+{delay_ms or 0}" if due_ms is None else due_ms
        row = key.member, self._request(), when, "" if revision is None else revision
        words = await self._change("reschedule", self._shard(key), [(key, row)])
        return moved_of(key, words[0], "rescheduled")

    async def hold(self, key: JobKey, *, least_ms: int, revision: int | None = None) -> Held | None:
        """
        Keep a job that has not started from starting for *least_ms*, at the revision that it has.

        The answer is how it stood before, None if there is no such job.
        """
        return await self._hold(key, f"+{least_ms}", revision)

    async def let_go(self, held: Held) -> None:
        """
        Give a job that was held the due time that it had before, unless it has changed since.
        """
        await self._hold(held.key, str(held.due_ms), held.revision)

    async def _hold(self, key: JobKey, when: str, revision: int | None) -> Held | None:
        fixed = {
            "nonce": new_nonce(),
            "topic": key.topic,
            "member": key.member,
            "revision": "" if revision is None else revision,
            "when": when,
        }
        return held_of(key, await self._run("hold", self._shard(key), (key.topic,), fixed))

    async def requeue(
        self, keys: Sequence[JobKey], *, revision: int | None = None
    ) -> list[Placed | DulyError]:
        """
        Run ended jobs again; one outcome for each, `Conflict` where it has not ended.

        With a *revision* only that one is run again.
        """

        def row(key: JobKey) -> tuple[Any, ...]:
            return key.member, self._request(), "" if revision is None else revision

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            return await self._change("requeue", shard, [(key, row(key)) for key in batch])

        outcomes: list[Placed | DulyError] = []
        for key, word in zip(keys, await self._scatter(keys, send), strict=True):
            try:
                outcomes.append(moved_of(key, word, "requeued"))
            except DulyError as error:
                outcomes.append(error)
        return outcomes

    async def _change(
        self,
        verb: str,
        shard: int,
        rows: Sequence[tuple[JobKey, tuple[Any, ...]]],
        said: dict[str, Any] | None = None,
    ) -> list[bytes]:
        """
        Change jobs of one shard: what the script is told of each, and one word of it for each.
        """

        async def send(
            some: Sequence[tuple[JobKey, tuple[Any, ...]]], once: dict[str, Any], tries: Tries
        ) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key, _ in some)
            rest = itertools.chain(topics, *(row for _, row in some))
            fixed = {"topic_count": len(topics), **(said or {}), **once}
            words: list[bytes] = await self._run(verb, shard, topics, fixed, list(rest), tries=tries)
            return words

        return await self._remembered(shard, rows, send, part=[verb, *(key.member for key, _ in rows)])

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* be claimed.
        """
        await self._say(topic, "pause")

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* be claimed again.
        """
        await self._say(topic, "resume")

    async def set_callback(self, topic: str, url: str | None) -> None:
        """
        Have jobs of *topic* delivered to *url*, those that wait as well; None lets workers run them again.
        """
        await self._say(topic, "set_callback", url)

    async def put_key(self, id_: str, about: bytes) -> None:
        """
        Keep an API key.

        Ids are never used again, so to drop one needs no such call: it may be repeated at any time.
        """
        await self._set_of(id_, "put_key", 0, id=id_, about=about)
