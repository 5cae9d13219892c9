"""
Between a function's arguments and a payload: who is called with what.

A payload is a JSON object of arguments by name, readable without the code
that sent it.  From other senders, an object binds by keyword and anything else
is the single positional argument.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
from msgspec import UNSET

from duly.codec import Unreadable, decode
from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]  #: positional and keyword arguments

_SPACE = b" \t\r\n"


def _other(kind: Any, value: Any) -> Any:
    """
    Make what msgspec cannot: pydantic models, without importing pydantic.
    """
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate(value)
    if isinstance(value, kind):
        return value
    raise ValueError(f"JSON cannot be read as {kind!r}")


class Binding:
    """
    The arguments of one function, as far as they travel.
    """

    def __init__(self, fn: Callable[..., Any], topic: str) -> None:
        self.topic = topic
        self._fn = fn
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

    # ------------------------------------------------------------------ sending

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """
        Put the arguments of a call under their names; defaults stay with the function.

        Raises:
            UsageError: The function cannot be called like this.
        """
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

    def check(self, payload: bytes) -> None:
        """
        Make sure that a worker will be able to read *payload*.

        Raises:
            UsageError: It will not.
        """
        try:
            self.bind(payload)
        except Unreadable as error:
            raise UsageError(f"wrong arguments: {error}") from error

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
            raise Unreadable(f"payload of {self.topic}: {error}") from error

    @functools.cached_property
    def _bind_object(self) -> Callable[[bytes], Call]:
        """
        Build, once, the fastest way to read an object.
        """
        fields = [
            (name, kind) if name in self._required else (name, kind, UNSET)
            for name, kind in self._types.items()
        ]
        struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=not self.open, kw_only=True)
        read = msgspec.json.Decoder(struct, dec_hook=_other).decode
        asdict = msgspec.structs.asdict
        optional = self._names != self._required
        last = next(reversed(self._signature.parameters), "")  # where **kwargs are, if there are any
        extra: Any = dict[str, _readable(self._hints.get(last, Any))]  # type: ignore[misc]  # a type that is made at run time

        def closed(payload: bytes) -> Call:
            return (), asdict(read(payload))

        def with_defaults(payload: bytes) -> Call:
            return (), {name: value for name, value in asdict(read(payload)).items() if value is not UNSET}

        def nothing(payload: bytes) -> Call:
            if payload != b"{}":
                read(payload)
            return (), {}

        def open_(payload: bytes) -> Call:
            _, known = with_defaults(payload)
            rest = {name: value for name, value in decode(payload).items() if name not in self._names}
            return (), known | msgspec.convert(rest, extra, dec_hook=_other)

        if self.open:
            return open_
        if not self._names:
            return nothing
        return with_defaults if optional else closed

    @functools.cached_property
    def _bind_value(self) -> Callable[[bytes], Call]:
        """
        Build, once, the way to read anything that is not an object.
        """
        name = self._positional[0] if self._positional else None
        fits = name is not None and self._required <= {name}
        read = msgspec.json.Decoder(self._types[name] if name and fits else Any, dec_hook=_other).decode

        def single(payload: bytes) -> Call:
            if payload == b"null" and not self._names:
                return (), {}
            value = read(payload)
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
        return {name: (kind, name in self._required) for name, kind in self._types.items()}

    def check_types(self) -> None:
        """
        Make sure that the annotations can be read, for who wants payloads checked before they are sent.

        Raises:
            UsageError: One cannot, and values would be passed on as JSON made them.
        """
        try:
            self._resolve()
        except Exception as error:
            raise UsageError(
                f"handler of {self.topic}: its annotations cannot be read ({error}); import what they name "
                "at the top of the module, and not for type checkers only"
            ) from error

    def returns(self) -> Any | None:
        """
        What the function says it returns, None where JSON cannot be read as that.
        """
        kind = self._hints.get("return")
        return None if kind is None or _readable(kind) is Any else kind

    def _resolve(self) -> Mapping[str, Any]:
        target = self._fn if inspect.isroutine(self._fn) else cast("Any", self._fn).__call__
        return typing.get_type_hints(target, include_extras=True)

    @functools.cached_property
    def _hints(self) -> Mapping[str, Any]:
        try:
            return self._resolve()
        except Exception:  # noqa: BLE001  # unresolvable: values are passed on as JSON made them
            return {}

    @functools.cached_property
    def _types(self) -> dict[str, Any]:
        return {name: _readable(self._hints.get(name, Any)) for name in self._names}


def _readable(kind: Any) -> Any:
    """
    Return *kind* if JSON can be read as one, else Any: the value is then passed on as it is.
    """
    if getattr(kind, "_is_protocol", False):
        return Any
    try:
        msgspec.json.Decoder(kind, dec_hook=_other)
    except Exception:  # noqa: BLE001  # as above
        return Any
    return kind
