"""
Between a function's arguments and a payload: who is called with what.

A payload is a JSON object of arguments by name, readable without the code
that sent it.  From other senders, an object binds by keyword and anything else
is the single positional argument.
"""

from __future__ import annotations

import asyncio
import collections.abc
import functools
import inspect
import logging
import re
import types
import typing
from collections import deque
from datetime import datetime, time
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import UNSET

from duly.annotation import Incomplete, NoForm, Shape, refusing_shape, shape_of
from duly.codec import (
    DEFAULT_CODEC,
    MAX_DEPTH,
    SCALARS,
    Unreadable,
    check_json,
    fields_of,
    is_same,
    key_place,
)
from duly.errors import UsageError
from duly.validation import told

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from duly.codec import Codec

log = logging.getLogger("duly")

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]  #: positional and keyword arguments

_SPACE = b" \t\r\n"
_RETURN = "return"
_UNKNOWN = "unknown field"  #: in a message of msgspec's
_CONSTANT = re.compile(rb"(?:^|[:,\[]\s*)(NaN|-?Infinity)")  #: what pydantic may write for such a number
_ANNOTATE = "annotate it with its type, or use what JSON has"
_DEFINED_AGAIN = (
    "{} is of type {}, which was defined again after the handler: define the handler again as well (in a "
    "notebook, run its cell again)"
)
_ROWS = (list, tuple, deque)
_SAYS_NOTHING = (inspect.Parameter.empty, Any, None, types.NoneType, typing.NoReturn, typing.Never)
_raws = msgspec.json.Decoder(dict[str, msgspec.Raw])


class WrongArgument(Unreadable):
    """
    One argument is not what its annotation says.
    """

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


