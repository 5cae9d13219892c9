"""
What became of the rows of a write.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

EXAMPLES = 5  #: of each kind, to be shown


@dataclass(slots=True)
class Tally:
    """
    How many rows were new, kept as they stood, replaced, rejected.
    """

    new: int = 0
    kept: int = 0
    replaced: int = 0
    rejected: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)  #: some of each kind that is worth a look

    @property
    def rows(self) -> int:
        """
        All of them.
        """
        return self.new + self.kept + self.replaced + self.rejected

    def show(self, kind: str, text: str) -> None:
        """
        Remember an example, unless there are enough.
        """
        some = self.examples.setdefault(kind, [])
        if len(some) < EXAMPLES:
            some.append(text)

    def add(self, other: Tally) -> None:
        """
        Count another's as well.
        """
        self.new += other.new
        self.kept += other.kept
        self.replaced += other.replaced
        self.rejected += other.rejected
        for kind, texts in other.examples.items():
            for text in texts:
                self.show(kind, text)

    def document(self) -> dict[str, Any]:
        """
        As it is told to programs.
        """
        return {"rows": self.rows, **asdict(self)}
