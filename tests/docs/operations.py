"""
The tables of docs/reference/http.md, made from the operations, problems and settings of the service.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from duly.http.api import OPERATIONS
from duly.http.problems import PROBLEMS
from duly.http.settings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.http.operations import Operation
    from tests.docs.reference import Table


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
        (f"`{field.name}`", f"`{getattr(defaults, field.name)!r}`", meaning[field.name])
        for field in dataclasses.fields(ServiceSettings)
    ]
    return table(["setting", "default", "meaning"], rows)
