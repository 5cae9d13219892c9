"""
What crosses the wire: JSON and nothing else, bounded in size.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
from collections import deque
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import accumulate
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast
from uuid import UUID

import msgspec

from duly.errors import DulyError, UsageError
from duly.validation import adapter_of, is_pydantic, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

T = TypeVar("T")

#: Levels of objects and arrays in what travels.  A decoder has as many as the stack of its process leaves it,
#: so that what one process can write another may be unable to read: half of Python's usual limit fits all.
MAX_DEPTH = 500

#: What is raised for a value that has no form in JSON.
_UNWRITTEN = (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError)
_SHOWN_STEPS = 20  #: of the way to such a value

#: What JSON has a kind of its own for.
SCALARS = frozenset({str, int, float, bool, type(None)})
NATIVE = SCALARS | {dict, list}
#: What a value of a subclass may arrive as.
_BASES = SCALARS | {bytes, date, datetime, time, timedelta, Decimal, UUID}


class Unreadable(DulyError):
    """
    What was stored cannot be read: no JSON, or not what the handler takes.
    """


class Envelope(msgspec.Struct, omit_defaults=True, frozen=True):
    """
    What travels with a job beside its payload; all but the first only clients read.
    """

    #: the queue that is told of its end; scripts read it, and expect it in the first place
    reply_to: str | None = None
    max_attempts: int | None = None
    backoff: dict[str, Any] | None = None  #: see `duly.backoff.to_wire`
    context: dict[str, Any] | None = None
    callback: str | None = None  #: where it is delivered to, instead of being run


#: How the envelope of a job begins that asks for a reply.
ASKING = b'{"reply_to":"'


# -- values that msgspec has no form for ------------------------------------------------------------------


class Form(NamedTuple):
    """
    How values of a type that msgspec does not know are written and read.
    """

    encode: Callable[[Any], Any]
    decode: Callable[[Any, Any], Any] | None  #: of the type and the JSON value; None if it cannot be read
    json: tuple[type, ...] | None = None  #: what the JSON value must be; None for anything


class _Open(type):
    """
    The type of `Choice`: msgspec asks whether what was read is an instance.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class Choice(metaclass=_Open):
    """
    Stands for a union that msgspec cannot read; see `duly.annotation`.
    """

    @classmethod
    def pick(cls, value: Any) -> Any:
        """
        Read *value* as one of the union's members.
        """
        raise NotImplementedError


def _made(kind: Any, value: Any) -> Any:
    return kind(value)


def _iso(kind: Any, value: Any) -> Any:
    return kind.fromisoformat(value)


def _plain_timedelta(value: timedelta) -> timedelta:
    return timedelta(days=value.days, seconds=value.seconds, microseconds=value.microseconds)


def _timedelta(kind: Any, value: Any) -> Any:
    read = msgspec.convert(value, timedelta)
    return kind(days=read.days, seconds=read.seconds, microseconds=read.microseconds)


_IP = ("Address", "Network", "Interface")

#: By base class; msgspec itself writes and reads the built-in ones, but no subclasses of them.
_FORMS: dict[type, Form] = {
    str: Form(str.__str__, _made, (str,)),
    int: Form(int, _made, (int,)),
    float: Form(float, _made, (int, float)),
    bytes: Form(bytes, lambda kind, value: kind(msgspec.convert(value, bytes)), (str,)),
    Decimal: Form(Decimal, _made, (str, int, float)),
    UUID: Form(str, _made, (str,)),
    # pandas adds nanoseconds, which only its own class reads.
    datetime: Form(lambda value: value.isoformat(), _iso, (str,)),
    date: Form(lambda value: value.isoformat(), _iso, (str,)),
    time: Form(lambda value: value.isoformat(), _iso, (str,)),
    timedelta: Form(_plain_timedelta, _timedelta, (str,)),
    PurePath: Form(str, _made, (str,)),
    **{getattr(ipaddress, f"IPv{v}{what}"): Form(str, _made, (str,)) for v in (4, 6) for what in _IP},
}

#: By the name of a base class, of packages that need not be there.
_NAMED_FORMS: dict[str, Form] = {
    "pandas._libs.tslibs.timestamps.Timestamp": Form(lambda value: value.isoformat(), _made, (str,)),
    "numpy.bool": Form(bool, _made, (bool,)),
    "numpy.bool_": Form(bool, _made, (bool,)),
    "numpy.integer": Form(int, _made, (int,)),
    "numpy.floating": Form(float, _made, (int, float)),
    # Texts that are translated when they are used: in the language of the sender.
    "django.utils.functional.Promise": Form(str, None),
    "flask_babel.speaklater.LazyString": Form(str, None),
    "babel.support.LazyProxy": Form(str, None),
}


