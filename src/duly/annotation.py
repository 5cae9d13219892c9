"""
What an annotation makes of JSON, decided once when a handler is declared.

Pydantic reads and writes the annotations that use it, msgspec all others.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import math
import types
import typing
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from duly.codec import (
    DEFAULT_CODEC,
    NATIVE,
    SCALARS,
    Choice,
    Unreadable,
    decode,
    is_same,
)
from duly.errors import UsageError
from duly.forks import importing
from duly.validation import adapter_of, is_pydantic, nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from duly.codec import Codec

_UNIONS = (typing.Union, types.UnionType)
_ARRAYS = frozenset(
    {
        list,
        collections.abc.Collection,
        collections.abc.Iterable,
        collections.abc.MutableSequence,
        collections.abc.Sequence,
    }
)
_CONTAINERS = frozenset({dict, frozenset, list, set, tuple})
_MAPPINGS = frozenset({collections.abc.Mapping, collections.abc.MutableMapping})
#: What a list is one of, and what pydantic or msgspec do not read as one.
_ITERABLES = (collections.abc.Collection, collections.abc.Iterable, collections.abc.Reversible)
#: What pydantic looks for in metadata of no class of its own.
_MARKS = ("__get_pydantic_core_schema__", "__is_annotated_types_grouped_metadata__")
#: What a `msgspec.Meta` may ask of a value.
_ASKED = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length", "tz")


class NoForm(TypeError):
    """
    No value of an annotation can be carried in JSON.
    """


class Incomplete(NameError):
    """
    An annotation names what is not defined, or not yet.
    """


class Shape:
    """
    How values of one annotation are written, read and compared.
    """

    def __init__(self, kind: Any, codec: Codec) -> None:
        """
        Let msgspec read *kind*.
        """
        self.kind = kind
        self.codec = codec
        self.reads: Any = kind  #: what msgspec reads; `msgspec.Raw` where `convert` follows
        self.convert: Callable[[bytes], Any] | None = None
        self.write: Callable[[Any], Any] | None = None  #: into something that the codec writes
        self.why = ""  #: the reason why values are not read as what the annotation says
        self.plain = _is_plain(kind)  #: a value that is equal to what was read is the same
        #: types of values that need no second look
        self.scalars = SCALARS if kind is Any else SCALARS & {kind} if isinstance(kind, type) else frozenset()
        parts = list(_parts(kind)) if kind is not Any else []
        #: classes that stand beside each other in a union
        self.alternatives = tuple(
            found
            for part in parts
            if typing.get_origin(part) in _UNIONS
            for found in _alternatives(typing.get_args(part), set())
        )
        origins = {typing.get_origin(part) or part for part in parts}
        #: how many containers deep a tuple may arrive as a list, since the annotation says so
        self.arrays = 0.0 if origins.isdisjoint(_ARRAYS) or tuple in origins else _typed_levels(kind)
        self._decode: Callable[[bytes], Any] | None = None

    def read(self, data: bytes) -> Any:
        """
        Read JSON.

        Raises:
            ValueError, Unreadable: It is none, or not what the annotation says.
        """
        if self.convert is not None:
            return self.convert(data)
        if self._decode is None:
            self._decode = msgspec.json.Decoder(self.reads, dec_hook=self.codec.dec_hook).decode
        return self._decode(data)

    def carries(self, given: Any, got: Any, depth: int = 0) -> bool:
        """
        Return whether *got* is *given*, or what the annotation makes of a value that is JSON already.

        Both may be parts of a value, so many containers deep.
        """
        if self.plain and given == got:
            return True
        same: Callable[..., bool] = partial(is_same, given, got, self.codec, arrays=self.arrays - depth)
        if self.write is None:
            return same(alternatives=self.alternatives)
        if same():
            return True
        if self._is_changed(given):
            return False
        if same(alternatives=self.alternatives):
            return True
        # A validator has changed a text or a number: once, or again whenever it is read.
        return same(alternatives=self.alternatives, normalised=True) and self._is_stable(got)

    def _is_changed(self, given: Any) -> bool:
        """
        Return whether pydantic writes something else than the value itself, as a serializer does.
        """
        try:
            return bool(decode(self._written(given)) != decode(self.codec.encode(given)))
        except UsageError:
            return True

    def _is_stable(self, got: Any) -> bool:
        """
        Return whether what was read is read again as it is.
        """
        try:
            return is_same(got, self.read(self._written(got)), self.codec)
        except Exception:  # noqa: BLE001  # users' own checks raise what they like
            return False

    def _written(self, value: Any) -> bytes:
        return self.codec.encode(value if self.write is None else self.write(value))


def shape_of(kind: Any, codec: Codec) -> Shape:
    """
    Decide how values of an annotation are carried.

    Raises:
        NoForm: None of them can be.
        Incomplete: It names something that is not defined.
    """
    if kind in (Any, object, types.NoneType) or getattr(kind, "_is_protocol", False):
        return Shape(Any, codec)
    try:
        return _decided(kind, codec)
    except NameError as error:
        raise Incomplete(str(error)) from error
    except NoForm:
        raise
    except Exception as error:  # of a class of the user's own
        raise NoForm(f"{_name(kind)} cannot be read: {error}") from error


def _decided(kind: Any, codec: Codec) -> Shape:
    kind = _with_lists(_unaliased(kind))
    for part in _parts(kind):
        _check_container(part)
    if uses_pydantic(kind, codec):
        shape = _shape_by_pydantic(kind, codec)
        if shape is not None:
            return shape
        if any(map(_asks_pydantic, _parts(kind))):
            raise NoForm(
                "pydantic cannot read it, and msgspec does not check a Field; say it with msgspec.Meta"
            )
    shape = Shape(kind, codec)
    if typing.get_origin(_bare(kind)) not in _UNIONS:
        unknown = _unknown(_parts(kind), codec)
        if unknown is not None:
            raise NoForm(f"{_name(unknown)} has no form in JSON")
        for part in _parts(kind):
            _check_attributes(part)
    shape.reads = _readable(kind, codec)
    return shape


def refusing_shape(kind: Any, codec: Codec, why: str) -> Shape:
    """
    The shape of an annotation whose values cannot be carried: each is refused.
    """

    def refuse(_: Any) -> NoReturn:
        raise Unreadable(why)

    shape = Shape(Any, codec)
    shape.kind, shape.why, shape.reads, shape.convert = kind, why, msgspec.Raw, refuse
    return shape


# -- pydantic ---------------------------------------------------------------------------------------------


def uses_pydantic(kind: Any, codec: Codec = DEFAULT_CODEC) -> bool:
    """
    Return whether pydantic has a part in an annotation, other than in types that are registered.
    """
    return any(_is_for_pydantic(part, codec) for part in _parts(kind))


def _is_for_pydantic(part: Any, codec: Codec = DEFAULT_CODEC) -> bool:
    if typing.get_origin(part) is typing.Annotated:
        # What pydantic's own constrained types are made of has a package of its own.
        bases = [base for each in part.__metadata__ for base in type(each).__mro__]
        modules = {base.__module__.partition(".")[0] for base in bases}
        return bool(modules & {"pydantic", "annotated_types"}) or any(
            hasattr(each, mark) for each in part.__metadata__ for mark in _MARKS
        )
    return is_pydantic(part) and not codec.is_registered(part)


def _asks_pydantic(part: Any) -> bool:
    """
    Return whether an annotation has a constraint that only pydantic checks.
    """
    if typing.get_origin(part) is not typing.Annotated:
        return False
    # A Field holds its constraints apart from what it only describes.
    return any(
        each.metadata if type(each).__name__ == "FieldInfo" else _is_for_pydantic(typing.Annotated[Any, each])
        for each in part.__metadata__
    )


def _asks_msgspec(part: Any) -> bool:
    """
    Return whether an annotation has a constraint that only msgspec checks.
    """
    if typing.get_origin(part) is not typing.Annotated:
        return False
    metas = [each for each in part.__metadata__ if isinstance(each, msgspec.Meta)]
    return any(getattr(meta, name) is not None for meta in metas for name in _ASKED)


def _shape_by_pydantic(kind: Any, codec: Codec) -> Shape | None:
    """
    The shape of an annotation that pydantic knows; None if it does not.
    """
    try:
        with importing():
            from pydantic import SecretBytes, SecretStr, errors  # noqa: PLC0415  # need not be there
    except ImportError:
        return None
    try:
        adapter = adapter_of(kind)
    except errors.PydanticUndefinedAnnotation as error:
        raise Incomplete(str(error)) from error
    except errors.PydanticSchemaGenerationError:
        return None
    except errors.PydanticUserError as error:
        if error.code == "class-not-fully-defined":
            raise Incomplete(error.message) from error
        raise NoForm(error.message) from error

    def read(data: bytes) -> Any:
        try:
            return adapter.validate_json(bytes(data))
        except errors.PydanticUserError as error:
            raise Unreadable(error.message) from error

    def write(value: Any) -> Any:
        try:
            return msgspec.Raw(adapter.dump_json(value, by_alias=True, round_trip=True, warnings="error"))
        except ValueError:
            # It is not what the annotation says: JSON already, maybe.
            return value

    if any(map(_asks_msgspec, _parts(kind))):
        raise NoForm("pydantic reads it, and does not check a msgspec.Meta; say it with pydantic.Field")
    if adapter.pydantic_complete:
        _check_schema(adapter.core_schema)
    if kind in (SecretStr, SecretBytes):
        raise NoForm(f"pydantic writes asterisks for a {kind.__name__}; give it a PlainSerializer")
    shape = Shape(kind, codec)
    shape.reads, shape.convert, shape.write = msgspec.Raw, read, write
    return shape


def _check_schema(schema: Any) -> None:
    """
    Look through what pydantic makes of an annotation for what cannot be read from JSON.

    Raises:
        NoForm: No value can, or one would be read as an iterator that is used up once.
    """
    if any(node.get("type") == "generator" for node in nodes_of(schema)):
        raise NoForm("pydantic reads an Iterable as an iterator that ends after one use; name it a list")
    refs = {node["ref"]: node for node in nodes_of(schema) if "ref" in node}
    if _is_never_read(schema, refs):
        raise NoForm(
            "it needs a value that pydantic reads from no JSON: a function, or an instance of a class"
        )


def _is_never_read(schema: dict[str, Any], refs: dict[str, Any]) -> bool:
    """
    Return whether pydantic reads no JSON at all by a schema, as far as is sure.
    """
    inner: Iterable[dict[str, Any]] = ()
    match schema["type"]:
        case "callable" | "is-instance" | "is-subclass":
            return True
        case "union":
            return all(isinstance(each, dict) and _is_never_read(each, refs) for each in schema["choices"])
        case "definition-ref":
            # Once: a schema that needs itself ends somewhere.
            inner = [refs[schema["schema_ref"]]] if schema["schema_ref"] in refs else ()
            refs = {ref: node for ref, node in refs.items() if ref != schema["schema_ref"]}
        case "json-or-python":
            inner = [schema["json_schema"]]
        case "lax-or-strict":
            inner = [schema["lax_schema"]]
        case "model" | "dataclass" | "function-after" | "definitions" | "model-field" | "dataclass-field":
            inner = [schema["schema"]]
        case "model-fields":
            inner = schema["fields"].values()
        case "dataclass-args":
            inner = schema["fields"]
    return any(_is_never_read(each, refs) for each in inner)


# -- msgspec ----------------------------------------------------------------------------------------------


def _readable(kind: Any, codec: Codec) -> Any:
    """
    Return *kind* with what msgspec can read in the place of unions that it cannot.

    Raises:
        NoForm: It cannot be read in any way.
    """
    try:
        msgspec.json.Decoder(kind, dec_hook=codec.dec_hook)
    except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin in _UNIONS:
            return _choice(kind, args, codec)
        if origin is typing.Annotated:
            return _readable(args[0], codec)
        replaced = tuple(each if each is ... else _readable(each, codec) for each in args)
        if origin is None or replaced == args:
            raise NoForm(str(error)) from error
        return origin[replaced]
    return kind


def _choice(kind: Any, args: tuple[Any, ...], codec: Codec) -> type[Choice]:
    """
    Stand in for a union: the member is taken that says again what was read.
    """
    shapes = []
    for arg in sorted(args, key=lambda arg: arg is str):  # any text is a str: the others come first
        try:
            shapes.append(Shape(type(None), codec) if arg is type(None) else shape_of(arg, codec))
        except NoForm:
            continue
    if not shapes:
        raise NoForm(f"{_name(kind)} has no form in JSON")

    class Member(Choice):
        @classmethod
        def pick(cls, value: Any) -> Any:
            data = msgspec.json.encode(value)
            found: list[Any] = []
            for shape in shapes:
                try:
                    read = shape.read(data)
                    written = codec.encode(read if shape.write is None else shape.write(read))
                    if msgspec.json.decode(written) == value:
                        return read
                except Exception:  # noqa: BLE001, S112  # not this one, whatever its own checks raise
                    continue
                found.append(read)
            if not found:
                raise ValueError(f"Expected `{_name(kind)}`, got `{type(value).__name__}`")
            return found[0]

    return Member


def _unknown(parts: Iterable[Any], codec: Codec) -> Any | None:
    """
    A class among *parts* that nothing is known of, if there is one.
    """
    for part in parts:
        # A field that is unset is left out.
        known = part in NATIVE or part is msgspec.UnsetType if isinstance(part, type) else True
        if not known and not getattr(part, "_is_protocol", False):
            try:
                info = msgspec.inspect.type_info(part)
            except (TypeError, ValueError, NotImplementedError, RuntimeError):
                continue
            if isinstance(info, msgspec.inspect.CustomType) and part is not object:
                form = codec.form_of(part)
                if form is None or form.decode is None:
                    return part
    return None


# -- annotations ------------------------------------------------------------------------------------------


def _check_container(kind: Any) -> None:
    """
    Make sure that a container can hold what its annotation says.

    Raises:
        NoForm: It can only be empty, or is read as it goes.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    inner = (typing.get_origin(_bare(args[0])) or _bare(args[0])) if args else None
    if origin is collections.abc.Generator:
        raise NoForm(f"{_name(kind)} has no form in JSON")
    if (origin is dict or origin in _MAPPINGS) and inner in _CONTAINERS:
        raise NoForm(f"JSON has no {inner.__name__} for a key of {_name(kind)}")
    if origin in (set, frozenset) and isinstance(inner, type) and inner.__hash__ is None:
        raise NoForm(f"a {_name(origin)} cannot hold {inner.__name__}, which has no hash")


