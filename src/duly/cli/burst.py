"""
``duly work --burst``: know when there is nothing left to do.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from duly.errors import DulyError

if TYPE_CHECKING:
    from collections.abc import Collection

    from duly.app import Duly
    from duly.views import Views

log = logging.getLogger("duly.work")

LOOK_S = 0.1
LOOKS = 2  #: a job that moves between the questions of one look is seen by the next


async def until_idle(app: Duly, topics: Collection[str]) -> None:
    """
    Return once no job of *topics* is due now, ready or running, here or elsewhere; paused ones may wait.
    """
    views = await app.views()
    quiet = 0
    while quiet < LOOKS:
        await asyncio.sleep(LOOK_S)
        try:
            quiet = quiet + 1 if await _idle(views, topics) else 0
        except DulyError as error:
            # The worker itself survives this, and there may be work when the server is back.
            log.warning("cannot see whether there is work left: %s", error)
            quiet = 0


async def _idle(views: Views, topics: Collection[str]) -> bool:
    # Whatever is due is promoted within milliseconds, so its topic does not matter.
    [due] = await views.due_counts([0, await views.now_ms() + 1])
    if due:
        return False
    mine = [each for each in (await views.stats()).topics if each.topic in topics]
    return not any(each.counts["running"] or (each.counts["ready"] and not each.paused) for each in mine)
