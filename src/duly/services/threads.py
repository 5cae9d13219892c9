"""
Threads for plain functions: daemons, so that one that never returns cannot keep the process from ending.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_S = 60.0


class Threads:
    """
    Runs functions, each in a thread of its own; threads are used again.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]
        ] = queue.SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """
        Run *fn*, then call *done* with what it returned or raised, in the same thread.
        """
        with self._lock:
            # Counted down here and not by the thread, so that two submissions never count on the same one.
            new = self._idle == 0
            if not new:
                self._idle -= 1
        self._work.put((fn, done))
        if new:
            threading.Thread(target=self._run, name="duly-handler", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                fn, done = self._work.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    # A submission may have counted on this thread while it was giving up.
                    if self._work.empty() and self._idle > 0:
                        self._idle -= 1
                        return
                continue
            try:
                answer, error = fn(), None
            except BaseException as raised:  # noqa: BLE001  # whatever it was, the job must be told
                answer, error = None, raised
            done(answer, error)
            del fn, done, answer, error
            with self._lock:
                self._idle += 1