def _check_attributes(kind: Any) -> None:
    """
    Make sure that msgspec writes what is needed to make an object of attrs again.

    Raises:
        NoForm: It does not.
    """
    for each in getattr(kind, "__attrs_attrs__", ()):
        if each.name.startswith("_") and each.init and repr(each.default) == "NOTHING":
            raise NoForm(
                f"{_name(kind)} needs its private attribute {each.name}, which is not written; "
                "name it without the underscore, or give it a default"
            )


def _unaliased(kind: Any, within: tuple[Any, ...] = ()) -> Any:
    """
    Return *kind* with what they stand for in the place of aliases made by `TypeAliasType`.

    Python 3.11 has it from typing_extensions, which msgspec does not know.  One that names itself stays.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    alias = kind if origin is None else origin
    if type(alias).__name__ == "TypeAliasType":
        value = alias.__value__
        if alias in within or isinstance(value, str):
            return kind
        return _unaliased(value[args] if args else value, (*within, alias))
    if origin in (None, typing.Literal):
        return kind
    return _rebuilt(kind, partial(_unaliased, within=within))


def _bare(kind: Any) -> Any:
    if (named := getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)) is not None:
        return _bare(named)
    return _bare(typing.get_args(kind)[0]) if typing.get_origin(kind) is typing.Annotated else kind


def _with_lists(kind: Any) -> Any:
    """
    Return *kind* with lists in the place of iterables, which pydantic would read as it goes, and only once.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in _ITERABLES or kind in _ITERABLES:
        return list[tuple(map(_with_lists, args)) or (Any,)]  # type: ignore[misc]  # made at run time
    if origin is typing.Literal:
        return kind
    return _rebuilt(kind, _with_lists)


