"""
The response queue over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.remote.answers import AckedAnswer, RepliesAnswer, error_of, job_of
from duly.replies import MAX_TAKEN, Reply, Taken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.remote.link import RemoteLink
    from duly.remote.link import Reply as Answered

_replies = msgspec.json.Decoder(RepliesAnswer)
_acked = msgspec.json.Decoder(AckedAnswer)


class RemoteReplies:
    """
    Queues of replies that a service has.
    """

    def __init__(self, link: RemoteLink) -> None:
        self._link = link

    async def take(self, name: str, *, limit: int, wait_s: float = 0.0) -> Taken:
        """
        Lease up to *limit* replies, oldest first of each shard; the service waits at most *wait_s* for one.
        """
        body = msgspec.json.encode({"limit": min(limit, MAX_TAKEN), "wait": wait_s})
        return self._taken(
            name, await self._link.call("POST", f"/v1/replies/{name}/take", body=body, wait_s=wait_s)
        )

    async def peek(self, name: str, *, limit: int) -> Taken:
        """
        Return up to *limit* replies that no reader has, oldest first of each shard, and leave them to others.
        """
        params = {"limit": str(min(limit, MAX_TAKEN))}
        return self._taken(name, await self._link.call("GET", f"/v1/replies/{name}", params=params))

    def _taken(self, name: str, reply: Answered) -> Taken:
        if reply.problem is not None:
            raise error_of(reply.problem, self._link.place)
        answer = self._link.decode(_replies, reply)
        return Taken(
            [Reply(each.id, name, job_of(each.job), self.ack) for each in answer.replies], answer.dropped
        )

    async def ack(self, name: str, ids: Sequence[str]) -> int:
        """
        Forget replies; how many of them were still there.
        """
        acked = 0
        for at in range(0, len(ids), MAX_TAKEN):
            body = msgspec.json.encode({"ids": ids[at : at + MAX_TAKEN]})
            reply = await self._link.call("POST", f"/v1/replies/{name}/ack", body=body)
            if reply.problem is not None:
                raise error_of(reply.problem, self._link.place)
            acked += self._link.decode(_acked, reply).acked
        return acked
