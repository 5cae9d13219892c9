"""
The scripts: one file per verb, whose header is its signature.

The loader reads the header and writes the names of keys and arguments in
front of the body, so that the signature is the code and cannot rot.  Each
becomes a function of one library on the server, which is named by its content,
so that two releases can share a server.  What a script defines is made once,
not in every call.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

#: What scripts share, in the order in which the parts build on each other.
PARTS = "clock records replies changes endings arrivals promotion timers horizon".split()
_HERE = files("duly.scripts")
NAMES = sorted(file.name.removesuffix(".lua") for file in _HERE.iterdir() if file.name.endswith(".lua"))

#: While a library is loaded the server shows it nothing but `redis.register_function`, so what it defines is
#: made in its first call.  A global costs a look-up each time it is used, a local none.
_LIBRARY = """\
#!lua name=@name@
local scripts
local function make()
local redis, string, table, math = redis, string, table, math
local KEYS, ARGV, lanes_at, {keys}
local function name_keys(...)
KEYS, ARGV, lanes_at, {keys} = ...
end
{parts}
local scripts = {{}}
{scripts}
return scripts
end
{functions}
"""
#: Every call sets the names of all keys, those that it does not declare to nil: none of another call is left.
#: One function does, because Lua allows each to use 60 variables of others.
_SCRIPT = """\
function scripts.{name}(keys, argv)
name_keys(keys, argv, {lanes_at}, {given})
begin()
{arguments}
{body}
end
"""
_REGISTERED = """\
redis.register_function{{function_name='@name@_{name}', flags={{{flags}}}, callback=function(keys, argv)
scripts = scripts or make()
return scripts.{name}(keys, argv)
end}}
"""

_LITERAL = r"(?:\d+|'[^'\n]*')"
_CONSTANTS = re.compile(
    rf"^local ([A-Z][A-Z_]+(?:, [A-Z][A-Z_]+)*) =\s+({_LITERAL}(?:, {_LITERAL})*)$", re.MULTILINE
)
_FIELD = re.compile(r"^-- (?P<field>[A-Za-z]+)\s{2,}(?P<rest>.+)$|^--\s{10}(?P<more>\S.*)$")


@dataclass(frozen=True, slots=True)
class Script:
    """
    A script as its header declares it.
    """

    name: str
    keys: tuple[str, ...]  #: the last may end in ``...``: any number of them
    args: tuple[str, ...]  #: likewise
    uses: tuple[str, ...]  #: parts of the library
    flags: tuple[str, ...]
    body: str


@cache
def load(name: str) -> Script:
    """
    Read one script.
    """
    text = (_HERE / f"{name}.lua").read_text("utf-8")
    header = _header(text)
    shebang, body = text.split("\n", 1)
    return Script(
        name,
        keys=tuple(line.split()[0] for line in header["KEYS"]),
        args=tuple(_words(header.get("ARGV", []))),
        uses=tuple(" ".join(header.get("uses", [])).split()),
        flags=tuple(flag for flag in shebang.partition("flags=")[2].split(",") if flag),
        body=_bare(body),
    )


def part(name: str) -> str:
    """
    Read one part of what scripts share.
    """
    return _bare((_HERE / "lib" / f"{name}.lua").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class Library:
    """
    All scripts as the server takes them, under a name of their content.
    """

    name: str
    source: str

    def function(self, script: str) -> str:
        """
        What the server calls a script.
        """
        return f"{self.name}_{script}"


@cache
def library() -> Library:
    """
    Put all scripts and what they share together.
    """
    scripts = [load(name) for name in NAMES]
    keys = sorted({key for script in scripts for key in _fixed(script.keys)})
    parts, constants = _without_constants("\n".join(map(part, PARTS)))
    source = _LIBRARY.format(
        keys=", ".join(keys),
        parts=_with(constants, parts),
        scripts="".join(_function(script, keys, constants) for script in scripts),
        functions="".join(
            _REGISTERED.format(name=script.name, flags=", ".join(f"'{flag}'" for flag in script.flags))
            for script in scripts
        ),
    )
    # The digest only names the library to the server; it protects nothing.
    name = f"duly_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return Library(name, source.replace("@name@", name))


def _function(script: Script, keys: list[str], constants: dict[str, str]) -> str:
    own = _fixed(script.keys)
    body, more = _without_constants(script.body)
    code = _SCRIPT.format(
        name=script.name,
        lanes_at=len(own) + 1,
        given=", ".join(f"keys[{own.index(key) + 1}]" if key in own else "nil" for key in keys),
        arguments=_arguments(script.args),
        body=body,
    )
    return _with(constants | more, code)


def _fixed(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if not name.endswith("...")]


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


def _arguments(names: tuple[str, ...]) -> str:
    lines = []
    for position, name in enumerate(names, 1):
        if name.endswith("..."):
            lines.append(f"local {name[:-3]}_at = {position}")
        else:
            lines.append(f"local {name} = ARGV[{position}]")
    return " ".join(lines)


def _without_constants(code: str) -> tuple[str, dict[str, str]]:
    values: dict[str, str] = {}

    def collect(match: re.Match[str]) -> str:
        values.update(zip(match[1].split(", "), re.split(r",\s+", match[2].strip()), strict=True))
        return ""

    return _CONSTANTS.sub(collect, code), values


def _with(constants: dict[str, str], code: str) -> str:
    """
    Write constants into the code: Lua allows a function 200 locals, and a literal is quicker than a look-up.
    """
    return re.sub(r"\b[A-Z][A-Z_]+\b", lambda match: constants.get(match[0], match[0]), code)


def _bare(text: str) -> str:
    """
    Leave out comments: they are for readers of the files, not for the server.
    """
    return "\n".join(line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("--"))
