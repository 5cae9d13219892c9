"""
What a command says: tables for people, JSON for programs.

Results go to stdout; progress, questions and hints go to stderr, so that a pipe only carries results.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """
    A terminal to write to; plain text where it is none.
    """
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=False)


def print_json(document: object) -> None:
    """
    One document, as it is said to programs.
    """
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    sys.stdout.write(text.decode() + "\n")


def print_json_line(document: object) -> None:
    """
    One of many documents, each on a line.
    """
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """
    Rows below their headings; numbers to the right, whole words where there is no terminal.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    found = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numbers = bool(found) and all(isinstance(row[at], int | float) for row in found)
        table.add_column(
            column, justify="right" if numbers else "left", overflow="fold", no_wrap=not numbers and at == 0
        )
    for row in found:
        table.add_row(*(Text(_cell(value)) for value in row))
    out = console()
    if not out.is_terminal:
        out.width = 10_000
    out.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
