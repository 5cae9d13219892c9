"""
A figure, and whether it is as good as it should be.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """
    One number, which way is better, and the bound it should keep.
    """

    name: str
    value: float
    unit: str
    bound: float | None = None
    at_least: bool = field(kw_only=True)  #: whether more is better, with a bound or without one
    least: float | None = None  #: of several runs, of which *value* is the median
    most: float | None = None

    @property
    def kept(self) -> bool | None:
        """
        Whether it is within its bound.
        """
        if self.bound is None:
            return None
        return self.value >= self.bound if self.at_least else self.value <= self.bound
