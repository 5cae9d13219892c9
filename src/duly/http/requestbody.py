"""
How the body of a request becomes the payload of a job, checked as the worker will read it.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from duly.codec import Unreadable
from duly.http.bodies import decode, invalid
from duly.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.binding import Binding

_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class RequestBody:
    """
    The body that one handler takes.

    Its fields are the handler's arguments; where the first argument is a model and the others may be left
    out, the whole body is that model.  Without a handler here, the body is the payload.
    """

    def __init__(self, binding: Binding | None) -> None:
        self.binding = binding
        self.argument = None if binding is None else _whole(binding)

    @property
    def required(self) -> bool:
        """
        Whether a request without a body is wrong.
        """
        return self.binding is not None and any(needed for _, needed in self.binding.takes.values())

    def read(self, body: bytes) -> tuple[bytes, Any, Any]:
        """
        The payload, what the body says in JSON, and what the handler will be given of it.

        Raises:
            Problem: It is no JSON, not what the handler takes, or missing.
        """
        said = decode(_anything, body) if body else None
        if self.binding is None:
            return body or b"null", said, said
        if self.required and not body:
            raise Problem("invalid", "a body is needed, in JSON")
        if self.argument is None or not body:
            payload = body or b"{}"
        else:
            payload = b'{"%s":%s}' % (self.argument.encode(), body)
        try:
            _, arguments = self.binding.bind(payload)
        except Unreadable as error:
            raise self._refusal(error) from None
        return payload, said, said if self.argument is None else arguments.get(self.argument)

    def _refusal(self, error: Unreadable) -> Problem:
        causes = list(_causes(error))
        wrong = next((each for each in causes if isinstance(each, msgspec.ValidationError)), None)
        if wrong is None:
            # What is left was raised by a check of the user's own, or there is no argument to take a value.
            own = next((each for each in causes if type(each) is ValueError), None)
            return Problem("invalid", str(own) if own else "the body must be a JSON object")
        problem = invalid(wrong)
        path = (problem.field or "").split(".") if problem.field else []
        if self.argument is not None and path[:1] == [self.argument]:
            path = path[1:]
        for each in causes:
            if callable(list_errors := getattr(each, "errors", None)):
                return _of_pydantic(path, list_errors)
        field = ".".join(path) or None
        detail = problem.detail.removeprefix(f"{problem.field}: ")
        return Problem("invalid", f"{field}: {detail}" if field else detail, field=field)


def _whole(binding: Binding) -> str | None:
    """
    The argument that is the whole body, if one is.
    """
    names = list(binding.takes)
    if not names or binding.open or any(needed for _, needed in list(binding.takes.values())[1:]):
        return None
    return names[0] if is_document(binding.takes[names[0]][0]) else None


def is_document(kind: Any) -> bool:
    """
    Whether a type is an object in JSON by itself: a model, a struct, a dataclass, a dict, or one of these.
    """
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return is_document(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
        return all(map(is_document, kinds))
    kind = origin or kind
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct | Mapping)
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or hasattr(kind, "model_validate")
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _of_pydantic(path: list[str], list_errors: Any) -> Problem:
    """
    What pydantic found, without the values that were sent: an answer may be logged.
    """
    found = [
        {"field": ".".join([*path, *map(str, each["loc"])]), "detail": each["msg"]}
        for each in list_errors(include_url=False, include_input=False, include_context=False)
    ]
    detail = "; ".join(f"{each['field']}: {each['detail']}".removeprefix(": ") for each in found)
    return Problem("invalid", detail, field=found[0]["field"] or None, errors=found)
