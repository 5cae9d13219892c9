"""
The commands of `duly` as the reference shows them.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import click
import msgspec

from duly import where
from duly.cli import lines
from duly.cli.main import cli
from duly.options import OPTIONS
from tests.cli import schemas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.docs.reference import Table


def shared(option: click.Option) -> bool:
    """
    Whether an option is explained once, above all commands.
    """
    return option.name == "as_json" or not option.expose_value


def commands(group: click.Group = cli, *names: str) -> Iterator[tuple[str, click.Command]]:
    """
    Every command by its words.
    """
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)
        else:
            yield " ".join((*names, name)), command


def commands_text(table: Table) -> str:
    return "\n\n".join(_command(name, command, table) for name, command in commands())


def _command(name: str, command: click.Command, table: Table) -> str:
    context = click.Context(command, info_name=f"duly {name}")
    usage = " ".join((f"duly {name}", *command.collect_usage_pieces(context)))
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")]
    parts = [f"### duly {name}", f"```text\n{usage}\n```", *(_escape(part) for part in paragraphs)]
    options = [each for each in command.params if isinstance(each, click.Option)]
    records = [each.get_help_record(context) for each in options if not shared(each)]
    rows = [(f"`{option}`", _meaning(text)) for option, text in filter(None, records)]
    if rows:
        parts.append(table(["option", "meaning"], rows))
    others = [f"`{each.opts[0]}`" for each in options if shared(each)]
    if others:
        parts.append(f"{'And' if rows else 'Options:'} {', '.join(others)}.")
    if name in schemas.SHAPES:
        parts.append(f"`--json` prints {_shape(name)}.")
    examples = re.findall(r"^  (duly .*|.*\| duly .*|eval .*)$", command.epilog or "", re.MULTILINE)
    if examples:
        parts.append("```console\n" + "\n".join(f"$ {example}" for example in examples) + "\n```")
    return "\n\n".join(parts)


def _meaning(text: str) -> str:
    # That a number is at least 1 goes without saying.
    return _escape(re.sub(r" *\[x>=[0-9]+\]|; x>=[0-9.]+", "", " ".join(text.split())))


def _escape(text: str) -> str:
    # A word in capitals stands for what the user writes; brackets and stars would be taken for Markdown.
    return re.sub(r"([*<>\[\]])", r"\\\1", text)


def _shape(name: str) -> str:
    kind, form = schemas.SHAPES[name]
    said = f"[{kind.__name__}](#{kind.__name__.lower()})"
    said = f"one {said}" if form == "document" else f"a {said} on each line"
    if name in schemas.CHOSEN:
        other = schemas.CHOSEN[name].__name__
        said += f" for jobs that were named, or one [{other}](#{other.lower()}) for those that were chosen"
    return said


def shapes_text(table: Table, said) -> str:
    kinds = [
        kind
        for kind in vars(schemas).values()
        if isinstance(kind, type) and issubclass(kind, schemas.Strict) and kind is not schemas.Strict
    ]
    return "\n\n".join(_kind(kind, table, said) for kind in kinds)


def _kind(kind: type, table: Table, said) -> str:
    notes = said(kind)
    names = {each.__name__ for each in vars(schemas).values() if isinstance(each, type)}
    rows = []
    for field, text in inspect.get_annotations(kind).items():
        type_ = str(text).replace(" | msgspec.UnsetType", "").replace("Any", "anything")
        type_ = re.sub(
            r"Literal\[(.*?)\]", lambda words: words[1].replace("'", '"').replace(", ", " | "), type_
        )
        linked = re.sub(
            r"\w+", lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in names else word[0], type_
        )
        rows.append((f"`{field}`", linked if linked != type_ else f"`{type_}`", notes[field]))
    base = kind.__base__
    above = ""
    if base is not schemas.Strict:
        above = f"Everything of a [{base.__name__}](#{base.__name__.lower()}), and:\n\n"
    one = " ".join((inspect.getdoc(kind) or "").split())
    return f"### {kind.__name__}\n\n{one}\n\n{above}{table(['field', 'type', 'note'], rows)}"


def where_table(table: Table) -> str:
    rows = [(f"`{name}`", field.kind, field.meaning) for name, field in where.FIELDS.items()]
    rows += [
        ("`payload.NAME`", "any", "what its sender gave it; `payload.user.id`, `payload.tags.0` go deeper"),
        ("`context.NAME`", "any", "what travels with it"),
    ]
    assert set(where.INSIDE) == {"payload", "context"}
    return table(["field", "compared as", "meaning"], rows)


def lines_table(table: Table) -> str:
    notes = {"topic": "that of the command line if not said", "payload": "any JSON"}
    notes |= {each.name: f"{each.meaning}{each.kind.how and f' ({each.kind.how})'}" for each in OPTIONS}
    rows = [
        (f"`{field.name}`", f"`{json_type(field.type)}`", notes[field.name])
        for field in msgspec.structs.fields(lines.Line)
    ]
    return table(["field", "type", "note"], rows)


def json_type(kind: object) -> str:
    """
    A type as JSON has it; what may be null is not said.
    """
    text = kind.__name__ if isinstance(kind, type) else str(kind)
    return text.replace("typing.", "").replace(" | None", "").replace("Raw", "anything")
