"""
The header of a script is its signature: it must say everything that the body uses, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

import pytest

from duly import scripts
from duly.connection import READING_SCRIPTS
from duly.keys import FIXED
from duly.scripts import GROUPS, NAMES, _header, library, load

HERE = files("duly.scripts")
PARTS = sorted(
    part.name.removesuffix(".lua") for part in (HERE / "lib").iterdir() if part.name.endswith(".lua")
)

#: Scripts that bring work in; at the memory limit they are refused, and all others are not.
BRING_IN = {"add", "enqueue", "hydrate", "note", "probe", "requeue", "reschedule", "thaw"}
READ_ONLY = {"get", "page"}

KEYWORDS = set(
    (
        "and break do else elseif end false for function if in local nil not or repeat return then true"
        " until while"
    ).split()
)
GIVEN = set(
    (
        "KEYS ARGV key redis string table math struct bit cjson cmsgpack error"
        " ipairs pairs tonumber tostring type unpack pcall next"
    ).split()
)

_STRINGS = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"")
_COMMENTS = re.compile(r"--[^\n]*|^#![^\n]*", re.MULTILINE)
_TOKENS = re.compile(r"[A-Za-z_]\w*|\d+(?:\.\d+)?|\.\.\.?|[=~<>]=|\S")


def text_of(name: str) -> str:
    return (HERE / f"{name}.lua").read_text("utf-8")


def part_of(name: str) -> str:
    return (HERE / "lib" / f"{name}.lua").read_text("utf-8")


def tokens_of(lua: str) -> list[str]:
    """
    The words of some Lua, without what stands in strings and comments.
    """
    return _TOKENS.findall(_COMMENTS.sub("", _STRINGS.sub(" '' ", lua)))


def names_used(lua: str) -> set[str]:
    """
    Names that stand for a variable: neither fields nor keys of a table.
    """
    tokens = tokens_of(lua)
    used = set()
    for at, token in enumerate(tokens):
        before, after = tokens[at - 1] if at else "", tokens[at + 1] if at + 1 < len(tokens) else ""
        is_field = before in (".", ":")
        is_key = after == "=" and before in ("{", ",") and _in_table(tokens, at)
        if re.match(r"[A-Za-z_]", token) and token not in KEYWORDS and not is_field and not is_key:
            used.add(token)
    return used


def _in_table(tokens: list[str], at: int) -> bool:
    depth = 0
    for token in reversed(tokens[:at]):
        if token in ("}", ")"):
            depth += 1
        elif token in ("{", "("):
            depth -= 1
            if depth < 0:
                return token == "{"
        elif token in KEYWORDS and not depth and token not in ("and", "or", "not", "nil", "true", "false"):
            return False
    return False


def names_defined(lua: str) -> set[str]:
    """
    Names that are declared somewhere: locals, functions, parameters and loop variables.
    """
    bare = _COMMENTS.sub("", _STRINGS.sub("''", lua))
    defined: set[str] = set()
    for names in re.findall(r"\blocal\s+(?!function)([\w\s,]+?)(?:=|\n|$)", bare):
        defined.update(re.findall(r"\w+", names))
    for name, parameters in re.findall(r"\bfunction\s+([\w.]*)\s*\(([^)]*)\)", bare):
        defined.add(name)
        defined.update(re.findall(r"\w+", parameters))
    for parameters in re.findall(r"\bfunction\s*\(([^)]*)\)", bare):
        defined.update(re.findall(r"\w+", parameters))
    for names in re.findall(r"\bfor\s+([\w\s,]+?)\s*(?:=|\bin\b)", bare):
        defined.update(re.findall(r"\w+", names))
    return defined


def top_level(lua: str) -> set[str]:
    """
    What a part of the library offers to those behind it.
    """
    bare = _COMMENTS.sub("", _STRINGS.sub("''", lua))
    offered = set(re.findall(r"^local function (\w+)", bare, re.MULTILINE))
    for names in re.findall(r"^local (?!function)([\w\s,]+?)(?:=|\n|$)", bare, re.MULTILINE):
        offered.update(re.findall(r"\w+", names))
    return offered


def uses_of(name: str) -> list[str]:
    return " ".join(_header(text_of(name)).get("uses", [])).split()


def test_every_file_is_named_and_every_name_has_a_file():
    found = [file.name.removesuffix(".lua") for file in HERE.iterdir() if file.name.endswith(".lua")]
    assert sorted(NAMES) == sorted(found)
    assert len(NAMES) == len(set(NAMES))


def test_every_part_of_the_library_is_used():
    assert sorted(scripts.PARTS) == PARTS
    assert set(PARTS) == {part for name in NAMES for part in uses_of(name)}


@pytest.mark.parametrize("name", NAMES)
def test_a_header_says_what_moves_which_keys_what_returns_and_what_it_costs(name):
    text = text_of(name)
    assert (
        {"moves", "KEYS", "returns", "cost"}
        <= _header(text).keys()
        <= {
            "moves",
            "uses",
            "KEYS",
            "ARGV",
            "returns",
            "cost",
        }
    )
    assert re.match(rf"#!lua[^\n]*\n-- {name}: \S.*[.;]\n--\n-- moves ", text), (
        "first a sentence that begins with its name"
    )


@pytest.mark.parametrize("name", NAMES)
def test_header_names_every_key_and_argument_that_the_body_uses(name):
    script = load(name)
    assert [] == re.findall(r"(?:KEYS|ARGV)\[\d+\]", text_of(name)), "keys and arguments have names"
    declared = {word[:-3] + "_at" if word.endswith("...") else word for word in script.keys + script.args}
    everything = "\n".join([*map(part_of, uses_of(name)), text_of(name)])
    undeclared = names_used(everything) - names_defined(everything) - declared - GIVEN
    # Parts of the library may speak of keys that a script without them never comes to.
    assert undeclared <= {key for key in FIXED if key not in names_used(text_of(name))} | {"topics_at"}, (
        undeclared
    )
    # What is declared as a group may touch all of it, and the keys of topics are found by their place.
    together = {key for group in GROUPS.values() for key in group} | {"lanes_at"}
    assert set() == declared - together - names_used(everything), "declared and not used"


def test_no_key_has_the_name_of_something_in_the_library():
    keys = {key for name in NAMES for key in load(name).keys}
    assert set() == keys & set().union(*(top_level(part_of(part)) for part in PARTS)), "a call would unset it"


@pytest.mark.parametrize("name", NAMES)
def test_only_the_last_key_and_the_last_argument_may_be_many(name):
    script = load(name)
    for words in (script.keys, script.args):
        assert not any(word.endswith("...") for word in words[:-1])
        assert len(words) == len(set(words))


@pytest.mark.parametrize("name", NAMES)
def test_keys_are_called_and_typed_as_in_the_list_of_keys(name):
    for line in _header(text_of(name))["KEYS"]:
        key, kind = line.split()[:2]
        if key not in ("lanes...", "lane", "index...", "due", "due...", "entry...", *GROUPS):
            assert FIXED[key].split()[0] == kind, line


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_the_library_exist_and_stand_behind_what_they_need(name):
    uses = uses_of(name)
    assert set(uses) <= set(PARTS)
    offered = {part: top_level(part_of(part)) for part in PARTS}
    for at, part in enumerate([*uses, name]):
        lua = part_of(part) if at < len(uses) else text_of(name)
        needed = names_used(lua) - names_defined(lua) - set(FIXED) - set(load(name).keys + load(name).args)
        for other in PARTS:
            if other not in uses[:at] and other != part:
                missing = needed & (offered[other] - set().union(*(offered[before] for before in uses[:at])))
                assert set() == missing, f"{part} needs {missing} of {other} in front of it"


@pytest.mark.parametrize("name", NAMES)
def test_finishing_goes_on_at_the_memory_limit_and_new_work_is_refused(name):
    flags = text_of(name).split("\n", 1)[0]
    if name in READ_ONLY:
        assert "#!lua flags=no-writes" == flags
    elif name in BRING_IN:
        assert "#!lua" == flags
    else:
        assert "#!lua flags=allow-oom" == flags


def test_a_lost_reply_of_a_script_that_changes_no_job_leaves_nothing_unknown():
    assert READ_ONLY | {"watch", "create"} == READING_SCRIPTS
    assert all("-- moves    nothing" in (HERE / f"{name}.lua").read_text() for name in READING_SCRIPTS)


def test_the_library_is_for_the_server_and_comments_are_for_readers_of_the_files():
    assert "\n--" not in library().source
    assert [] == re.findall(r"\b(?:SCHEDULED|HEAD_BYTES|WAKE)\b", library().source), (
        "constants are written in"
    )


def shared_names() -> set[str]:
    """
    What all of the library sees: the server allows 200 such names, and 60 of them in one function.
    """
    source = library().source
    made = source[source.index("local function make()") : source.index("local scripts = {}")]
    outside = re.sub(r"^do\n.*?^end;$", "", made, flags=re.MULTILINE | re.DOTALL)
    return top_level(outside.partition("\n")[2])


def test_there_is_room_for_more_in_the_library():
    assert len(shared_names()) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_there_is_room_for_more_in_every_script(name):
    body = re.search(rf"^function scripts\.{name}\(.*?^end$", library().source, re.MULTILINE | re.DOTALL)[0]
    own = names_defined(body)
    assert len((names_used(body) - own) & (shared_names() | {"scripts"})) <= 35


def test_a_script_is_known_by_its_content():
    assert load("ack") is load("ack")
    assert re.fullmatch(r"#!lua name=(duly_[0-9a-f]{16})\n(?s:.*)", library().source)[1] == library().name
    assert NAMES == re.findall(rf"function_name='{library().name}_(\w+)'", library().source)


@pytest.mark.parametrize("changed", ["ack", "claim"])
def test_a_release_with_another_script_calls_functions_of_its_own(monkeypatch, changed):
    def other(name):
        script = load(name)
        return replace(script, body=f"{script.body}\nlocal more") if name == changed else script

    monkeypatch.setattr(scripts, "load", other)
    theirs = library.__wrapped__()
    assert library().source != theirs.source
    assert library().name not in theirs.source
    assert {library().function(name) for name in NAMES}.isdisjoint(theirs.function(name) for name in NAMES)
