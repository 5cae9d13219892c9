"""
The queue of an app while Django runs tests: a private one, which goes with the process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from duly.errors import DulyError, UsageError

if TYPE_CHECKING:
    from duly.settings import Settings


def private(settings: Settings) -> Settings:
    """
    Return the same settings for a server that is started for the tests of this process.

    Raises:
        UsageError: It cannot be started.
    """
    from duly.embedded.throwaway import throw_away_server  # noqa: PLC0415  # apps outside of tests do without

    try:
        url = throw_away_server()
    except DulyError as error:
        raise UsageError(
            f"no queue for tests: {error}; to use the configured one, say `with duly.testing.real_queue():`"
        ) from error
    return replace(settings, url=url, api_key=None, record=None)
