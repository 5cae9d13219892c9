"""
Metrics of a command, over HTTP.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from duly.extras import need

if TYPE_CHECKING:
    from duly.app import Duly

log = logging.getLogger("duly.metrics")


def expose(app: Duly, port: int, host: str) -> None:
    """
    Expose the metrics of *app* for as long as the process lives.

    Raises:
        UsageError: The extra is not installed, or the address cannot be used.
    """
    need("--metrics-port", "prometheus_client")
    from duly.metrics import serve

    _, port = serve(app, port, host)
    log.info("metrics at http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)
