"""
The pages of the documentation, and what tests want to know of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (?P<mark>[^>]*?) -->\n+\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """
    A fenced block, and the HTML comment right above it.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    found = []
    for match in _FENCE.finditer(text):
        before = text[: match.start()]
        mark = _MARK.search(before)
        found.append(
            Block(
                page, before.count("\n") + 1, match["language"], match["text"], mark["mark"] if mark else ""
            )
        )
    return found


def prose(page: Path) -> str:
    """
    A page without its fenced blocks.
    """
    return _FENCE.sub("", page.read_text("utf-8"))
