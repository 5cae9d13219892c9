"""
The tables of docs/reference, made from the code.

``python -m tests.docs.reference`` writes them into the pages; a test compares.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
import struct
import textwrap
from typing import TYPE_CHECKING, Any

import duly
from duly import errors, events, keys, metrics, newjob, records, scripts, settings
from duly.backoff import to_wire
from duly.job import JobState, Lane
from duly.options import OPTIONS
from duly.spark.columns import JOBS, REJECTS
from duly.spark.options import ScanOptions, WriteOptions
from tests.contract import table as contract
from tests.docs import commands, operations, sparks, values
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

REFERENCE = ROOT / "docs" / "reference"
_PART = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def said(owner: type) -> dict[str, str]:
    """
    What the ``#:`` comments beside the fields of a class say.
    """
    source = textwrap.dedent(inspect.getsource(owner))
    lines = source.splitlines()
    found = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found[ast.unparse(target)] = lines[(node.end_lineno or 1) - 1].partition("#:")[2].strip()
    return found


def headings(owner: type) -> dict[str, str]:
    """
    The comment lines in the body of a class, by the field that follows.
    """
    found = re.findall(r"^    # (.+)\n    (\w+)", inspect.getsource(owner), re.MULTILINE)
    return {field: heading for heading, field in found}


# -- settings ---------------------------------------------------------------------------------------------


def _amount(value: int, units: tuple[tuple[str, int], ...]) -> str:
    return next(f"{value // size}{unit}" for unit, size in units if value % size == 0)


_DAYS = (("d", 86_400_000),)
_TIMES = (("h", 3_600_000), ("s", 1_000), ("ms", 1))
_SIZES = (("MiB", settings.MIB), ("KiB", settings.KIB), ("", 1))


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is None or value == "":
        return "none"
    if field.name.endswith("_ms"):
        return f"`{_amount(value, _DAYS if value % (7 * _DAYS[0][1]) == 0 else _TIMES)}`"
    if field.name.endswith(("_limit", "_bytes")):
        return f"`{_amount(value, _SIZES)}`"
    if field.name == "backoff":
        return f"`{json.dumps(to_wire(value))}`"
    return f"`{value}`"


def settings_table() -> str:
    fields = {field.name: field for field in dataclasses.fields(settings.Settings)}
    meaning, heading = said(settings.Settings), headings(settings.Settings)
    groups: list[tuple[str, list[tuple[str, ...]]]] = []
    for key, (name, _) in settings.KEYS.items():
        if name in heading:
            groups.append((heading[name], []))
        groups[-1][1].append((f"`{key}`", f"`DULY_{key.upper()}`", _default(fields[name]), meaning[name]))
    head = ["setting", "variable", "default", "meaning"]
    return "\n\n".join(f"### {title}\n\n{table(head, rows)}" for title, rows in groups)


# -- job options ------------------------------------------------------------------------------------------


def job_options_table() -> str:
    kinds = inspect.get_annotations(newjob.Options)
    rows = [
        (
            f"`{option.name}`",
            f"`{kinds[option.name].__forward_arg__.removesuffix(' | None')}`",
            option.meaning,
            f"`{json.dumps(option.example)}`",
            f"`--{option.name.replace('_', '-')}`" if option.flag else "",
            f"`{option.name}`" if option.column else "",
            f"`{option.name}`" if option.document else "",
            option.kept or "",
        )
        for option in OPTIONS
    ]
    head = ["option", "in Python", "meaning", "in JSON", "`duly enqueue`", "column", "document", "kept in"]
    return table(head, rows)


# -- errors -----------------------------------------------------------------------------------------------


def errors_table() -> str:
    tree = re.findall(r"^[├└]── (\w+)\s+(.+)$", inspect.getdoc(errors) or "", re.MULTILINE)
    rows = []
    for name, meaning in tree:
        kind = getattr(errors, name)
        others = [base.__name__ for base in kind.__bases__ if base is not errors.DulyError]
        rows.append((f"`{name}`", meaning.replace("``", "`"), one_line(kind), _codes(others)))
    return table(["error", "in short", "what it says", "is also a"], rows)


def other_errors_table() -> str:
    for module in pkgutil.walk_packages(duly.__path__, "duly."):
        # What is for Django needs a project around it.
        if not module.name.endswith(("__main__", "uvloop")) and "contrib.django." not in module.name:
            importlib.import_module(module.name)
    kinds = sorted(errors.DulyError.__subclasses__(), key=lambda kind: (kind.__name__, kind.__module__))
    rows = [
        (f"`{kind.__name__}`", f"`{kind.__module__}`", one_line(kind))
        for kind in kinds
        if kind.__module__ != "duly.errors"
    ]
    return table(["error", "module", "what it says"], rows)


def one_line(kind: type) -> str:
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split()).replace("``", "`")


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


# -- events -----------------------------------------------------------------------------------------------

_TELLS = re.compile(r"\b(?:event|keep|put|finish|place|arrive|note)\('(\w+)'")


def _telling() -> dict[str, list[str]]:
    """
    Which scripts write which verb.
    """
    found: dict[str, list[str]] = {}
    for name in scripts.NAMES:
        script = scripts.load(name)
        text = "\n".join([script.body, *map(scripts.part, script.uses)])
        for verb in sorted(set(_TELLS.findall(text))):
            found.setdefault(verb, []).append(name)
    return found


def verbs_table() -> str:
    telling, comments = _telling(), said(events.Verb)
    rows = [
        (f"`{verb}`", _codes(f"{name}.lua" for name in telling[verb]), comments[verb.name])
        for verb in events.Verb
    ]
    return table(["verb", "written by", "note"], rows)


def fields_table() -> str:
    comments = said(events.Event)
    rows = [
        (f"`{name}`", f"`{kind}`", comments[name])
        for name, kind in inspect.get_annotations(events.Event).items()
    ]
    return table(["field", "type", "note"], rows)


# -- keys -------------------------------------------------------------------------------------------------


def keys_table() -> str:
    rows = []
    for name, text in keys.FIXED.items():
        kind, content = text.split(None, 1)
        users = [script for script in scripts.NAMES if name in scripts.load(script).keys]
        # What stands in angle brackets would be taken for HTML.
        content = re.sub(r"'([^']*<[^']*)'", r"`\1`", content)
        if name == "callbacks":
            users = ["every script that names topics"]
        rows.append((f"`{name}`", kind, content, ", ".join(users)))
    return table(["key", "type", "holds", "declared by"], rows)


def topic_keys_table() -> str:
    shard = keys.ShardKeys("NAMESPACE", 0)
    rows = []
    apart = {
        Lane.suspect: "a job with one crash behind it",
        Lane.isolated: "a job with more, to run isolated",
        Lane.callback: "a job with a callback",
    }
    for lane in Lane:
        text = apart.get(lane, f"priority {lane.name}")
        rows.append((f"`{shard.stream('TOPIC', lane).removeprefix(shard.prefix)}`", "stream", text))
    rows.append(
        (f"`{shard.wake('TOPIC').removeprefix(shard.prefix)}`", "list", "tokens that wake idle workers")
    )
    return table(["key", "type", "holds"], rows)


def _layout(form: struct.Struct, names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    at = 0
    for code, name in zip(re.findall(r"\d*[a-zA-Z]", form.format), names, strict=True):
        size = struct.calcsize(">" + code)
        yield (str(at), str(size), f"`{name}`")
        at += size
    assert at == form.size


def record_table(form: struct.Struct, names: Iterable[str]) -> str:
    return table(["at byte", "bytes", "field"], _layout(form, names))


def mark_table() -> str:
    states = ", ".join(f"{state.value} {state.name}" for state in JobState)
    lanes = ", ".join(f"{lane.value} {lane.name}" for lane in Lane if lane is not Lane.suspect)
    return table(
        ["bits", "meaning"],
        [
            ("0 to 2", f"state: {states}"),
            ("3 and 4", f"lane: {lanes}"),
            ("5", "options follow"),
            ("6", "there was a run, or an entry: the long form"),
            ("7", f"the body is longer than {records.INLINE_BYTES} bytes and stands in `bodies`"),
        ],
    )


# -- metrics ----------------------------------------------------------------------------------------------


def metrics_table(of: str) -> str:
    rows = [
        (f"`{metric.name}`", metric.kind, _codes(metric.labels), metric.text)
        for metric in metrics.METRICS.values()
        if metric.of == of
    ]
    return table(["metric", "type", "labels", "meaning"], rows)


def buckets_table() -> str:
    def said(edges: Iterable[float]) -> str:
        return ", ".join(f"{edge * 1000:g} ms" if edge < 1 else f"{edge:g} s" for edge in edges)

    return table(
        ["metric", "buckets up to"],
        [
            ("`duly_job_lateness_seconds`", said(metrics.LATENESS_S)),
            ("`duly_job_run_seconds`", said(metrics.RUN_S)),
            ("`duly_http_request_seconds`", said(metrics.REQUEST_S)),
        ],
    )


_HEAD = records.Head._fields

PARTS = {
    "values": lambda: values.values_table(table, values.EXACT),
    "values-read": lambda: values.values_table(table, values.READ),
    "commands": lambda: commands.commands_text(table),
    "shapes": lambda: commands.shapes_text(table, said),
    "where-fields": lambda: commands.where_table(table),
    "lines": lambda: commands.lines_table(table),
    "job-options": job_options_table,
    "settings": settings_table,
    "errors": errors_table,
    "other-errors": other_errors_table,
    "verbs": verbs_table,
    "event-fields": fields_table,
    "keys": keys_table,
    "topic-keys": topic_keys_table,
    "metrics-of-process": lambda: metrics_table("process"),
    "metrics-of-queue": lambda: metrics_table("queue"),
    "buckets": buckets_table,
    "spark-write-options": lambda: sparks.options_table(table, WriteOptions),
    "spark-scan-options": lambda: sparks.options_table(table, ScanOptions),
    "spark-written": lambda: sparks.written_table(table),
    "spark-jobs": lambda: sparks.schema_table(table, JOBS),
    "spark-rejects": lambda: sparks.schema_table(table, REJECTS),
    "http-operations": lambda: operations.operations_table(table),
    "http-scopes": lambda: operations.scopes_table(table),
    "http-problems": lambda: operations.problems_table(table),
    "http-settings": lambda: operations.service_settings_table(table, said),
    "faces": lambda: contract.faces_table(table),
    "face-verbs": lambda: contract.verbs_table(table),
    "face-limits": lambda: contract.limits_table(table),
    "face-rules": contract.rules_text,
    "mark": mark_table,
    "first-record": lambda: record_table(records.BASE, ("mark", "revision", "request")),
    "record": lambda: record_table(records.HEAD, _HEAD),
    "options": lambda: record_table(
        records.OPTIONS, (*records.Record._fields[1:6], "bytes of further parts")
    ),
}


def rendered(page: Path) -> str:
    """
    The page with its generated parts as they should be.
    """
    return _PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n\n{part[4]}", page.read_text("utf-8"))


def parts_of(page: Path) -> list[str]:
    return [part[2] for part in _PART.finditer(page.read_text("utf-8"))]


if __name__ == "__main__":
    for page in sorted(REFERENCE.glob("*.md")):
        page.write_text(rendered(page), "utf-8")
