"""
What a command says: tables for people, JSON for programs.

Results go to stdout; progress, questions and hints go to stderr, so that a pipe only carries results.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    _write_json(msgspec.json.format(msgspec.json.encode(document), indent=2))


def print_json_line(document: object) -> None:
    """
    One of many documents, each on a line.
    """
    _write_json(msgspec.json.encode(document))


def _write_json(data: bytes) -> None:
    # What steers a terminal and is not escaped by JSON itself.
    text = re.sub(r"[\x7f-\x9f]", lambda char: f"\\u{ord(char[0]):04x}", data.decode())
    sys.stdout.write(text + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """
    Rows below their headings, numbers to the right; folded to fit a terminal, whole where there is none.
    """
    found = [list(row) for row in rows]
    numbers = [
        bool(found) and all(isinstance(row[at], int | float | None) for row in found)
        for at in range(len(columns))
    ]
    cells = [[_cell(value) for value in row] for row in found]
    if not sys.stdout.isatty():
        _print_plain([list(columns), *cells], numbers, title)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for column, is_number in zip(columns, numbers, strict=True):
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def _print_plain(lines: list[list[str]], numbers: list[bool], title: str | None) -> None:
    widths = [max(len(line[at]) for line in lines) for at in range(len(numbers))]
    if title is not None:
        sys.stdout.write(f"{title}\n")
    for line in lines:
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, numbers, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def say(text: str) -> None:
    """
    A hint or a sentence for people, beside the results.
    """
    sys.stdout.flush()
    click.echo(plain(text, lines=True), err=True)


def plain(text: str, *, lines: bool = False) -> str:
    """
    Text that was written by others, safe to show: what would steer a terminal is spelt out.
    """
    return "".join(
        char if char.isprintable() or (lines and char == "\n") else char.encode("unicode_escape").decode()
        for char in text
    )


def ago(ms: int | None, now_ms: int) -> str:
    """
    A moment as seen from now.
    """
    from duly.durations import say_duration

    if not ms:
        return ""
    if ms > now_ms:
        return f"in {say_duration(ms - now_ms)}"
    return f"{say_duration(now_ms - ms)} ago"


def size(count: int) -> str:
    """
    A number of bytes.
    """
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def jobs_of(count: int) -> str:
    """
    How many jobs, in words.
    """
    return "1 job" if count == 1 else f"{count:,} jobs"


def confirm(question: str, *, yes: bool) -> None:
    """
    Go on only if somebody says so.

    Raises:
        UsageError: There is nobody to ask.
        Exit: The answer is no.
    """
    from duly.errors import UsageError

    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask at: say --yes")
    if not click.confirm(question, err=True):
        say("Nothing was changed.")
        raise click.exceptions.Exit(1)


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """
    A bar on stderr, where that is a terminal; call what is yielded with how much further it came.
    """
    out = console(stderr=True)
    if not out.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    return plain(str(value))