class Binding:
    """
    The arguments of one function, as far as they travel.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        topic: str,
        *,
        codec: Codec | None = None,
        names: Mapping[str, Any] | None = None,
        never: tuple[type, ...] = (),
    ) -> None:
        """
        Decide how the arguments and the result of *fn* travel.

        Its annotations may use the local *names*.  The types *never* are returned to a caller.

        Raises:
            UsageError: They cannot.
        """
        self.topic = topic
        self.codec = codec or DEFAULT_CODEC
        self._fn = fn
        self._never = never
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters.values()
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise UsageError(
                    f"handler of {topic}: parameter {parameter.name} is {parameter.kind.description}, "
                    "but payloads hold arguments by name; make it an ordinary or a keyword-only one"
                )
        named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        self.open = len(named) < len(parameters)  #: takes **kwargs
        self._names = dict.fromkeys(
            parameter.name for parameter in named
        ).keys()  #: a set that keeps its order
        self._required = frozenset(p.name for p in named if p.default is p.empty)
        self._positional = tuple(p.name for p in named if p.kind is p.POSITIONAL_OR_KEYWORD)
        self._annotations = {p.name: p.annotation for p in parameters}
        self._annotations[_RETURN] = self._signature.return_annotation
        self._known: dict[str, Shape] = {}  #: of annotations that could be resolved
        for name in self._annotations:
            try:
                self._known[name] = self._shape_of(name, names)
            except Incomplete:
                continue  # it may be defined later: `_shapes` looks again
            except NoForm as error:
                self._known[name] = self._refused(name, error)

    # ------------------------------------------------------------------ sending

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        Put the arguments of a call under their names; defaults stay with the function.

        Raises:
            UsageError: The function cannot be called like this.
        """
        if not kwargs and len(args) == len(self._positional) == len(self._names):
            return dict(zip(self._positional, args, strict=True))  # most calls: all of them in their order
        arguments = dict(zip(self._positional, args, strict=False)) if args else {}
        if kwargs:
            arguments.update(kwargs)
        if (
            len(arguments) != len(args) + len(kwargs)
            or not arguments.keys() >= self._required
            or not (self.open or arguments.keys() <= self._names)
        ):
            try:
                self._signature.bind(*args, **kwargs)  # knows best what is wrong
            except TypeError as error:
                raise UsageError(f"{self.topic}: {error}") from None
        return arguments

    def encode(self, arguments: dict[str, Any], limit: int) -> bytes:
        """
        Write arguments so that a worker reads what was given.

        Raises:
            UsageError: It would not.
        """
        given = arguments
        if self._writers:
            given = arguments | {
                name: write(arguments[name]) for name, write in self._writers.items() if name in arguments
            }
        payload = self.codec.encode(given, limit=limit)
        for name in self._writers.keys() & arguments.keys():
            _check_written(given[name], f"{self.topic}: argument {name}")
        try:
            _, got = self._bind_object(payload)
        except Exception as error:  # noqa: BLE001  # users' own checks raise what they like
            for name in self._names & arguments.keys():
                if _is_defined_again(type(arguments[name]), self._shapes[name].kind):
                    said = _DEFINED_AGAIN.format(name, _type(arguments[name]))
                    raise UsageError(f"{self.topic}: argument {said}") from None
            why = error if isinstance(error, Unreadable) else f"payload of {self.topic}: {told(error)}"
            raise UsageError(f"wrong arguments: {why}") from None
        if self._plain and got == arguments:
            return payload
        self._compare(arguments, got)
        return payload

    def _compare(self, arguments: dict[str, Any], got: dict[str, Any]) -> None:
        for name, given in arguments.items():
            shape = self._shapes[name] if name in self._names else self._rest
            if not shape.carries(given, got[name]):
                raise UsageError(f"{self.topic}: argument {_difference(shape, given, got[name], name)}")

    def encode_result(self, result: object, limit: int) -> bytes:
        """
        Write what the function returned, so that a caller reads the same.

        Raises:
            UsageError: It has no form in JSON, is too large, or would be read as something else.
        """
        shape = self._shapes[_RETURN]
        written = result if shape.write is None else shape.write(result)
        data = self.codec.encode(written, what="result", limit=limit)
        _check_written(written, f"{self.topic}: result")
        if type(result) in shape.scalars:
            return data
        try:
            got = shape.read(data)
        except Exception as error:
            if _is_native(result):
                return data  # the work is done; who asks for the result is told
            raise UsageError(
                f"result of {self.topic} is of type {_type(result)}, which is not what its handler says it "
                f"returns: {told(error, shape.kind)}"
            ) from error
        if not shape.carries(result, got):
            raise UsageError(f"{self.topic}: {_difference(shape, result, got, 'result')}")
        return data

    def decode_result(self, data: bytes) -> Any:
        """
        Read what the function returned, as what it says it returns.

        Raises:
            Unreadable: It is something else.
        """
        shape = self._shapes[_RETURN]
        try:
            return shape.read(data)
        except Exception as error:
            raise Unreadable(
                f"the result of {self.topic} is not what its handler says it returns: "
                f"{told(error, shape.kind)}"
            ) from error

    # ---------------------------------------------------------------- receiving

    def bind(self, payload: bytes) -> Call:
        """
        Read the arguments of a call.

        Raises:
            Unreadable: The payload is no JSON, or not what the function takes.
        """
        is_object = payload.startswith(b"{") or payload.lstrip(_SPACE).startswith(b"{")
        read = self._bind_object if is_object else self._bind_value
        try:
            return read(payload)
        except Unreadable:
            raise
        except Exception as error:  # users' own checks raise what they like
            names = ", ".join(self._names) or "no arguments"
            takes = f"; the handler takes {names}" if _UNKNOWN in str(error) else ""
            raise Unreadable(f"payload of {self.topic}: {told(error)}{takes}") from error

    @functools.cached_property
    def _bind_object(self) -> Callable[[bytes], Call]:
        """
        Build, once, the fastest way to read an object.
        """
        shapes, names = self._shapes, self._names
        fields = [
            (name, shapes[name].reads) if name in self._required else (name, shapes[name].reads, UNSET)
            for name in names
        ]
        struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=not self.open, kw_only=True)
        read = msgspec.json.Decoder(struct, dec_hook=self.codec.dec_hook).decode
        asdict = msgspec.structs.asdict
        optional = names != self._required
        converted = {name: shapes[name] for name in names if shapes[name].convert is not None}

        def closed(payload: bytes) -> Call:
            return (), asdict(read(payload))

        def with_defaults(payload: bytes) -> Call:
            return (), {name: value for name, value in asdict(read(payload)).items() if value is not UNSET}

        def nothing(payload: bytes) -> Call:
            if payload != b"{}":
                read(payload)
            return (), {}

        def with_models(payload: bytes) -> Call:
            _, arguments = with_defaults(payload)
            for name, shape in converted.items():
                if name in arguments:
                    arguments[name] = self._converted(name, shape, arguments[name])
            return (), arguments

        def open_(payload: bytes) -> Call:
            _, known = with_models(payload)
            rest = {
                name: self._converted(name, self._rest, raw)
                for name, raw in _raws.decode(payload).items()
                if name not in names
            }
            return (), known | rest

        if self.open:
            return open_
        if not self._names:
            return nothing
        if converted:
            return with_models
        return with_defaults if optional else closed

    def _converted(self, name: str, shape: Shape, data: msgspec.Raw) -> Any:
        try:
            return shape.read(bytes(data))
        except Exception as error:  # users' own checks raise what they like
            message = f"payload of {self.topic}: {name}: {told(error, shape.kind)}"
            raise WrongArgument(message, name) from error

    @functools.cached_property
    def _bind_value(self) -> Callable[[bytes], Call]:
        """
        Build, once, the way to read anything that is not an object.
        """
        name = self._positional[0] if self._positional else None
        fits = name is not None and self._required <= {name}
        shape = self._shapes[name] if name and fits else Shape(Any, self.codec)

        def single(payload: bytes) -> Call:
            if payload == b"null" and not self._names:
                return (), {}
            if name and shape.convert is not None:
                return (self._converted(name, shape, msgspec.Raw(payload)),), {}
            value = shape.read(payload)
            if not fits:
                raise Unreadable(
                    f"payload of {self.topic}: an object of arguments by name is needed, "
                    f"got {type(value).__name__}; the handler is called as {self._signature}"
                )
            return (value,), {}

        return single

    @functools.cached_property
    def takes(self) -> Mapping[str, tuple[Any, bool]]:
        """
        The arguments by name: what JSON is read as for each, and whether it must be given.
        """
        return {name: (self._shapes[name].kind, name in self._required) for name in self._names}

    def check_types(self) -> None:
        """
        Make sure that all annotations are known, for callers that check payloads before they are sent.

        Raises:
            UsageError: One is not, and values would be passed on as JSON made them.
        """
        for name, shape in self._shapes.items():
            if shape.why:
                raise UsageError(f"handler of {self.topic}: {_place(name)} {shape.why}")

    def returns(self) -> Any | None:
        """
        What the function says it returns, None where that is nothing or cannot be told.
        """
        kind = self._shapes[_RETURN].kind
        return None if kind is Any else kind

    # -------------------------------------------------------------------- types

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        """
        How each argument and the result travel, once names that are defined later can be resolved.
        """
        for name in self._annotations.keys() - self._known.keys():
            try:
                self._known[name] = self._shape_of(name)
            except NoForm as error:
                self._known[name] = refusing_shape(self._annotations[name], self.codec, str(error))
            except Incomplete as error:
                shape = self._known[name] = Shape(Any, self.codec)
                shape.why = (
                    f"is annotated with what cannot be resolved ({error}); import it at the top of the "
                    "module, and not for type checkers only"
                )
                log.warning("handler of %s: %s %s", self.topic, _place(name), shape.why)
        return self._known

    @functools.cached_property
    def _rest(self) -> Shape:
        """
        How further keyword arguments travel.
        """
        return self._shapes[next(reversed(self._signature.parameters))]

    @functools.cached_property
    def _plain(self) -> bool:
        """
        Whether a comparison of all arguments at once tells whether they arrive.
        """
        return all(shape.plain for name, shape in self._shapes.items() if name != _RETURN)

    @functools.cached_property
    def _writers(self) -> dict[str, Callable[[Any], Any]]:
        return {
            name: shape.write
            for name, shape in self._shapes.items()
            if shape.write is not None and name in self._names
        }

    def _shape_of(self, name: str, names: Mapping[str, Any] | None = None) -> Shape:
        annotation = self._annotations[name]
        if annotation in _SAYS_NOTHING:
            return Shape(Any, self.codec)
        kind = resolved(annotation, self._fn, names)
        if name == _RETURN:
            kind = _awaited(kind)
            if typing.get_origin(kind) in (typing.Union, types.UnionType):
                left = [each for each in typing.get_args(kind) if each not in self._never]
                kind = typing.Union[tuple(left)] if left else None  # noqa: UP007  # made at run time
            if kind in _SAYS_NOTHING or kind in self._never:
                return Shape(Any, self.codec)
        if typing.get_origin(kind) is typing.Unpack:
            return Shape(Any, self.codec)
        return shape_of(kind, self.codec)

    def _refused(self, name: str, error: NoForm) -> Shape:
        """
        The shape of an annotation that no value can be carried for.

        Raises:
            UsageError: Values of it are needed.
        """
        if name in self._required or name == _RETURN:
            raise UsageError(
                f"handler of {self.topic}: {_place(name)} is annotated with a type that cannot be carried: "
                f"{error}; use another, or register it first, with app.codec.register(…)"
            ) from None
        return refusing_shape(self._annotations[name], self.codec, str(error))


