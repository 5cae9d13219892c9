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
        Lease up to *limit* replies, oldest first; the service waits at most *wait_s* for the first.
        """
        reply = await self._link.call(
            "GET",
            f"/v1/replies/{name}",
            params={"limit": str(min(limit, MAX_TAKEN)), "wait": f"{wait_s:.3f}"},
            wait_s=wait_s,
        )
        if reply.problem is not None:
            raise error_of(reply.problem, self._link.place)
        answer = self._link.decode(_replies, reply)
        return Taken(
            [Reply(each.id, name, job_of(each.job), self) for each in answer.replies], answer.dropped
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
