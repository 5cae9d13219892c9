"""
Load `duly serve` with slow connections, endless headers and large batches at once, and watch it from beside.

python bench/http/overload.py --json bench/http/overload.json

Everything stays on this machine and ends by itself.  It needs duly[server], httpx, requests and curl; it says
which client is missing and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duly.bench.report import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S = 0.1  #: between two probes
PROBE_MS, RSS_MB, OPEN = 500, 250, 0.9  #: goals; the last is the part of the slow connections that is there
SLOW_S = 10  #: after which the service ends a connection whose head is not complete
PROBE_LIMIT_S = 30  #: after which a probe counts as not answered
LIMIT_S = 900  #: after which everything ends
TOPIC = "mail"
MB = 1_000_000


@contextlib.contextmanager
def service(folder: Path) -> Iterator[tuple[int, int]]:
    """
    Run `duly serve` on a queue of its own; the answer is its process and its port.
    """
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "duly", "serve", "--port", "0", "--data", str(folder / "queue")],
            cwd=folder,
            env=os.environ | {"DULY_DURABILITY": "everysec", "DULY_API_KEYS": "", "DULY_URL": ""},
            stderr=log,
        )
    try:
        found = None
        while found is None:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.05)
            found = re.search(r"serving on http://127\.0\.0\.1:(\d+)", (folder / "log").read_text())
        yield process.pid, int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


# -- those who load it ------------------------------------------------------------------------------------


def hold_slow(port: int, count: int, there: Any) -> None:
    """
    Keep *count* connections open that send a byte of their head in a second; *there* is how many are.

    The service ends each after ten seconds, and it is opened again.  The first are ended earlier, one by one,
    so that they do not all end at the same time.
    """

    async def one(life_s: float) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                there.value += 1
                ended = asyncio.create_task(reader.read(1))  # an answer, or the end
                try:
                    writer.write(b"GET /v1/jobs HTTP/1.1\r\nhost: localhost\r\nx: ")
                    until_s = time.monotonic() + life_s
                    while not ended.done() and time.monotonic() < until_s:
                        writer.write(b"x")
                        await writer.drain()
                        await asyncio.wait([ended], timeout=1)
                finally:
                    there.value -= 1
                    ended.cancel()
                    writer.close()
            except OSError:
                await asyncio.sleep(1)
            life_s = LIMIT_S

    async def all_of_them() -> None:
        await asyncio.gather(*(one(SLOW_S * (number + 1) / count) for number in range(count)))

    asyncio.run(all_of_them())


def send_headers(port: int, megabytes: int, told: Any) -> None:
    """
    Send so many bytes of headers over ten connections, each opened again when it is closed.
    """
    left = megabytes * MB
    piece = b"x: " + b"x" * 4000 + b"\r\n"

    async def one() -> None:
        nonlocal left
        while left > 0:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n")
                while left > 0 and not reader.at_eof() and not writer.is_closing():
                    writer.write(piece)
                    left -= len(piece)
                    await writer.drain()
                writer.close()
            except OSError:
                await asyncio.sleep(0.01)

    async def all_of_them() -> None:
        await asyncio.gather(*(one() for _ in range(10)))

    asyncio.run(all_of_them())
    told.put(megabytes * MB - left)


def body_of(name: str, lines: int) -> bytes:
    """
    A batch with ids of its own, an hour ahead.
    """
    return b"".join(b'{"id":"%b-%d","delay":3600}\n' % (name.encode(), number) for number in range(lines))


def send_batch(name: str, port: int, lines: int, told: Any) -> None:
    """
    Send a batch with one client, and tell how many of its lines were answered with a job, in their order.
    """
    url = f"http://127.0.0.1:{port}/v1/topics/{TOPIC}/jobs:batch"
    headers = {"Content-Type": "application/x-ndjson"}
    body = body_of(name, lines)
    began_s = time.monotonic()
    try:
        if name == "httpx":
            import httpx  # noqa: PLC0415  # may be missing

            answer = httpx.post(url, content=body, headers=headers, timeout=LIMIT_S).content
        elif name == "requests":
            import requests  # noqa: PLC0415  # likewise

            answer = requests.post(url, data=body, headers=headers, timeout=LIMIT_S).content
        else:
            command = ["curl", "-sS", "-H", "Content-Type: application/x-ndjson", "--data-binary", "@-", url]
            answer = subprocess.run(command, input=body, capture_output=True, check=True).stdout
        took_s = time.monotonic() - began_s
        created = count_created(answer)
    except Exception as error:  # noqa: BLE001  # whatever it was, it is told
        told.put((name, 0, repr(error)[:200]))
        return
    told.put((name, created, round(took_s, 1)))


def count_created(answer: bytes) -> int:
    """
    The lines of an answer, each of which must be about the next line of the batch, and a new job.
    """
    lines = answer.splitlines()
    for number, line in enumerate(lines, 1):
        said = json.loads(line)
        if (said["line"], said["outcome"]) != (number, "created"):
            raise ValueError(f"line {number} was answered with {said}")
    return len(lines)


# -- watching ---------------------------------------------------------------------------------------------


async def probe(port: int) -> float:
    """
    Ask for /healthz over a connection of its own.

    Returns: how many milliseconds the answer took.
    """
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            said = await reader.read()
            writer.close()
    except OSError:  # a time that is over is one, too
        return PROBE_LIMIT_S * 1000
    assert said.startswith(b"HTTP/1.1 200"), said
    return (time.monotonic() - began_s) * 1000


def watch(port: int, stop: Any, told: Any) -> None:
    """
    Probe every 100 ms from beside, whether or not the last one was answered, and tell how long each took.
    """

    async def probes() -> list[float]:
        under_way: list[asyncio.Task[float]] = []
        next_s = time.monotonic()
        while not stop.is_set():
            under_way.append(asyncio.create_task(probe(port)))
            next_s += EVERY_S
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
        return await asyncio.gather(*under_way)

    told.put(asyncio.run(probes()))


def rss_mb(pid: int) -> float:
    """
    The memory that a process has now.
    """
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 / MB if found else 0.0


def stored(port: int) -> int:
    """
    The jobs that the service has.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/v1/topics/{TOPIC}")
    document = json.loads(connection.getresponse().read())
    connection.close()
    return sum(document[state] for state in ("scheduled", "ready", "running", "succeeded", "dead"))


