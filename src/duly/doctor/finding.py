"""
What a check found, and what to do about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "hint", "problem"]


@dataclass(frozen=True, slots=True)
class Finding:
    """
    The answer of one check.
    """

    check: str
    level: Level
    message: str
    remedy: str = ""  #: empty where nothing needs to be done


def listed(names: list[str], most: int = 5) -> str:
    """
    Some names, and how many more there are.
    """
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest
