"""
Names and numbers that never repeat: job ids, request ids, nonces.

Random bytes are drawn from the system in blocks, because one system call for
each would cost more than the rest of an enqueue.  A forked child throws away
what it inherited, so it never repeats its parent.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duly.job import Order

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"  #: in the order of ASCII
PAIRS = tuple(high + low for high in ALPHABET for low in ALPHABET)
_PAIR = len(PAIRS)
_HALF = len(ALPHABET) ** 7  #: more than 40 bits
_BLOCK = 256  #: pieces drawn at a time


class _Pieces:
    """
    Random bytes in pieces of one size.

    Taking the last item of a list is atomic, so no lock is needed.
    """

    __slots__ = ("_format", "_left", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._format = f"{size}s" * _BLOCK
        self._left: list[bytes] = []

    def take(self) -> bytes:
        """
        Give out one piece, once.
        """
        try:
            return self._left.pop()
        except IndexError:
            drawn = struct.unpack(self._format, os.urandom(self._size * _BLOCK))
            self._left.extend(drawn[1:])
            first: bytes = drawn[0]
            return first

    def forget(self) -> None:
        """
        Drop what a parent process may give out as well.
        """
        self._left.clear()


SET_BACK_MS = 60_000  #: a clock that goes back by more was wrong before


class _Ids:
    """
    Ids that grow within a process: 8 characters of time, then 14 for 80 random bits.

    A new millisecond draws all 80 bits; within one (or while the clock runs
    backwards) the lower half counts up from where it was drawn.  A clock that is
    set back by far, as after a test with frozen time, is followed.

    As many bits as a ULID has, in 22 characters instead of 26: the id of a
    waiting job stands in the server's memory twice.
    """

    __slots__ = ("_count", "_lock", "_ms", "_prefix")

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """
        Begin anew, unlike the parent process.
        """
        self._lock = threading.Lock()  # a new one: the old may have been held when the process forked
        self._ms = 0
        self._count = 0
        self._prefix = ""

    def take(self) -> str:
        """
        Give out the next id.
        """
        ms = time.time_ns() // 1_000_000
        with self._lock:
            if ms != self._ms and not self._ms - SET_BACK_MS <= ms < self._ms:
                self._begin(ms)
            elif self._count == _HALF - 1:
                self._begin(self._ms + 1)
            else:
                self._count += 1
            return self._prefix + _seven(self._count)

    def _begin(self, ms: int) -> None:
        high, self._count = divmod(int.from_bytes(_tails.take()), 1 << 40)
        self._ms = ms
        first, rest = divmod(ms, _HALF)
        self._prefix = ALPHABET[first] + _seven(rest) + _seven(high)


def _seven(number: int) -> str:
    """
    A number in seven characters.
    """
    number, low = divmod(number, _PAIR)
    number, middle = divmod(number, _PAIR)
    first, high = divmod(number, _PAIR)
    return f"{ALPHABET[first]}{PAIRS[high]}{PAIRS[middle]}{PAIRS[low]}"


_tails = _Pieces(10)
_requests = _Pieces(6)
_nonces = _Pieces(8)
_ids = _Ids()


def _after_fork() -> None:
    for source in (_tails, _requests, _nonces, _ids):
        source.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

# Bound methods and not functions around them: each is called once for every job.
new_id = _ids.take  #: a job id: 22 characters, later ones sort behind earlier ones
new_request = _requests.take  #: six bytes that tell a replayed call from a new one
new_nonce = _nonces.take  #: eight bytes that make a token unlike any other of the same number


def request_of(order: Order) -> bytes:
    """
    The six bytes that tell a call for a job from another one: those of its sender, or new ones.
    """
    return _requests.take() if order.once is None else order.once.request


@dataclass(frozen=True, slots=True)
class Repeatable:
    """
    A call that its sender may send again, also to another process: it is known by the same each time.
    """

    digest: bytes  #: of all that tells it from other calls
    age_ms: int | None = (
        None  #: how long ago it was sent first; None if it is sent so now, as far as is known
    )

    def nonce(self, *parts: str) -> bytes:
        """
        The nonce of one of its parts, which several script calls may be made of.
        """
        return self._derived("\0".join(("nonce", *parts)), 8)

    @property
    def request(self) -> bytes:
        """
        The request id of every job that it is about.
        """
        return self._derived("request", 6)

    def next(self) -> Repeatable:
        """
        The call that follows it where this one was refused, and which is another one.
        """
        return replace(self, digest=self._derived("next", 16))

    def _derived(self, what: str, size: int) -> bytes:
        return hashlib.blake2b(what.encode(), key=self.digest, digest_size=size).digest()