def resolved(annotation: Any, fn: Callable[..., Any], names: Mapping[str, Any] | None = None) -> Any:
    """
    Return what an annotation of *fn* names.

    Raises:
        Incomplete: It is not defined, or not yet.
    """
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    function = function_of(fn)
    space = getattr(function, "__globals__", {})
    # `def fn[T](…)`: where annotations are texts, its T is to be looked for by its name.
    own = {each.__name__: each for each in getattr(function, "__type_params__", ())}
    local = {**(names or {}), **own} or None
    try:
        return typing.get_type_hints(holder, space, local, include_extras=True)["it"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise Incomplete(str(error)) from error


def function_of(fn: Any) -> Any:
    """
    The function at the core of wrappers, partial functions, bound methods and callable objects.
    """
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif not inspect.isroutine(fn) and inspect.ismethod(getattr(fn, "__call__", None)):  # noqa: B004  # what it is called with is looked for
            fn = fn.__call__
        else:
            return fn


def check_function(fn: Any, what: str) -> None:
    """
    Make sure that what is decorated can be called with arguments that are known, and has no *self* to send.

    Raises:
        UsageError: It is no function, hides its arguments, or is a method.
    """
    if isinstance(fn, classmethod):
        raise UsageError(f"{what}: it is a classmethod; decorate a function or a staticmethod")
    try:
        parameters = inspect.signature(fn).parameters
    except TypeError:
        raise UsageError(f"{what}: {fn!r} is no function, and cannot be called") from None
    except ValueError:
        raise UsageError(
            f"{what}: {fn!r} does not say what it takes; wrap it in a function that does"
        ) from None
    name = _unbound_name(fn)
    names = list(parameters)
    annotated = [each.annotation is not each.empty for each in parameters.values()]
    owner = name.rpartition(".")[0]
    if not owner or owner.endswith("<locals>"):
        return
    if names[:1] in (["self"], ["cls"]) or (any(annotated) and not annotated[0]):
        raise UsageError(
            f"{what}: {name} is a method, and its first argument cannot be sent; decorate a function or a "
            "staticmethod, or pass a bound method: app.handler(topic)(instance.method)"
        )


def _unbound_name(fn: Any) -> str:
    """
    Return the name of the function that *fn* is or wraps; nothing where that has, or needs, no object.
    """
    while not inspect.isfunction(fn) or hasattr(fn, "__wrapped__"):
        if isinstance(fn, staticmethod) or inspect.ismethod(fn):
            return ""
        if isinstance(fn, functools.partial):
            if fn.args:
                return ""
            fn = fn.func
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        else:
            return ""
    return fn.__qualname__


def is_async(fn: Any) -> bool:
    """
    Return whether *fn* is an async function, says that it returns an awaitable, or wraps an async function.
    """
    return returns_awaitable(fn) or inspect.iscoroutinefunction(function_of(fn))


def returns_awaitable(fn: Any) -> bool:
    """
    Return whether a call of *fn* gives something to await for sure, which a plain wrapper need not do.
    """
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004  # likewise
        return True
    try:
        returned = resolved(inspect.signature(fn).return_annotation, fn)
    except (ValueError, TypeError, Incomplete):
        return False
    return _awaited(returned) is not returned


def _awaited(kind: Any) -> Any:
    """
    What is there once a result has been awaited.
    """
    origin = typing.get_origin(kind)
    if origin in (collections.abc.Awaitable, asyncio.Future, asyncio.Task):
        return typing.get_args(kind)[0]
    return typing.get_args(kind)[2] if origin is collections.abc.Coroutine else kind


def _place(name: str) -> str:
    return "the result" if name == _RETURN else f"parameter {name}"


def _type(value: object) -> str:
    return type(value).__qualname__


def _is_defined_again(kind: type, known: Any) -> bool:
    """
    Return whether a class has the place and the name of one that the handler knows, and is another.
    """
    return (
        isinstance(known, type)
        and kind is not known
        and (kind.__module__, kind.__qualname__) == (known.__module__, known.__qualname__)
    )


def _check_written(value: object, what: str) -> None:
    """
    Make sure that what pydantic wrote is JSON: `ser_json_inf_nan="constants"` writes numbers that are none.

    Raises:
        UsageError: It is not.
    """
    if not isinstance(value, msgspec.Raw):
        return
    try:
        check_json(bytes(value), what)
    except UsageError:
        constant = _CONSTANT.search(bytes(value))
        if constant is None:
            raise
        raise UsageError(
            f"{what} holds {constant[1].decode()}, and JSON has no such number; "
            'ser_json_inf_nan="strings" writes it as text'
        ) from None


def _difference(shape: Shape, given: Any, got: Any, path: str) -> str:
    """
    Say what would not arrive as it is given, and what to do about it.
    """
    in_field = False
    for depth in range(1, MAX_DEPTH + 1):
        pairs: list[tuple[str, Any, Any]] = []
        names = fields_of(given) if type(given) is type(got) else None
        if names is not None:
            in_field = True
            pairs = [
                (_field(path, name), getattr(given, name, None), getattr(got, name, None)) for name in names
            ]
        elif isinstance(given, dict) and isinstance(got, dict) and given.keys() == got.keys():
            pairs = [(key_place(path, f"[{key!r}]"), inner, got[key]) for key, inner in given.items()]
        elif isinstance(given, _ROWS) and isinstance(got, _ROWS) and len(given) == len(got):
            pairs = [(f"{path}[{at}]", *both) for at, both in enumerate(zip(given, got, strict=True))]
        for place, one, other in pairs:
            # Fields are compared as they are: what an annotation of them makes of JSON has been made already.
            if not (is_same(one, other, shape.codec) if in_field else shape.carries(one, other, depth)):
                given, got, path = one, other, place
                break
        else:
            break
    kind = "another value" if type(given) is type(got) else _type(got)
    if isinstance(given, dict) and isinstance(got, dict):
        kind = "a dict with other keys"
    changed = not in_field or (type(given) is type(got) and not isinstance(given, dict))
    remedy = _remedy(shape, given) if changed else _ANNOTATE
    if isinstance(given, deque) and isinstance(got, deque):
        remedy = "JSON has no maxlen: set it in the handler"
    if isinstance(given, datetime | time) and given.tzinfo is None and given.fold:
        remedy = "JSON has no fold: give it a timezone"
    if _is_defined_again(type(given), type(got)):
        return _DEFINED_AGAIN.format(path, _type(given))
    return f"{path} is of type {_type(given)} and would arrive as {kind}; {remedy}"


def _field(path: str, name: str) -> str:
    return path if name == "__pydantic_extra__" else f"{path}.{name}"


def _remedy(shape: Shape, given: object) -> str:
    if shape.why:
        return f"it {shape.why}"
    if any(type(given) in union for union in shape.alternatives):
        return "JSON says the same for a value of another type of its annotation"
    if shape.write is not None:
        return (
            "pydantic reads this from what it writes of it; a serializer must keep the value, a field needs "
            "the same alias both ways, and a SecretStr, for one, needs a serializer"
        )
    return _ANNOTATE


def _is_native(value: object) -> bool:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as each:
                if not all(type(key) is str for key in each):
                    return False
                waiting += each.values()
            case list() as each:
                waiting += each
            case each:
                if type(each) not in SCALARS:
                    return False
    return True
