"""
A request as operations read it: its headers looked up by name, and what the gate knows of it beside them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class IndexedHeaders(Headers):
    """
    Headers with an index.

    An operation asks for ten of them, most of which are not there, and Starlette walks through all that were
    sent for each.
    """

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=raw)
        self._index = dict(reversed(raw))  # of several, the first counts

    def get(self, key: str, default: Any = None) -> Any:
        """
        Return the first header of that name, or *default*.
        """
        value = self._index.get(key.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")

    def getlist(self, key: str) -> list[str]:
        """
        Return all headers of that name.
        """
        return super().getlist(key) if key in self else []

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.lower().encode("latin-1") in self._index


class ServiceRequest(Request):
    """
    A request to an operation of the service.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope, receive, send)
        self._indexed = IndexedHeaders(scope["headers"])
        self._known = SimpleNamespace()

    @property
    def headers(self) -> Headers:
        """
        Return what was sent beside the body.
        """
        return self._indexed

    @property
    def state(self) -> Any:
        """
        Return what the service knows of this request: its key, its operation, what the audit is to say.
        """
        return self._known
