"""
What operators look at: figures, the audit, jobs in quarantine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duly.app.connecting import Connecting
from duly.audit import Audit
from duly.glance import glance, stats_document
from duly.options import at_least_one
from duly.quarantine import StoreQuarantine
from duly.remote.oversight import RemoteQuarantine, newest_audit
from duly.remote.views import RemoteViews

if TYPE_CHECKING:
    from duly.audit import AuditRecord
    from duly.glance import StatsDocument
    from duly.quarantine import Quarantine

MOST = 10_000  #: records of the audit that are kept


class Oversight(Connecting):
    """
    What those call who look after a queue.
    """

    async def stats(self) -> StatsDocument:
        """
        The queue at a glance: what `duly stats --json` prints.

        Over HTTP, with a key that is bound to topics, it is about these, and events and server are None.
        """
        views = await self.views()
        if isinstance(views, RemoteViews):
            return await views.document()
        return stats_document(await glance(await self.store(), views))

    async def audit(self, limit: int = 50) -> list[AuditRecord]:
        """
        Who changed what by hand, the newest first.

        Raises:
            UsageError: The limit is not a number from 1 to 10,000.
        """
        at_least_one(limit, "limit", MOST)
        if self.settings.remote:
            return await newest_audit(await self._remote_link(), limit)
        return (await Audit(await self.store()).newest(limit))[0]

    async def quarantine(self) -> Quarantine:
        """
        The stored jobs that cannot be read.
        """
        if self.settings.remote:
            return RemoteQuarantine(await self._remote_link())
        return StoreQuarantine(await self.store())
