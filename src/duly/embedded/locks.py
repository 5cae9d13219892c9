"""
A shared lock that says: this process is here.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from duly.errors import StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path

POLL_S = 0.005


class Presence:
    """
    A shared ``flock`` on a file, from `announce` to `withdraw` or the end of this object.

    It belongs to an open file.  Programs that this process starts do not inherit it; a child made by a plain
    ``os.fork`` does, and then the lock lasts until both have ended.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    @property
    def announced(self) -> bool:
        """
        Whether the lock is held, and on the file that has this name now.
        """
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def announce(self, deadline: float) -> None:
        """
        Hold the lock, if need be after waiting for one who holds it exclusively.

        Raises:
            StoreUnavailable: The file cannot be opened, or the other one keeps it.
        """
        if self.announced:
            return
        self.withdraw()
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"cannot open {self._path}: {error.strerror}") from error
        while True:
            try:
                # Never blocking: a blocked flock cannot be given a time limit.
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    self.withdraw()
                    raise StoreUnavailable(f"{self._path} is held by a keeper that does not finish") from None
                time.sleep(POLL_S)
            else:
                return

    def withdraw(self) -> None:
        """
        Let go.  Closes the file and does not unlock it, so that a forked child keeps its share.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.withdraw()
