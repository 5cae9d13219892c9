"""
The wire below uvicorn: how much a connection may send, how long it may take, and how it is closed.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from duly.http.problems import MEDIA_TYPE, Problem
from duly.http.refusals import ENDING_S, LATE, LINGERS, QUIET_S, REST, UNREAD_LIMIT

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from duly.http.settings import ServiceSettings

log = logging.getLogger("duly.http")

REFUSED_S = 1.0  #: how long a connection too many may take to send its request, and then to close
STALLED_S = 1.0  #: how long a request may stand still once the service ends
ALARM_S = 60.0  #: how often it is said that there are too many connections
PIECE = 1024  #: bytes that are read at once where requests may begin: each of these costs some KiB
CHUNKS = 8 * PIECE  #: the same in a body that does not say where it ends


class Corked:
    """
    A transport that holds what is written until the loop turns, and closes when the client has seen it.

    uvicorn writes the head of an answer and its body apart, and each would be a call to the system and wake
    the client up: for short answers that is most of what sending costs.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        linger: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._linger = linger  #: returns whether the connection stays open for reading
        self._parts: list[bytes] = []
        self._ended = False
        self.written = 0  #: bytes

    def write(self, data: bytes) -> None:
        """
        Send it with the next turn.
        """
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """
        Send what is held, and close: only for writing as long as the client still sends.
        """
        self._flush()
        if self._ended:
            return
        if self._linger() and not self._transport.is_closing():
            self._ended = True
            self._transport.write_eof()
        else:
            self._transport.close()

    def is_closing(self) -> bool:
        """
        Return whether nothing more can be written.
        """
        return self._ended or self._transport.is_closing()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self.is_closing():  # the client may have gone since
            data = b"".join(parts)
            self.written += len(data)
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """
    HTTP/1.1 as uvicorn speaks it, within bounds of bytes and time.

    Bytes are counted as they arrive: those since the last one of a body, the end of a head or the end of a
    request.  That bounds request line and headers, trailers and the extensions of chunks alike.
    """

    def __init__(self, *args: Any, limits: ServiceSettings, **named: Any) -> None:
        super().__init__(*args, **named)
        self.timeout_keep_alive = limits.idle_timeout_s  # type: ignore[assignment]  # a call_later takes fractions
        self._limits = limits
        self._cork: Corked
        self._held = b""  #: what came behind requests that are not answered yet
        self._bare = 0  #: bytes since the last that had an end
        self._moved = False  #: something had an end in this piece
        self._receives = True  #: a request is being received, or the first is waited for
        self._in_body = False  #: its head is complete
        self._left = 0  #: bytes that are still to come of its body; not less than CHUNKS, where it has more
        self._body_until_s = 0.0  #: until when more of its body must come
        self._began_s = self._heard_s = self._answered_s = self._taken_s = time.monotonic()
        self._refused = False  #: it is one connection too many
        self._lingers_s: float | None = None  #: since when all that comes is thrown away
        self._unwanted = 0  #: bytes that were thrown away
        self._taken = 0  #: bytes that the client had taken at the last look
        self._answering: RequestResponseCycle | None = None  #: whose answer is being made

    # -- what arrives -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """
        Begin; a connection too many is told so once it has sent something.
        """
        self._cork = Corked(cast("asyncio.Transport", transport), self.loop, self._linger)
        super().connection_made(cast("asyncio.Transport", self._cork))
        most = self._limits.max_connections
        if len(self.connections) <= most:
            return
        self._refused = True
        _alarm(most)
        if len(self.connections) > most + most // 10 + 10:
            self._cork.abort()

    def data_received(self, data: bytes) -> None:
        """
        Take what came, in pieces whose size the bounds can be held to.
        """
        self._heard_s = time.monotonic()
        if self._lingers_s is not None:
            self._discard(len(data))
            return
        if self._refused:
            detail = "the service has as many connections as it may have; wait and send it again"
            self._refuse(Problem("busy", detail, headers={"Retry-After": "1"}))
            return
        self._held += data
        self._feed()

    def _feed(self) -> None:
        """
        Read requests of what came, as long as none waits for the answer to another: a client may send more of
        them than it takes answers.
        """
        data, self._held = self._held, b""
        limit, at = self._limits.header_limit, 0
        while at < len(data) and not self.pipeline:
            piece = data[at : at + (max(PIECE, min(limit, self._left)) if self._in_body else PIECE)]
            at += len(piece)
            if not self._receives:  # a line break between requests has to end as well
                self._receives, self._began_s = True, self._heard_s
            self._moved = False
            super().data_received(piece)
            if self._cork.is_closing():
                return
            self._bare = 0 if self._moved else self._bare + len(piece)
            if self._bare >= limit:
                detail = f"request line and headers may be {limit} bytes together"
                self._refuse(Problem("headers-too-large", detail))
                return
            if self._in_body and self.cycle.response_complete:
                self._discard(len(piece))
        self._held = data[at:]
        if self._held:
            self.flow.pause_reading()

    def on_message_begin(self) -> None:
        """
        Begin a request.
        """
        self._receives, self._in_body, self._began_s = True, False, self._heard_s
        super().on_message_begin()
        self.scope["extensions"] = {LINGERS: {}}

    def on_headers_complete(self) -> None:
        """
        Let the request be answered; its body may still come.
        """
        self._moved = self._in_body = True
        self._left = CHUNKS
        for name, value in self.headers:
            if name == b"content-length":
                self._left = int(value)
                break
        self._body_until_s = self._heard_s + self._limits.body_timeout_s
        self._unwanted = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """
        Pass on a piece of the body.
        """
        self._moved = True
        # What comes quickly buys no more time than a body has at its beginning.
        until_s = self._body_until_s + len(body) / self._limits.body_rate
        self._body_until_s = min(until_s, self._heard_s + self._limits.body_timeout_s)
        if self._left > CHUNKS:
            self._left = max(CHUNKS, self._left - len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """
        Note that the request is whole.
        """
        self._moved, self._receives, self._in_body = True, False, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """
        Go on to the next request.

        uvicorn would set a timer for each answer, to close a connection that falls idle: `check` does that.
        """
        self._answered_s = time.monotonic()
        self.server_state.total_requests += 1
        if self._cork.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self.pipeline:
            self.flow.pause_reading()
        elif self._held:
            self._feed()

    def connection_lost(self, exc: Exception | None) -> None:
        """
        Tell every request of the connection, and not only the last, that its client has gone.
        """
        self._disconnect()
        self._receives = False
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _disconnect(self) -> None:
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                # A line break behind the last line, if no more of it comes.
                rest = bytes(cycle.body) + (b"" if cycle.more_body else b"\n")
                cycle.scope["extensions"][LINGERS].setdefault(REST, rest)
                cycle.disconnected = True
                cycle.message_event.set()
        self.flow.resume_writing()

    # -- what is refused ----------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """
        Refuse what is no HTTP.
        """
        del msg
        self._refuse(Problem("malformed", "this is no request of HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """
        Answer in HTTP/1.1, as RFC 9110 allows, without a line in the log for each.
        """

    def _refuse(self, problem: Problem) -> None:
        """
        Answer without asking the application, and close.
        """
        cycle = self._answering
        begun = cycle is not None and cycle.response_started and not cycle.response_complete
        self._disconnect()
        if not begun:
            body = msgspec.json.encode(problem.document())
            headers = {
                **problem.headers,
                "Content-Type": MEDIA_TYPE,
                "Content-Length": str(len(body)),
                "Connection": "close",
            }
            lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
            usual = [b"%b: %b\r\n" % pair for pair in self.server_state.default_headers]
            self._cork.write(b"".join([STATUS_LINE[problem.status], *usual, *lines, b"\r\n", body]))
        self._cork.close()

    # -- how it ends --------------------------------------------------------------------------------------

    def _linger(self) -> bool:
        """
        Read on where a request is not whole: what comes to a closed socket resets the connection, and the
        client would lose the answer.
        """
        if self._unheard() or not self._receives or self._lingers_s is not None:
            return False
        self._lingers_s = self._heard_s = time.monotonic()
        self._unset_keepalive_if_required()
        self.flow.resume_reading()
        return True

    def _unheard(self) -> bool:
        return self.cycle is None and not self._bare and not self._refused

    def _discard(self, size: int) -> None:
        self._unwanted += size
        if self._unwanted > UNREAD_LIMIT:
            self._cork.abort()

    def check(self, now_s: float, *, ending: bool = False) -> None:
        """
        End the connection if its client takes too long; once the service is *ending*, much sooner.
        """
        limits = self._limits
        takes_nothing = self._takes_nothing(now_s)
        quiet_s = now_s - self._heard_s
        if self._lingers_s is not None or (self._in_body and self.cycle.response_complete):
            # Nobody wants what comes; what the client still takes of its answer, it may take.
            limit_s, still_s = limits.body_timeout_s, QUIET_S
            if self._refused:
                limit_s = REFUSED_S
            elif ending:
                limit_s, still_s = ENDING_S, STALLED_S
            unwanted_s = now_s - (self._lingers_s or self._answered_s)
            over = unwanted_s >= limit_s or min(quiet_s, unwanted_s) >= still_s
            over = over and (not takes_nothing or now_s - self._taken_s >= STALLED_S)
        elif takes_nothing:
            still_s = min(quiet_s, now_s - self._taken_s)
            over = still_s >= (STALLED_S if ending else limits.body_timeout_s)
        elif self._refused:
            over = now_s - self._began_s >= REFUSED_S
        elif not self._receives:
            # uvicorn's own timer does not know of a body that came after its answer.
            idle_s = min(quiet_s, now_s - self._answered_s)
            over = (self.cycle is None or self.cycle.response_complete) and idle_s >= limits.idle_timeout_s
        elif self.flow.read_paused:
            self._heard_s = self._began_s = now_s  # it is the service that does not listen
            self._body_until_s = now_s + limits.body_timeout_s
            return
        elif self._in_body:
            if quiet_s >= (STALLED_S if ending else limits.body_timeout_s):
                self._late_body(f"nothing of the body came for {quiet_s:.0f} seconds", now_s)
            elif now_s >= self._body_until_s:
                self._late_body(f"the body came slower than {limits.body_rate:g} bytes a second", now_s)
            return
        elif not self._unheard():
            if ending or now_s - self._began_s >= limits.header_timeout_s:
                self._late(f"the headers did not come within {limits.header_timeout_s:g} seconds")
            return
        else:
            over = ending or now_s - self._began_s >= limits.header_timeout_s
        if over:
            self._cork.abort()

    def _late(self, detail: str) -> None:
        self._refuse(Problem("timeout", detail))

    def _late_body(self, detail: str, now_s: float) -> None:
        """
        Refuse a request; one whose answer has begun may end it, in the time that a body has at its beginning.
        """
        begun = self.cycle.response_started  # its own, and not that of a request before it
        tell: Any = self.cycle.scope["extensions"][LINGERS].pop(LATE, None) if begun else None
        if tell is None:
            self._late(detail)
        else:
            self._heard_s, self._body_until_s = now_s, now_s + self._limits.body_timeout_s
            tell(Problem("timeout", detail))

    def _takes_nothing(self, now_s: float) -> bool:
        """
        Return whether a part of the answer waits for the client, and note when it has taken some of it.

        The kernel makes room for more in large steps: of one who reads slowly, only what is acknowledged
        shows that it reads.
        """
        unsent: int = self._cork.get_write_buffer_size()
        taken = self._cork.written - unsent - (_unacknowledged(self._cork) if unsent else 0)
        if taken != self._taken or not unsent:
            self._taken, self._taken_s = taken, now_s
        return unsent > 0


def _unacknowledged(transport: Any) -> int:
    """
    Return how many bytes the kernel holds that the client has not acknowledged; 0 where it does not say.
    """
    if sys.platform != "linux":
        return 0
    place = transport.get_extra_info("socket")
    if place is None:
        return 0
    try:
        return int.from_bytes(fcntl.ioctl(place.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except (OSError, ValueError):  # it is closed
        return 0


_alarmed_s = 0.0


def _alarm(most: int) -> None:
    global _alarmed_s  # noqa: PLW0603  # one for the process, as the log is
    if time.monotonic() - _alarmed_s >= ALARM_S or not _alarmed_s:
        _alarmed_s = time.monotonic()
        log.warning("there are %d connections, and further ones are refused; see --max-connections", most)
