"""
How the service behaves: what it allows, and how much.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from duly.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """
    What `duly serve` may be told.
    """

    body_limit: int = 1024 * 1024  #: bytes of a single request, or of one line of a batch
    batch_limit: int = 4 * 1024 * 1024  #: bytes of a batch in one JSON array; one by lines has no end
    max_wait_s: float = 60.0  #: the longest poll
    max_stream_s: float = 3600.0  #: the longest stream of events; clients come back where it ended
    max_streams: int = 1000  #: streams of events at once
    heartbeat_s: float = 15.0  #: how long a stream of events may be silent
    header_limit: int = 64 * 1024  #: bytes of request line and headers together; more is a 431
    header_timeout_s: float = 10.0  #: how long a client may take to send them
    body_timeout_s: float = 30.0  #: how long it may send nothing of its body, or take nothing of its answer
    body_rate: float = 100.0  #: bytes of a body a second; what is slower for `body_timeout_s` is a 408
    idle_timeout_s: float = 75.0  #: how long a connection is kept open between two requests
    max_connections: int = 2000  #: connections at once; further ones are a 503
    page_limit: int = 4 * 1024 * 1024  #: bytes of the jobs on a page of a list, unless one alone is larger
    spool_limit: int = 256 * 1024 * 1024  #: bytes of the answer to a batch that its client has not read yet
    spool_total: int = 1024 * 1024 * 1024  #: the same for all batches together; kept in temporary files
    rate: float | None = None  #: requests a second and key (or address without keys); None means no limit
    burst: int = 100  #: requests at once above the rate
    require_keys: bool = False  #: refuse requests without an API key, also while there is none
    root_path: str = ""  #: where clients see the service behind a proxy: /queue; empty for /
    trusted_proxies: str = ""  #: addresses and networks by commas whose X-Forwarded-For is believed
    idempotency_s: float | None = None  #: how long an Idempotency-Key counts; None: as the queue says
    cors_origins: tuple[str, ...] = field(default=())  #: browsers on these origins may call; none by default

    def __post_init__(self) -> None:
        """
        Check the bounds.

        Raises:
            UsageError: One is not above zero.
        """
        for each in fields(self):
            value = getattr(self, each.name)
            bounds = ("_limit", "_timeout_s", "_connections", "_total", "_rate", "idempotency_s")
            if each.name.endswith(bounds) and value is not None and value <= 0:
                raise UsageError(f"{each.name}={value!r} must be above zero")
