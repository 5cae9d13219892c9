"""
Forks of this process, one at a time: what is done before and after, and the imports that each waits for.

A child that is forked while another thread imports inherits a locked module, and nobody to unlock it.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from duly.loops import unpatched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

IMPORT_WAITS_S = 30.0  #: how long a fork waits for an import


class _Part(NamedTuple, Generic[T]):
    before: Callable[[], T]
    in_parent: Callable[[], None]
    in_child: Callable[[T | None], None]


class _Fork:
    """
    A fork that is under way.
    """

    def __init__(self) -> None:
        self.told: list[Any] = []  #: by each part that has prepared itself, in their order
        self.holds_imports = False


class _Forks:
    """
    The forks of a process.
    """

    def __init__(self, parts: list[_Part[Any]]) -> None:
        self.parts = parts
        # Reentrant: a module may fork while it is imported, and the handler of a signal during a fork.
        self.importing = unpatched("RLock")()
        self._one = unpatched("RLock")()
        self._under_way = threading.local()

    def before(self) -> None:
        """
        Prepare every part, with no import under way.
        """
        self._one.acquire()
        fork = _Fork()
        self._stack().append(fork)  # first: the fork goes on if what follows is interrupted
        while True:
            for part in self.parts[len(fork.told) :]:
                fork.told.append(part.before())
            fork.holds_imports = self.importing.acquire(timeout=IMPORT_WAITS_S)
            if len(fork.told) == len(self.parts):
                return
            # What was imported meanwhile is a part, too, and its preparation may need an import.
            if fork.holds_imports:
                fork.holds_imports = False
                self.importing.release()

    def in_parent(self) -> None:
        """
        Let everything go on.
        """
        fork = self._stack().pop()
        if fork.holds_imports:
            self.importing.release()
        for part in self.parts[: len(fork.told)]:
            part.in_parent()
        self._one.release()

    def in_child(self) -> None:
        """
        Begin anew: whoever held a lock of the parent does not exist here.
        """
        global _forks  # noqa: PLW0603  # it belongs to the process
        _forks = _Forks(self.parts)
        fork = self._stack().pop()
        for part, told in zip_longest(self.parts, fork.told):
            part.in_child(told)

    def _stack(self) -> list[_Fork]:
        stack: list[_Fork] = self._under_way.__dict__.setdefault("forks", [])
        return stack


_forks = _Forks([])


def at_fork(
    before: Callable[[], T], in_parent: Callable[[], None], in_child: Callable[[T | None], None]
) -> None:
    """
    Have *before* called before each fork; what it returns is told to *in_child*, None if it was interrupted.
    """
    _forks.parts.append(_Part(before, in_parent, in_child))


@contextmanager
def importing() -> Iterator[None]:
    """
    Let no thread fork while the block imports what is imported on first use.
    """
    with _forks.importing:
        yield


os.register_at_fork(
    # Each child has forks of its own.
    before=lambda: _forks.before(),  # noqa: PLW0108
    after_in_parent=lambda: _forks.in_parent(),  # noqa: PLW0108
    after_in_child=lambda: _forks.in_child(),  # noqa: PLW0108
)
