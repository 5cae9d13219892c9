"""
Look-ups: the addresses of host names, asked of the system in threads that slow names cannot use up.

Nobody can stop `getaddrinfo`: a thread that asks a silent name server is held until the system gives up,
long after the delivery has.  So a name has one look-up at a time, which everybody shares who asks for it; the
names of one domain have a few; and names are kept apart by how the last look-up went, so that those of which
nothing is known, or nothing good, hold up none that answers.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import OrderedDict
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Literal, TypeAlias
from weakref import WeakValueDictionary

from duly.callbacks.breaker import PutOff, later
from duly.errors import DulyError

if TYPE_CHECKING:
    from collections.abc import Callable

    #: Asks for the addresses of a host, and blocks.
    Ask: TypeAlias = Callable[[str], list[str]]

Record: TypeAlias = Literal["answered", "new", "slow"]  #: how the last look-up of a name went

LIMIT_S = 5.0  #: that a delivery waits for the look-up of its own host, at least
TURN_S = 1.0  #: that it waits for look-ups of other hosts before it is put off
THREADS: dict[Record, int] = {"answered": 32, "new": 32, "slow": 8}
OF_DOMAIN = 4  #: threads, of each kind, for the names that share their last two labels
NAMES = 10_000  #: that are remembered


class Unresolved(DulyError):
    """
    The host has no address, or its name server does not answer.
    """


def ask_system(host: str) -> list[str]:
    """
    Ask the system for the addresses of *host*, and block until it answers.

    Raises:
        Unresolved: It has none.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"{host} has no address: {getattr(error, 'strerror', None) or error}") from error
    return [str(place[4][0]) for place in found]


class Lookups:
    """
    The look-ups of one deliverer.
    """

    def __init__(self, ask: Ask = ask_system, *, limit_s: float = LIMIT_S, turn_s: float = TURN_S) -> None:
        self._ask = ask
        self._limit_s, self._turn_s = limit_s, turn_s
        self._under_way: dict[str, asyncio.Task[list[str]]] = {}
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._threads = {record: asyncio.Semaphore(count) for record, count in THREADS.items()}
        self._domains: WeakValueDictionary[tuple[Record, str], asyncio.Semaphore] = WeakValueDictionary()

    async def addresses(self, host: str) -> list[str]:
        """
        The addresses of *host*.

        Raises:
            PutOff: Look-ups of other hosts take all the threads.
            Unresolved: It has none, or its name server does not answer in time.
        """
        task = self._under_way.get(host)
        if task is None:
            task = self._under_way[host] = asyncio.create_task(self._look_up(host))
            task.add_done_callback(lambda ended: self._end(host, ended))
        # The thread goes on beyond the limit, and so does the task that keeps its place.
        done, _ = await asyncio.wait([task], timeout=self._turn_s + self._limit_s)
        if not done:
            raise Unresolved(f"no name server answered for {host} within {self._limit_s:g} s")
        return task.result()

    async def _look_up(self, host: str) -> list[str]:
        record = self._records.get(host, "new")
        domain = record, ".".join(host.rsplit(".", 2)[-2:])
        turn = self._domains.setdefault(domain, asyncio.Semaphore(OF_DOMAIN))
        async with AsyncExitStack() as places:
            try:
                async with asyncio.timeout(self._turn_s):
                    # The domain first: its names wait for each other, and hold no place of others meanwhile.
                    for place in (turn, self._threads[record]):
                        await places.enter_async_context(place)
            except TimeoutError:
                raise PutOff(
                    f"{host} is not looked up yet: other names wait for their name servers", later(1.0)
                ) from None
            started_s = time.monotonic()
            try:
                return await self._in_thread(host)
            finally:
                self._note(host, "answered" if time.monotonic() - started_s < self._limit_s else "slow")

    async def _in_thread(self, host: str) -> list[str]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[str]] = loop.create_future()

        def settle(found: list[str] | Exception) -> None:
            if answer.done():
                return  # nobody waits any more
            if isinstance(found, Exception):
                answer.set_exception(found)
            else:
                answer.set_result(found)

        def run() -> None:
            found: list[str] | Exception
            try:
                found = self._ask(host)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is raised where it is waited for
                found = error
            with suppress(RuntimeError):  # the loop has ended before
                loop.call_soon_threadsafe(settle, found)

        # A daemon: the threads of a pool would be joined when the process ends, however long they take.
        threading.Thread(target=run, name=f"duly-lookup {host}", daemon=True).start()
        return await answer

    def _note(self, host: str, record: Record) -> None:
        self._records[host] = record
        self._records.move_to_end(host)
        while len(self._records) > NAMES:
            self._records.popitem(last=False)

    def _end(self, host: str, task: asyncio.Task[list[str]]) -> None:
        del self._under_way[host]
        if not task.cancelled():
            task.exception()  # all who waited may have gone
