"""
How the body of a request becomes the payload of a job, checked as the worker will read it.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from duly.binding import WrongArgument
from duly.codec import Unreadable, check_depth
from duly.http.bodies import decode, invalid
from duly.http.problems import Problem
from duly.validation import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from duly.binding import Binding

_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class RequestBody:
    """
    The body that one handler takes.

    Its fields are the handler's arguments; where the first argument is a model or a collection and the others
    may be left out, the whole body is that one.  Without a handler here, the body is the payload.
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
            UsageError: It is nested too deeply.
        """
        said = decode(_anything, body) if body else None
        check_depth(body, "the body")
        if self.binding is None:
            return body or b"null", said, said
        if self.required and not body:
            raise Problem("invalid", "a body is needed, in JSON")
        if self.argument is None and not isinstance(said, dict) and (said is not None or self.required):
            raise Problem("invalid", "the body must be a JSON object")
        if not body or (said is None and self.argument is None):
            payload = b"{}"
        elif self.argument is None:
            payload = body
        else:
            payload = b'{"%s":%s}' % (self.argument.encode(), body)
        try:
            _, arguments = self.binding.bind(payload)
        except Unreadable as error:
            raise self._refusal(error) from None
        return payload, said, said if self.argument is None else arguments.get(self.argument)

    def _refusal(self, error: Unreadable) -> Problem:
        causes = list(_causes(error))
        if isinstance(error, WrongArgument):
            where = "" if error.name == self.argument else error.name
            listed = getattr(causes[1], "errors", None)
            if callable(listed):
                return _of_pydantic(where, listed)
            detail = str(causes[1])
            return Problem("invalid", f"{where}: {detail}" if where else detail, field=where or None)
        wrong = next((each for each in causes if isinstance(each, msgspec.ValidationError)), None)
        if wrong is None:  # raised by a check of the user's own
            return Problem("invalid", str(causes[1]) if len(causes) > 1 else "the body does not fit")
        problem = invalid(wrong)
        where = problem.field or ""
        detail = problem.detail.removeprefix(f"{where}: ")
        if self.argument is not None:  # who sends it does not know that it has a name
            where = re.sub(rf"^{re.escape(self.argument)}(?:\.|(?=\[)|$)", "", where)
        for each in causes:
            if callable(list_errors := getattr(each, "errors", None)):
                return _of_pydantic(where, list_errors)
        return Problem("invalid", f"{where}: {detail}" if where else detail, field=where or None)


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
    Whether a type is an object or an array in JSON: a model, a struct, a dataclass, a collection, or a union.
    """
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        return is_document(typing.get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [each for each in typing.get_args(kind) if each is not types.NoneType]
        return all(map(is_document, kinds))
    kind = origin or kind
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct)
        or (issubclass(kind, Collection) and not issubclass(kind, str | bytes | bytearray | memoryview))
        or dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or hasattr(kind, "model_validate")
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def _of_pydantic(where: str, list_errors: Any) -> Problem:
    """
    What pydantic found, without the values that were sent: an answer may be logged.
    """
    found = [
        {"field": place_of(each["loc"], where), "detail": each["msg"]}
        for each in list_errors(include_url=False, include_input=False, include_context=False)
    ]
    detail = "; ".join(f"{each['field']}: {each['detail']}".removeprefix(": ") for each in found)
    return Problem("invalid", detail, field=found[0]["field"] or None, errors=found)
