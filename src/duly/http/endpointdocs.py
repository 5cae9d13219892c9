"""
What FastAPI tells about async endpoints in the OpenAPI document of the user's app.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.convertors import FloatConvertor, IntegerConvertor, UUIDConvertor
from starlette.responses import Response

from duly.annotation import uses_pydantic
from duly.http.asyncjob import JOB_ID, AsyncJob
from duly.http.jobs import IF_MATCH, IF_NONE_MATCH
from duly.http.operations import JOB_ID as ID_PARAMETER
from duly.http.operations import PREFER, WAIT
from duly.http.problems import MEDIA_TYPE, PROBLEMS, TYPES
from duly.validation import adapter_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from starlette.convertors import Convertor

    from duly.handlers import Handler
    from duly.http.asyncjob import Places
    from duly.http.requestbody import RequestBody

_ASKED = {
    "name": "X-Async-Request-Id",
    "in": "header",
    "required": False,
    "description": "the same id again gives the same job; one is made up if there is none",
    "schema": dict(ID_PARAMETER.schema),
}
_HEADERS = {
    "X-Async-Request-Id": "the id of the request",
    "Location": "where the status of the job is",
    "Retry-After": "seconds until it is worth to ask again",
}
_SAME = {"description": "it still has a tag that If-None-Match names"}
_AWAY = ("unavailable", "record-unavailable", "out-of-memory", "outcome-unknown")
_REFUSED = (
    "malformed",
    "too-large",
    "unsupported",
    "invalid",
    "key-reused",
    "full",
    "keys-full",
    *_AWAY,
)
_UNKNOWN = ("job-not-found", "invalid", *_AWAY)


class Described:
    """
    The description of one endpoint, as FastAPI's ``add_api_route`` takes it.
    """

    def __init__(
        self,
        topic: str,
        handler: Handler[..., Any] | None,
        places: Places,
        body: RequestBody,
        tags: Sequence[str],
    ) -> None:
        self._topic, self._handler, self._places, self._body, self._tags = topic, handler, places, body, tags

    def of(self, method: str, what: str) -> dict[str, Any]:
        """
        What to say about one route.
        """
        described: dict[str, Any] = {
            "response_model": None,
            "response_class": Response,  # has no media type: what is said here is all that is said
            "tags": list(self._tags) or None,
            # Two endpoints may send to one topic, so the path is part of it.
            "operation_id": "_".join(
                [what, method.lower(), *_words(self._topic), *_words(self._places.path)]
            ),
        }
        if what == "submit":
            return described | self._submit()
        parameters = [_parameter(name, kind) for name, kind in self._places.status_converters.items()]
        if what == "cancel":
            return described | {
                "summary": f"Cancel a job of {self._topic}",
                "responses": {200: _job("cancelled"), **_problems("conflict", "outdated", *_UNKNOWN)},
                "openapi_extra": {"parameters": [*parameters, _said(IF_MATCH), _said(IF_NONE_MATCH)]},
            }
        waiting = [_said(WAIT), _said(PREFER), _said(IF_NONE_MATCH), _said(IF_MATCH)]
        if what == "status":
            return described | {
                "summary": f"Status of a job of {self._topic}",
                "responses": {
                    200: _job("the job as it is now"),
                    304: _SAME,
                    **_problems("outdated", *_UNKNOWN),
                },
                "openapi_extra": {"parameters": [*parameters, *waiting]},
            }
        returned = self._handler.binding.returns() if self._handler is not None else None
        return described | {
            "summary": f"Result of a job of {self._topic}",
            "responses": {
                200: {
                    "description": "what the handler returned",
                    "content": {
                        "application/json": {"schema": {} if returned is None else schema_of(returned)}
                    },
                },
                304: _SAME,
                **_problems("unfinished", "cancelled", "result-gone", "dead", "outdated", *_UNKNOWN),
            },
            "openapi_extra": {"parameters": [*parameters, *waiting]},
        }

    def _submit(self) -> dict[str, Any]:
        parameters = [_parameter(name, kind) for name, kind in self._places.converters.items()]
        extra: dict[str, Any] = {"parameters": [*parameters, _ASKED, _said(PREFER)]}
        schema = self._schema()
        if schema is not None:
            extra["requestBody"] = {
                "required": self._body.required,
                "content": {"application/json": {"schema": schema}},
            }
        handler = self._handler
        about = inspect.cleandoc(handler.fn.__doc__ or "") if handler is not None else ""
        summary = about.partition("\n")[0].rstrip(".") or f"Queue {self._topic}"
        return {
            "status_code": 202,
            "summary": summary,
            "description": about,
            "response_description": "accepted: it is stored, and a worker will do it",
            "responses": {
                202: _job(None, "X-Async-Request-Id", "Location"),
                200: _job("it has ended already, while the caller waited", "X-Async-Request-Id", "Location"),
                **_problems(*_REFUSED),
            },
            "openapi_extra": extra,
        }

    def _schema(self) -> dict[str, Any] | None:
        """
        What the body looks like; None if there is none.
        """
        binding = self._body.binding
        if binding is None:
            return {}
        if self._body.argument is not None:
            return schema_of(binding.takes[self._body.argument][0])
        if not binding.takes and not binding.open:
            return None
        return {
            "type": "object",
            "properties": {name: schema_of(kind) for name, (kind, _) in binding.takes.items()},
            "required": [name for name, (_, needed) in binding.takes.items() if needed],
            "additionalProperties": binding.open,
        }


def schema_of(kind: Any) -> dict[str, Any]:
    """
    The schema of a type, complete in itself: a path cannot bring definitions along.
    """
    try:
        if uses_pydantic(kind):
            whole = adapter_of(kind).json_schema()
        else:
            whole = msgspec.json.schema(kind, schema_hook=_of_pydantic)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        return {}  # whatever it is, it cannot be told in JSON Schema
    definitions = whole.pop("$defs", {})
    plain: dict[str, Any] = _inlined(whole, definitions, ())
    return plain


def _of_pydantic(kind: Any) -> dict[str, Any]:
    if not hasattr(kind, "model_json_schema"):
        raise NotImplementedError
    return schema_of(kind)


def _inlined(schema: Any, definitions: Mapping[str, Any], within: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_inlined(each, definitions, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in within:
        return {"type": "object", "title": name}  # it holds itself: told once, and not for ever
    if name in definitions:
        rest = {each: value for each, value in schema.items() if each != "$ref"}
        return _inlined(definitions[name], definitions, (*within, name)) | rest
    # A mapping of names to schemas points into definitions, and these are gone.
    return {
        each: _inlined(value, definitions, within)
        for each, value in schema.items()
        if each != "discriminator"
    }


_JOB = schema_of(AsyncJob)
_PROBLEM = {
    "title": "Problem",
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "field": {"type": "string", "description": "the value that was wrong"},
    },
}


def _job(about: str | None, *headers: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "content": {"application/json": {"schema": _JOB}},
        "headers": {
            name: {"description": _HEADERS[name], "schema": {"type": "string"}}
            for name in (*headers, "Retry-After")
        },
    }
    return told if about is None else {"description": about} | told


def _problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    found: dict[int | str, list[str]] = {}
    for kind in kinds:
        found.setdefault(PROBLEMS[kind][0], []).append(kind)
    return {
        status: {
            "description": "; ".join(f"{TYPES}{kind}: {PROBLEMS[kind][1]}" for kind in each),
            "content": {MEDIA_TYPE: {"schema": _PROBLEM}},
        }
        for status, each in sorted(found.items(), key=lambda pair: str(pair[0]))
    }


def _words(text: str) -> Iterable[str]:
    return "".join(each if each.isalnum() else " " for each in text).split()


def _parameter(name: str, convertor: Convertor[Any]) -> dict[str, Any]:
    match convertor:
        case _ if name == JOB_ID:
            schema: dict[str, Any] = dict(ID_PARAMETER.schema)
        case IntegerConvertor():
            schema = {"type": "integer", "minimum": 0}
        case FloatConvertor():
            schema = {"type": "number", "minimum": 0}
        case UUIDConvertor():
            schema = {"type": "string", "format": "uuid"}
        case _:
            schema = {"type": "string"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _said(parameter: Any) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": False,
        "description": parameter.about,
        "schema": dict(parameter.schema),
    }
