"""
The guard: which hosts a callback may reach.

Whoever may send a job may name a URL, and our network is not theirs to look into.  So a host is resolved
once, every address it has is checked, and the connection goes to an address that was checked: a second
look-up could answer differently.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, TypeAlias

from duly.callbacks.addresses import Address, Network, denied, inside
from duly.errors import DulyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from duly.urls import Target

    #: Asks for the addresses of a host.
    Resolver: TypeAlias = Callable[[str], Awaitable[Iterable[str]]]

OPEN_PORTS = (443, 8443)  #: of hosts that are not allowed by name or network
LOOKUPS = 32  #: at once; slow name servers of some hosts must not keep others waiting
MAX_ADDRESSES = 16


class Refused(DulyError):
    """
    A callback may not go there.
    """


class Unresolved(DulyError):
    """
    The host has no address, or who knows it does not answer.
    """


@dataclass(frozen=True, slots=True)
class Allowed:
    """
    One entry of the allow list: a network or a pattern of host names, and maybe a port.
    """

    network: Network | None
    pattern: str
    port: int | None

    def covers(self, target: Target, address: Address) -> bool:
        """
        Whether it lets *target* be reached at *address*.
        """
        if self.port is not None and self.port != target.port:
            return False
        if self.network is not None:
            return address.version == self.network.version and address in self.network
        return fnmatchcase(target.host, self.pattern)


def parse_allow(text: str) -> list[Allowed]:
    """
    Read an allow list: networks, addresses and patterns of host names, each maybe with a port, by commas.

    Raises:
        UsageError: An entry cannot be read.
    """
    return [_allowed(entry.strip()) for entry in text.split(",") if entry.strip()]


def _allowed(entry: str) -> Allowed:
    host, port = entry, None
    if entry.startswith("["):
        host, bracket, rest = entry[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise UsageError(f"allow: {entry!r} must look like [::1] or [::1]:8080")
        port = rest[1:] or None
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    if port is not None and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535):
        raise UsageError(f"allow: the port in {entry!r} must be from 1 to 65535")
    number = None if port is None else int(port)
    try:
        return Allowed(ip_network(host), "", number)
    except ValueError:
        if "/" in host or ":" in host or not host:
            raise UsageError(
                f"allow: {entry!r} is no network; write 10.0.0.0/8, [::1]:8080, localhost:9000 or *.internal"
            ) from None
    if set(host) <= set("0123456789.*") and host != "*":
        # As a pattern, 10.* would also cover the name 10.example.com, which belongs to somebody else.
        raise UsageError(f"allow: {entry!r} is neither a network nor a name; write networks as 10.0.0.0/8")
    return Allowed(None, host.lower(), number)


async def look_up(host: str) -> list[str]:
    """
    Ask the system for the addresses of *host*.

    Raises:
        Unresolved: It has none, or nobody answers.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.run_in_executor(
            _threads(), lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    except (OSError, UnicodeError) as error:
        raise Unresolved(f"{host} has no address: {getattr(error, 'strerror', None) or error}") from error
    return [str(place[4][0]) for place in found]


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(LOOKUPS, "duly-lookup")


class Guard:
    """
    Decides where callbacks may go.
    """

    def __init__(self, allow: str = "", *, resolver: Resolver = look_up) -> None:
        """
        Read the allow list.

        Raises:
            UsageError: It cannot be read.
        """
        self._allow = parse_allow(allow)
        self._resolver = resolver

    async def addresses(self, target: Target) -> list[Address]:
        """
        The addresses to connect to, all of them checked, from one look-up.

        Raises:
            Refused: One of them is not for strangers, or the scheme or the port is not.
            Unresolved: There is none.
        """
        found = await self._find(target.host)
        if not found:
            raise Unresolved(f"{target.host} has no address")
        for address in found:
            # One bad address refuses them all: which one is taken must not be a matter of luck.
            self._check(target, address)
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

    def _check(self, target: Target, address: Address) -> None:
        allowed = self._is_allowed(target, address)
        if not allowed:
            if isinstance(address, IPv6Address) and address.scope_id:
                raise Refused(f"{target.host} is link-local")
            if why := denied(address):
                raise Refused(f"{target.host} is at an address that is {why}")
        for hidden in inside(address):
            # To allow a NAT64 network is not to allow what lies behind it.
            if (why := denied(hidden)) and not self._is_allowed(target, hidden):
                raise Refused(f"{target.host} is at an address that leads to one that is {why}")
        if allowed:
            return
        if target.scheme != "https":
            raise Refused(f"{target.host} is to be reached over https only")
        if target.port not in OPEN_PORTS:
            raise Refused(
                f"port {target.port} of {target.host}: only {' and '.join(map(str, OPEN_PORTS))} are open"
            )

    def _is_allowed(self, target: Target, address: Address | IPv4Address) -> bool:
        return any(entry.covers(target, address) for entry in self._allow)
