"""
The call itself: a script on one shard, its keys declared, and what the server asks for first.
"""

from __future__ import annotations

import copy
import logging
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from duly.connection import Tries
from duly.defaults import LEASE_MS, MAX_CRASHES
from duly.errors import OutcomeUnknown, ServerUnsuitable, StoreUnavailable
from duly.group import MAX_JOBS, chunks
from duly.ids import new_nonce, new_request
from duly.job import JobKey, shard_of
from duly.keys import ShardKeys
from duly.namespace import create
from duly.scripts import load
from duly.store.answers import unsound
from duly.store.values import Keeping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from typing import Self

    from duly.connection import Link
    from duly.ids import Repeatable
    from duly.job import Lease

log = logging.getLogger("duly.store")

Answer = TypeVar("Answer")
Item = TypeVar("Item")

#: How old a shard's time may be before it is asked for again: a fifth of what a shard remembers of calls.
FRESH_S = 60.0
UNKNOWN = b"unknown"  #: how scripts answer for a job, or a topic, that they did not change


class Heard(NamedTuple):
    """
    What a client last heard of a shard.
    """

    server_ms: int
    at_s: float  #: on the monotonic clock
    seen: int  #: the highest of its numbers
    since_ms: int = 0  #: a call that says it was sent before is one that the shard has forgotten

    def age_s(self) -> float:
        """
        How long ago that was, as far as this machine knows: its clock stands still while it sleeps.
        """
        return time.monotonic() - self.at_s

    def now_ms(self) -> int:
        """
        What the server's clock says by now, as far as is known here.
        """
        return self.server_ms + int(self.age_s() * 1000)


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
        lease_ms: int = LEASE_MS,
        grace_ms: int = 5_000,
        max_crashes: int = MAX_CRASHES,
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
        #: chooses of what was claimed what may run, by what its record says
        self.startable: Callable[[Sequence[Lease]], Awaitable[list[Lease]]] | None = None
        self._now = now
        self._fixed: dict[tuple[str, int], tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self._heard: dict[int, Heard] = {}  #: by shard
        self._call: Repeatable | None = None  #: what is asked of it is this

    def repeatable(self, call: Repeatable | None) -> Self:
        """
        The same store for one call that its sender may send again: a repeat is answered as it was first.

        That is so for the calls that shards remember, see lib/requests.lua, each made once.
        """
        if call is None:
            return self
        same = copy.copy(self)
        same._call = call  # noqa: SLF001  # its own
        return same

    def _request(self) -> bytes:
        """
        The request id of a job that is changed.
        """
        return new_request() if self._call is None else self._call.request

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
        more: Sequence[str] = (),
        tries: Tries | None = None,
    ) -> Any:
        """
        Run a script: keys and arguments in the order that its header declares, *more* keys behind those.
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
        keys += more
        if now:
            fixed["now_ms"] = self._now() if self._now else ""
        args = [*(fixed[arg] for arg in plan[1]), *rest]
        replay = [*((fixed | again)[arg] for arg in plan[1]), *rest] if again else None
        told = {} if tries is None else {"tries": tries}
        try:
            return await self.link.run(name, keys, args, again=replay, **told)
        except (StoreUnavailable, OutcomeUnknown) as error:
            await self._mend(error, name)
            if "generation" in plan[1]:
                at = plan[1].index("generation")
                args[at] = self.generation() or ""
                if replay:
                    replay[at] = args[at]
            return await self.link.run(name, keys, replay or args, again=replay, **told)

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
            # After a comparison rows are to be read again before they are brought.
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
        if heard is None or heard.age_s() > FRESH_S:
            heard = await self._ask(shard)
        return {"sent_ms": max(self.now_ms(heard.now_ms()), heard.since_ms), "seen": heard.seen}

    async def _ask(self, shard: int) -> Heard:
        """
        Ask a shard for its time and its numbers.
        """
        seconds, micros = await self.link.call("TIME")
        names = ("sequence", "requests_since")
        seen, since_ms = await self.link.call("HMGET", self.keys[shard].fixed["meta"], *names)
        self._heard[shard] = Heard(
            int(seconds) * 1000 + int(micros) // 1000, time.monotonic(), int(seen or 0), int(since_ms or 0)
        )
        return self._heard[shard]

    def _hear(self, shard: int, server_ms: int, seen: int) -> None:
        """
        Take over what a shard's answer said of its clock and its numbers.
        """
        known = self._heard.get(shard)
        self._heard[shard] = Heard(server_ms, time.monotonic(), seen, known.since_ms if known else 0)

    async def _remembered(
        self,
        shard: int,
        items: Sequence[Item],
        send: Callable[[Sequence[Item], dict[str, Any], Tries], Awaitable[list[bytes]]],
        *,
        part: Sequence[str] = (),
    ) -> list[bytes]:
        """
        Make a call that its shard remembers, with one answer for each item: see lib/requests.lua.

        What is answered with "unknown" was not done now, and may have been by a try before.  If no reply was
        lost there was none, so it is this client that does not know the shard's time: its machine slept, or
        another clock rules there.  It asks then, and calls once more for those.

        A call that is repeated by its sender has the same nonce for each *part*.  It asks first: an answer
        to a call that seemed old would not be remembered.
        """
        if self._call is not None:
            await self._ask(shard)
            sent = await self._sent(shard)
            if self._call.age_ms is not None:
                # Its first try may be forgotten: what its sender had seen by then is not known here.
                sent = {"sent_ms": max(sent["sent_ms"] - self._call.age_ms, 0), "seen": 0}
            return await send(items, {"nonce": self._call.nonce(*part), **sent}, Tries())
        tries = Tries()
        answers = await send(items, {"nonce": new_nonce(), **await self._sent(shard)}, tries)
        refused = [at for at, answer in enumerate(answers) if answer.startswith(UNKNOWN)]
        if not refused or tries.maybe_ran:
            return answers
        await self._ask(shard)
        said = {"nonce": new_nonce(), **await self._sent(shard)}
        again = await send([items[at] for at in refused], said, Tries())
        for at, answer in zip(refused, again, strict=True):
            answers[at] = answer
        return answers

    async def _set_of(
        self, topic: str, verb: str, shard: int, named: Sequence[str] = (), **said: Any
    ) -> bytes:
        """
        Change something of a topic on one shard, and return what that answers.

        Raises:
            OutcomeUnknown: It may have been changed, by a try whose reply was lost.
        """

        async def send(_: Sequence[str], once: dict[str, Any], tries: Tries) -> list[bytes]:
            return [await self._run(verb, shard, named, {"topic": topic, **said, **once}, tries=tries)]

        [answer] = await self._remembered(shard, [topic], send, part=[verb])
        if answer == UNKNOWN:
            raise OutcomeUnknown(
                f"the call to {verb} {topic} came too late to tell whether it was made before: "
                "look, and repeat it if need be"
            )
        return answer

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