@cache
def _known_form(kind: type) -> Form | None:
    """
    The form of a type that is not registered, if its meaning is clear.
    """
    for base in kind.__mro__:
        named = _NAMED_FORMS.get(f"{base.__module__}.{base.__qualname__}")
        if named is not None:
            return named
        if base in _FORMS:
            return _FORMS[base]
    if is_pydantic(kind):
        return Form(_written_by_pydantic, _read_by_pydantic)
    return None


def _written_by_pydantic(value: Any) -> Any:
    """
    Write a value that no annotation describes, as pydantic writes what it reads.
    """
    adapter = adapter_of(cast("Any", type(value)))
    # Its warnings repeat the value, and what is read again decides.
    written = adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
    name = type(value).__qualname__
    try:
        read = adapter.validate_json(msgspec.json.encode(written))
    except ValueError as error:
        raise TypeError(
            f"pydantic cannot read {name} from what it writes of it: {told(error, type(value))}"
        ) from error
    if not is_same(value, read, DEFAULT_CODEC):
        raise TypeError(f"pydantic reads another {name} from what it writes of it")
    return written


def _read_by_pydantic(kind: Any, value: Any) -> Any:
    try:
        return adapter_of(kind).validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(told(error, kind)) from error


# -- the codec --------------------------------------------------------------------------------------------


class Codec:
    """
    How the values of an app become JSON and come back, as ``app.codec``.

    Types that JSON, msgspec and pydantic do not know are registered; several apps may share one codec.
    """

    def __init__(self) -> None:
        self._registered: dict[type, Form] = {}
        self._forms: dict[type, Form | None] = {}  #: what was found for a type
        self._encoder = msgspec.json.Encoder(enc_hook=self.enc_hook)

    def register(self, kind: type[T], *, encode: Callable[[T], object], decode: Callable[[Any], T]) -> None:
        """
        Carry values of *kind*: *encode* makes something of one that JSON has, *decode* makes it from that.

        Register a type before handlers name it in their annotations.

        Raises:
            UsageError: It is no class, JSON has a kind of its own for it, or msgspec has a form for it.
        """
        if not isinstance(kind, type):
            raise UsageError(f"codec.register takes a class, not {kind!r}")
        if kind in NATIVE:
            raise UsageError(
                f"{kind.__name__} is what JSON has a kind of its own for; register another class"
            )
        if _is_written_by_msgspec(kind):
            raise UsageError(
                f"codec.register({kind.__name__}): msgspec writes values of this type by itself, so that "
                "encode would not be called; register a plain class, or annotate with pydantic's "
                "PlainSerializer and PlainValidator"
            )
        if not callable(encode) or not callable(decode):
            raise UsageError(f"codec.register({kind.__name__}): encode and decode must be functions")
        self._registered[kind] = Form(encode, lambda _, value: decode(value))
        self._forms.clear()

    def encode(self, value: object, *, what: str = "payload", limit: int | None = None) -> bytes:
        """
        Write *value* as JSON of at most *limit* bytes.

        Raises:
            UsageError: It has no form in JSON, or is too large.
        """
        try:
            data = self._encoder.encode(value)
            if b"null" in data and value is not None:  # msgspec writes NaN and infinities as null
                _refuse_non_finite(msgspec.to_builtins(value, enc_hook=self.enc_hook), what)
        except UsageError:
            raise
        except _UNWRITTEN as error:
            raise UsageError(
                f"{what} cannot be written as JSON: {error}{_place(value, what, self._encoder)}"
            ) from None
        if limit is not None and len(data) > limit:
            raise UsageError(
                f"{what} is {len(data)} bytes, the limit is {limit}; store it elsewhere and send a reference"
            )
        if len(data) > MAX_DEPTH:
            check_depth(data, what)
        return data

    def form_of(self, kind: type) -> Form | None:
        """
        How values of a type are written and read that msgspec does not know; None if nothing is known.
        """
        try:
            return self._forms[kind]
        except KeyError:
            found = next((self._registered[base] for base in kind.__mro__ if base in self._registered), None)
            self._forms[kind] = found = found or _known_form(kind)
            return found

    def is_registered(self, kind: Any) -> bool:
        """
        Return whether *kind* itself was registered.
        """
        return isinstance(kind, type) and kind in self._registered

    def enc_hook(self, value: Any) -> Any:
        """
        Turn what msgspec does not know into what it does.

        Raises:
            TypeError: It has no form in JSON.
        """
        if isinstance(value, msgspec.Raw):
            return decode(bytes(value))
        form = self.form_of(type(value))
        if form is None:
            kind = type(value)
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} has no form in JSON")
        return form.encode(value)

    def dec_hook(self, kind: Any, value: Any) -> Any:
        """
        Make a value of a type that msgspec does not know, from what JSON has for it.

        Raises:
            ValueError: It is none.
        """
        if isinstance(kind, type) and issubclass(kind, Choice):
            return kind.pick(value)
        form = self.form_of(kind) if isinstance(kind, type) else None
        if form is None or form.decode is None:
            raise ValueError(f"JSON cannot be read as {kind!r}")
        if form.json is None:
            return form.decode(kind, value)
        # Neither sentence repeats the value: it may be a secret, and errors are logged.
        if not isinstance(value, form.json) or (isinstance(value, bool) and bool not in form.json):
            raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")
        try:
            return form.decode(kind, value)
        except (ValueError, TypeError, ArithmeticError):
            raise ValueError(f"Invalid `{kind.__name__}`") from None


