"""
structlog: a processor that says which job a line was written in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from duly.context import CURRENT

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    Event = TypeVar("Event", bound=MutableMapping[str, Any])


def add_job(_logger: Any, _method: str, event: Event) -> Event:
    """
    Add topic, id, attempt and token of the job that runs here; a field that the line has stays as it is.

    For ``structlog.configure(processors=[add_job, …])``, before the renderer.
    """
    job = CURRENT.get(None)
    if job is not None:
        for name, value in job.log_fields().items():
            event.setdefault(name, value)
    return event
