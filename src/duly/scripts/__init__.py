"""
The scripts: one file per verb, whose header is its signature.

The loader reads the header and writes the names of keys and arguments in
front of the body, so that the signature is the code and cannot rot.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

NAMES = (
    "ack audit beat bury cancel claim create enqueue extend get pause progress promote prune recount "
    "recover release requeue reschedule resume retry sweep trim watch"
).split()

#: A global costs a look-up each time it is used, a local none.
_ALIASES = "local KEYS, ARGV, redis, string, table, math = KEYS, ARGV, redis, string, table, math"

_LITERAL = r"(?:\d+|'[^'\n]*')"
_CONSTANTS = re.compile(
    rf"^local ([A-Z][A-Z_]+(?:, [A-Z][A-Z_]+)*) =\s+({_LITERAL}(?:, {_LITERAL})*)$", re.MULTILINE
)
_FUNCTION = re.compile(r"^local function (\w+)\(.*?^end$\n?", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^-- (?P<field>[A-Za-z]+)\s{2,}(?P<rest>.+)$|^--\s{10}(?P<more>\S.*)$")


@dataclass(frozen=True, slots=True)
class Script:
    """
    A script as its header declares it.
    """

    name: str
    keys: tuple[str, ...]  #: the last may end in ``...``: any number of them
    args: tuple[str, ...]  #: likewise
    source: str
    sha: str


@cache
def load(name: str) -> Script:
    """
    Read one script and put the library it uses in front of its body.
    """
    here = files("duly.scripts")
    text = (here / f"{name}.lua").read_text("utf-8")
    header = _header(text)
    keys = tuple(line.split()[0] for line in header["KEYS"])
    args = tuple(_words(header.get("ARGV", [])))
    uses = " ".join(header.get("uses", [])).split()
    parts = [(here / "lib" / f"{part}.lua").read_text("utf-8") for part in uses]
    shebang, body = text.split("\n", 1)
    body = _bare(body)
    library = _needed("\n".join(map(_bare, parts)), body)
    source = "\n".join([shebang, _ALIASES, _locals("KEYS", keys), _locals("ARGV", args), library, body])
    source = _with_constants(source)
    # The digest only names the script to the server; it protects nothing.
    sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, keys, args, source, sha)


def _header(text: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    field = ""
    for line in text.split("\n")[2:]:
        if not line.startswith("--"):
            break
        if match := _FIELD.match(line):
            if match["field"]:
                field = match["field"]
                fields[field] = [match["rest"]]
            else:
                fields[field].append(match["more"])
    return fields


def _words(lines: list[str]) -> list[str]:
    # Deeper indented lines go on with a description; they do not name an argument.
    return [line.split()[0] for line in lines if not line.startswith(" ")]


def _locals(table: str, names: tuple[str, ...]) -> str:
    lines = []
    for position, name in enumerate(names, 1):
        if name.endswith("..."):
            lines.append(f"local {name[:-3]}_at = {position}")
        else:
            lines.append(f"local {name} = {table}[{position}]")
    return " ".join(lines)


def _needed(library: str, body: str) -> str:
    """
    Leave out functions that the body does not reach: each one is made anew in every call of the script.
    """
    functions = {match[1]: match[0] for match in _FUNCTION.finditer(library)}
    reached: set[str] = set()
    texts = [body, _FUNCTION.sub("", library)]
    while texts:
        found = set(re.findall(r"\w+", texts.pop())) & functions.keys() - reached
        reached |= found
        texts += [functions[name] for name in found]
    return _FUNCTION.sub(lambda match: match[0] if match[1] in reached else "", library)


def _with_constants(source: str) -> str:
    """
    Write constants into the code: Lua allows a script 200 locals, and a literal is quicker than a look-up.
    """
    values: dict[str, str] = {}

    def collect(match: re.Match[str]) -> str:
        values.update(zip(match[1].split(", "), re.split(r",\s+", match[2].strip()), strict=True))
        return ""

    rest = _CONSTANTS.sub(collect, source)
    return re.sub(r"\b[A-Z][A-Z_]+\b", lambda match: values.get(match[0], match[0]), rest)


def _bare(text: str) -> str:
    """
    Leave out comments: they are for readers of the files, not for the server.
    """
    return "\n".join(line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("--"))