def _is_written_by_msgspec(kind: type) -> bool:
    """
    Return whether msgspec writes values of a type without asking for a form of them.
    """
    # Of these, subclasses too.
    if issubclass(kind, dict | list | tuple | set | frozenset | UUID | Enum | msgspec.Struct):
        return True
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__"):
        return True
    return not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)


#: What is to be the same, by twos.
_Pairs: TypeAlias = "Sequence[tuple[Any, Any]]"
_SAME: tuple[_Pairs, bool] = ((), True)
_ABSENT: Any = object()  #: in the place of a field that is not there
_TEXTS = frozenset({str})
_CLOCKS = (datetime, time)
#: Levels of what is compared: JSON's, and between two of them what registered types are made of.
_DEEPEST = 4 * MAX_DEPTH

DEFAULT_CODEC = Codec()  #: of values that belong to no app
_encoder = msgspec.json.Encoder(enc_hook=DEFAULT_CODEC.enc_hook)
_decoder = msgspec.json.Decoder()
_decode = _decoder.decode  # bound once: it is called for every payload that comes in
_envelope_decoder = msgspec.json.Decoder(Envelope)
_NO_ENVELOPE = Envelope()
encode = DEFAULT_CODEC.encode


def is_same(
    given: Any,
    got: Any,
    codec: Codec,
    *,
    alternatives: tuple[frozenset[type], ...] | None = None,
    arrays: float = 0,
    normalised: bool = False,
) -> bool:
    """
    Return whether what was read from JSON is what was written: of the same type, part by part.

    What a class of the user's own calls equal is not enough where its fields are known.

    Where *alternatives* are said, a value that is JSON already may be read as another type, which is that of
    an annotation, unless both stand beside each other in a union of it.  A tuple may come back as a list, up
    to *arrays* containers deep.  With *normalised*, validators may change a text or a number.
    """
    if type(given) in SCALARS and type(given) is type(got) and given == got:
        return True
    # A loop: what is nested as deep as it may be would take more of the stack than there is.
    pairs: _Pairs = ((given, got),)
    waiting: list[tuple[_Pairs, tuple[frozenset[type], ...] | None, float, bool, int]] = []
    level = 0
    while True:
        for one, other in pairs:
            kind = type(one)
            if kind in SCALARS and kind is type(other):
                if one == other or (normalised and alternatives is not None):
                    continue
                if kind is float and math.isnan(one) and math.isnan(other):
                    continue
                return False
            found = _compared(one, other, codec, alternatives, arrays)
            if found is None:
                return False
            parts, by_annotation = found
            if parts:
                rules = (alternatives, arrays - 1, normalised) if by_annotation else (None, 0, False)
                waiting.append((parts, *rules, level + 1))
        if not waiting:
            return True
        pairs, alternatives, arrays, normalised, level = waiting.pop()
        if level > _DEEPEST:  # a value that holds itself, in what is not written of it
            return False


