"""
The reference says what the code says.
"""

from __future__ import annotations

import inspect

import pytest

from duly import errors, events, settings
from tests.docs import reference
from tests.docs.pages import name_of


@pytest.mark.parametrize("page", sorted(reference.REFERENCE.glob("*.md")), ids=name_of)
def test_generated_tables_are_as_the_code_makes_them(page):
    assert reference.rendered(page) == page.read_text("utf-8"), "run python -m tests.docs.reference"


def test_every_table_is_on_some_page():
    shown = [part for page in reference.REFERENCE.glob("*.md") for part in reference.parts_of(page)]
    assert sorted(reference.PARTS) == sorted(shown)


def test_the_tables_leave_nothing_out():
    kinds = {name for name, value in vars(errors).items() if inspect.isclass(value) and name != "DulyError"}
    assert [] == [name for name in kinds if f"| `{name}` |" not in reference.errors_table()]
    assert [] == [verb for verb in events.Verb if f"| `{verb}` |" not in reference.verbs_table()]
    assert [] == [key for key in settings.KEYS if f"| `{key}` |" not in reference.settings_table()]
