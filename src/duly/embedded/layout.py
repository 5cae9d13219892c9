"""
What lies where in a data directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from duly.embedded import keeper
from duly.errors import StoreUnavailable

SOCKET_BYTES = 100  #: the longest path to a socket: 107 on Linux, 103 on macOS, and some to spare


@dataclass(frozen=True, slots=True)
class Layout:
    """
    Paths of one data directory.
    """

    root: Path

    @property
    def users_lock(self) -> Path:
        """
        Shared by all that use the server.
        """
        return self.root / keeper.USERS_LOCK

    @property
    def strict_lock(self) -> Path:
        """
        Shared by those of them that asked for durability "always".
        """
        return self.root / keeper.STRICT_LOCK

    @property
    def log(self) -> Path:
        """
        What the server and its keeper have to say.
        """
        return self.root / keeper.LOG

    @property
    def socket(self) -> Path:
        """
        The server's socket, by a path that is short enough to connect to.
        """
        direct = self.root / keeper.SOCKET
        return direct if _fits(direct) else self._alias / keeper.SOCKET

    @property
    def url(self) -> str:
        """
        The server's address.
        """
        return f"unix://{quote(str(self.socket))}"

    @property
    def _alias(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()
        # A temporary directory may be far down a tree, too; this one has a short name everywhere.
        places = (tempfile.gettempdir(), "/tmp")  # noqa: S108  # in it, a directory that only its owner may enter
        links = [Path(place, f"duly-{os.getuid()}", digest[:16]) for place in places]
        return next(link for link in links if _fits(link / keeper.SOCKET))

    def prepare(self) -> None:
        """
        Make the directory and, if its path is too long for a socket, a short link to it.

        Raises:
            StoreUnavailable: The file system does not allow it.
        """
        try:
            self._make_root()
            if not _fits(self.root / keeper.SOCKET):
                self._make_alias()
        except FileExistsError as error:
            raise StoreUnavailable(f"cannot use {error.filename}: it is not a directory") from error
        except OSError as error:
            raise StoreUnavailable(f"cannot use {self.root} as data directory: {error.strerror}") from error

    def _make_root(self) -> None:
        if self.root.is_dir():
            return
        self.root.parent.mkdir(parents=True, exist_ok=True)
        self.root.mkdir(mode=0o700, exist_ok=True)
        # It tends to lie in somebody's working copy.
        (self.root / ".gitignore").write_text("*\n")

    def _make_alias(self) -> None:
        # Each process uses a link of its own temporary directory; the socket is the same behind all of them.
        private = self._alias.parent
        private.mkdir(mode=0o700, exist_ok=True)
        status = private.lstat()
        if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            raise StoreUnavailable(
                f"the path of {self.root} is too long for a Unix socket, and {private}, where a link to it "
                "would be made, is not a private directory of this user: choose a shorter data directory"
            )
        with contextlib.suppress(FileExistsError):
            self._alias.symlink_to(self.root)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_BYTES
