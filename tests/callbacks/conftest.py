"""
What tests of callbacks share.
"""

from __future__ import annotations

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


def delivery(payload=b'{"order":42}', **more):
    return Delivery("order.paid", "o-42", 7, 1, DUE, payload, source="/duly/shop", **more)
