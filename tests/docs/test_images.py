"""
The pictures in the documentation are what the commands show today.
"""

from __future__ import annotations

import pytest

from tests.docs.images import DRAWN, IMAGES
from tests.live.pictures import pictures

PICTURES = pictures()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_its_command_shows(name):
    shown = (IMAGES / f"{name}.svg").read_text("utf-8")
    assert PICTURES[name] == shown, "python -m tests.docs.images makes it anew"


def test_every_picture_is_made_from_the_code():
    made = {f"{name}.svg" for name in PICTURES} | {f"spark-{name}.png" for name in DRAWN}
    assert made == {path.name for path in IMAGES.iterdir()}


def test_making_a_picture_twice_makes_the_same():
    assert PICTURES == pictures()
