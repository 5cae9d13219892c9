"""
Hosts: how many callbacks one gets at once, and whether it is left alone for a while.

A host that fails again and again is asked less and less, and its jobs are put off without counting: it is
the host that is broken, not the job.  No other host waits for it.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duly.errors import DulyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOSTS = 10_000  #: that are remembered
AT_ONCE = 8  #: callbacks for one host
LONGEST_S = 300.0  #: that a host is left alone
SHARE = 0.25  #: of the newest answer in how long answers take


class PutOff(DulyError):
    """
    Not now: the host is left alone, or has as much as it may get.
    """

    def __init__(self, why: str, seconds: float) -> None:
        super().__init__(why)
        self.seconds = seconds


@dataclass(slots=True)
class Host:
    """
    What is known of one host.
    """

    running: int = 0
    failures: int = 0  #: in a row
    pauses: int = 0  #: in a row
    open_s: float = 0.0  #: when it may be tried again
    trying: bool = False  #: after a pause, one callback goes first
    takes_s: float = 0.0  #: how long its answers take, about


class Attempt:
    """
    One callback under way: says how it went.
    """

    def __init__(self) -> None:
        self.failed: bool | None = None  #: None if it says nothing about the host


class Hosts:
    """
    Every host that callbacks went to lately, in this process.
    """

    def __init__(
        self,
        *,
        at_once: int = AT_ONCE,
        failures: int = 5,
        pause_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once = at_once
        self._failures = failures
        self._pause_s = pause_s
        self._clock = clock
        self._hosts: OrderedDict[str, Host] = OrderedDict()

    @contextmanager
    def attempt(self, name: str) -> Iterator[Attempt]:
        """
        Send a callback to the host within the block, which says whether it failed.

        Raises:
            PutOff: Not now, and for how long.
        """
        host = self._find(name)
        self._admit(name, host)
        started_s = self._clock()
        host.running += 1
        attempt = Attempt()
        trial, host.trying = host.pauses > 0, host.pauses > 0
        try:
            yield attempt
        finally:
            host.running -= 1
            if trial:
                host.trying = False
            if attempt.failed is not None:
                host.takes_s += SHARE * (self._clock() - started_s - host.takes_s)
                self._note(host, failed=attempt.failed)

    def paused_s(self, name: str) -> float:
        """
        How long the host will still be left alone.
        """
        host = self._hosts.get(name)
        return max(0.0, host.open_s - self._clock()) if host else 0.0

    def _admit(self, name: str, host: Host) -> None:
        wait_s = host.open_s - self._clock()
        if wait_s > 0:
            raise PutOff(f"{name} failed {host.failures} times in a row and is left alone", later(wait_s))
        if host.trying:
            raise PutOff(f"{name} is tried again with another job first", later(max(1.0, host.takes_s)))
        if host.running >= self._at_once:
            raise PutOff(f"{name} has {host.running} callbacks already", later(max(0.5, host.takes_s)))

    def _note(self, host: Host, *, failed: bool) -> None:
        if not failed:
            host.failures = host.pauses = 0
            host.open_s = 0.0
            return
        host.failures += 1
        # What was under way when the pause began does not make it longer.
        if host.failures >= self._failures and self._clock() >= host.open_s:
            host.open_s = self._clock() + min(self._pause_s * 2**host.pauses, LONGEST_S)
            host.pauses = min(host.pauses + 1, 32)

    def _find(self, name: str) -> Host:
        host = self._hosts.setdefault(name, Host())
        self._hosts.move_to_end(name)
        if len(self._hosts) > HOSTS:
            idle = next((each for each, about in self._hosts.items() if not about.running), name)
            if idle != name:
                del self._hosts[idle]
        return host


def later(seconds: float) -> float:
    """
    Return *seconds* or somewhat more, so that jobs that are put off together do not come back at once.
    """
    return seconds * random.uniform(1.0, 1.5)
