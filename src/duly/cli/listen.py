"""
``duly listen``: a receiver of callbacks, for development.
"""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import click

from duly.callbacks.signature import SecretBook, WrongSignature, new_secret, verify
from duly.cli.loop import run
from duly.cli.main import COMMANDS, OK
from duly.cli.options import examples
from duly.cli.signals import until_signal
from duly.errors import UsageError

MAX_BYTES = 1024 * 1024

_PRINTING = threading.Lock()


@click.command(
    short_help=COMMANDS["listen"][1],
    epilog=examples("duly listen --new-secret", "duly listen --port 9000 --secret whsec_… --status 503"),
)
@click.option(
    "--secret", "secrets", multiple=True, metavar="SECRET", help="Default: DULY_CALLBACK_SECRETS; repeatable."
)
@click.option("--new-secret", is_flag=True, help="Print a new secret and end.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port", default=8421, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option(
    "--status", default=200, show_default=True, type=click.IntRange(200, 599), help="To answer with."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each callback.")
def listen(
    secrets: tuple[str, ...], new_secret: bool, host: str, port: int, status: int, as_json: bool
) -> int:
    """
    Print the callbacks that arrive, and check their signatures, until Ctrl-C.

    One whose signature is wrong is answered with 401.  Without a secret nothing is checked.
    """
    if new_secret:
        click.echo(_new_secret())
        return OK
    known = _secrets(secrets)
    try:
        server = ThreadingHTTPServer((host, port), _receiver(known, status, as_json=as_json))
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --port"
        ) from error
    server.daemon_threads = True
    checked = "" if known else "; signatures are not checked, as there is no secret"

    async def main() -> None:
        # Said once signals are heard: who reads it may send one.
        click.echo(f"listening on http://{host}:{server.server_address[1]}{checked}", err=True)
        try:
            await asyncio.to_thread(server.serve_forever, 0.1)
        finally:
            server.shutdown()
            server.server_close()

    run(until_signal(main()))
    return OK


_new_secret = new_secret


def _secrets(given: tuple[str, ...]) -> list[str]:
    from duly.settings import Settings

    text = ",".join(given) or Settings.load().callback_secrets
    SecretBook(text)  # says what is wrong with them
    # Whatever topics they are of: a receiver is not told which secret was used.
    return [entry.strip().rpartition(":")[2] for entry in text.split(",") if entry.strip()]


def _receiver(secrets: list[str], status: int, *, as_json: bool) -> type[BaseHTTPRequestHandler]:
    class Receiver(BaseHTTPRequestHandler):
        """
        Answers one request after the other.
        """

        timeout = 30
        server_version, sys_version = "duly", ""

        def do_POST(self) -> None:
            """
            Take a callback.
            """
            said = self.headers.get("Content-Length", "")
            if not said.isdecimal() or int(said) > MAX_BYTES:
                self._answer(413 if said.isdecimal() else 411)
                return
            body = self.rfile.read(int(said))
            problem = None
            if secrets:
                try:
                    verify(self.headers, body, secrets)  # type: ignore[arg-type]  # what of it is used, it has
                except WrongSignature as error:
                    problem = str(error)
            answered = 401 if problem else status
            _tell(_document(self.path, body, answered, problem, checked=bool(secrets)), as_json=as_json)
            self._answer(answered)

        def _answer(self, code: int) -> None:
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """
            Say nothing: what arrived is printed already.
            """

    return Receiver


def _document(path: str, body: bytes, status: int, problem: str | None, *, checked: bool) -> dict[str, Any]:
    try:
        event = json.loads(body)
    except ValueError:
        event = None
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "path": path,
        "signature": problem or ("ok" if checked else "not checked"),
        "status": status,
        "event": event,
        "text": body.decode(errors="replace") if event is None else None,
    }


def _tell(document: dict[str, Any], *, as_json: bool) -> None:
    event = document["event"] if isinstance(document["event"], dict) else {}
    with _PRINTING:
        if as_json:
            click.echo(json.dumps(document))
            return
        click.echo(
            f"{document['at']} {event.get('subject', document['path'])} attempt {event.get('attempt', '?')}: "
            f"signature {document['signature']}, answered {document['status']}"
        )
        shown = event.get("data") if event else document["event"] or document["text"]
        click.echo(f"  {json.dumps(shown)}")
