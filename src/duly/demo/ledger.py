"""
The ledger: a file that handlers append to, outside the store, and what it proves.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from duly.context import current_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HERE = Path("ledger")  #: in the working directory of a worker

Word = Literal["started", "finished"]


@dataclass(frozen=True, slots=True)
class Line:
    """
    What a handler wrote down.
    """

    word: str
    id: str
    at_ms: float
    pid: int


def note(path: Path, word: Word) -> None:
    """
    Append a line about the running job, in a single write, so that lines of several processes never mix.
    """
    line = f"{word} {current_job().id} {time.time_ns() // 1000} {os.getpid()}\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


class Ledger:
    """
    The file as its reader sees it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self.lines: list[Line] = []

    def read(self) -> list[Line]:
        """
        Read what was added, and return all lines.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                added = file.read()
        except FileNotFoundError:
            return self.lines
        # The last line may be half there; the next look has it whole.
        added = added[: added.rfind(b"\n") + 1]
        self._at += len(added)
        for text in added.decode().splitlines():
            word, id_, micros, pid = text.split(" ")
            self.lines.append(Line(word, id_, int(micros) / 1000, int(pid)))
        return self.lines

    def open_runs(self) -> dict[str, Line]:
        """
        The last start of each job that was not followed by its end, by job.
        """
        runs: dict[str, Line] = {}
        for line in self.lines:
            if line.word == "started":
                runs[line.id] = line
            else:
                runs.pop(line.id, None)
        return runs


@dataclass(frozen=True, slots=True)
class Proof:
    """
    The ledger compared with what was submitted.
    """

    submitted: int
    completed: int
    lost: tuple[str, ...]  #: submitted and never completed
    early: tuple[str, ...]  #: started before they were due
    twice: tuple[str, ...]  #: completed more than once
    unknown: tuple[str, ...]  #: completed and never submitted
    again: tuple[str, ...]  #: started again, after the kill
    on_time_ms: tuple[float, ...]  #: lateness of each job that was started once, and did not wait for a lease
    recovered_ms: tuple[float, ...]  #: lateness of the last start of each other job: the kill made it late

    @property
    def holds(self) -> bool:
        """
        Whether every job ran, and none early, and none to its end twice.
        """
        return not (self.lost or self.early or self.twice or self.unknown)


def prove(due_ms: Mapping[str, int], lines: Sequence[Line], lease_ms: float) -> Proof:
    """
    Compare: *due_ms* is when each submitted job was due.

    What the killed worker had claimed and not yet started waits for the lease as well.
    """
    starts: dict[str, list[float]] = {}
    ends: Counter[str] = Counter()
    for line in lines:
        if line.word == "started":
            starts.setdefault(line.id, []).append(line.at_ms)
        else:
            ends[line.id] += 1
    known = {id_: at for id_, at in starts.items() if id_ in due_ms}
    late = {id_: at[-1] - due_ms[id_] for id_, at in known.items()}
    again = tuple(id_ for id_, at in known.items() if len(at) > 1)
    waited = {*again, *(id_ for id_, ms in late.items() if ms >= lease_ms)}
    return Proof(
        submitted=len(due_ms),
        completed=sum(id_ in due_ms for id_ in ends),
        lost=tuple(id_ for id_ in due_ms if not ends[id_]),
        early=tuple(id_ for id_, at in known.items() if min(at) < due_ms[id_]),
        twice=tuple(id_ for id_, times in ends.items() if times > 1),
        unknown=tuple(id_ for id_ in {**starts, **ends} if id_ not in due_ms),
        again=again,
        on_time_ms=tuple(ms for id_, ms in late.items() if id_ not in waited),
        recovered_ms=tuple(ms for id_, ms in late.items() if id_ in waited),
    )
