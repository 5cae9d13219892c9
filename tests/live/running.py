"""
A command that goes on while a test looks at what it says and does.
"""

from __future__ import annotations

import itertools
import subprocess
import time
from typing import TYPE_CHECKING

from tests.live.terminal import duly, environment

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from pathlib import Path

_numbers = itertools.count(1)


class Running:
    """
    One process of duly, with a log of its own.
    """

    def __init__(self, here: Path, words: tuple[str, ...], env: dict[str, str]) -> None:
        self.here = here
        self._log = here / f"log-{next(_numbers)}"
        with self._log.open("wb") as out:
            self.process = subprocess.Popen(
                duly(*words),
                cwd=here,
                env=environment(**env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def ledger(self) -> list[str]:
        path = self.here / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, true: Callable[[], object], what: str = "", within_s: float = 60) -> object:
        deadline = time.monotonic() + within_s
        while not (found := true()):
            told = f"{what} not within {within_s} s; it said\n{self.said()}\nledger: {self.ledger()}"
            assert time.monotonic() < deadline, told
            time.sleep(0.02)
        return found

    def until_said(self, words: str, times: int = 1) -> str:
        self.until(lambda: self.said().count(words) >= times, f"{words!r} {times} times")
        return self.said()

    def until_noted(self, word: str, times: int = 1) -> list[str]:
        def noted() -> list[str]:
            return [line for line in self.ledger() if line.startswith(f"{word} ")]

        self.until(lambda: len(noted()) >= times, f"{word!r} {times} times in the ledger")
        return noted()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within_s: float = 60) -> int:
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {within_s} s; it said\n{self.said()}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
