"""
Duties of every process that hands out jobs: wake what is due, take back what was lost, tidy up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from duly.services.agreement import Agreement
from duly.services.auditor import Auditor
from duly.services.libraries import Libraries
from duly.services.pruner import Pruner
from duly.services.recoverer import Recoverer
from duly.services.timer import Timer, TimerBell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from duly.services.contact import Contact
    from duly.services.outlook import Outlook
    from duly.services.service import Service
    from duly.settings import Settings
    from duly.store import Store

SELDOM_S = 15.0  #: duties that nobody waits for


class Duties:
    """
    Timers, recoverers, pruner, auditor, agreement and care for libraries of one process.
    """

    def __init__(
        self,
        store: Store,
        outlooks: list[Outlook],
        settings: Settings,
        *,
        name: str,
        claim: Callable[[int], bool] = lambda _: False,
        topics: Callable[[], Sequence[str] | None] = lambda: None,
        contact: Contact | None = None,
    ) -> None:
        """
        Prepare: *claim* makes the worker of this process claim from a shard, if it has one, and *topics*
        are those of which that worker could start a job now, None where nobody can tell.

        *contact* is what the heart of this process notes, if it has one.
        """
        scan_s = settings.timer_scan_ms / 1000
        self.recoverers = [
            Recoverer(
                store,
                shard,
                outlook,
                every_s=settings.recover_scan_ms / 1000,
                look_s=scan_s,
                contact=contact,
            )
            for shard, outlook in enumerate(outlooks)
        ]
        self.timers = [
            Timer(
                store,
                shard,
                outlook,
                name=name,
                role=settings.role,
                scan_s=scan_s,
                claim=partial(claim, shard),
                topics=topics,
            )
            for shard, outlook in enumerate(outlooks)
        ]
        # A loop that only waits must come round before it counts as stalled.
        often_s = min(5.0, settings.stall_ms / 2000)
        self._bell = TimerBell(store, outlooks, listen_s=often_s)
        seldom_s = min(SELDOM_S, settings.stall_ms / 3000)
        self._libraries = Libraries(store, every_s=seldom_s)
        self._pruner = Pruner(store, every_s=seldom_s)

        def leads() -> bool:
            return outlooks[0].rank == 0

        self._auditor = Auditor(store, every_s=seldom_s, leads=leads)
        # A single shard agrees with itself.
        self._agreement = Agreement(store, every_s=seldom_s, leads=leads) if store.shards > 1 else None

    def services(self) -> list[tuple[str, Service]]:
        """
        Each by a name of its own: a shard's timer must not hide behind another's.
        """
        services: list[tuple[str, Service]] = [
            ("pruner", self._pruner),
            ("auditor", self._auditor),
            ("libraries", self._libraries),
            ("timer bell", self._bell),
        ]
        if self._agreement is not None:
            services.append(("agreement", self._agreement))
        for shard, timer in enumerate(self.timers):
            services += (
                (f"timer {shard}", timer),
                (f"recoverer {shard}", self.recoverers[shard]),
            )
        return services
