"""
What operators look at over HTTP: jobs in quarantine, and the audit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from duly.audit import AuditRecord
from duly.job import JobKey
from duly.quarantine import QuarantinedContent, QuarantinedDocument, quarantined
from duly.remote.answers import error_of
from duly.remote.store import change_headers
from duly.remote.views import RemoteViews
from duly.views import check_cursor, check_keys, check_limit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.remote.link import RemoteLink

PAGE = 1000  #: records that one call tells, at most


class _QuarantinePage(msgspec.Struct, frozen=True):
    jobs: list[QuarantinedDocument]
    cursor: str | None


class _AuditPage(msgspec.Struct, frozen=True):
    records: list[AuditRecord]
    cursor: str | None


_quarantine_pages = msgspec.json.Decoder(_QuarantinePage)
_contents = msgspec.json.Decoder(QuarantinedContent)
_audit_pages = msgspec.json.Decoder(_AuditPage)


class RemoteQuarantine:
    """
    The quarantine of a queue behind a service.
    """

    def __init__(self, link: RemoteLink) -> None:
        self._link = link

    async def size(self) -> int:
        """
        Return how many jobs there are.
        """
        return (await RemoteViews(self._link).document()).quarantined

    async def page(
        self, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[QuarantinedDocument], str | None]:
        """
        Return about *limit* of them and where to go on; a page may be empty and still have a cursor.
        """
        check_cursor(cursor)
        params = {"limit": str(check_limit(limit))} | ({} if cursor is None else {"cursor": cursor})
        reply = await self._link.call("GET", "/v1/quarantine", params=params)
        if reply.problem is not None:
            raise error_of(reply.problem, self._link.place, params)
        page = self._link.decode(_quarantine_pages, reply)
        return page.jobs, page.cursor

    async def content(self, key: JobKey) -> QuarantinedContent:
        """
        Return all that is known of one.

        Raises:
            JobNotFound: It is not there.
        """
        check_keys([key])
        reply = await self._link.call("GET", f"/v1/quarantine/{key.topic}/{key.id}")
        if reply.problem is not None:
            raise error_of(reply.problem, self._link.place)
        return self._link.decode(_contents, reply)

    async def drop(self, keys: Sequence[JobKey]) -> list[bool]:
        """
        Remove some for good; False for each that was not there.
        """
        return [await self._drop(key) for key in check_keys(keys)]

    async def _drop(self, key: JobKey) -> bool:
        reply = await self._link.call(
            "DELETE", f"/v1/quarantine/{key.topic}/{key.id}", headers=change_headers(), aged=True
        )
        if reply.problem is None:
            return True
        if reply.problem.kind == "job-not-found":
            return False
        raise error_of(reply.problem, self._link.place)

    async def drop_all(self) -> int:
        """
        Remove them all for good; return how many they were.
        """
        dropped = 0
        async for page in quarantined(self):
            dropped += sum(await self.drop([JobKey(each.topic, each.id) for each in page]))
        return dropped


async def newest_audit(link: RemoteLink, limit: int) -> list[AuditRecord]:
    """
    Return up to *limit* records of the audit, the newest first.
    """
    found: list[AuditRecord] = []
    cursor: str | None = None
    while len(found) < limit:
        params = {"limit": str(min(limit - len(found), PAGE))} | (
            {} if cursor is None else {"cursor": cursor}
        )
        reply = await link.call("GET", "/v1/audit", params=params)
        if reply.problem is not None:
            raise error_of(reply.problem, link.place)
        page = link.decode(_audit_pages, reply)
        found += page.records
        cursor = page.cursor
        if cursor is None:
            break
    return found
