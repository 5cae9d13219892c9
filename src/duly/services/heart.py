"""
The heart: extends leases from a thread and a connection of its own, so that no handler can starve it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.errors import DulyError
from duly.services.service import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.job import Lease
    from duly.services.contact import Contact
    from duly.services.service import Pulse
    from duly.store import Store

log = logging.getLogger("duly.heart")


class Heart:
    """
    Extends the leases that a worker holds, says that the worker lives, and watches that it makes progress.
    """

    def __init__(
        self,
        make_store: Callable[[], Store],
        *,
        worker: str,
        about: Callable[[], bytes],
        held: Callable[[], list[Lease]],
        lost: Callable[[list[Lease]], None],
        pulse: Pulse,
        stall_s: float,
        stalled: Callable[[list[str]], None],
        died: Callable[[BaseException], None],
        contact: Contact | None = None,
    ) -> None:
        """
        Prepare: *held* lists the leases, *lost* is called (in this thread) with those that are gone.

        *died* is called, in this thread too, with what ended it although nobody asked it to; *contact*
        is told of each answer.
        """
        self._make_store = make_store
        self._worker = worker
        self._about = about
        self._held = held
        self._lost = lost
        self._pulse = pulse
        self._stall_s = stall_s
        self._stalled = stalled
        self._died = died
        self._contact = contact
        self._stop = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="duly-heart", daemon=True)

    def start(self) -> None:
        """
        Begin to beat.
        """
        self._pulse.beat("heart")
        self._thread.start()

    def stop(self) -> None:
        """
        End after saying good-bye; returns when it has, or after a few seconds.
        """
        self._stop.set()
        if self._loop and self._wake:
            with suppress(RuntimeError):  # its loop is closed: it has ended already
                self._loop.call_soon_threadsafe(self._wake.set)
        self._thread.join(timeout=5)
        self._pulse.forget("heart")

    def _run(self) -> None:
        try:
            asyncio.run(self._beat_on())
        except BaseException as error:  # noqa: BLE001  # nobody reads what a thread raises, and leases would run out
            self._died(error)

    async def _beat_on(self) -> None:
        self._loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        store = self._make_store()
        every_s = store.lease_ms / 3000
        watch = Watch(self._pulse, self._stall_s, every_s)
        try:
            while not self._stop.is_set():
                self._pulse.beat("heart")
                try:
                    await self.run_once(store)
                    pause_s = every_s
                except DulyError as error:
                    log.warning("cannot extend leases: %s", error)
                    pause_s = min(every_s, 0.2)
                if names := watch.stalled():
                    self._stalled(names)
                try:
                    async with asyncio.timeout(pause_s):
                        await self._wake.wait()
                except TimeoutError:
                    continue
            store.link.patience_s = 1.0
            await store.beat(self._worker, b"")
        except DulyError as error:
            log.info("could not say good-bye: %s", error)
        finally:
            await store.link.aclose()

    async def run_once(self, store: Store) -> int:
        """
        Extend every lease once and say that the worker lives; how many were extended.
        """
        await store.beat(self._worker, self._about())
        self._note_answer()
        extended = 0
        by_shard: dict[int, list[Lease]] = {}
        for lease in self._held():
            by_shard.setdefault(lease.shard, []).append(lease)
        for shard, leases in by_shard.items():
            held = await store.extend(shard, leases)
            self._note_answer()
            extended += sum(held)
            gone = [lease for lease, mine in zip(leases, held, strict=True) if not mine]
            if gone:
                self._lost(gone)
        return extended

    def _note_answer(self) -> None:
        if self._contact is not None:
            self._contact.note()
