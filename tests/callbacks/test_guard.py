"""
Where callbacks may go, and where nobody can make them go.
"""

from __future__ import annotations

import pytest

from duly.allowlist import Refused
from duly.callbacks.guard import Guard
from duly.callbacks.lookups import Unresolved
from duly.errors import UsageError
from duly.urls import parse_url

PUBLIC_4, PUBLIC_6 = "93.184.215.14", "2606:4700:4700::1111"


def guard(*addresses, allow=""):
    async def resolve(_host):
        return addresses

    return Guard(allow, resolver=resolve)


async def reach(url, *addresses, allow=""):
    return [str(address) for address in await guard(*addresses, allow=allow).addresses(parse_url(url))]


async def test_public_addresses_are_open():
    assert [PUBLIC_4, PUBLIC_6] == await reach("https://example.com/hook", PUBLIC_4, PUBLIC_6)
    assert [PUBLIC_4] == await reach(f"https://{PUBLIC_4}:8443/hook")
    assert [PUBLIC_6] == await reach(f"https://[{PUBLIC_6}]/hook")


PRIVATE = """
    0.0.0.0 0.1.2.3 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.255.0.1 169.254.169.254
    172.16.0.1 172.31.9.9
    192.0.0.1 192.0.0.8 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.1.1 192.175.48.1
    198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 239.1.1.1 240.0.0.1 255.255.255.255
    :: ::1 ::2 ::127.0.0.1 ::93.184.215.14 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:93.184.215.14
    64:ff9b::127.0.0.1 64:ff9b::169.254.169.254 64:ff9b::93.184.215.14 64:ff9b:1::1 64:ff9b:1:7f00:0:100::
    100::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:2::1 2001:10::1 2001:20::1 2001:db8::1
    2002:7f00:1:: 2002:5db8:d70e:: 2620:4f:8000::1 3fff::1 4000::1 5f00::1 fc00::1 fd12:3456::1
    fe80::1 fe80::1%eth0
    fec0::1 ff02::1 2a00:1450::5efe:10.0.0.1 2a00:1450::200:5efe:127.0.0.1
"""


@pytest.mark.parametrize("address", PRIVATE.split())
async def test_what_is_not_public_is_refused_by_name(address):
    with pytest.raises(Refused):
        await reach("https://example.com/hook", address)
    # One that is public beside it does not help: which one is taken is a matter of luck.
    for both in ((PUBLIC_4, address), (address, PUBLIC_4)):
        with pytest.raises(Refused):
            await reach("https://example.com/hook", *both)


@pytest.mark.parametrize("address", [each for each in PRIVATE.split() if "%" not in each])
async def test_what_is_not_public_is_refused_by_address(address):
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(Refused):
        await reach(f"https://{host}/hook")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com/hook",
        "//example.com/hook",
        "ftp://example.com/hook",
        "file:///etc/passwd",
        "gopher://example.com/",
        "https://",
        "https:///hook",
        "https://user:secret@example.com/hook",
        "https://example.com@127.0.0.1/hook",
        "https://example.com/hook#part",
        "https://example.com:0/hook",
        "https://example.com:65536/hook",
        "https://example.com:443x/hook",
        "https://example.com:4:4/hook",
        "https://example.com\\@127.0.0.1/",
        "https://exa mple.com/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: other",
        "https://example.com/é",
        "https://exam\tple.com/",
        "https://-example.com/",
        "https://example..com/",
        "https://[::1/hook",
        "https://[fe80::1%25eth0]/hook",
        "https://[127.0.0.1]/hook",
        "https://127.1/hook",
        "https://2130706433/hook",
        "https://0x7f000001/hook",
        "https://0177.0.0.1/hook",
        "https://127.0.0.0x1/hook",
        "https://example.com/" + 2_000 * "a",
        "https://" + 60 * "a" + "." + 200 * "b" + ".com/",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_none(url):
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


