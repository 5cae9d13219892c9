"""
Addresses: those of this machine, and those that nobody outside may make us talk to.

A list of our own: `ipaddress` calls some of these global, and knows nothing of the
IPv4 addresses that hide in IPv6 ones.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:]+))(?::\d*)?")

DENIED_4 = {
    IPv4Network(network): why
    for network, why in {
        "0.0.0.0/8": "unspecified",
        "10.0.0.0/8": "private",
        "100.64.0.0/10": "shared by a provider's customers",
        "127.0.0.0/8": "loopback",
        "169.254.0.0/16": "link-local, and where clouds keep their secrets",
        "172.16.0.0/12": "private",
        "192.0.0.0/24": "reserved for protocols",
        "192.0.2.0/24": "for documentation",
        "192.31.196.0/24": "reserved for AS112",
        "192.52.193.0/24": "reserved for AMT",
        "192.88.99.0/24": "a relay of 6to4",
        "192.168.0.0/16": "private",
        "192.175.48.0/24": "reserved for AS112",
        "198.18.0.0/15": "for benchmarks",
        "198.51.100.0/24": "for documentation",
        "203.0.113.0/24": "for documentation",
        "224.0.0.0/4": "multicast",
        "240.0.0.0/4": "reserved, or broadcast",
    }.items()
}

#: All of IPv6 that is given out to hosts; what is not in it is refused, whatever it may become.
GLOBAL_6 = IPv6Network("2000::/3")

DENIED_6 = {
    IPv6Network(network): why
    for network, why in {
        "::/128": "unspecified",
        "::1/128": "loopback",
        "::ffff:0:0/96": "an IPv4 address in disguise",
        "::/96": "an IPv4 address in disguise",
        "64:ff9b::/96": "NAT64",
        "64:ff9b:1::/48": "NAT64",
        "100::/64": "discarded",
        "2001::/32": "Teredo",
        "2001::/23": "reserved for protocols",
        "2001:db8::/32": "for documentation",
        "2002::/16": "6to4",
        "2620:4f:8000::/48": "reserved for AS112",
        "3fff::/20": "for documentation",
        "fc00::/7": "private",
        "fe80::/10": "link-local",
        "fec0::/10": "site-local",
        "ff00::/8": "multicast",
    }.items()
}

_COMPATIBLE = IPv6Network("::/96")
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_TEREDO = IPv6Network("2001::/32")
_6TO4 = IPv6Network("2002::/16")


def denied(address: Address) -> str | None:
    """
    Why *address* itself is not for strangers to name; None if it may be.
    """
    if isinstance(address, IPv4Address):
        return next((why for network, why in DENIED_4.items() if address in network), None)
    for network, why in DENIED_6.items():
        if address in network:
            return why
    return None if address in GLOBAL_6 else "not given out to any host"


def inside(address: Address) -> Iterator[IPv4Address]:
    """
    The IPv4 addresses that an IPv6 one leads to, or may.
    """
    if isinstance(address, IPv4Address):
        return
    value = int(address)
    low = IPv4Address(value & 0xFFFFFFFF)
    if address in _COMPATIBLE:
        # Unspecified and loopback lie within, and lead nowhere else.
        if value > 1:
            yield low
    elif address in _MAPPED or address in _NAT64:
        yield low
    elif address in _NAT64_LOCAL:
        # How long the prefix is, its network decides: 48 bits, with 8 empty ones in the middle, or 96.
        yield low
        yield IPv4Address((value >> 64 & 0xFFFF) << 16 | value >> 40 & 0xFFFF)
    elif address in _TEREDO:
        yield IPv4Address(value >> 64 & 0xFFFFFFFF)
        yield IPv4Address(~value & 0xFFFFFFFF)
    elif address in _6TO4:
        yield IPv4Address(value >> 80 & 0xFFFFFFFF)
    elif value >> 32 & 0xFFFFFFFF in (0x00005EFE, 0x02005EFE):
        # ISATAP: a tunnel that can stand in any network.
        yield low


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """
    Return whether only this machine reaches *host*.
    """
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # as an IPv6 socket names an IPv4 peer
    return (mapped or address).is_loopback


@lru_cache(maxsize=1024)
def host_name(host: str) -> str:
    """
    Return a Host header without its port, and an IPv6 address without its brackets; "" if it is none.
    """
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""
