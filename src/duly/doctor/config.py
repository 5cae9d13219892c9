"""
Checks of settings: where each value comes from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from duly.doctor.finding import Finding
from duly.errors import UsageError
from duly.settings import FILE, Settings, layers, unknown_variables

if TYPE_CHECKING:
    from collections.abc import Mapping


def settings(environ: Mapping[str, str], flags: Mapping[str, Any]) -> tuple[Settings | None, Finding]:
    """
    The settings, None if they are wrong, and from where those come that are no defaults.
    """
    try:
        loaded = Settings.load(None, environ, **flags)
    except UsageError as error:
        return None, Finding(
            "settings", "problem", str(error), "mend it where it stands; nothing works before"
        )
    if unknown := unknown_variables(environ):
        text = ", ".join(f"unknown variable {variable}; {hint}" for variable, hint in unknown.items())
        return loaded, Finding("settings", "problem", text, "rename or unset it: it sets nothing")
    told: dict[str, str] = {}
    found = layers(None, environ, **flags)
    for layer, values in found:
        for key, value in values.items():
            told[key] = f"{key} = {_safe(key, value)} ({layer})"
    file = "duly.toml sets nothing" if FILE in dict(found) else "no duly.toml here"
    text = ", ".join(told.values()) or f"all defaults: {file}, no DULY_* variables"
    return loaded, Finding("settings", "ok", text)


def _safe(key: str, value: object) -> object:
    """
    A setting without what is secret in it.
    """
    if key in ("api_key", "callback_secrets"):
        return "***"
    if key not in ("url", "record"):
        return value
    parts = urlsplit(str(value))
    place = parts.hostname or ""
    if parts.port is not None:
        place = f"{place}:{parts.port}"
    hidden = "***@" if "@" in parts.netloc else ""
    return f"{parts.scheme}://{hidden}{place}{parts.path}"