def _rebuilt(kind: Any, change: Callable[[Any], Any]) -> Any:
    """
    Return *kind* with each of its arguments changed.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    replaced = tuple(map(change, args[:1] if origin is typing.Annotated else args))
    if all(new is old for new, old in zip(replaced, args, strict=False)):
        return kind
    if origin is typing.Annotated:
        return typing.Annotated[(*replaced, *kind.__metadata__)]
    return typing.Union[replaced] if origin in _UNIONS else origin[replaced]  # noqa: UP007  # made at run time


def _is_plain(kind: Any) -> bool:
    """
    Return whether an annotation is made of JSON's own types, so that a comparison tells all.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in _UNIONS:
        return len(args) == 2 and types.NoneType in args and all(map(_is_plain, args))
    if origin is dict:
        return args[0] is str and _is_plain(args[1])
    return _is_plain(args[0]) if origin is list else isinstance(kind, type) and kind in SCALARS


def _typed_levels(kind: Any, within: tuple[Any, ...] = ()) -> float:
    """
    Return how many containers deep an annotation says what it holds, before it says `Any`.
    """
    kind = _bare(kind)
    origin, args = typing.get_origin(kind) or kind, typing.get_args(kind)
    if kind in within:
        return math.inf  # it names itself, and has been looked at
    if kind is Any or kind is dict or kind in _MAPPINGS:
        return 0
    if origin in _UNIONS:
        return min(_typed_levels(arg, (*within, kind)) for arg in args)
    if origin in _ARRAYS:
        return 1 + (_typed_levels(args[0], (*within, kind)) if args else 0)
    if origin is dict or origin in _MAPPINGS:
        return 1 + _typed_levels(args[1], (*within, kind))
    return math.inf


