"""
A filter over jobs, in words: ``topic = mail and attempts > 3 and error ~ timeout``.

    filter      = every ("or" every)*
    every       = one ("and" one)*
    one         = "not" one | "(" filter ")" | field operator value | field "in" "(" value ("," value)* ")"
    operator    = "=" "!=" "<" "<=" ">" ">=" "~" (contains, whatever the case) "!~"
    value       = a word, or text in single or double quotes

It is read into functions here; nothing of it is ever run as code.
"""

from __future__ import annotations

import difflib
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from duly.documents import error_line, value_of
from duly.durations import parse_duration, parse_time
from duly.errors import UsageError
from duly.job import Job, JobState
from duly.options import OBJECT, OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable

Test: TypeAlias = "Callable[[Job, int], bool]"  #: of a job and the time in milliseconds

DEEPEST = 50  #: parentheses within parentheses
LONGEST = 10_000

_TOKEN = re.compile(
    r"""\s*(?:(?P<quoted>"[^"]*"|'[^']*')|(?P<symbol>!=|<=|>=|!~|[=<>~(),])|(?P<word>[^\s"'=<>~!(),]+))"""
)
_NOW = re.compile(r"now(?:(?P<sign>[+-])(?P<wait>.+))?")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OPERATORS = ("=", "!=", *_COMPARE, "~", "!~")


class Token(NamedTuple):
    """
    A word of the filter and where it stands.
    """

    text: str
    start: int
    end: int
    kind: str


@dataclass(frozen=True, slots=True)
class Field:
    """
    Something of a job that can be compared: how to get it, and what it is.
    """

    get: Callable[[Job], Any]
    kind: str
    meaning: str


FIELDS = {
    "topic": Field(lambda job: job.topic, "text", "its topic"),
    "id": Field(lambda job: job.id, "text", "its id"),
    "state": Field(lambda job: job.state.name, "state", ", ".join(state.name for state in JobState)),
    "priority": Field(lambda job: job.priority, "text", "high, normal or low"),
    "attempts": Field(lambda job: job.attempts, "number", "runs that were counted"),
    "crashes": Field(lambda job: job.crashes, "number", "runs that ended without an answer"),
    "revision": Field(lambda job: job.revision, "number", "of this version of the job"),
    "worker": Field(lambda job: job.worker or None, "text", "who ran it last"),
    "error": Field(lambda job: error_line(job) or None, "text", "type and message of its last failure"),
    "due": Field(lambda job: job.due_ms or None, "time", "when its next or last run is due"),
    "started": Field(lambda job: job.started_ms or None, "time", "when its last run was claimed"),
    "finished": Field(lambda job: job.ended_ms or None, "time", "when it ended"),
    **{
        option.name: Field(option.of, option.kind.compared, option.about)
        for option in OPTIONS
        if option.filtered and option.kind is not OBJECT
    },
    "lateness": Field(lambda job: job.lateness_ms, "duration", "from due to start, of its last run"),
}
#: Fields with a name of the sender's own behind a dot.
INSIDE: dict[str, Callable[[Job], Any]] = {
    "payload": lambda job: value_of(job.payload),
    **{option.name: option.of for option in OPTIONS if option.filtered and option.kind is OBJECT},
}


@dataclass(frozen=True, slots=True)
class Where:
    """
    A filter that was read.
    """

    text: str
    test: Test
    only: dict[str, frozenset[str]]  #: topics and states outside of which nothing matches

    def matches(self, job: Job, now_ms: int) -> bool:
        """
        Whether the filter lets *job* through.
        """
        return self.test(job, now_ms)


class _Part(NamedTuple):
    test: Test
    only: dict[str, frozenset[str]]


