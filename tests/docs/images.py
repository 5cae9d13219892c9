"""
The pictures of docs/images, made from fixed moments.

``python -m tests.docs.images`` writes them; a test compares.
"""

from __future__ import annotations

from tests.docs.pages import ROOT
from tests.live.pictures import pictures

IMAGES = ROOT / "docs" / "images"
#: Made by ``python -m tests.spark.sample``, and not compared: fonts are drawn a little differently elsewhere.
DRAWN = ("lateness", "forecast", "reminders")


def write() -> None:
    IMAGES.mkdir(exist_ok=True)
    for name, svg in pictures().items():
        (IMAGES / f"{name}.svg").write_text(svg, "utf-8")


if __name__ == "__main__":
    write()