def test_a_url_is_read_as_certificates_and_dns_write_it():
    target = parse_url("HTTPS://EXAMPLE.com.:8443/Hook?a=B%20c")
    assert ("https", "example.com", 8443, "/Hook?a=B%20c") == (
        target.scheme,
        target.host,
        target.port,
        target.path,
    )
    assert "example.com:8443" == target.host_header
    assert ("/", "[2606:4700::1]") == (
        parse_url("https://[2606:4700:0::1]").path,
        parse_url("https://[2606:4700:0::1]").host_header,
    )
    # One rule for international names, and its result is what is looked up, sent and compared.
    assert "xn--bcher-kva.example" == parse_url("https://BÜCHER.example/").host
    # What folds into an address is one from then on, and checked like any other.
    assert "127.0.0.1" == parse_url("https://１２７.0.0。1/").host  # noqa: RUF001  # full width on purpose


async def test_strangers_are_reached_over_https_and_its_ports_only():
    for url in ("http://example.com/", "https://example.com:22/", "https://example.com:6379/"):
        with pytest.raises(Refused):
            await reach(url, PUBLIC_4)
        assert [PUBLIC_4] == await reach(url, PUBLIC_4, allow="example.com")


@pytest.mark.parametrize(
    ("allow", "url", "address"),
    [
        ("10.0.0.0/8", "http://intranet/hook", "10.1.2.3"),
        ("127.0.0.1:9000", "http://localhost:9000/", "127.0.0.1"),
        ("[::1]:9000", "http://localhost:9000/", "::1"),
        ("::1", "http://[::1]:9000/", "::1"),
        ("*.internal", "http://hooks.internal/", "192.168.0.7"),
        ("127.0.0.1:9000, *.internal:8080", "http://hooks.internal:8080/", "192.168.0.7"),
        ("*", "http://anything:1234/", "127.0.0.1"),
    ],
)
async def test_the_allow_list_opens_networks_and_names(allow, url, address):
    assert [address] == await reach(url, address, allow=allow)
    with pytest.raises(Refused):
        await reach(url, address)


@pytest.mark.parametrize(
    ("allow", "url", "address"),
    [
        ("127.0.0.1:9000", "http://localhost:9001/", "127.0.0.1"),
        ("127.0.0.1:9000", "http://localhost:9000/", "127.0.0.2"),
        ("*.internal", "http://internal.example.com/", "10.0.0.1"),
        ("*.internal", "http://evil.com/x.internal", "10.0.0.1"),
        ("10.0.0.0/8", "https://example.com/", "::ffff:10.0.0.1"),
        # The network behind a gateway is not opened with the gateway.
        ("64:ff9b::/96", "https://example.com/", "64:ff9b::169.254.169.254"),
        ("64:ff9b:1::/48", "https://example.com/", "64:ff9b:1:a9fe:a9:fe00::"),
        ("64:ff9b:1::/48", "https://example.com/", "64:ff9b:1::a9fe:a9fe"),
        ("2002::/16", "https://example.com/", "2002:7f00:1::"),
        ("2001::/32", "https://example.com/", "2001:0:7f00:1:8000:63bf:a247:28f1"),
        ("2001::/32", "https://example.com/", "2001:0:4136:e378:8000:63bf:80ff:fffe"),
    ],
)
async def test_the_allow_list_opens_nothing_else(allow, url, address):
    with pytest.raises(Refused):
        await reach(url, address, allow=allow)


async def test_a_gateway_that_is_allowed_reaches_what_is_public():
    assert ["64:ff9b::5db8:d70e"] == await reach(
        "https://example.com/", "64:ff9b::93.184.215.14", allow="64:ff9b::/96"
    )


@pytest.mark.parametrize(
    "allow", ["10.0.0.1/8", "10.*", "[::1", "[::1]x", "host:99999", "fe80::/99x", "a/b", "[]"]
)
def test_an_allow_list_that_cannot_be_read_is_an_error(allow):
    with pytest.raises(UsageError, match="allow"):
        Guard(allow)


async def test_a_host_without_an_address_is_not_refused_but_unresolved():
    with pytest.raises(Unresolved):
        await reach("https://example.com/")
    with pytest.raises(Unresolved):
        await reach("https://example.com/", "not an address")
    with pytest.raises(Unresolved):
        await Guard().addresses(parse_url("https://nobody.invalid/"))


async def test_the_system_is_asked_by_default():
    with pytest.raises(Refused, match="loopback"):
        await Guard().addresses(parse_url("https://localhost/"))