def _alternatives(args: Iterable[Any], seen: set[int]) -> Iterator[frozenset[type]]:
    """
    The classes that a value of a union may be of, and those of its parts where members are of one container.
    """
    classes: set[type] = set()
    containers: dict[Any, list[Any]] = {}
    members = list(map(_bare, args))
    for member in members:
        origin = typing.get_origin(member) or member
        if origin in _UNIONS:
            members += map(_bare, typing.get_args(member))
        elif isinstance(origin, type):
            classes |= {origin} | ({list} if origin in _ARRAYS else {dict} if origin in _MAPPINGS else set())
            # Of a dict, the values: JSON has only texts for keys.
            containers.setdefault(origin, []).append(typing.get_args(member)[issubclass(origin, dict) :])
    yield frozenset(classes)
    for several in containers.values():
        inner = [each for one in several for each in one if each is not ... and id(each) not in seen]
        if len(several) > 1 and inner:
            yield from _alternatives(inner, seen | set(map(id, inner)))


def _parts(kind: Any, seen: dict[int, Any] | None = None) -> Iterator[Any]:
    """
    An annotation and all that it is made of, fields of classes too.
    """
    seen = {} if seen is None else seen
    if id(kind) in seen:
        return
    seen[id(kind)] = kind  # held, so that no other gets its id
    inner: Iterable[Any] = ()
    if isinstance(kind, list):  # the parameters of a Callable
        return
    yield kind
    if (supertype := getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)) is not None:
        inner = (supertype,)
    elif typing.get_origin(kind) is typing.Annotated:
        inner = typing.get_args(kind)[:1]
    elif (origin := typing.get_origin(kind)) is not None:
        args = () if origin is typing.Literal else typing.get_args(kind)
        inner = (*args, origin) if isinstance(origin, type) and origin is not types.UnionType else args
    elif isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or issubclass(kind, msgspec.Struct)
        or typing.is_typeddict(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
        or hasattr(kind, "__attrs_attrs__")
    ):
        inner = typing.get_type_hints(kind, include_extras=True).values()
    for each in inner:
        yield from _parts(each, seen)


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