def _compared(
    given: Any, got: Any, codec: Codec, alternatives: tuple[frozenset[type], ...] | None, arrays: float
) -> tuple[_Pairs, bool] | None:
    """
    Compare two values without their parts.

    Returns: the parts that must be the same, and whether what holds for the values holds for them; None if
        the values differ.
    """
    kind, other = type(given), type(got)
    if isinstance(given, dict) and other in (kind, dict):
        return _matched(given, got, got)
    if kind in (list, tuple, deque) and (other is kind or (arrays > 0 and other is list)):
        if len(given) != len(got) or (kind is other is deque and given.maxlen != got.maxlen):
            return None
        return tuple(zip(given, got, strict=True)), True
    if isinstance(given, _CLOCKS) and given.tzinfo is None and given.fold != getattr(got, "fold", 0):
        return None  # of two equal times of a clock change, it is the second
    if kind is not other:
        return _SAME if _is_read_as(given, got, alternatives) else None
    if kind in (set, frozenset):
        return _matched(given, got)
    if kind in (datetime, time) and (given.tzinfo is None) is not (got.tzinfo is None):
        return None  # a time of a zone with several offsets is written without any, and equal to that
    names = fields_of(given)
    if names is not None:
        return [(getattr(given, name, _ABSENT), getattr(got, name, _ABSENT)) for name in names], False
    registered = codec.is_registered(kind)
    if not registered or getattr(kind, "__eq__", None) is not object.__eq__:
        with suppress(Exception):  # in a comparison of the user's own: what follows decides
            return _SAME if bool(_in_utc(given) == _in_utc(got)) else None
    form = codec.form_of(kind) if registered else None
    return None if form is None else (((form.encode(given), form.encode(got)),), False)


def _matched(given: Any, got: Any, values: dict[Any, Any] | None = None) -> tuple[_Pairs, bool] | None:
    """
    Put together what two sets, or two dicts of which the second has *values*, hold; None if that differs.
    """
    if values is not None and _TEXTS.issuperset(map(type, given)) and _TEXTS.issuperset(map(type, got)):
        shared = [(given[key], values[key]) for key in given if key in values]
        return (shared, True) if len(shared) == len(given) == len(values) else None
    known = {_in_utc(each): each for each in got}
    if len(given) != len(known):
        return None
    pairs: list[tuple[Any, Any]] = []
    for each in given:
        key = _in_utc(each)
        if key not in known:
            return None
        pairs.append((each, known[key]))
        if values is not None:
            pairs.append((given[each], values[known[key]]))
    return pairs, True


def _is_read_as(given: Any, got: Any, alternatives: tuple[frozenset[type], ...] | None) -> bool:
    """
    Return whether *got*, which is of another type than *given*, is what an annotation makes of it.
    """
    kind, other = type(given), type(got)
    if (kind is bool and other is not bool) or any(
        kind in union and any(issubclass(other, each) for each in union) for union in alternatives or ()
    ):
        return False
    if kind is int and other is float:
        return bool(given == got)  # a float has no room for some large numbers
    if kind in NATIVE:
        return alternatives is not None
    if other not in _BASES or (alternatives is None and isinstance(given, Enum)):
        return False
    # A subclass of a text or a number, or one of NumPy's: what JSON has for it is what it is.
    with suppress(Exception):
        return bool(_in_utc(given) == _in_utc(got))
    return False


def _in_utc(value: Any) -> Any:
    """
    Return the moment that an aware datetime names, and anything else as it is.

    Python calls datetimes of two zones different, whatever they name, within the hours that a clock change
    repeats or skips.
    """
    if isinstance(value, datetime) and value.utcoffset() is not None:
        with suppress(OverflowError):  # at the ends of the calendar
            return value.astimezone(UTC)
    return value


def fields_of(value: Any) -> Iterable[str] | None:
    """
    The names of what a model, a dataclass, a struct or a named tuple holds; None for anything else.
    """
    if isinstance(value, type):
        return None
    if hasattr(value, "__pydantic_fields__"):
        return [*type(value).__pydantic_fields__, *_extras_of(value)]
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if hasattr(value, "__attrs_attrs__"):
        return [field.name for field in value.__attrs_attrs__]
    if isinstance(value, tuple):
        return getattr(value, "_fields", None)
    names: Iterable[str] | None = getattr(value, "__struct_fields__", None)
    return names


def _extras_of(value: Any) -> Iterable[str]:
    """
    Where what a model or a dataclass of pydantic holds beside its fields is found.
    """
    kind = type(value)
    if not dataclasses.is_dataclass(value):
        return ["__pydantic_extra__"]
    is_open = getattr(kind, "__pydantic_config__", {}).get("extra") == "allow"
    if not is_open and len(kind.__dataclass_fields__) == len(dataclasses.fields(kind)):
        return []  # nor has it an InitVar, of which `__post_init__` may make more
    # These are not written.  What the class has, too, such as a cached property, is made of its fields.
    return [
        name
        for name in getattr(value, "__dict__", {})
        if name not in kind.__pydantic_fields__ and not hasattr(kind, name)
    ]


