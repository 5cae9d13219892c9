"""
The queue over HTTP: a service for any language, and endpoints that answer later.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from duly.extras import needed

if TYPE_CHECKING:
    from duly.http.asyncjob import AsyncJob
    from duly.http.captured import AsyncRequest, current_request
    from duly.http.endpoint import async_endpoint
    from duly.http.problems import Problem

# Loaded when asked for: a worker that wants current_request() need not have Starlette.
_HOMES = {
    "AsyncJob": "duly.http.asyncjob",
    "AsyncRequest": "duly.http.captured",
    "Problem": "duly.http.problems",
    "async_endpoint": "duly.http.endpoint",
    "current_request": "duly.http.captured",
}

__all__ = ["AsyncJob", "AsyncRequest", "Problem", "async_endpoint", "current_request"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        msg = f"module 'duly.http' has no attribute {name!r}"
        raise AttributeError(msg)
    with needed(f"duly.http.{name}"):
        return getattr(importlib.import_module(_HOMES[name]), name)
