"""
The metrics of a process over HTTP: for a bounded number of clients at once, and a bounded time each.

A thread serves one request.  The server of the client library bounds neither how many there are nor how long
they may take: connections that say nothing would hold threads and open files of the worker beside it.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from duly.addresses import host_name, is_loopback

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger("duly.metrics")

MOST = 20  #: connections at once; further ones are closed
LIMIT_S = 15.0  #: from the beginning of a connection to its end
EVERY_S = 0.5  #: between two looks at them


class Server(ThreadingMixIn, WSGIServer):
    """
    A thread for each request, within bounds.
    """

    daemon_threads = True

    def __init__(self, app: WSGIApplication, host: str, port: int) -> None:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        self.address_family = family
        self._since_s: dict[Any, float] = {}
        self._lock = threading.Lock()
        super().__init__((str(place[0]), port), Handler)
        self.set_app(_for_this_machine(app) if is_loopback(host) else app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """
        Serve a connection, or close it if there are too many.
        """
        with self._lock:
            served = len(self._since_s) < MOST
            if served:
                self._since_s[request] = time.monotonic()
        if served:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """
        Close a connection.
        """
        with self._lock:
            self._since_s.pop(request, None)
            super().shutdown_request(request)

    def service_actions(self) -> None:
        """
        End the connections that take too long: their threads read an end then, or can write no more.
        """
        with self._lock:
            for request, since_s in self._since_s.items():
                if time.monotonic() - since_s >= LIMIT_S:
                    # The client may have gone meanwhile.
                    _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """
        Say little of a client that went, or took too long.
        """
        del request
        log.debug("metrics were not sent to %s", client_address, exc_info=True)  # noqa: LOG014  # called where one is handled


class Handler(WSGIRequestHandler):
    """
    One request, of which nothing is logged.
    """

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as the base names it
        """
        Log nothing.
        """


def start(app: WSGIApplication, host: str, port: int) -> Server:
    """
    Serve *app* from a thread of its own, for as long as the process lives; port 0 takes any.

    Raises:
        OSError: The address cannot be used.
    """
    server = Server(app, host, port)
    threading.Thread(target=server.serve_forever, args=(EVERY_S,), name="duly-metrics", daemon=True).start()
    return server


def _end(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("a connection had ended: %s", error)


def _for_this_machine(app: WSGIApplication) -> WSGIApplication:
    """
    Answer to names of this machine only: a web page can have a name of its own point here (DNS rebinding).
    """

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        if is_loopback(host_name(environ.get("HTTP_HOST", ""))):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"metrics on a loopback address answer to localhost, 127.0.0.1 and [::1] only\n"]

    return guarded
