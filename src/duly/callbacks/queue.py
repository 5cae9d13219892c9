"""
The queue as deliverers see it: callbacks of whatever topic, and topics that have a callback.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from duly.callbacks.handler import CallbackHandler
from duly.handlers import Handlers
from duly.outcome import Snooze
from duly.store import Store

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from duly.callbacks.deliver import Deliverer
    from duly.context import CurrentJob
    from duly.handlers import Handler
    from duly.newjob import Limits

FRESH_S = 1.0  #: how long what was read of topics is believed
KNOWN = 64  #: topics of callbacks that are asked for at once; tokens and a regular look bring the others back
TOKENS = 1000
NOBODY = "duly.callbacks"  #: a topic without jobs: who knows of none asks for that and is woken all the same


class Called:
    """
    Which topics have callbacks, as far as this process has heard.
    """

    def __init__(self, namespace: str) -> None:
        self.source = f"/duly/{namespace}"
        self.store: CallbackStore | None = None  #: of the worker that asks
        self.urls: dict[str, str] = {}  #: of topics
        self.read_s = -FRESH_S
        self._heard: OrderedDict[str, None] = OrderedDict()
        self._turn = 0  #: where `hear_some` goes on

    def hear(self, topic: str) -> None:
        """
        Take note of a topic that has callbacks waiting, or may have.
        """
        self._heard[topic] = None
        self._heard.move_to_end(topic)
        while len(self._heard) > KNOWN:
            self._heard.popitem(last=False)

    def hear_some(self, ready: list[str]) -> None:
        """
        Take note of some of the topics that have jobs ready, of others each time.

        Topics whose jobs nobody runs stay ready, and there may be more of them than are remembered.
        """
        count = min(len(ready), KNOWN // 2)
        self._turn %= len(ready) or 1
        for topic in (ready + ready)[self._turn : self._turn + count]:
            self.hear(topic)
        self._turn += count

    def topics(self) -> list[str]:
        """
        What to ask for.
        """
        return list(dict.fromkeys((*self.urls, *self._heard))) or [NOBODY]


class CallbackStore(Store):
    """
    A store that claims callbacks and waits for them.
    """

    claim = partialmethod(Store.claim, callbacks=True)

    def __init__(self, called: Called, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._called = called

    async def wait(self, topics: Iterable[str], seconds: float) -> bool:
        """
        Wait until callbacks may be ready, of whatever topic, at most *seconds*.

        Tokens of topics without a callback are for workers: they are left alone.
        """
        del topics
        await self.look()
        ours = [keys.fixed["callbacks"] for keys in self.keys]
        others = [keys.wake(topic) for keys in self.keys for topic in self._called.urls]
        limit_s = max(seconds, 0.01)
        reply = await self.link.call("BLPOP", *ours, *others, limit_s, again=("PING",), block_s=limit_s)
        if not isinstance(reply, list):
            # Nothing came, or a reply that may have told of something got lost.
            return reply is not None
        key, token = reply[0].decode(), reply[1]
        if key in ours:
            # One for each call that made some ready: one look at the queue serves them all.
            for name in (token, *(await self.link.call("LPOP", key, TOKENS) or ())):
                self._called.hear(name.decode())
        return True

    async def look(self, *, now: bool = False) -> None:
        """
        Read which topics have a callback, and which have jobs ready, unless that was done just now.
        """
        called = self._called
        if not now and time.monotonic() - called.read_s < FRESH_S:
            return
        urls: dict[str, str] = {}
        ready: set[str] = set()
        for keys in self.keys:
            fields = await self.link.call("HGETALL", keys.fixed["topics"])
            for name, value in zip(fields[::2], fields[1::2], strict=True):
                topic, _, what = name.decode().partition(":")
                if what == "callback":
                    urls[topic] = value.decode()
                elif what == "ready" and value != b"0":
                    ready.add(topic)
        called.hear_some(sorted(ready))
        called.urls, called.read_s = urls, time.monotonic()


class CallbackHandlers(Handlers):
    """
    A handler for every topic: the job, or its topic, knows the URL.
    """

    def __init__(self, called: Called, deliverer: Deliverer, limits: Limits) -> None:
        super().__init__(limits)
        self._called = called
        self._deliverer = deliverer

    def served(self) -> Collection[str]:
        """
        What to ask for.
        """
        return self._called.topics()

    def get(self, topic: str) -> Handler[..., Any]:
        """
        The handler of *topic*; there is one for each.
        """
        found = super().get(topic)
        if found is None:
            source = self._called.source
            found = CallbackHandler(topic, self._url, self._deliverer, source=source, limits=self.limits)
            self.add(found)
        return found

    async def _url(self, job: CurrentJob) -> str:
        own = job.callback
        if own is not None:
            return own
        if job.topic not in self._called.urls and self._called.store is not None:
            await self._called.store.look(now=True)
        try:
            return self._called.urls[job.topic]
        except KeyError:
            # Taken back between the claim and now: a worker may run it.
            raise Snooze(FRESH_S) from None
