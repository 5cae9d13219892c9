"""
What tests of callbacks share.
"""

from __future__ import annotations

import socket
import threading
from datetime import UTC, datetime

import pytest

from duly.callbacks.deliver import Deliverer, Delivery
from duly.callbacks.signature import SecretBook, new_secret
from tests.callbacks.certificates import Authority

DUE = datetime(2026, 1, 2, 3, 4, 5, 678_000, UTC)
SECRET = new_secret()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def deliverer(authority):
    """
    A deliverer with short limits: `deliverer(allow="127.0.0.1:9000", hook="127.0.0.1")` resolves names so.
    """

    def make(allow="", *, total_s=20.0, connect_s=10.0, hosts=None, resolver=None, **names):
        async def resolve(host):
            return names[host.replace(".", "_")].split()

        return Deliverer(
            SecretBook(SECRET),
            allow=allow,
            total_s=total_s,
            connect_s=connect_s,
            ca_file=authority.file,
            hosts=hosts,
            resolver=resolver or resolve,
        )

    return make


class Names:
    """
    The system's resolver: *silent* names get an answer at the end of the test, others at once.
    """

    def __init__(self):
        self.asked = []
        self.speak = threading.Event()

    def __call__(self, host, *_, **__):
        self.asked.append(host)
        if host.startswith("silent"):
            assert self.speak.wait(100)
        if host.startswith("nobody"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def names(monkeypatch):
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    yield names
    names.speak.set()


def delivery(payload=b'{"order":42}', **more):
    return Delivery("order.paid", "o-42", 7, 1, DUE, payload, source="/duly/shop", **more)