def _place(value: Any, path: str, encoder: msgspec.json.Encoder) -> str:
    """
    Say where in *value* the part is that cannot be written; nothing if it is the whole of it.
    """
    top = path
    for _ in range(_SHOWN_STEPS):
        for inner_path, inner in _inner(value, path):
            try:
                encoder.encode(inner)
            except _UNWRITTEN:
                value, path = inner, inner_path
                break
        else:
            break
    return "" if path == top else f", at {path}"


def key_place(path: str, key: str) -> str:
    """
    Return the place of a dict's value below *path*.

    What is wrong with a result is logged and stored, so no key of it is quoted; a sender is told of its own.
    """
    return f"{path}[...]" if re.match(r"result\b", path) else f"{path}{key}"


def _inner(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """
    The parts of a value, each with its place.
    """
    if isinstance(value, dict):
        yield from ((key_place(path, f".{key}"), inner) for key, inner in value.items())
    elif (names := fields_of(value)) is not None:
        yield from ((f"{path}.{name}", getattr(value, name, None)) for name in names)
    elif isinstance(value, list | tuple | deque):
        yield from ((f"{path}[{position}]", inner) for position, inner in enumerate(value))


def _refuse_non_finite(value: object, path: str) -> None:
    # Loops: JSON may have as many levels as half of the stack.
    rest = [value]
    for each in rest:  # which grows
        if isinstance(each, dict):
            rest += each.values()
        elif isinstance(each, list | tuple):
            rest += each
        elif isinstance(each, float) and not math.isfinite(each):
            break
    else:
        return
    waiting = [(path, value)]
    while waiting:
        place, each = waiting.pop()
        if isinstance(each, float) and not math.isfinite(each):
            raise UsageError(f"{place} is {each}, and JSON has no such number")
        waiting += reversed(list(_inner(each, place)))


def decode(data: bytes) -> Any:
    """
    Read JSON.

    Raises:
        Unreadable: It is none.
    """
    try:
        return _decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from error


def check_json(data: bytes, what: str = "payload") -> None:
    """
    Read JSON that another program wrote, only to see that workers can.

    Raises:
        UsageError: They cannot.
    """
    if len(data) > MAX_DEPTH:
        check_depth(data, what)
    try:
        _decode(data)
    except msgspec.ValidationError as error:  # within the grammar of JSON, and beyond what Python reads of it
        told = str(error).partition(" - at ")[0].lower()
        raise UsageError(f"{what} has a value that workers cannot read ({told}): send it as text") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is no JSON: {error}") from None


def check_depth(data: bytes, what: str = "payload", *, outer: int = 0) -> None:
    """
    Refuse JSON of more than `MAX_DEPTH` levels, without the *outer* ones, which the sender did not make.

    Raises:
        UsageError: It has more.
    """
    # Most documents are shorter, or have fewer brackets, than levels are allowed.
    if len(data) <= MAX_DEPTH or data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    steps = _TEXT.sub(b"", data).translate(_STEPS, _NO_STEP)
    deepest = max(accumulate(memoryview(steps).cast("b")), default=0) - outer
    if deepest > MAX_DEPTH:
        raise UsageError(f"{what} is nested {deepest} levels deep, the limit is {MAX_DEPTH}: make it flatter")


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
#: A bracket that opens becomes 1, one that closes -1; nothing else is left.
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_STEP = bytes(byte for byte in range(256) if byte not in b"[{]}")


def encode_envelope(envelope: Envelope) -> bytes:
    """
    Write an envelope; one that says nothing takes no space.

    Raises:
        UsageError: Its context has no form in JSON, or is nested too deeply.
    """
    if envelope == _NO_ENVELOPE:
        return b""
    try:
        data = _encoder.encode(envelope)
    except _UNWRITTEN as error:
        place = _place(envelope.context, "context", _encoder)
        raise UsageError(f"context cannot be written as JSON: {error}{place}") from None
    check_depth(data, "context", outer=1)
    return data


def decode_envelope(data: bytes) -> Envelope:
    """
    Read an envelope; fields of a later version are passed over.

    Raises:
        Unreadable: It is none.
    """
    if not data:
        return _NO_ENVELOPE
    try:
        return _envelope_decoder.decode(data)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"envelope: {error}") from error


def readable_envelope(data: bytes) -> Envelope:
    """
    Read an envelope for a list, which one that cannot be read must not stop: nothing is known of that one.
    """
    try:
        return decode_envelope(data)
    except Unreadable:
        return _NO_ENVELOPE
