"""
What people ask for: of jobs cancel, reschedule and requeue; of topics pause, resume, limits and callbacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.errors import DulyError, OutcomeUnknown
from duly.ids import new_nonce, new_request
from duly.store.answers import cancelled_of, held_of, moved_of
from duly.store.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import Accepted, JobKey, JobState, Placed
    from duly.store.values import Held


class Steering(Calls):
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

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            fixed = {
                "nonce": new_nonce(),
                "keep_ms": self.keeping.done_ms,
                "reason": reason,
                "topic_count": len(topics),
                **await self._sent(shard),
            }
            rest: list[Any] = []
            for key in batch:
                rest += (key.member, "" if revision is None else revision)
            words: list[bytes] = await self._run("cancel", shard, topics, fixed, (*topics, *rest))
            return words

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
        words = await self._run(
            "reschedule",
            self._shard(key),
            (key.topic,),
            {"nonce": new_nonce(), "topic_count": 1, **await self._sent(self._shard(key))},
            (key.topic, key.member, new_request(), when, "" if revision is None else revision),
        )
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

        async def send(shard: int, batch: list[JobKey]) -> list[bytes]:
            topics = dict.fromkeys(key.topic for key in batch)
            rest: list[Any] = []
            for key in batch:
                rest += (key.member, new_request(), "" if revision is None else revision)
            fixed = {"nonce": new_nonce(), "topic_count": len(topics), **await self._sent(shard)}
            words: list[bytes] = await self._run("requeue", shard, topics, fixed, (*topics, *rest))
            return words

        outcomes: list[Placed | DulyError] = []
        for key, word in zip(keys, await self._scatter(keys, send), strict=True):
            try:
                outcomes.append(moved_of(key, word, "requeued"))
            except DulyError as error:
                outcomes.append(error)
        return outcomes

    async def pause(self, topic: str) -> None:
        """
        Let no more jobs of *topic* be claimed.
        """
        for shard in range(self.shards):
            await self._set("pause", shard, (), topic)

    async def resume(self, topic: str) -> None:
        """
        Let jobs of *topic* be claimed again.
        """
        for shard in range(self.shards):
            await self._set("resume", shard, (topic,), topic)

    async def _set(self, verb: str, shard: int, named: Sequence[str], topic: str) -> None:
        sent_ms = (await self._sent(shard))["sent_ms"]
        fixed = {"nonce": new_nonce(), "topic": topic, "sent_ms": sent_ms}
        if await self._run(verb, shard, named, fixed) == b"unknown":
            raise OutcomeUnknown(
                f"the call to {verb} {topic} came too late to tell whether it was made before: "
                "look, and repeat it if need be"
            )

    async def limit(self, topic: str, backlog: int | None) -> None:
        """
        Refuse jobs of *topic* beyond *backlog* that wait; None lifts the limit.
        """
        for keys in self.keys:
            if backlog is None:
                await self.link.call("HDEL", keys.fixed["topics"], f"{topic}:limit")
            else:
                share = max(1, -(-backlog // self.shards))
                # First: add.lua looks here, and at no topic.
                await self.link.call("HSET", keys.fixed["meta"], "limited", "1")
                await self.link.call("HSET", keys.fixed["topics"], f"{topic}:limit", share)

    async def set_callback(self, topic: str, url: str | None) -> None:
        """
        Have jobs of *topic* delivered to *url*, those that wait as well; None lets workers run them again.
        """
        for keys in self.keys:
            if url is None:
                await self.link.call("HDEL", keys.fixed["topics"], f"{topic}:callback")
            else:
                await self.link.call("HSET", keys.fixed["topics"], f"{topic}:callback", url)
                await self.link.call("LPUSH", keys.fixed["callbacks"], topic)
