"""
The tables of docs/reference/faces.md, made from the tests of the contract.

``python -m tests.docs.reference`` writes them into the page; a test compares.
"""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.contract.faces import FACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.contract.faces import Face

    Table = Callable[[Iterable[str], Iterable[Iterable[str]]], str]

HOME = Path(__file__).parent
#: By the name of the mark.
ENDINGS = {"unsupported": "`Unsupported`", "broken": "expected to fail", "differs": "something else"}


@dataclass(frozen=True)
class Limit:
    """
    What some faces do not do as the others.
    """

    rule: str
    mark: str
    faces: tuple[Face, ...]
    reason: str


@dataclass(frozen=True)
class Verb:
    """
    One file of the contract.
    """

    name: str
    about: str
    rules: tuple[str, ...]
    limits: tuple[Limit, ...]

    def cell(self, face: Face) -> str:
        """
        What one face does of it.
        """
        without = {each.rule for each in self.limits if face in each.faces and each.mark != "differs"}
        if not without:
            return "yes"
        return "no" if len(without) == len(self.rules) else "in part"


def verbs() -> list[Verb]:
    """
    Every verb, by its file.
    """
    return [_verb(file) for file in sorted(HOME.glob("test_*.py"))]


def _verb(file: Path) -> Verb:
    module = importlib.import_module(f"tests.contract.{file.stem}")
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    name, _, about = (inspect.getdoc(module) or "").partition(": ")
    return Verb(
        name,
        about.rstrip("."),
        tuple(map(_rule, tests)),
        tuple(limit for test in tests for limit in _limits(test)),
    )


def _rule(test: Callable[..., Any]) -> str:
    return test.__name__.removeprefix("test_").replace("_", " ")


def _limits(test: Callable[..., Any]) -> Iterator[Limit]:
    for mark in getattr(test, "pytestmark", ()):
        if mark.name in ENDINGS:
            yield Limit(_rule(test), mark.name, mark.args, mark.kwargs["reason"])


def faces_table(table: Table) -> str:
    """
    The faces, and how a program gets them.
    """
    return table(["face", "how a program gets it", "what it is"], ((f.name, f.how, f.about) for f in FACES))


def verbs_table(table: Table) -> str:
    """
    Which face does what.
    """
    head = ["verb", *(face.name for face in FACES)]
    rows = ([f"[{verb.name}](#{_anchor(verb)})", *(verb.cell(face) for face in FACES)] for verb in verbs())
    return table(head, rows)


def limits_table(table: Table) -> str:
    """
    What a face does not do, how that ends, and why.
    """
    rows = [
        (
            verb.name,
            limit.rule,
            ", ".join(face.name for face in FACES if face in limit.faces),
            ENDINGS[limit.mark],
            limit.reason,
        )
        for verb in verbs()
        for limit in verb.limits
    ]
    return table(["verb", "rule", "faces", "what happens", "why"], rows)


def rules_text() -> str:
    """
    Every rule, by verb.
    """
    parts = []
    for verb in verbs():
        about = f"{verb.about[:1].upper()}{verb.about[1:]}."
        parts.append("\n".join([f"### {verb.name}", "", about, "", *(f"- {rule}" for rule in verb.rules)]))
    return "\n\n".join(parts)


def _anchor(verb: Verb) -> str:
    return verb.name.lower().replace(" ", "-")
