"""
Links lead somewhere, and tests that the documentation calls as witnesses exist.
"""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import PAGES, ROOT, name_of, prose

_LINK = re.compile(r"\]\((?!https?://)(?P<file>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?\)")
_CODE = re.compile(r"`[^`\n]*`")
_TEST = re.compile(r"`(test_\w+)`")


def _links(page):
    return _LINK.finditer(_CODE.sub("", prose(page)))  # `Page[int](items=[])` is no link


def _anchors(page):
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file_and_every_anchor_to_a_heading(page):
    wrong = []
    for link in _links(page):
        target = (page.parent / link["file"]).resolve() if link["file"] else page
        found = target.exists() and target.is_relative_to(ROOT)
        if not found or (link["anchor"] and link["anchor"] not in _anchors(target)):
            wrong.append(link[0])
    assert [] == wrong


def test_every_page_can_be_reached_from_the_readme():
    seen, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        ahead += [(page.parent / link["file"]).resolve() for link in _links(page) if link["file"]]
    assert [] == [name_of(page) for page in PAGES if page not in seen]


def test_every_test_that_a_page_names_exists():
    known = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        known.update(re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE))
    named = {name for page in PAGES for name in _TEST.findall(prose(page))}
    assert set() == named - known
