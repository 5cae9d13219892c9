"""
One page with everything in it: no file beside it, nothing loaded from elsewhere.
"""

from __future__ import annotations

import base64
import re
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import duly

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

ROWS = 50  #: of a table on the page; the files have all
SHORT = 15  #: a table that is shown at once


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
    nothing: str  #: said where there is no picture to show, or else no table
    picture: tuple[bytes, bytes] | None = None  #: as SVG, for a wide and for a narrow screen
    alt: str = ""  #: of the picture; empty where there never is one
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
    has_table = section.table is not None and len(section.table) > 0
    if section.picture:
        wide, narrow = (
            f"data:image/svg+xml;base64,{base64.b64encode(data).decode()}" for data in section.picture
        )
        parts.append(
            f'<picture><source media="(max-width: 34rem)" srcset="{narrow}">'
            f'<img alt="{escape(section.alt)}" src="{wide}"></picture>'
        )
    elif section.alt or not has_table:
        parts.append(f"<p>{escape(section.nothing)}</p>")
    if section.table is not None and has_table:
        # Where there is no picture, the table is what there is to see.
        parts.append(_table(section.table, shown=not section.alt and len(section.table) <= SHORT))
    return "\n".join([*parts, "</section>"])


def _table(table: pd.DataFrame, *, shown: bool) -> str:
    top = table.head(ROWS)
    numbers = {name for name in top.columns if top[name].dtype.kind in "iuf"}
    heads = "".join(
        f'<th scope="col"{_class(name in numbers)}>{escape(_head(name))}</th>' for name in top.columns
    )
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_class(name in numbers)}>{escape(_cell(name, value))}</td>"
            for name, value in zip(top.columns, row, strict=True)
        )
        + "</tr>"
        for row in top.itertuples(index=False)
    )
    caption = f"<caption>The first {ROWS} of {len(table):,} rows</caption>" if len(table) > ROWS else ""
    return (
        f"<details{' open' if shown else ''}><summary>Table</summary><div class=scroll><table>{caption}"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _head(name: str) -> str:
    # p99_ms is p99 in milliseconds; peak_per_s is no second.
    return re.sub(r"(?<!_per)_(ms|s)$", r", \1", name).replace("_", " ")


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
