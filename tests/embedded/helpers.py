"""
Users of an embedded server as processes of their own, and a look at what runs in a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import duly.embedded
from duly.embedded import keeper

SRC = Path(duly.embedded.__file__).parents[2]
USER = Path(__file__).with_name("user.py")


def eventually(condition, *, within_s=20.0):
    """
    Poll *condition* until it holds, and return what it gave.
    """
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
    return found


def always(condition, *, for_s):
    """
    Check that *condition* holds the whole time.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert condition()
        time.sleep(0.01)


def alive(pid):
    """
    Say whether a process runs; one that only waits to be reaped does not.
    """
    try:
        return "Z" != Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def living_in(data):
    """
    List processes by their working directory: keepers and servers, also those that no lock file knows of.
    """
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").samefile(data):
                found.append(int(process.name))
    return [pid for pid in found if alive(pid)]


def keeper_pid(data):
    return int((data / keeper.KEEPER_LOCK).read_text())


def server_pid(data):
    return int((data / keeper.SERVER_LOCK).read_text())


def pids(data):
    """
    Return the ids of keeper and server, or None while one of them is not there.
    """
    try:
        found = keeper_pid(data), server_pid(data)
    except (OSError, ValueError):
        return None
    return found if all(map(alive, found)) else None


def locked(path):
    """
    Say whether somebody holds *path* exclusively.
    """
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)


@contextlib.contextmanager
def left_empty(data):
    """
    Check that nothing runs in *data* in the end, and see to it.
    """
    try:
        yield
        eventually(lambda: not data.exists() or not living_in(data))
    finally:
        for pid in living_in(data) if data.exists() else []:
            kill(pid)
            eventually(lambda pid=pid: not alive(pid))


class User:
    """
    A process that uses the server of a directory and does as it is told, line by line.
    """

    def __init__(self, data, *, durability="always", linger_s=0.0, patience_s=15.0, program="obey"):
        self._process = subprocess.Popen(
            [sys.executable, USER, SRC, program, data, durability, str(linger_s), str(patience_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def hear(self):
        return self._process.stdout.readline().rstrip("\n")

    def started(self):
        assert "up" == self.hear()
        return self

    def tell(self, line):
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.hear()

    def kill(self):
        self._process.kill()
        self.leave()

    def leave(self):
        """
        Close its input, which ends it, and return what else it said.
        """
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        said = self._process.stdout.read()
        self._process.stdout.close()
        self._process.wait()
        return said.splitlines()

    def end(self):
        if self._process.returncode is None:
            self.kill()
