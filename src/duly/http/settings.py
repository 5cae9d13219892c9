"""
How the service behaves: what it allows, and how much.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """
    What `duly serve` may be told.
    """

    body_limit: int = 1024 * 1024  #: bytes of a single request, or of one line of a batch
    batch_limit: int = 64 * 1024 * 1024  #: bytes of a batch in one JSON array; one by lines has no end
    max_wait_s: float = 60.0  #: the longest poll
    max_stream_s: float = 3600.0  #: the longest stream of events; clients come back where it ended
    max_streams: int = 1000  #: streams of events at once
    heartbeat_s: float = 15.0  #: how long a stream of events may be silent
    rate: float | None = None  #: requests a second and key (or address without keys); None means no limit
    burst: int = 100  #: requests at once above the rate
    cors_origins: tuple[str, ...] = field(default=())  #: browsers on these origins may call; none by default
