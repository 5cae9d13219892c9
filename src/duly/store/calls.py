"""
The call itself: a script on one shard, its keys declared, and what the server asks for first.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from duly.errors import OutcomeUnknown, ServerUnsuitable, StoreUnavailable
from duly.group import MAX_JOBS, chunks
from duly.job import JobKey, shard_of
from duly.keys import ShardKeys
from duly.namespace import create
from duly.scripts import load
from duly.store.answers import unsound
from duly.store.values import Keeping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from duly.connection import Link

log = logging.getLogger("duly.store")

Answer = TypeVar("Answer")


class Heard(NamedTuple):
    """
    What a client last heard of a shard.
    """

    server_ms: int
    at_s: float  #: on the monotonic clock
    seen: int  #: the highest of its numbers

    def now_ms(self) -> int:
        """
        What the server's clock says by now, as far as is known here.
        """
        return self.server_ms + int((time.monotonic() - self.at_s) * 1000)


class Calls:
    """
    A namespace on a server, and script calls to it.
    """

    def __init__(
        self,
        link: Link,
        *,
        namespace: str = "duly",
        shards: int = 1,
        keeping: Keeping | None = None,
        lease_ms: int = 15_000,
        grace_ms: int = 5_000,
        max_crashes: int = 3,
        max_events: tuple[int, int] = (1_000_000, 256 * 1024 * 1024),
        now: Callable[[], int] | None = None,
    ) -> None:
        self.link = link
        self.namespace = namespace
        self.shards = shards
        self.keys = [ShardKeys(namespace, shard) for shard in range(shards)]
        self.keeping = keeping or Keeping()
        self.lease_ms = lease_ms
        self.grace_ms = grace_ms
        self.max_crashes = max_crashes
        self.max_events = max_events  #: rows and bytes, per shard
        #: compares the queue with its record, for a server that may have lost a part of its past
        self.agree: Callable[[], Awaitable[None]] | None = None
        self.generation: Callable[[], int | None] = lambda: None  #: the one that was agreed on
        self._now = now
        self._fixed: dict[tuple[str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._heard: dict[int, Heard] = {}  #: by shard

    async def create(self) -> None:
        """
        Make the namespace, or check that it is as this client thinks.

        Raises:
            LayoutMismatch: It is not.
        """
        rows, size = self.max_events
        clock: Literal["server", "test"] = "test" if self._now else "server"
        await create(
            self.link, self.namespace, self.shards, clock=clock, max_event_rows=rows, max_event_bytes=size
        )

    def needs_record(self) -> str:
        """
        What to say to who would move jobs behind the back of the record.
        """
        return (
            f"namespace {self.namespace!r} at {self.link.place} has a record: its jobs are sent, moved and "
            "run only together with it. Say record=URL, set DULY_RECORD, or write it into duly.toml"
        )

    def now_ms(self, server_ms: int) -> int:
        """
        The time that counts here: the server's, or that of a test clock.
        """
        return self._now() if self._now else server_ms

    async def _run(  # the shape of every script call
        self,
        name: str,
        shard: int,
        topics: Iterable[str],
        fixed: dict[str, Any],
        rest: Sequence[Any] = (),
        *,
        again: dict[str, Any] | None = None,
        now: bool = True,
    ) -> Any:
        """
        Run a script: keys and arguments in the order that its header declares.
        """
        plan = self._fixed.get((name, shard))
        if plan is None:
            script = load(name)
            known = self.keys[shard].fixed
            plan = self._fixed[name, shard] = (
                tuple(known[key] for key in script.keys if not key.endswith("...")),
                tuple(arg for arg in script.args if not arg.endswith("...")),
            )
        keys = list(plan[0])
        lanes = self.keys[shard].lanes
        for topic in topics:
            keys += lanes(topic)
        if now:
            fixed["now_ms"] = self._now() if self._now else ""
        args = [*(fixed[arg] for arg in plan[1]), *rest]
        replay = [*((fixed | again)[arg] for arg in plan[1]), *rest] if again else None
        try:
            return await self.link.run(name, keys, args, again=replay)
        except (StoreUnavailable, OutcomeUnknown) as error:
            await self._mend(error, name)
            if name == "claim":
                at = plan[1].index("generation")
                args[at] = self.generation() or ""
                if replay:
                    replay[at] = args[at]
            return await self.link.run(name, keys, replay or args, again=replay)

    async def _mend(self, error: StoreUnavailable | OutcomeUnknown, name: str) -> None:
        """
        Do what the server asks for before it takes a call.

        Raises:
            StoreUnavailable, OutcomeUnknown: It asked for nothing that can be done here.
            ServerUnsuitable: It asked for the record, and there is none here.
        """
        if "NONAMESPACE" in str(error):
            # No traceback: it is the server that failed.
            lost = "its jobs are lost" if self.agree is None else "its jobs come back from the record"
            log.critical("%s; making namespace %r anew, %s", error, self.namespace, lost)
            await self.create()
        elif not unsound(error) or name == "hydrate":
            # Rows that are brought are locked; after a comparison they are to be read again.
            raise error
        elif self.agree is None:
            raise ServerUnsuitable(self.needs_record()) from error
        else:
            await self.agree()

    async def _sent(self, shard: int) -> dict[str, Any]:
        """
        When a call to a shard is sent for the first time, and what its sender has seen: see lib/requests.lua.
        """
        heard = self._heard.get(shard)
        if heard is None:
            seconds, micros = await self.link.call("TIME")
            seen = await self.link.call("HGET", self.keys[shard].fixed["meta"], "sequence")
            heard = self._hear(shard, int(seconds) * 1000 + int(micros) // 1000, int(seen or 0))
        return {"sent_ms": self.now_ms(heard.now_ms()), "seen": heard.seen}

    def _hear(self, shard: int, server_ms: int, seen: int) -> Heard:
        """
        Take over what a shard's answer said of its clock and its numbers.
        """
        heard = self._heard[shard] = Heard(server_ms, time.monotonic(), seen)
        return heard

    def _shard(self, key: JobKey) -> int:
        return shard_of(key.topic, key.id, self.shards)

    async def _scatter(
        self,
        keys: Sequence[JobKey],
        send: Callable[[int, list[JobKey]], Awaitable[list[Answer]]],
        *,
        max_jobs: int = MAX_JOBS,
    ) -> list[Answer]:
        """
        Send each key to its shard in batches, and put the answers back into the order of the keys.
        """
        by_shard: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            by_shard.setdefault(self._shard(key), []).append(position)
        answers: dict[int, Answer] = {}
        for shard, positions in by_shard.items():
            at = iter(positions)
            some = [keys[position] for position in positions]
            for batch in chunks(some, key=hash, size=len, max_jobs=max_jobs):
                for answer in await send(shard, batch):
                    answers[next(at)] = answer
        return [answers[position] for position in range(len(keys))]
