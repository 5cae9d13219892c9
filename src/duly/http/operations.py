"""
Operations: what each path does, said once; routes, access and OpenAPI are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duly.http.grammar import ID_PATTERN, TOPIC_PATTERN

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
    audit: Action | None = None  #: what is recorded where it succeeds
    limited: bool = True  #: counts against the caller's rate
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
    "seconds to wait for an end at most; the service has a limit of its own",
    {"type": "number", "minimum": 0},
)
PREFER = Parameter("Prefer", "header", "wait=SECONDS, as the parameter (RFC 7240)")
