import sys
import tempfile
from pathlib import Path

import pytest

from duly.embedded import EmbeddedServer
from tests.embedded.helpers import User, left_empty


@pytest.fixture
def data():
    """
    Name a data directory, by a short path, in which nothing runs when the test is over.
    """
    with tempfile.TemporaryDirectory(prefix="duly-", dir="/tmp") as short:
        path = Path(short, "data")
        with left_empty(path):
            yield path


@pytest.fixture
def start_user(data):
    """
    Start a process that uses the server in *data*.
    """
    users = []

    def start(**options):
        users.append(User(data, **options))
        return users[-1]

    yield start
    for user in users:
        user.end()


@pytest.fixture
def embedded(data):
    """
    Make an `EmbeddedServer` of this process on *data*.
    """
    servers = []

    def make(durability="always", *, path=data, **options):
        servers.append(EmbeddedServer(path, durability, **{"linger_s": 0.0} | options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def pytest_collection_modifyitems(items):
    if sys.platform != "linux":
        for item in items:
            item.add_marker(pytest.mark.skip(reason="looks for processes in /proc"))
