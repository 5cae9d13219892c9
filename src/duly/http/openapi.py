"""
OpenAPI 3.1, made from the operations: what is served is what is described.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

import duly
from duly.http.problems import MEDIA_TYPE, PROBLEMS, TYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duly.http.operations import Answer, Operation, Parameter

#: What any operation may answer with, whatever it does.
_ALWAYS = ("malformed", "too-many-requests", "unavailable")
_WITH_KEY = ("unauthenticated", "forbidden")

_HEADERS = {
    "Duly-Outcome": "what sending the job did: created, kept or replaced",
    "ETag": "the revision of the job, for If-Match",
    "Location": "where the job is",
    "Retry-After": "seconds until it is worth to ask again",
    "Last-Event-ID": "where the stream goes on",
}


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """
    The whole description.
    """
    kinds = [kind for operation in operations for kind in _kinds(operation)]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = {name: _plain(schema) for name, schema in components.items()}
    schemas["Problem"] = _problem_schema()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duly",
            "version": duly.__version__,
            "summary": "Runs jobs when they are due.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "an API key; see `duly keys`"}
            },
        },
    }


def _kinds(operation: Operation) -> Iterable[Any]:
    if operation.body is not None:
        yield operation.body
    for answer in operation.answers.values():
        if answer.kind is not None:
            yield answer.kind


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": re.split(r"[.;:] ", operation.about)[0].rstrip("."),
        "description": operation.about,
        "parameters": [_parameter(each) for each in operation.parameters],
        "responses": {str(status): _answer(answer) for status, answer in sorted(operation.answers.items())},
    }
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {media: {"schema": _schema(operation.body, media)} for media in operation.body_media},
        }
    problems = (*_ALWAYS, *(_WITH_KEY if operation.scope else ()), *operation.problems)
    for status, kinds in _by_status(problems).items():
        described["responses"].setdefault(str(status), _problem(kinds))
    if operation.scope is not None:
        described["security"] = [{"key": []}, {}]
        described["x-duly-scope"] = operation.scope
    return described


def _schema(kind: Any, media: str = "application/json") -> dict[str, Any]:
    if media == "application/x-ndjson":
        return {"type": "string", "description": "one JSON document a line"}
    (schema,), _ = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    plain: dict[str, Any] = _plain(schema)
    return plain


def _plain(schema: Any) -> Any:
    """
    Leave out titles that only repeat a name, and make descriptions one line.
    """
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _plain(value) for name, value in schema.items() if name != "title"}
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    return found


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.about,
        "schema": dict(parameter.schema),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.about}
    if answer.kind is not None:
        described["content"] = {answer.media: {"schema": _schema(answer.kind, answer.media)}}
    if answer.headers:
        described["headers"] = {
            name: {"description": _HEADERS[name], "schema": {"type": "string"}} for name in answer.headers
        }
    return described


def _by_status(problems: Iterable[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for kind in problems:
        found.setdefault(PROBLEMS[kind][0], []).append(kind)
    return dict(sorted(found.items()))


def _problem(kinds: list[str]) -> dict[str, Any]:
    return {
        "description": "; ".join(f"{kind}: {PROBLEMS[kind][1]}" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _problem_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "What went wrong (RFC 9457).",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "enum": [TYPES + kind for kind in PROBLEMS]},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "field": {"type": "string", "description": "the value that was wrong"},
        },
    }
