"""
The server that every system is measured on: one new Valkey for each measure, the same settings for all.
"""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import redis

from bench.peers.processes import Failed, running, tail
from duly.embedded.binary import find_binary

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: The lines of docs/how-to/own-server.md, for every system: nothing is evicted, and an append-only file is
#: synced every second.
OPTIONS = {
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",
    "maxmemory-policy": "noeviction",
    "stream-node-max-entries": "16",
    "auto-aof-rewrite-min-size": "256mb",
}


class Server:
    """
    A server, and what it says of its own cost.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)

    @property
    def version(self) -> str:
        info = self._client.info("server")
        return f"Valkey {info['valkey_version']}"

    def cpu_s(self) -> float:
        """
        Processor time that the server has used, of all its threads.
        """
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def memory(self) -> int:
        """
        Bytes that the data takes, without the buffers of clients and of the append-only file.
        """
        info = self._client.info("memory")
        return int(info["used_memory"]) - int(info["mem_clients_normal"]) - int(info["mem_aof_buffer"])

    def commands(self) -> int:
        """
        Commands that the server ran, those inside scripts counted, INFO not.
        """
        stats = self._client.info("commandstats")
        return sum(int(one["calls"]) for name, one in stats.items() if name != "cmdstat_info")

    def close(self) -> None:
        self._client.close()


@contextmanager
def server(port: int, folder: Path) -> Iterator[Server]:
    """
    An empty server on *port* of loopback meanwhile, with its files in *folder*.
    """
    folder.mkdir(parents=True)
    options = [word for name, value in OPTIONS.items() for word in (f"--{name}", value)]
    command = [str(find_binary()), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), *options]
    log = folder / "server.log"
    with running(command, {}, log):
        one = Server(url(port))
        try:
            _wait(one, log)
            yield one
        finally:
            one.close()


def _wait(one: Server, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            one.cpu_s()
        except redis.ConnectionError:
            time.sleep(0.01)
        else:
            return
    raise Failed(f"the server does not answer{tail(log)}")


def url(port: int) -> str:
    """
    Where systems find the server.
    """
    return f"redis://127.0.0.1:{port}/0"


def free_port() -> int:
    """
    A port of loopback that nothing listens on.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