def parse(text: str) -> Where:
    """
    Read a filter.

    Raises:
        UsageError: It is none; the message points at the word that is wrong.
    """
    if len(text) > LONGEST:
        raise UsageError(f"the filter has {len(text)} characters, more than {LONGEST}")
    reader = _Reader(text)
    part = reader.filter(0)
    if (token := reader.peek()) is not None:
        raise reader.wrong(token, f"{token.text!r} was not expected here; join conditions with and, or")
    return Where(text, part.test, part.only)


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[Token] = []
        self.at = 0
        place, end = 0, len(text.rstrip())
        while place < end:
            match = _TOKEN.match(text, place)
            if match is None:
                start = place + len(text[place:]) - len(text[place:].lstrip())
                said = (
                    "a quote without its end"
                    if text[start] in "\"'"
                    else f"{text[start]!r} means nothing here"
                )
                raise self.wrong(Token(text[start], start, start + 1, "symbol"), said)
            kind = str(match.lastgroup)
            self.tokens.append(Token(match[kind], match.start(kind), match.end(kind), kind))
            place = match.end()

    def wrong(self, token: Token | None, said: str) -> UsageError:
        """
        An error that points at a word, or behind the last one.
        """
        start, end = (token.start, token.end) if token else (len(self.text), len(self.text) + 1)
        # On a line of its own, whatever line breaks and tabs are in it.
        line = re.sub(r"\s", " ", self.text)
        return UsageError(f"{said}\n  {line}\n  {' ' * start}{'^' * (end - start)}")

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self, expected: str) -> Token:
        token = self.peek()
        if token is None:
            raise self.wrong(None, f"the filter ends where {expected} should follow")
        self.at += 1
        return token

    def skip(self, word: str) -> bool:
        token = self.peek()
        found = token is not None and token.kind != "quoted" and token.text.lower() == word
        self.at += found
        return found

    def filter(self, depth: int) -> _Part:
        parts = [self.every(depth)]
        while self.skip("or"):
            parts.append(self.every(depth))
        if len(parts) == 1:
            return parts[0]
        tests = [part.test for part in parts]
        shared = set.intersection(*(set(part.only) for part in parts))
        only = {name: frozenset().union(*(part.only[name] for part in parts)) for name in shared}
        return _Part(lambda job, now_ms: any(test(job, now_ms) for test in tests), only)

    def every(self, depth: int) -> _Part:
        parts = [self.one(depth)]
        while self.skip("and"):
            parts.append(self.one(depth))
        if len(parts) == 1:
            return parts[0]
        tests = [part.test for part in parts]
        only: dict[str, frozenset[str]] = {}
        for part in parts:
            for name, values in part.only.items():
                only[name] = only[name] & values if name in only else values
        return _Part(lambda job, now_ms: all(test(job, now_ms) for test in tests), only)

    def one(self, depth: int) -> _Part:
        token = self.peek()
        if depth > DEEPEST:
            raise self.wrong(token, f"more than {DEEPEST} levels; write a simpler filter")
        if self.skip("not"):
            test = self.one(depth + 1).test
            return _Part(lambda job, now_ms: not test(job, now_ms), {})
        if self.skip("("):
            part = self.filter(depth + 1)
            closing = self.peek()
            if not self.skip(")"):
                raise self.wrong(closing, "a parenthesis is not closed; ) should stand here")
            return part
        return self.comparison()

    def comparison(self) -> _Part:
        name = self.take("a field")
        get, kind = self.field(name)
        if self.skip("in"):
            values = self.values(name)
            tests = [self.test(get, kind, "=", value) for value in values]
            return _Part(
                lambda job, now_ms: any(test(job, now_ms) for test in tests), _only(name.text, values)
            )
        sign = self.take(f"an operator ({' '.join(_OPERATORS)} in)")
        if sign.kind != "symbol" or sign.text not in _OPERATORS:
            raise self.wrong(sign, f"{sign.text!r} is no operator; known are {' '.join(_OPERATORS)} in")
        value = self.value()
        only = _only(name.text, [value]) if sign.text == "=" else {}
        return _Part(self.test(get, kind, sign.text, value), only)

    def field(self, token: Token) -> tuple[Callable[[Job], Any], str]:
        known = FIELDS.get(token.text)
        if token.kind == "word" and known is not None:
            return known.get, known.kind
        outer, dot, path = token.text.partition(".")
        if token.kind == "word" and outer in INSIDE:
            if not dot or not all(path.split(".")):
                raise self.wrong(token, f"say what of it: {outer}.NAME")
            return _inside(INSIDE[outer], path.split(".")), "any"
        near = difflib.get_close_matches(token.text, [*FIELDS, *INSIDE], n=1)
        names = [*FIELDS, *(f"{outer}.NAME" for outer in INSIDE)]
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(names)}"
        raise self.wrong(token, f"there is no field {token.text!r}; {hint}")

    def values(self, name: Token) -> list[Token]:
        if not self.skip("("):
            raise self.wrong(self.peek(), f"in takes a list: {name.text} in (one, another)")
        values = [self.value()]
        while self.skip(","):
            values.append(self.value())
        closing = self.peek()
        if not self.skip(")"):
            raise self.wrong(closing, "the list is not closed; , or ) should stand here")
        return values

    def value(self) -> Token:
        token = self.take("a value")
        if token.kind == "symbol":
            raise self.wrong(
                token, f"{token.text!r} stands where a value should; put it in quotes if it is one"
            )
        return token._replace(text=token.text[1:-1]) if token.kind == "quoted" else token

    def test(self, get: Callable[[Job], Any], kind: str, sign: str, token: Token) -> Test:
        """
        The comparison as a function.  What a job does not have is equal to nothing and contains nothing.
        """
        if sign in ("!=", "!~"):
            same = self.test(get, kind, sign[1] if sign == "!~" else "=", token)
            return lambda job, now_ms: not same(job, now_ms)
        if sign == "~":
            part = token.text.casefold()
            return lambda job, _: (found := get(job)) is not None and part in _text(found).casefold()
        if kind == "any":
            return _any(get, sign, token)
        try:
            value = _operand(kind, sign, token.text)
        except UsageError as error:
            raise self.wrong(token, str(error)) from None
        compare = _compare(sign)
        return lambda job, now_ms: (found := get(job)) is not None and compare(found, value(now_ms))


