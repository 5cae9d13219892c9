"""
Flask: handlers run within the application context, and views send through the blocking twin.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from flask import current_app, has_app_context

from duly.contrib.wrapping import wrap_handlers
from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from flask import Flask
    from flask.ctx import AppContext

    from duly.app import Duly


def init_app(flask: Flask, app: Duly) -> None:
    """
    Let *app* belong to a Flask application: its handlers find `current_app`, views find it with `jobs()`.

    Of several applications with the same *app*, a handler finds the one whose context is active where the
    worker was started, or ``drain()`` was called; else the one that was initialized last.

    Raises:
        UsageError: The application has another one.
    """
    if flask.extensions.setdefault("duly", app) is not app:
        raise UsageError(f"the Flask application {flask.name} has a Duly app already")

    def around() -> AppContext:
        # A context of its own for each run, also of an application that is current: `g` is not shared.
        active = current_app if has_app_context() else flask
        return (active if active.extensions.get("duly") is app else flask).app_context()

    @asynccontextmanager
    async def around_async() -> AsyncIterator[None]:
        with around():
            yield

    wrap_handlers(app, around, around_async)


def jobs() -> Duly:
    """
    The app of the current Flask application; send with ``jobs().sync.enqueue(…)``.

    Raises:
        UsageError: `init_app` was not called.
    """
    found: Any = current_app.extensions.get("duly")
    if found is None:
        raise UsageError("this Flask application has no Duly app: call init_app(flask_app, duly_app)")
    return cast("Duly", found)
