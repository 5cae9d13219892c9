"""
One page with everything in it: no file beside it, nothing loaded from elsewhere.
"""

from __future__ import annotations

import base64
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import duly

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

ROWS = 50  #: of a table on the page; the files have all


class Figure(NamedTuple):
    """
    A number to see first.
    """

    name: str
    value: str
    good: bool | None = None


class Section(NamedTuple):
    """
    A question, its picture and its table.
    """

    title: str
    note: str
    picture: bytes | None = None
    alt: str = ""
    table: pd.DataFrame | None = None


def page(title: str, subtitle: str, figures: Sequence[Figure], sections: Sequence[Section]) -> str:
    """
    The page as text.
    """
    template = Template(files("duly.spark.report").joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        version=escape(duly.__version__),
        contents="".join(
            f'<li><a href="#{_anchor(section)}">{escape(section.title)}</a></li>' for section in sections
        ),
        figures="".join(_figure(figure) for figure in figures),
        sections="\n".join(_section(section) for section in sections),
    )


def _anchor(section: Section) -> str:
    return "".join(char if char.isalnum() else "-" for char in section.title.lower())


def _figure(figure: Figure) -> str:
    kind = "" if figure.good is None else f' class="{"good" if figure.good else "bad"}"'
    return f"<div><dt>{escape(figure.name)}</dt><dd{kind}>{escape(figure.value)}</dd></div>"


def _section(section: Section) -> str:
    anchor = _anchor(section)
    parts = [
        f'<section aria-labelledby="{anchor}">',
        f'<h2 id="{anchor}">{escape(section.title)}</h2>',
        f'<p class="note">{escape(section.note)}</p>',
    ]
    if section.picture:
        data = base64.b64encode(section.picture).decode()
        parts.append(f'<img alt="{escape(section.alt)}" src="data:image/png;base64,{data}">')
    if section.table is not None and len(section.table):
        parts.append(_table(section.table))
    return "\n".join([*parts, "</section>"])


def _table(table: pd.DataFrame) -> str:
    shown = table.head(ROWS)
    numbers = {name for name in shown.columns if shown[name].dtype.kind in "iuf"}
    heads = "".join(
        f'<th scope="col"{_class(name in numbers)}>{escape(name.replace("_", " "))}</th>'
        for name in shown.columns
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_class(name in numbers)}>{escape(_cell(name, value))}</td>"
            for name, value in zip(shown.columns, row, strict=True)
        )
        + "</tr>"
        for row in shown.itertuples(index=False)
    )
    caption = f"<caption>The first {ROWS} of {len(table):,} rows</caption>" if len(table) > ROWS else ""
    return (
        f"<details><summary>Table</summary><div class=scroll><table>{caption}"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _class(is_number: bool) -> str:  # noqa: FBT001  # private, and called beside the question
    return ' class="number"' if is_number else ""


def _cell(name: str, value: object) -> str:
    if value is None or value != value:  # noqa: PLR0124  # what is not a number differs from itself
        return ""
    if name in ("on_time", "goal", "share"):
        return f"{value:.2%}"
    if hasattr(value, "strftime"):
        return str(value)[:16] if hasattr(value, "hour") else str(value)
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) or type(value).__name__.startswith("int"):
        return f"{value:,}"
    return str(value)
