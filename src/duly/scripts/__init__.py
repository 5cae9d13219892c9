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
PARTS = (
    "clock records replies changes specs endings arrivals promotion shares timers horizon requests".split()
)
LIBRARY_PREFIX = "duly_"  #: of the name that a library has on the server
#: Keys that are declared together; a header names the group.
GROUPS = {
    "(queue)": (
        *("meta", "topics", "jobs", "bodies", "outcomes", "progress", "leases", "done", "dead"),
        *("next_due", "ready_topics", "quarantine", "requests", "old_requests", "events", "timer"),
        *("woken_topics", "callbacks", "stop", "ended_channel"),
    ),
    "(replies)": ("replies", "reply_lines", "reply_leases", "reply_drops"),
}
_HERE = files("duly.scripts")
NAMES = sorted(file.name.removesuffix(".lua") for file in _HERE.iterdir() if file.name.endswith(".lua"))

#: While a library is loaded the server shows it nothing but `redis.register_function`, so what it defines is
#: made in its first call.  A global costs a look-up each time it is used, a local none.
_LIBRARY = """\
#!lua name=@name@
local scripts
{make}{functions}
"""
#: The same for one call, where the server takes no functions: at its memory limit.  It remembers nothing.
_EVALUATED = """\
#!lua flags=allow-oom
{make}local name = table.remove(ARGV, 1)
return make()[name](KEYS, ARGV)
"""
_MAKE = """\
local function make()
local redis, string, table, math = redis, string, table, math
local KEYS, ARGV, topics_at
local key = {{}}
local function begin_call(keys, argv, at, {keys})
KEYS, ARGV, topics_at = keys, argv, at
{assigned}
end
{parts}
local scripts = {{}}
{scripts}
return scripts
end
"""
#: Every part has a scope of its own.  What others use of it stands outside: Lua allows a function 200 locals,
#: and each to use 60 variables of others.
_PART = """\
local {offered}
do
{body}
end;
"""
#: Every call sets the keys that parts speak of as `key.name`, those that it does not declare to nil: it sees
#: none of another call.
_SCRIPT = """\
function scripts.{name}(KEYS, ARGV)
begin_call(KEYS, ARGV, {topics_at}, {given})
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
#: What a part defines for all of it: a function, or names with or without a value.
_TOP_LEVEL = re.compile(
    r"^local (?:function (?P<function>\w+)|(?P<names>\w+(?:, \w+)*)(?P<rest>[ \t]*(?:=|$)))", re.MULTILINE
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
        keys=tuple(key for line in header["KEYS"] for key in GROUPS.get(line.split()[0], line.split()[:1])),
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
    evaluated: str  #: for EVAL; its first argument names a script that is allowed at the memory limit

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
    bodies = {name: part(name) for name in PARTS}
    parts, constants = _parts(bodies, "".join(script.body for script in scripts))
    keys = sorted(set(re.findall(r"\bkey\.(\w+)", parts)))
    make = _MAKE.format(
        keys=", ".join(keys),
        assigned=" ".join(f"key.{key} = {key}" for key in keys),
        parts=parts,
        scripts="".join(_function(script, keys, constants) for script in scripts),
    )
    source = _LIBRARY.format(
        make=make,
        functions="".join(
            _REGISTERED.format(name=script.name, flags=", ".join(f"'{flag}'" for flag in script.flags))
            for script in scripts
        ),
    )
    # The digest only names the library to the server; it protects nothing.
    name = f"{LIBRARY_PREFIX}{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    return Library(name, source.replace("@name@", name), _EVALUATED.format(make=make))


def _parts(bodies: dict[str, str], scripts: str) -> tuple[str, dict[str, str]]:
    """
    Give each part a scope of its own, in front of which stands what others use of it.
    """
    constants: dict[str, str] = {}
    for name, body in bodies.items():
        bodies[name], more = _without_constants(body)
        if twice := constants.keys() & more.keys():
            raise ValueError(f"two parts of the library name a constant {', '.join(sorted(twice))}")
        constants |= more
    scopes = []
    for name, body in bodies.items():
        used = words_of(scripts, *(other for its_name, other in bodies.items() if its_name != name))
        offered: list[str] = []

        def offer(match: re.Match[str], used: set[str] = used, offered: list[str] = offered) -> str:
            names = re.findall(r"\w+", match["function"] or match["names"])
            if used.isdisjoint(names) and not {"begin"} & set(names):
                return match[0]
            offered += names
            if match["function"]:
                return f"function {match['function']}"
            return match["names"] + match["rest"] if match["rest"].strip() else ""

        code = _TOP_LEVEL.sub(offer, body)
        scopes.append(_PART.format(offered=", ".join(offered), body=code))
    return _with(constants, "".join(scopes)), constants


def words_of(*codes: str) -> set[str]:
    """
    All words that stand in some Lua.
    """
    return {word for code in codes for word in re.findall(r"\b[A-Za-z_]\w*", code)}


def _function(script: Script, keys: list[str], constants: dict[str, str]) -> str:
    own = _fixed(script.keys)
    body, more = _without_constants(script.body)
    words = words_of(body)
    values = {key: f"KEYS[{at}]" for at, key in enumerate(own, 1) if key in words}
    if script.keys[-1].endswith("..."):
        values |= {f"{script.keys[-1][:-3]}_at": str(len(own) + 1)}
    names = f"local {', '.join(values)} = {', '.join(values.values())} " if values else ""
    code = _SCRIPT.format(
        name=script.name,
        topics_at=len(own) + 1,
        given=", ".join(f"KEYS[{own.index(key) + 1}]" if key in own else "nil" for key in keys),
        arguments=names + _arguments(script.args),
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
