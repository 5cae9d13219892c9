"""
OpenAPI 3.1, made from the operations: what is served is what is described.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, get_args

import msgspec

import duly
from duly.http.problems import MEDIA_TYPE, PROBLEMS, TYPES
from duly.job import JobState, Priority

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duly.http.operations import Answer, Operation, Parameter

#: That the queue or its record is away, or was before it answered.
_AWAY = ("unavailable", "record-unavailable", "out-of-memory", "outcome-unknown")
#: What any operation may answer with, whatever it does.
_ALWAYS = ("malformed", "too-many-requests", "fault", *_AWAY)
_WITH_KEY = ("unauthenticated", "forbidden", "cross-site", "misdirected")

NDJSON = "application/x-ndjson"

#: What the fields of these names may say, in every document.
_WORDS = {"state": [state.name for state in JobState], "priority": get_args(Priority)}
#: Fields that are times, beside those that end with _at or _until.
_TIMES = ("at", "since", "expires", "scheduled_for")

#: Where the parameters of an operation on a job are found in the answer that tells of it.
_LINK = {"topic": "$request.path.topic", "id": "$response.body#/id"}

_HEADERS = {
    "Duly-Outcome": "what sending the job did: created, kept or replaced",
    "ETag": "the tag of the job as it is, for If-Match and If-None-Match",
    "Location": "where the job is",
    "Retry-After": "seconds until it is worth to ask again",
    "Last-Event-ID": "where the stream goes on",
}


def document(operations: Sequence[Operation], root_path: str = "") -> dict[str, Any]:
    """
    The whole description, for clients that see the service at *root_path*.
    """
    kinds = [kind for operation in operations for kind in _kinds(operation)]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schemas = {name: _told(name, _plain(schema)) for name, schema in components.items()}
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
        "servers": [{"url": root_path or "/"}],
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
        yield from (kind for kind in (answer.kind, answer.unread) if kind is not None)


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
    if media == NDJSON:
        lines = _schema(kind)
        if lines.get("type") != "array":  # the document of one line, rather than of the whole
            lines = {"type": "array", "items": lines}
        return {
            "type": "string",
            "description": "one JSON document a line",
            "contentMediaType": media,
            "contentSchema": lines,
        }
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
    if "enum" in found and "type" not in found:
        # Without it, generators do not know what to make of the values.
        found["type"] = "string" if isinstance(found["enum"][0], str) else "integer"
    if found.get("type") == "object" and not found.keys() & {"properties", "additionalProperties"}:
        found["additionalProperties"] = True  # said, because some generators take it for an empty one
    if isinstance(found.get("description"), str):
        found["description"] = " ".join(found["description"].split())
    return found


def _told(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """
    Say of each field of a document what its Python type does not: which words it has, or that it is a time.

    A default is told in words: generators take a field that has one for a field that is always there, and
    ask for it in requests as well.
    """
    fields = schema.get("properties", {})
    for field, said in fields.items():
        if "default" in said and (default := said.pop("default")) is not None:
            about = f"{said['description']}; " if "description" in said else ""
            said["description"] = f"{about}default: {msgspec.json.encode(default).decode()}"
        for part in (said, *said.get("anyOf", ())):
            if part.get("type") != "string" or part.keys() & {"enum", "pattern", "format"}:
                continue
            if field in _TIMES or field.endswith(("_at", "_until")):
                part["format"] = "date-time"
            # What is in quarantine may say anything.
            elif field in _WORDS and not name.startswith("Quarantined"):
                part["enum"] = list(_WORDS[field])
    return schema


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
        schema = _schema(answer.kind, answer.media)
        if answer.unread is not None:
            schema = {"anyOf": [schema, _schema(answer.unread, answer.media)]}
        described["content"] = {answer.media: {"schema": schema}}
    if answer.links:
        described["links"] = {name: {"operationId": name, "parameters": _LINK} for name in answer.links}
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
            "reference": {"type": "string", "description": "where the log of the service says more"},
        },
    }
