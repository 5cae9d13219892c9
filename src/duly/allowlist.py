"""
Where callbacks may go, as far as a URL and an address say it: to strangers, and to what is allowed besides.

Whoever sends a job is told at once what the allow list can never let through; a deliverer asks again, with
the addresses that the host has by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from duly.addresses import Address, Network, denied, inside
from duly.errors import DulyError, UsageError
from duly.urls import parse_url

if TYPE_CHECKING:
    from duly.urls import Target

OPEN_PORTS = (443, 8443)  #: of hosts that are not allowed by name or network


class Refused(DulyError):
    """
    A callback may not go there.
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
        if not self.may_cover(target):
            return False
        network = self.network
        return network is None or (address.version == network.version and address in network)

    def may_cover(self, target: Target) -> bool:
        """
        Whether it lets *target* be reached at some address.
        """
        if self.port is not None and self.port != target.port:
            return False
        return self.network is not None or fnmatchcase(target.host, self.pattern)


@dataclass(frozen=True, slots=True)
class AllowList:
    """
    What is open beside public addresses over https.
    """

    entries: tuple[Allowed, ...] = ()

    def check(self, target: Target, address: Address) -> None:
        """
        Check that *target* may be reached at *address*.

        Raises:
            Refused: It may not.
        """
        allowed = self._covers(target, address)
        if not allowed:
            if isinstance(address, IPv6Address) and address.scope_id:
                raise Refused(f"{target.host} is link-local")
            if why := denied(address):
                raise Refused(f"{target.host} is at an address that is {why}")
        for hidden in inside(address):
            # To allow a NAT64 network is not to allow what lies behind it.
            if (why := denied(hidden)) and not self._covers(target, hidden):
                raise Refused(f"{target.host} is at an address that leads to one that is {why}")
        if not allowed:
            _check_open(target)

    def check_unasked(self, target: Target) -> None:
        """
        Check what is known of *target* before its host is looked up.

        Raises:
            Refused: It may not be reached, whatever its address is.
        """
        try:
            address = ip_address(target.host)
        except ValueError:
            if any(entry.may_cover(target) for entry in self.entries):
                return
            if f".{target.host}".endswith(".localhost"):  # by RFC 6761, whatever a resolver says
                raise Refused(f"{target.host} is at an address that is loopback") from None
            _check_open(target)
        else:
            self.check(target, address)

    def _covers(self, target: Target, address: Address | IPv4Address) -> bool:
        return any(entry.covers(target, address) for entry in self.entries)


def _check_open(target: Target) -> None:
    if target.scheme != "https":
        raise Refused(f"{target.host} is to be reached over https only")
    if target.port not in OPEN_PORTS:
        raise Refused(
            f"port {target.port} of {target.host}: only {' and '.join(map(str, OPEN_PORTS))} are open"
        )


def check_callback(url: str, allow: AllowList | None) -> str:
    """
    Return *url* if it is one that callbacks may have; without an allow list, wherever it leads.

    Raises:
        UsageError: It is not.
    """
    target = parse_url(url)
    if allow is not None:
        try:
            allow.check_unasked(target)
        except Refused as error:
            raise UsageError(
                f"callback: {error}; the setting callback_allow of the sender and the deliverer opens more"
            ) from None
    return target.url


@cache
def parse_allow(text: str) -> AllowList:
    """
    Read an allow list: networks, addresses and patterns of host names, each maybe with a port, by commas.

    Raises:
        UsageError: An entry cannot be read.
    """
    return AllowList(tuple(_allowed(entry.strip()) for entry in text.split(",") if entry.strip()))


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
