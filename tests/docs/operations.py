"""
The tables of docs/reference/http.md, made from the operations, problems and settings of the service.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from starlette.requests import Request

from duly.apikeys import SCOPES, ApiKey
from duly.http.api import OPERATIONS
from duly.http.problems import PROBLEMS
from duly.http.settings import ServiceSettings
from duly.http.tokens import Token, token_of
from duly.job import JobKey
from duly.settings import KEYS as SETTINGS
from duly.settings import SERVE_VARIABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.http.operations import Operation
    from tests.docs.reference import Table

#: What stands in the path of the calls that the table of scopes tells of.
PATH = {
    "topic": "mail",
    "id": "a",
    "name": "mail",
    "token": token_of(Token(JobKey("mail", "a"), bytes(16), 1, 60_000, 0, 0).lease(1), 0),
}

#: Each kind of key, by what the table calls it; None is none.
KEYS: dict[str, ApiKey | None] = {
    "no key": None,
    **{scope: ApiKey(id="k", name=scope, scopes=(scope,), topics=()) for scope in SCOPES},
    "`admin`, bound to the topic": ApiKey(id="k", name="bound", scopes=("admin",), topics=("mail",)),
    "`admin`, bound to another": ApiKey(id="k", name="away", scopes=("admin",), topics=("other.*",)),
}

#: Further columns: who sends no key, and is let in all the same.
TOKEN, KEYLESS = "a stream token", "no key is required"


def operations_table(table: Table) -> str:
    rows = [
        (
            f"`{operation.method} {operation.path}`",
            operation.scope or "none",
            operation.about,
            _taken(operation),
            ", ".join(str(status) for status in sorted(operation.answers)),
            ", ".join(f"`{kind}`" for kind in operation.problems),
        )
        for operation in OPERATIONS
    ]
    return table(["call", "scope", "what it does", "takes", "answers", "and problems"], rows)


def scopes_table(table: Table) -> str:
    rows = [
        (
            f"`{operation.method} {operation.path}`",
            *(answer_to(operation, key) for key in KEYS.values()),
            "yes" if operation.scope is None or operation.by_token else "401",
            "yes",
        )
        for operation in OPERATIONS
    ]
    return table(["call", *KEYS, TOKEN, KEYLESS], rows)


def answer_to(operation: Operation, key: ApiKey | None) -> str:
    """
    What the service makes of a call about the topic mail with *key*: yes, its topics, 401 or 403.
    """
    if operation.scope is None:
        return "yes"
    if key is None:
        return "401"
    if operation.of_topics:
        return "403" if not key.has(operation.scope) else "its topics" if key.topics else "yes"
    named = {name: value for name, value in PATH.items() if f"{{{name}}}" in operation.path}
    request = Request({"type": "http", "path_params": named})
    return "yes" if key.allows(operation.scope, operation.topic_of(request)) else "403"


def _taken(operation: Operation) -> str:
    taken = [f"`{each.name}`" for each in operation.parameters if each.place != "path"]
    return ", ".join(
        [*taken, *(f"`{media}`" for media in operation.body_media if operation.body is not None)]
    )


def problems_table(table: Table) -> str:
    rows = [(f"`{kind}`", str(status), title) for kind, (status, title) in PROBLEMS.items()]
    return table(["word", "status", "meaning"], rows)


def service_settings_table(table: Table, said: Callable[[type], dict[str, str]]) -> str:
    meaning = said(ServiceSettings)
    defaults = ServiceSettings()
    rows = [
        (
            f"`{field.name}`",
            _variable(field.name.removesuffix("_s").upper()),
            f"`{getattr(defaults, field.name)!r}`",
            meaning[field.name],
        )
        for field in dataclasses.fields(ServiceSettings)
    ]
    return table(["setting", "variable", "default", "meaning"], rows)


def _variable(word: str) -> str:
    own, general = f"DULY_SERVE_{word}", f"DULY_{word}"
    if own in SERVE_VARIABLES:
        return f"`{own}`"
    return f"`{general}`" if word.lower() in SETTINGS else ""
