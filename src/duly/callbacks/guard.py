"""
The guard: which hosts a callback may reach.

Whoever may send a job may name a URL, and our network is not theirs to look into.  So a host is resolved
once, every address it has is checked, and the connection goes to an address that was checked: a second
look-up could answer differently.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias

from duly.allowlist import parse_allow
from duly.callbacks.lookups import Lookups, Unresolved

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from duly.addresses import Address
    from duly.urls import Target

    #: Asks for the addresses of a host.
    Resolver: TypeAlias = Callable[[str], Awaitable[Iterable[str]]]

MAX_ADDRESSES = 16


class Guard:
    """
    Decides where callbacks may go.
    """

    def __init__(self, allow: str = "", *, resolver: Resolver | None = None) -> None:
        """
        Read the allow list.

        Raises:
            UsageError: It cannot be read.
        """
        self._allow = parse_allow(allow)
        self._resolver = resolver or Lookups().addresses

    async def addresses(self, target: Target) -> list[Address]:
        """
        The addresses to connect to, all of them checked, from one look-up.

        Raises:
            Refused: One of them is not for strangers, or the scheme or the port is not.
            Unresolved: There is none.
            PutOff: Look-ups of other hosts take all the threads.
        """
        found = await self._find(target.host)
        if not found:
            raise Unresolved(f"{target.host} has no address")
        for address in found:
            # One bad address refuses them all: which one is taken must not be a matter of luck.
            self._allow.check(target, address)
        return found[:MAX_ADDRESSES]

    async def _find(self, host: str) -> list[Address]:
        try:
            return [ip_address(host)]
        except ValueError:
            pass
        texts = dict.fromkeys(await self._resolver(host))
        try:
            return [ip_address(text) for text in texts]
        except ValueError:
            raise Unresolved(f"{host} has an address that cannot be read") from None