def measure(slow: int, megabytes: int, lines: int, clients: list[str]) -> dict[str, Any]:
    """
    Do all of it at once, until every batch has ended.
    """
    told: Any = multiprocessing.Queue()
    probes: Any = multiprocessing.Queue()
    sent: Any = multiprocessing.Queue()
    stop = multiprocessing.Event()
    there, open_there = multiprocessing.Value("i", 0), []
    with tempfile.TemporaryDirectory(prefix="duly-overload-") as folder, service(Path(folder)) as (pid, port):
        idle_mb = rss_mb(pid)
        loads = [
            multiprocessing.Process(target=hold_slow, args=(port, slow, there), daemon=True),
            multiprocessing.Process(target=send_headers, args=(port, megabytes, sent), daemon=True),
        ]
        batches = [
            multiprocessing.Process(target=send_batch, args=(name, port, lines, told), daemon=True)
            for name in clients
        ]
        watching = multiprocessing.Process(target=watch, args=(port, stop, probes), daemon=True)
        began_s = time.monotonic()
        for each in (*loads, watching, *batches):
            each.start()
        most_mb = idle_mb
        while any(each.is_alive() for each in (loads[1], *batches)) and time.monotonic() - began_s < LIMIT_S:
            most_mb = max(most_mb, rss_mb(pid))
            if open_there or there.value >= OPEN * slow:  # from when they have come
                open_there.append(there.value)
            time.sleep(EVERY_S)
        took_s = time.monotonic() - began_s
        stop.set()
        took = sorted(probes.get(timeout=60))
        answers = {name: (count, said) for name, count, said in (told.get(timeout=60) for _ in batches)}
        result = {
            "slow_connections": slow,
            "slow_open_least": min(open_there, default=0),
            "slow_open_median": sorted(open_there)[len(open_there) // 2] if open_there else 0,
            "header_bytes": sent.get(timeout=60),
            "lines": lines,
            "answered": {name: count for name, (count, _) in answers.items()},
            "seconds": {name: said for name, (_, said) in answers.items()},
            "stored": stored(port),
            "took_s": round(took_s, 1),
            "probes": len(took),
            "healthz_p50_ms": round(took[len(took) // 2], 1),
            "healthz_p99_ms": round(took[min(len(took) - 1, int(len(took) * 0.99))], 1),
            "healthz_max_ms": round(took[-1], 1),
            "rss_idle_mb": round(idle_mb, 1),
            "rss_max_mb": round(most_mb, 1),
        }
        for each in (*loads, *batches, watching):
            each.kill()
    return result


def main() -> int:
    """
    Measure, print and compare with the goals.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--slow", type=int, default=1000, help="slow connections")
    parser.add_argument("--headers", type=int, default=100, help="megabytes of headers")
    parser.add_argument("--lines", type=int, default=400_000, help="lines of each batch")
    parser.add_argument("--json", type=Path, help="write the figures there")
    asked = parser.parse_args()
    there = {
        "httpx": importlib.util.find_spec("httpx"),
        "requests": importlib.util.find_spec("requests"),
        "curl": shutil.which("curl"),
    }
    for name in (name for name, found in there.items() if not found):
        print(f"{name} is not installed and left out")
    clients = [name for name, found in there.items() if found]
    found = measure(asked.slow, asked.headers, asked.lines, clients)
    met = (
        all(asked.lines == count for count in found["answered"].values())
        and found["stored"] == asked.lines * len(clients)
        and found["healthz_p99_ms"] <= PROBE_MS
        and found["rss_max_mb"] < RSS_MB
        and found["slow_open_median"] >= OPEN * asked.slow
    )
    text = json.dumps({"machine": machine(), **found, "met": met}, indent=2, default=str)
    print(text)
    if asked.json:
        asked.json.write_text(text + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
