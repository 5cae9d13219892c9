"""
A load client in a process of its own: python -m duly.bench.load HOST PORT WHAT COUNT CONNECTIONS.

Requests are made before the clock starts and answers are only cut apart, so that the client costs little
beside the service that it measures.  It prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
import time
from typing import TYPE_CHECKING, cast

from duly.figures import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = "bench"
PAYLOAD = '{"n":1,"pad":"' + "x" * 84 + '"}'  #: 100 bytes
WARM_UP = 10  #: a tenth of the requests comes first and does not count

_END_OF_CHUNKS = b"\r\n0\r\n\r\n"


class Sender(asyncio.Protocol):
    """
    One connection: a request, its answer, the next request.
    """

    def __init__(self, requests: Iterator[bytes], status: bytes) -> None:
        self.took_s: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests = requests
        self._wanted = b"HTTP/1.1 " + status
        self._seen = b""
        self._began = 0.0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """
        Keep the way out.
        """
        self._transport = cast("asyncio.Transport", transport)

    def start(self) -> None:
        """
        Send the next request, if there is one.
        """
        request = next(self._requests, None)
        if request is None:
            self.done.set_result(None)
            return
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """
        Go on once the answer is whole.
        """
        seen = self._seen + data if self._seen else data
        head = seen.find(b"\r\n\r\n")
        if head < 0:
            self._seen = seen
            return
        at = seen.find(b"content-length: ")
        length = int(seen[at + 16 : seen.index(b"\r\n", at)])
        if len(seen) < head + 4 + length:
            self._seen = seen
            return
        self.took_s.append(time.perf_counter() - self._began)
        self._seen = b""
        if not seen.startswith(self._wanted):
            self.done.set_exception(RuntimeError(seen.decode(errors="replace")))
            return
        self.start()

    def connection_lost(self, error: Exception | None) -> None:
        """
        Say so, if it was too early.
        """
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the service hung up"))


async def one_by_one(
    host: str, port: int, requests: list[bytes], status: bytes, connections: int
) -> dict[str, float]:
    """
    Send *requests* over some connections, one after the other on each.
    """
    loop = asyncio.get_running_loop()
    for measured in (False, True):
        share = requests if measured else requests[: len(requests) // WARM_UP]
        turn = iter(share)
        make = functools.partial(Sender, turn, status)
        opened = [await loop.create_connection(make, host, port) for _ in range(connections)]
        senders = [sender for _, sender in opened]
        began = time.perf_counter()
        for sender in senders:
            sender.start()
        await asyncio.gather(*(sender.done for sender in senders))
        took_s = time.perf_counter() - began
        for transport, _ in opened:
            transport.close()
    times = list(itertools.chain.from_iterable(sender.took_s for sender in senders))
    return {
        "rate": len(requests) / took_s,
        "p50_ms": 1000 * (percentile(times, 0.5) or 0),
        "p99_ms": 1000 * (percentile(times, 0.99) or 0),
    }


async def batch(host: str, port: int, count: int) -> dict[str, float]:
    """
    Send *count* jobs as lines of one request, while the answers are read.
    """
    body = "".join(f'{{"id":"{n}","payload":{PAYLOAD},"delay":3600}}\n' for n in range(count)).encode()
    reader, writer = await asyncio.open_connection(host, port)
    head = _head("POST", f"/v1/topics/{TOPIC}/jobs:batch", len(body), "application/x-ndjson")
    began = time.perf_counter()

    async def send() -> None:
        writer.write(head)
        for at in range(0, len(body), 1 << 16):
            writer.write(body[at : at + (1 << 16)])
            await writer.drain()

    sending = asyncio.create_task(send())
    lines, tail, first = 0, b"", b""
    while not tail.endswith(_END_OF_CHUNKS):
        part = await reader.read(1 << 18)
        if not part:
            raise ConnectionError("the service hung up")
        first = first or part
        lines += part.count(b'"outcome":"created"')
        tail = (tail + part)[-len(_END_OF_CHUNKS) :]
    took_s = time.perf_counter() - began
    await sending
    writer.close()
    if not first.startswith(b"HTTP/1.1 202"):
        raise RuntimeError(first.decode(errors="replace"))
    # A word that the parts of an answer cut in two is not seen: some are missing, not many.
    if lines < 0.99 * count:
        raise RuntimeError(f"{lines} of {count} jobs were created")
    return {"rate": count / took_s}


def _head(method: str, path: str, length: int, media: str) -> bytes:
    body = f"content-type: {media}\r\ncontent-length: {length}\r\n" if length else ""
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{body}\r\n".encode()


def posts(count: int) -> list[bytes]:
    """
    Requests that make a job each.
    """
    body = f'{{"payload":{PAYLOAD},"delay":3600}}'.encode()
    return [_head("POST", f"/v1/topics/{TOPIC}/jobs", len(body), "application/json") + body] * count


def reads(count: int) -> list[bytes]:
    """
    Requests that look at a job each, of those that a batch has made.
    """
    return [_head("GET", f"/v1/topics/{TOPIC}/jobs/{n}", 0, "") for n in range(count)]


async def main(host: str, port: int, what: str, count: int, connections: int) -> dict[str, float]:
    """
    Do one of the three.
    """
    if what == "batch":
        return await batch(host, port, count)
    requests, status = (posts(count), b"202") if what == "posts" else (reads(count), b"200")
    return await one_by_one(host, port, requests, status, connections)


def _loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # an accelerator: used where it is there
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    _host, _port, _what, _count, _connections = sys.argv[1:]
    with asyncio.Runner(loop_factory=_loop()) as _runner:
        print(json.dumps(_runner.run(main(_host, int(_port), _what, int(_count), int(_connections)))))
