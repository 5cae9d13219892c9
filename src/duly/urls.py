"""
Where a callback goes: a URL, read strictly.  What two readers might read differently is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from duly.errors import UsageError
from duly.forks import importing

MAX_URL = 2_000
MAX_HOST = 253

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://"
    r"(?P<authority>[^/?#]*)"
    r"(?P<path>/[^?#]*)?"
    r"(?P<query>\?[^#]*)?"
)
_AUTHORITY = re.compile(r"(?:\[(?P<six>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(?::(?P<port>[0-9]{0,5}))?")
_PLAIN = re.compile(r"[!#-\[\]_a-z~|]*")  #: printable ASCII without space, quotes, backslash, caret, braces
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")

PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Target:
    """
    A URL taken apart.
    """

    url: str
    scheme: str
    host: str  #: a name in lower case and ASCII, or an address without brackets
    port: int
    path: str  #: with the query

    @property
    def authority(self) -> str:
        """
        Host and port, as circuit breakers know them.
        """
        return f"{self._host}:{self.port}"

    @property
    def host_header(self) -> str:
        """
        What the header `Host` says.
        """
        return self._host if self.port == PORTS[self.scheme] else self.authority

    @property
    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_url(url: str) -> Target:
    """
    Take a callback URL apart.

    Raises:
        UsageError: It is none; the message says what is wrong.  It does not repeat the URL, whose path may be
            a secret.
    """
    if not isinstance(url, str) or not url:
        raise UsageError("callback must be a URL such as https://example.com/hook")
    if len(url) > MAX_URL:
        raise UsageError(f"callback has {len(url)} characters, and a URL may have {MAX_URL}")
    match = _URL.fullmatch(url)
    if not match:
        raise UsageError("callback must be a URL such as https://example.com/hook, without a #fragment")
    scheme = match["scheme"].lower()
    if scheme not in PORTS:
        raise UsageError(f"callback must go to https://, not to {scheme}://")
    authority = match["authority"]
    if "@" in authority:
        raise UsageError("callback must not hold a user or a password; callbacks are signed instead")
    parts = _AUTHORITY.fullmatch(authority)
    if not parts:
        raise UsageError("callback: what stands behind :// is not a host, or a host and a port")
    host = _address(parts["six"]) if parts["six"] is not None else _name(parts["name"])
    port = int(parts["port"]) if parts["port"] else PORTS[scheme]
    if not 1 <= port <= 65535:
        raise UsageError(f"callback: port {port} must be from 1 to 65535")
    path = (match["path"] or "/") + (match["query"] or "")
    if not _PLAIN.fullmatch(path.lower()):
        raise UsageError("callback: the path holds characters that must be written as %XX")
    return Target(url, scheme, host, port, path)


def _address(text: str) -> str:
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise UsageError("callback: what stands in brackets is no IPv6 address") from None
    if address.scope_id:
        raise UsageError("callback: the address must not name a network interface")
    return str(address)


def _name(text: str) -> str:
    """
    A host name as DNS and certificates write it.
    """
    name = text.lower().removesuffix(".")
    if not name.isascii():
        name = _ascii(name)
    if not name:
        raise UsageError("callback: there is no host behind ://")
    if len(name) > MAX_HOST or not _NAME.fullmatch(name):
        raise UsageError(
            f"callback: a host name has at most {MAX_HOST} characters, in parts of 1 to 63 letters, digits, "
            "_ and -, which neither begin nor end with -"
        )
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        # 127.1, 0x7f000001 and 017700000001 all mean an address to some and a name to others.
        try:
            return str(IPv4Address(name))
        except AddressValueError:
            raise UsageError(
                "callback: an IPv4 address must be four decimal numbers, as 93.184.215.14"
            ) from None
    return name


def _ascii(name: str) -> str:
    try:
        with importing():
            import idna  # noqa: PLC0415  # comes with duly[server]; names in ASCII do without

        return idna.encode(name, uts46=True, transitional=False).decode()
    except ModuleNotFoundError:
        raise UsageError("callback: write the host in ASCII, as xn--…, or install duly[server]") from None
    except UnicodeError:
        raise UsageError("callback: the international host name is not valid, by IDNA 2008") from None
