"""
API keys, blocking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.apikeys import ApiKey, KeyRing
    from duly.sync.twin import SyncDuly


class SyncKeyRing:
    """
    The blocking twin of `KeyRing`.
    """

    def __init__(self, twin: SyncDuly) -> None:
        self._twin = twin

    def create(self, name: str, scopes: Sequence[str], topics: Sequence[str] = ()) -> tuple[str, ApiKey]:
        """
        Make a key; its text is shown this once and stored nowhere; see `KeyRing.create`.
        """
        return self._twin.run(self._ring().create(name, scopes, topics))

    def all(self) -> list[ApiKey]:
        """
        Return every key, oldest first; those of the environment at the end.
        """
        return self._twin.run(self._ring().all())

    def revoke(self, id_or_name: str, *, force: bool = False) -> list[ApiKey]:
        """
        Forget keys by their id or their name; return those that were forgotten; see `KeyRing.revoke`.
        """
        return self._twin.run(self._ring().revoke(id_or_name, force=force))

    def any(self) -> bool:
        """
        Return whether there is a key at all.
        """
        return self._twin.run(self._ring().any())

    def seen(self) -> bool:
        """
        Return whether there ever was a key: in the queue, the record or the data directory.
        """
        ring = self._ring()
        self._twin.run(ring.any())
        return ring.seen()

    def fresh_s(self) -> float:
        """
        Return for how many seconds more what was read is believed, 0 if it is not.
        """
        return self._ring().fresh_s()

    def lasting(self) -> bool:
        """
        Return whether a restart still knows that there was a key, also if the queue has none.
        """
        return self._ring().lasting()

    def find(self, text: str) -> ApiKey | None:
        """
        Return the key that *text* is, if it is one.
        """
        return self._twin.run(self._ring().find(text))

    def signers(self, id_: str) -> list[tuple[ApiKey, bytes]]:
        """
        Return the keys with this id, each with a secret to sign with; see `KeyRing.signers`.
        """
        return self._twin.run(self._ring().signers(id_))

    def _ring(self) -> KeyRing:
        return self._twin.run(self._twin.here().key_ring())