def _operand(kind: str, sign: str, text: str) -> Callable[[int], Any]:
    """
    What a field of this kind is compared with, at a given time.
    """
    match kind:
        case "number":
            number = _number(text)
            if number is None:
                raise UsageError(f"{text!r} is no number")
            return lambda _: number
        case "duration":
            ms = parse_duration(text)
            return lambda _: ms
        case "time":
            return _moment(text)
        case "state":
            if text not in JobState.__members__:
                raise UsageError(f"{text!r} is no state; known are {', '.join(JobState.__members__)}")
            if sign in _COMPARE:
                raise UsageError("states have no order; use = or !=")
    return lambda _: text


def _compare(sign: str) -> Callable[[Any, Any], bool]:
    return _COMPARE.get(sign, lambda found, value: bool(found == value))


def _only(field: str, values: list[Token]) -> dict[str, frozenset[str]]:
    return {field: frozenset(value.text for value in values)} if field in ("topic", "state") else {}


def _moment(text: str) -> Callable[[int], int]:
    relative = _NOW.fullmatch(text)
    if relative is None:
        try:
            ms = round(parse_time(text).timestamp() * 1000)
        except UsageError as error:
            raise UsageError(f"{error}; or now, now-1h, now+30m") from None
        return lambda _: ms
    wait = parse_duration(relative["wait"]) if relative["wait"] else 0
    wait = -wait if relative["sign"] == "-" else wait
    return lambda now_ms: now_ms + wait


def _any(get: Callable[[Job], Any], sign: str, token: Token) -> Test:
    """
    Compare with what a sender put into a payload: as numbers if both are, else as text.
    """
    number, text = None if token.kind == "quoted" else _number(token.text), token.text
    compare = _compare(sign)

    def test(job: Job, _: int) -> bool:
        found = get(job)
        if found is None:
            return sign == "=" and token.kind == "word" and text == "null"
        if number is not None and isinstance(found, int | float) and not isinstance(found, bool):
            return compare(found, number)
        return isinstance(found, str | bool | int | float) and compare(_text(found), text)

    return test


def _number(text: str) -> float | None:
    try:
        return int(text) if re.fullmatch(r"[+-]?[0-9]+", text) else float(text)
    except ValueError:
        return None


def _inside(get: Callable[[Job], Any], path: list[str]) -> Callable[[Job], Any]:
    def inside(job: Job) -> Any:
        found = get(job)
        for name in path:
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found

    return inside


def _text(found: object) -> str:
    if isinstance(found, bool):
        return "true" if found else "false"
    return str(found)
