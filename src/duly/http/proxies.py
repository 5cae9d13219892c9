"""
Proxies: where the service is for its clients, and which address a request comes from.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from duly.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_ROOT = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")


def check_root_path(said: str) -> str:
    """
    Return the path that a proxy puts in front of every other, without a slash at its end.

    Raises:
        UsageError: It is none, or the service has a path of that name itself.
    """
    root = said.rstrip("/")
    if root and not _ROOT.fullmatch(root):
        raise UsageError(f"root_path={said!r} is no path; write one like /queue")
    if root.split("/")[1:2] == ["v1"]:
        raise UsageError(f"root_path={said!r} begins like the paths of the service itself; use another")
    return root


def check_proxies(said: str) -> list[str]:
    """
    Return the addresses and networks, named by commas, whose X-Forwarded-For is believed.

    Raises:
        UsageError: One is neither.
    """
    found = [each.strip() for each in said.split(",") if each.strip()]
    for each in found:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise UsageError(
                f"trusted_proxies={each!r} is no address or network: {error}; write 127.0.0.1 or 10.0.0.0/8"
            ) from None
    return found


class RootPath:
    """
    Lets the service know the path under which clients see it, whether the proxy takes it off or not.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Pass a request on.
        """
        if scope["type"] == "http":
            path = scope["path"]
            if not path.startswith(f"{self._root}/"):
                path = self._root + path
            scope = {**scope, "root_path": self._root, "path": path}
        await self._app(scope, receive, send)
