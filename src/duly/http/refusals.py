"""
Refusals of requests that are still being sent: answered at once, and then read on for a while.

What comes to a closed socket resets the connection, and a client that reads only when it has sent everything
would lose the answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

UNREAD_LIMIT = 64 * 1024 * 1024  #: bytes that are read of what nobody wants, so that the answer is seen
UNREAD_S = 30.0  #: for how long
QUIET_S = 5.0  #: how long a client may send nothing of that
ENDING_S = 2.0  #: for how long it is read once the service ends

LINGERS = "duly.lingers"  #: an extension of servers that read on by themselves, below ASGI
LATE = "late"  #: in it: what is called once, instead of a 408, when the body does not come in time
REST = "rest"  #: in it: what of the body had come when its client went, and was not handed over
READ = "duly.read"  #: in a scope: the body has come to its end


class Refusal(Response):
    """
    An answer after which the rest of the request is read, within bounds, and thrown away.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Send the answer, and end it when the client has sent its request.
        """
        if not _is_unread(scope):
            await super().__call__(scope, receive, send)
            return

        async def send_open(message: Message) -> None:
            await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

        await super().__call__(scope, receive, send_open)
        await read_on(scope, receive)
        await send({"type": "http.response.body", "body": b""})


async def read_on(scope: Scope, receive: Receive) -> None:
    """
    Read the rest of a request, if more of it may come, within bounds.
    """
    if not _is_unread(scope):
        return
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(UNREAD_S):
            while size <= UNREAD_LIMIT:
                async with asyncio.timeout(QUIET_S):
                    message = await receive()
                if not message.get("more_body"):  # the end, or the client has gone
                    break
                size += len(message["body"])
    scope[READ] = True


def _is_unread(scope: Scope) -> bool:
    if READ in scope or LINGERS in scope.get("extensions", {}):
        return False
    headers = dict(scope["headers"])
    # Whoever waits to be asked for the body, and is answered otherwise, sends none.
    has_body = b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
    return has_body and b"expect" not in headers
