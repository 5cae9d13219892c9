"""
What is said of a topic: paused, its limit, its callback.  Each shard holds all of it.

The first shard gives every change a version, which puts them in one order: see lib/requests.lua.  The
others take a change only if it is later than what they have, so that two callers at once, lost replies and
repeats leave one of the changes on all shards.  Where a caller died in between, some shards are behind the
first: readers believe the latest version, and `catch_up` brings it to the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.due import scan
from duly.errors import OutcomeUnknown, StoreUnavailable
from duly.ids import new_nonce
from duly.store.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = "_version"
CHANGES = ("pause", "limit", "callback")
#: Scripts that wake whoever waits for jobs of the topic, and so need its streams.
WAKE = ("resume", "set_callback")


def shares_of(limit: int, shards: int) -> list[int]:
    """
    The share of each shard.  They add up to *limit*, but every shard takes at least one job.
    """
    return [max(1, (limit + shard) // shards) for shard in range(shards)]


def latest(shards: Sequence[Mapping[str, Any]], what: str) -> list[Mapping[str, Any]]:
    """
    What those shards hold of a topic, by field, that know its last change of a kind.
    """
    versions = [int(fields.get(what + VERSION, 0)) for fields in shards]
    return [fields for fields, version in zip(shards, versions, strict=True) if version == max(versions)]


def is_paused(shards: Sequence[Mapping[str, Any]]) -> bool:
    """
    Return whether a topic is paused, by what the shards hold of it.
    """
    return any("paused" in fields for fields in latest(shards, "pause"))


def callback_of(shards: Sequence[Mapping[str, Any]]) -> bytes | None:
    """
    Return the callback of a topic, by what the shards hold of it.
    """
    return next((fields["callback"] for fields in latest(shards, "callback") if "callback" in fields), None)


def limit_of(shards: Sequence[Mapping[str, Any]]) -> int | None:
    """
    Return the limit of a topic, by what the shards hold of it.

    A release that does not write down what was asked for may have changed the shares since: then they count.
    """
    told = [fields for fields in latest(shards, "limit") if "limit" in fields]
    if not told:
        return None
    shares = [int(fields["limit"]) for fields in told]
    asked = next((int(fields["asked"]) for fields in told if "asked" in fields), None)
    if asked is not None and (len(told) < len(shards) or sum(shares_of(asked, len(told))) == sum(shares)):
        return asked
    return sum(shares)


class Agreement(Calls):
    """
    Changes of topics that all shards take, or none.
    """

    async def _say(self, topic: str, verb: str, value: Any = None) -> None:
        """
        Change something of a topic on all shards.

        Raises:
            OutcomeUnknown: It may have been changed, or not on all shards yet.
        """
        version = await self._begin(topic, verb, value)
        for shard in range(1, self.shards):
            try:
                await self._bring(shard, topic, verb, value, version)
            except StoreUnavailable as error:
                raise OutcomeUnknown(
                    f"the call to {verb} {topic} has reached {shard} of {self.shards} shards: {error}; "
                    "workers bring it to the others, and repeating it is safe"
                ) from error

    async def _begin(self, topic: str, verb: str, value: Any) -> bytes:
        """
        Make a change on the first shard, which decides the order of all, and return its version.
        """
        return await self._set_of(
            topic, verb, 0, _lanes(topic, verb), version="", **self._said(0, verb, value)
        )

    async def _bring(self, shard: int, topic: str, verb: str, value: Any, version: bytes) -> None:
        """
        Bring a change to another shard.  It need not be remembered: its version tells whether it is done.
        """
        said = {"topic": topic, "version": version, **self._said(shard, verb, value)}
        await self._run(verb, shard, _lanes(topic, verb), {"nonce": new_nonce(), "sent_ms": 0, **said})

    def _said(self, shard: int, verb: str, value: Any) -> dict[str, Any]:
        match verb:
            case "limit":
                share = "" if value is None else shares_of(value, self.shards)[shard]
                return {"share": share, "asked": "" if value is None else value}
            case "set_callback":
                return {"url": value or ""}
        # The last one tells: by then no shard is left behind.
        return {"tells": b"1" if shard == self.shards - 1 else b""}

    async def catch_up(self) -> int:
        """
        Bring what was said of topics to the shards that it has not reached; how often that was.

        Such are left by callers that died in between, and by a shard that has lost its memory.
        """
        if self.shards == 1:
            return 0
        known: dict[bytes, list[int]] = {}  #: the versions of each change, by shard
        for shard, keys in enumerate(self.keys):
            async for page in scan(self.link, "HSCAN", keys.fixed["topics"], f"*{VERSION}"):
                for field, version in page:
                    known.setdefault(field, [0] * self.shards)[shard] = int(version)
        brought = 0
        for field, versions in known.items():
            if len(set(versions)) > 1:
                topic, _, what = field.decode().partition(":")
                brought += await self._spread(topic, what.removesuffix(VERSION), versions)
        return brought

    async def _spread(self, topic: str, what: str, versions: Sequence[int]) -> int:
        if what not in CHANGES:
            return 0  # of a later release
        # Read with its version at one moment: it may have changed since.
        names = ("paused", "asked", "callback", what + VERSION)
        shard = versions.index(max(versions))
        place = self.keys[shard].fixed["topics"]
        paused, asked, url, version = await self.link.call(
            "HMGET", place, *(f"{topic}:{name}" for name in names)
        )
        if version is None:
            return 0
        value: Any = None
        match what:
            case "pause":
                verb = "pause" if paused is not None else "resume"
            case "limit":
                verb, value = "limit", None if asked is None else int(asked)
            case _:
                verb, value = "set_callback", url
        behind = [at for at, known in enumerate(versions) if known < int(version)]
        for each in behind:
            await self._bring(each, topic, verb, value, version)
        return len(behind)


def _lanes(topic: str, verb: str) -> tuple[str, ...]:
    return (topic,) if verb in WAKE else ()
