"""
The embedded server, as its users see it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duly.embedded.binary import find_binary
from duly.embedded.launch import Launches
from duly.embedded.layout import Layout
from duly.embedded.locks import POLL_S, Presence
from duly.embedded.probe import ask
from duly.errors import StoreUnavailable, UsageError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

log = logging.getLogger("duly.embedded")

DURABILITIES = ("always", "everysec")
LAUNCHES = 3  #: so many keepers in a row that fail and say why, and the user is told


class EmbeddedServer:
    """
    The Valkey server of a data directory, shared by all processes that use the directory.

    It runs while at least one `EmbeddedServer` on the directory is started, in whichever process, and for
    *linger_s* longer.  Methods block and may be called from any thread.
    """

    def __init__(
        self,
        data: Path | str,
        durability: str = "always",
        *,
        patience_s: float = 15.0,
        linger_s: float = 2.0,
        binary: Path | None = None,
    ) -> None:
        if durability not in DURABILITIES:
            raise UsageError(f"durability={durability!r} is not one of {', '.join(DURABILITIES)}")
        self.data = Path(data).resolve()
        self.durability = durability
        self._layout = Layout(self.data)
        self._patience_s = patience_s
        self._linger_s = linger_s
        self._binary = binary
        self._users = Presence(self._layout.users_lock)
        self._strict = Presence(self._layout.strict_lock)
        self._started = False
        self._mutex = threading.Lock()

    @property
    def url(self) -> str:
        """
        Where redis-py finds the server.
        """
        return self._layout.url

    def start(self) -> str:
        """
        Bring the server up unless it is, keep it up until `close`, and return its URL.

        Raises:
            StoreUnavailable: There is no server within *patience_s*; the message says why.
            ServerUnsuitable: There is no Valkey to start.
        """
        with self._mutex:
            self._started = True
            try:
                self._bring_up()
            except BaseException:
                self._leave()
                raise
        log.info("embedded Valkey: data in %s, durability %s", self.data, self.durability)
        return self.url

    def ensure(self) -> None:
        """
        Bring the server up again if it went away.

        Raises:
            StoreUnavailable: There is no server within *patience_s*; the message says why.
            UsageError: `start` was not called, or `close` was.
        """
        with self._mutex:
            if not self._started:
                raise UsageError("the embedded server is closed: call start() first")
            self._bring_up()

    def close(self) -> None:
        """
        Stop using the server.  The last user's leaving ends it.
        """
        self._started = False  # also tells a thread that waits inside ensure()
        with self._mutex:
            self._leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _leave(self) -> None:
        self._started = False
        self._users.withdraw()
        self._strict.withdraw()

    def _bring_up(self) -> None:
        deadline = time.monotonic() + self._patience_s
        # Before looking for the server: from here on, its keeper does not stop it.
        self._layout.prepare()
        self._users.announce(deadline)
        if self.durability == "always":
            self._strict.announce(deadline)

        launches = Launches(
            self._layout.root, self._binary or find_binary(), self.durability, linger_s=self._linger_s
        )
        try:
            while (state := self._look()) != "up":
                now = time.monotonic()
                if not self._started:
                    raise StoreUnavailable("the embedded server was closed while it started")
                if state == "loading":
                    deadline = now + self._patience_s  # it is reading its AOF: a sign of life
                elif launches.pursue(now) >= LAUNCHES or now > deadline:
                    reason = launches.reason or f"no answer within {self._patience_s:g} s"
                    raise StoreUnavailable(
                        f"no embedded server in {self.data}: {reason} (log: {self._layout.log})"
                    )
                time.sleep(POLL_S)
        finally:
            launches.close()

    def _look(self) -> Literal["up", "loading", "away"]:
        try:
            answer = ask(self._layout.socket, "PING")
            if answer.startswith("-LOADING"):
                return "loading"
            if answer.startswith("-"):
                # It is up, and will say the same to each command that it refuses: a full disk, for one.
                log.warning("embedded Valkey in %s: %s", self.data, answer[1:].strip())
            else:
                self._tighten()
        except OSError:
            return "away"
        return "up"

    def _tighten(self) -> None:
        # Whoever started the server may have asked for less.  Nobody is given less than they asked for.
        running = ask(self._layout.socket, "CONFIG", "GET", "appendfsync").split()[-1]
        if running == self.durability:
            return
        if self.durability == "always":
            ask(self._layout.socket, "CONFIG", "SET", "appendfsync", "always")
            log.info("embedded Valkey in %s: durability raised from %s to always", self.data, running)
        else:
            log.info("embedded Valkey in %s: durability stays %s, as others asked", self.data, running)
