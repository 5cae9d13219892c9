"""
Jobs in quarantine, blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.job import JobKey
    from duly.quarantine import Quarantine, QuarantinedContent, QuarantinedDocument
    from duly.sync.twin import SyncDuly


class SyncQuarantine:
    """
    The blocking twin of `Quarantine`.
    """

    def __init__(self, twin: SyncDuly) -> None:
        self._twin = twin

    def size(self) -> int:
        """
        Return how many jobs there are.
        """
        return self._twin.run(self._found().size())

    def page(
        self, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[QuarantinedDocument], str | None]:
        """
        Return some of them and where to go on; a page may be empty and still have a cursor.
        """
        return self._twin.run(self._found().page(cursor, limit))

    def content(self, key: JobKey) -> QuarantinedContent:
        """
        Return all that is known of one.
        """
        return self._twin.run(self._found().content(key))

    def drop(self, keys: Sequence[JobKey]) -> list[bool]:
        """
        Remove some for good; False for each that was not there.
        """
        return self._twin.run(self._found().drop(keys))

    def drop_all(self) -> int:
        """
        Remove them all for good; return how many they were.
        """
        return self._twin.run(self._found().drop_all())

    def _found(self) -> Quarantine:
        return self._twin.run(self._twin.here().quarantine())
