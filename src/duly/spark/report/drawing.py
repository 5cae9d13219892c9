"""
What pictures are drawn on: PNG for files, SVG for the page, where they take on light and dark.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes

#: Told apart also by who sees few colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
INK, EDGE, GRID, PAPER = "#1d2530", "#8a94a0", "#dfe3e8", "#ffffff"
#: What each becomes in the dark; PAPER is that of the page.
DARK = {
    INK: "#e3e7ec",
    EDGE: "#7d8895",
    GRID: "#333c47",
    PAPER: "#1a2027",
    **dict(
        zip(
            COLOURS,
            ("#4ea8de", "#ff8c42", "#2ec4a0", "#e29cc4", "#f2b632", "#8fd0f5", "#b4bcc6"),
            strict=True,
        )
    ),
}
HEIGHT, DPI = 3.6, 160
STYLE: Any = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": EDGE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    # Letters as outlines: they look the same wherever the page is opened.
    "svg.fonttype": "path",
    # The same figures make the same file.
    "svg.hashsalt": "duly",
}


@dataclass(frozen=True, slots=True)
class Look:
    """
    Where a picture is to be seen.
    """

    kind: Literal["png", "svg"]
    width: float  #: inches of 72 points: letters keep their size, however wide it is

    @property
    def narrow(self) -> bool:
        """
        Whether there is room for the most important only.
        """
        return self.width < 5

    def cut(self, text: str) -> str:
        """
        As much of a line as fits in.
        """
        width = int(self.width * 12)
        return text if len(text) <= width else f"{text[: width - 1]}…"


FILE = Look("png", 6.4)
PAGE = Look("svg", 6.4)
PHONE = Look("svg", 3.7)


class Picture:
    """
    A figure on its way to becoming a file.
    """

    def __init__(self, look: Look, figure: Figure) -> None:
        self._look = look
        self._figure = figure
        self.data = b""

    def finish(self) -> None:
        """
        Draw it.
        """
        out = io.BytesIO()
        # Without the version of the library and the time in it.
        if self._look.kind == "png":
            self._figure.savefig(out, format="png", facecolor=PAPER, metadata={"Software": None})
            self.data = out.getvalue()
        else:
            self._figure.savefig(
                out, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
            )
            self.data = themed(out.getvalue().decode()).encode()


@contextmanager
def picture_for(look: Look, height: float = HEIGHT) -> Iterator[tuple[Picture, Axes]]:
    """
    Draw a picture; its data is there once the block is over.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(look.width, height), dpi=DPI, layout="constrained")
        (FigureCanvasAgg if look.kind == "png" else FigureCanvasSVG)(figure)
        picture = Picture(look, figure)
        yield picture, figure.subplots()
        picture.finish()


def themed(svg: str) -> str:
    """
    Let a picture follow the colours that its reader prefers.
    """
    names = {colour: f"--c{number}" for number, colour in enumerate(DARK)}
    for colour, name in names.items():
        svg = svg.replace(colour, f"var({name})")
    light = "".join(f"{name}:{colour};" for colour, name in names.items())
    dark = "".join(f"{name}:{DARK[colour]};" for colour, name in names.items())
    style = (
        f"<style>:root{{{light}}}@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    )
    start, tag, rest = svg.partition("<defs>")
    return f"{start}{style}{tag}{rest}"
