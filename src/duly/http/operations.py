"""
Operations: what each path does, said once; routes, access and OpenAPI are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duly.http.grammar import DURATION_PATTERN, ID_PATTERN, TOPIC_PATTERN
from duly.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.responses import Response

    from duly.apikeys import Scope
    from duly.audit import Action
    from duly.http.service import Service


def topic_in_path(request: Request) -> str | None:
    """
    The topic that the path names, if it names one.
    """
    topic: str | None = request.path_params.get("topic")
    return topic


@dataclass(frozen=True, slots=True)
class Parameter:
    """
    A value in the path, the query or a header.
    """

    name: str
    place: str  #: path, query or header
    about: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What comes back with one status.
    """

    about: str
    kind: Any = None  #: the type of the document, None for none
    media: str = "application/json"
    headers: tuple[str, ...] = ()
    links: tuple[str, ...] = ()  #: operations on the job that it tells of
    unread: Any = None  #: another type of the document, for keys without the scope read or by the query


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """
    One method on one path.
    """

    name: str  #: unique, for OpenAPI and for clients made from it
    method: str
    path: str
    about: str
    run: Callable[[Service, Request], Awaitable[Response]]
    scope: Scope | None  #: None: needs no key
    answers: Mapping[int, Answer]
    problems: tuple[str, ...] = ()  #: beside those that every operation may answer with
    parameters: tuple[Parameter, ...] = ()
    body: Any = None  #: the type of the request, None for none
    body_media: tuple[str, ...] = ("application/json",)
    body_required: bool = True
    of_topics: bool = False  #: shows a key what is of its topics, so that one bound to some may call it
    audit: Action | None = None  #: what is recorded where it succeeds and has changed something
    limited: bool = True  #: counts against the caller's rate
    by_token: bool = False  #: a stream token in the query stands for a key
    topic_of: Callable[[Request], str | None] = topic_in_path  #: which API keys may be bound to


TOPIC = Parameter(
    "topic",
    "path",
    "the topic",
    {"type": "string", "pattern": TOPIC_PATTERN, "minLength": 1, "maxLength": 100},
)
JOB_ID = Parameter(
    "id",
    "path",
    "the id of the job",
    {"type": "string", "pattern": ID_PATTERN, "minLength": 1, "maxLength": 200},
)
WAIT = Parameter(
    "wait",
    "query",
    "how long to wait for an end at most, in seconds or as 1m30s; the service has a limit of its own",
    {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": DURATION_PATTERN}]},
)
PREFER = Parameter("Prefer", "header", "wait=SECONDS, as the parameter (RFC 7240)")


def limit(about: str, most: int, default: int = 100) -> Parameter:
    """
    Describe the query parameter limit.
    """
    schema = {"type": "integer", "minimum": 1, "maximum": most, "default": default}
    return Parameter("limit", "query", about, schema)


def read_limit(request: Request, most: int, default: int = 100) -> int:
    """
    Read the query parameter limit.

    Raises:
        Problem: It is no number from 1 to *most*.
    """
    said = request.query_params.get("limit", str(default))
    # A longer text is no number to read: Python refuses one of more than 4,300 digits.
    if said.isascii() and said.isdigit() and len(said) < 10 and 1 <= int(said) <= most:
        return int(said)
    raise Problem("invalid", f"limit={said[:20]!r} must be a number from 1 to {most}", field="limit")
