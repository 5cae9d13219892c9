"""
One POST, to an address that the guard has checked, within time and size limits.

By hand rather than by an HTTP client: nothing here follows a redirect, asks the environment for a proxy,
looks a name up again or keeps a connection for the next request, because nothing here can.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h11

from duly.errors import DulyError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from duly.addresses import Address
    from duly.callbacks.guard import Guard
    from duly.urls import Target

READ_BYTES = 16 * 1024
HEAD_BYTES = 16 * 1024  #: of an answer's status line and headers
BODY_BYTES = 64 * 1024  #: of an answer's body; what is beyond is not read
ALL_BYTES = 256 * 1024  #: of an answer with all that HTTP wraps around it: hints before it, sizes of chunks


class NoAnswer(DulyError):
    """
    The receiver did not answer as HTTP asks for, or not in time.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a receiver said.
    """

    status: int
    headers: dict[str, str]  #: names in lower case; of those that come twice, the last
    body: bytes | None  #: None if it is too long, or did not come in time


class Poster:
    """
    Sends requests, each over a connection of its own.
    """

    def __init__(
        self, guard: Guard, *, connect_s: float = 5.0, total_s: float = 30.0, ca_file: Path | None = None
    ) -> None:
        """
        Load the certificates to trust: those of the system, or of *ca_file*.

        Raises:
            OSError: It cannot be read.
        """
        self.total_s = total_s
        self._guard = guard
        self._connect_s = connect_s
        self._tls = ssl.create_default_context(cafile=ca_file)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Answer:
        """
        Send *body*, and wait for the answer.

        Raises:
            Refused, Unresolved, PutOff: See `Guard.addresses`; no connection was made.
            NoAnswer: There was none that counts.
        """
        # It has a time limit of its own: what others make it wait for is not the receiver's fault.
        addresses = await self._guard.addresses(target)
        exchange = _Exchange()
        try:
            async with asyncio.timeout(self.total_s):
                await self._exchange(target, addresses, headers, body, exchange)
        except TimeoutError:
            # Who has said 2xx has the job: that the rest of the answer drips does not make it undone.
            if exchange.status is None:
                raise NoAnswer(f"no answer within {self.total_s:g} s") from None
        except (h11.ProtocolError, OSError, EOFError) as error:
            if exchange.status is None:
                raise NoAnswer(_what(error)) from error
        if exchange.status is None:
            raise NoAnswer("the connection ended, or too much came, before the answer")
        return Answer(exchange.status, exchange.headers, exchange.body())

    async def _exchange(
        self,
        target: Target,
        addresses: list[Address],
        headers: Mapping[str, str],
        body: bytes,
        exchange: _Exchange,
    ) -> None:
        reader, writer = await self._connect(target, addresses)
        try:
            connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
            fields = [
                ("Host", target.host_header),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
                *headers.items(),
            ]
            request = h11.Request(method="POST", target=target.path, headers=fields)
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            # A receiver may answer, and close, before it has read everything: then its answer counts.
            sending = asyncio.ensure_future(writer.drain())
            try:
                await _read(reader, connection, exchange)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        finally:
            # At once, and without a word: who drips would drip at closing, too.
            writer.transport.abort()

    async def _connect(
        self, target: Target, addresses: list[Address]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """
        Connect to the first address that lets us: the certificate is checked against the host's name.
        """
        failure: Exception = NoAnswer("no address")
        for address in addresses:
            try:
                async with asyncio.timeout(self._connect_s):
                    return await asyncio.open_connection(
                        str(address),
                        target.port,
                        limit=READ_BYTES,
                        # No look-up, whatever stands there.
                        flags=socket.AI_NUMERICHOST,
                        ssl=self._tls if target.scheme == "https" else None,
                        server_hostname=target.host if target.scheme == "https" else None,
                    )
            except ssl.SSLError as error:
                raise NoAnswer(_what(error)) from error
            except TimeoutError:
                failure = NoAnswer(f"no connection within {self._connect_s:g} s")
            except OSError as error:
                failure = NoAnswer(_what(error))
        raise failure


class _Exchange:
    """
    What of an answer has come so far.
    """

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.parts: list[bytes] = []
        self.size = 0
        self.whole = False

    def body(self) -> bytes | None:
        return b"".join(self.parts) if self.whole else None


async def _read(reader: asyncio.StreamReader, connection: h11.Connection, exchange: _Exchange) -> None:
    """
    Read until the answer is there, or is more than anybody needs.
    """
    left = ALL_BYTES
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            if left <= 0:
                return
            data = await reader.read(min(READ_BYTES, left))
            left -= len(data)
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            exchange.status = event.status_code
            exchange.headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
            }
        elif isinstance(event, h11.Data):
            exchange.size += len(event.data)
            if exchange.size > BODY_BYTES:
                return
            exchange.parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            exchange.whole = True
            return
        elif not isinstance(event, h11.InformationalResponse):
            return


def _what(error: Exception) -> str:
    """
    What went wrong, without what the receiver wrote.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS: {error.reason or 'it failed'}".lower().replace("_", " ")
    if isinstance(error, h11.ProtocolError):
        return "the answer is not HTTP, or its headers are too long"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, OSError):
        return f"the connection failed: {error.strerror or type(error).__name__}"
    return "the connection was closed"
