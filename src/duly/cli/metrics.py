"""
Metrics of a command, over HTTP.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duly.errors import UsageError

if TYPE_CHECKING:
    from duly.app import Duly

log = logging.getLogger("duly.metrics")


def expose(app: Duly, port: int, host: str) -> None:
    """
    Expose the metrics of *app* for as long as the process lives.

    Raises:
        UsageError: The extra is not installed, or the address cannot be used.
    """
    try:
        from duly.metrics import serve
    except ModuleNotFoundError as error:
        raise UsageError(str(error)) from error
    _, port = serve(app, port, host)
    log.info("metrics at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
