"""
Every Redis key, spelt once.
"""

from __future__ import annotations

from functools import cached_property

from duly.job import Lane

LAYOUT = "2"  #: version of keys and records; another one is another namespace


class ShardKeys:
    """
    Keys of one shard.

    The braces are a cluster hash tag: a shard's keys live on one node, which
    is what lets one script touch several of them.
    """

    def __init__(self, namespace: str, shard: int) -> None:
        self.shard = shard
        self.prefix = f"{{{namespace}:{shard}}}:"
        self._lanes: dict[str, tuple[str, ...]] = {}

    @cached_property
    def fixed(self) -> dict[str, str]:
        """
        The keys that a shard has once, by the names that script headers use.
        """
        return {name: self.prefix + name for name in FIXED}

    def lanes(self, topic: str) -> tuple[str, ...]:
        """
        The ready streams of a topic in the order of `Lane`, then its wake list, then its scheduled jobs.
        """
        keys = self._lanes.get(topic)
        if keys is None:
            streams = (f"{self.prefix}ready:{topic}:{lane.name}" for lane in Lane)
            keys = self._lanes[topic] = (*streams, f"{self.prefix}wake:{topic}", f"{self.prefix}due:{topic}")
        return keys

    def idempotency(self, name: str) -> str:
        """
        string  of the first request under an Idempotency-Key: when it came, and what is kept of it
        """
        return f"{self.prefix}idempotency:{name}"

    def idempotency_share(self, owner: str) -> str:
        """
        hash  end of a span of time -> bytes kept until then of requests of one caller
        """
        return f"{self.prefix}idempotency_bytes:{owner}"

    def stream(self, topic: str, lane: Lane) -> str:
        """
        stream  one entry per job that is ready, or was when it was claimed
        """
        return self.lanes(topic)[lane]

    def wake(self, topic: str) -> str:
        """
        list  tokens that wake idle workers
        """
        return self.lanes(topic)[len(Lane)]

    def due(self, topic: str) -> str:
        """
        zset  member of each scheduled job -> due_ms
        """
        return self.lanes(topic)[len(Lane) + 1]


FIXED = {
    "meta": "hash     the shard's numbers: layout, epoch, sequence, event totals, timer slots; of its record",
    "topics": "hash     '<topic>:<state>' -> count; "
    "'<topic>:paused|resumed|limit|asked|callback|lanes|waiting'; limit is of the shard, asked of all; "
    "'<topic>:pause_version|limit_version|callback_version' of the last change, by the first shard",
    "jobs": "hash     member -> record",
    "bodies": "hash     member -> body too long for the record",
    "outcomes": "hash     member -> result, or last error",
    "progress": "hash     member -> last reported progress",
    "next_due": "zset     topic -> when the earliest of its scheduled jobs is due",
    "ready_topics": "set      topics with ready jobs",
    "requests": "hash     nonce of a call that changes jobs -> its answer, for a reply that was lost",
    "old_requests": "hash     the same of the calls before those",
    "quarantine": "hash     member -> stored job that cannot be read",
    "leases": "zset     member -> lease end",
    "done": "zset     succeeded and cancelled member -> keep until",
    "dead": "zset     dead member -> keep until",
    "overrides": "hash     member -> what became of a far-future job while it waits in its table",
    "hydrated": "set      members that the pass under way has dealt with",
    "callbacks": "list     names of topics with callbacks that are ready: tokens that wake deliverers",
    "claims": "hash     worker -> nonce, client, number and members of its last claim",
    "workers": "hash     worker -> what it says of itself",
    "beats": "zset     worker -> when it was heard last",
    "api_keys": "hash     api key -> what it may do, and the hash of its secret",
    "wrong_keys": "zset     address -> when its last wrong API key is forgotten, in the first shard only",
    "idempotency_bytes": "hash     end of a span of time -> bytes kept of requests until then",
    "runs": "hash     pipeline -> how its last run went, in the first shard only",
    "pace": "hash     run -> microsecond at which its next call may leave, in the first shard only",
    "probe": "stream   what a readiness probe writes, and removes in the same call",
    "audit": "stream   who changed what by hand, in the first shard only",
    "events": "stream   what happened, one packed entry per script call",
    "consumers": "hash     event consumer -> '<counter> <epoch> <nonce>' it committed",
    "replies": "stream   what became of jobs with a reply_to, all names in one, in the order of their ends",
    "reply_lines": "zset     '<name> <number>' of each reply, sorted by name",
    "reply_leases": "zset     the same of each reply that a reader has -> when another one may have it",
    "reply_drops": "hash     name -> replies dropped unread since its queue was empty",
    "timer": "stream   the earliest due time changed",
    "woken_topics": "stream   names of topics that were made ready, while workers with many topics wait",
    "stop": "channel  '<member> <token>' of a run that must stop",
    "ended_channel": "channel  member of an awaited job that ended, or the name of a queue with a new reply",
}
