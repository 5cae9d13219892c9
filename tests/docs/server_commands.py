"""
The commands that duly sends to a queue's server, read from its source.
"""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

SOURCE = ROOT / "src" / "duly"
#: Of servers of our own, that are not reached as this user.
OWN_SERVERS = ("bench", "demo", "embedded", "testing")
#: Words that are no command where they stand: methods of HTTP, levels of a log, parts of commands, errors.
WORDS = {
    "http": {"GET"},
    "remote": {"GET"},
    "cli": {"DEBUG", "INFO", "ROLE"},
    "connection.py": {"READONLY"},
    "scripts": {"KEYS"},
    "doctor": {"GET"},
}
#: Asked for if the user may; `duly doctor` goes without.
OPTIONAL = {"CONFIG|GET"}
#: Commands whose first argument says what they do.
CONTAINERS = {"ACL", "CLIENT", "CONFIG", "FUNCTION", "MEMORY", "OBJECT", "SCRIPT", "XGROUP", "XINFO"}
#: What the client library sends.
BY_CLIENT = {"SELECT"}


def commands(known: AbstractSet[str]) -> set[str]:
    """
    Return the commands that duly needs, of those that a server knows; subcommands as `FUNCTION|LOAD`.
    """
    found = set(BY_CLIENT)
    for script in SOURCE.rglob("*.lua"):
        found |= _in_script(script) & known
    for module in SOURCE.rglob("*.py"):
        place = module.relative_to(SOURCE).parts[0]
        if place not in OWN_SERVERS:
            found |= {
                command
                for command in _in_module(module)
                if command.partition("|")[0] in known and command not in WORDS.get(place, ())
            }
    return found - OPTIONAL


def _in_script(script: Path) -> set[str]:
    """
    Every word in capitals between quotes: a command may be chosen before it is called.
    """
    code = re.sub(r"--.*", "", script.read_text())
    called = {word.upper() for word in re.findall(r"""redis\.p?call\(\s*['"](\w+)""", code)}
    return called | set(re.findall(r"""['"]([A-Z]+)['"]""", code))


def _in_module(module: Path) -> Iterator[str]:
    """
    Yield every string that is one word in capitals, with the next one where it is half of a command.
    """
    for node in ast.walk(ast.parse(module.read_text())):
        if (command := _word(node)) and command not in CONTAINERS:
            yield command
        words = node.args if isinstance(node, ast.Call) else node.elts if isinstance(node, ast.Tuple) else []
        for word, after in pairwise(words):
            if (command := _word(word)) in CONTAINERS:
                yield f"{command}|{_word(after)}"


def _word(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
        return text if re.fullmatch("[A-Z]+", text) else None
    return None
