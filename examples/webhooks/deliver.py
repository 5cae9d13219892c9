"""
Deliver webhooks: a receiver that is down is tried again, one that is gone is not.
"""

import asyncio
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from duly import Bury, Duly, Exponential, JobFailed, current_job

app = Duly()


@app.handler("webhook", max_attempts=5, backoff=Exponential(base=0.2, jitter=0), ttr=30)
def deliver(url: str, event: str) -> int:
    receiver = urlsplit(url)
    connection = http.client.HTTPConnection(receiver.netloc, timeout=10)
    try:
        # The id stays the same over all attempts, so that the receiver can tell a repeated event.
        headers = {"Content-Type": "application/json", "Idempotency-Key": current_job().id}
        connection.request("POST", receiver.path, json.dumps({"event": event}), headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status == http.HTTPStatus.GONE:
        raise Bury("the receiver is gone")  # not tried again
    if status >= http.HTTPStatus.BAD_REQUEST:
        raise ConnectionError(f"the receiver said {status}")  # tried again, each time later
    return status


class Receiver(BaseHTTPRequestHandler):
    """
    Somebody else's server.  It fails twice before it works.
    """

    failures = 2

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["event"]
        if self.path == "/closed":
            status = 410
        elif Receiver.failures:
            Receiver.failures -= 1
            status = 503
        else:
            status = 200
        print(f"receiver: {event} -> {status}", flush=True)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def main() -> None:
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{receiver.server_port}"
    async with app:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))

        job = await app.enqueue(deliver.job(f"{url}/hooks", "order.paid"))
        status = await job.result(timeout=30)
        print(f"delivered with {status} at attempt {(await job.get()).attempts}")

        job = await app.enqueue(deliver.job(f"{url}/closed", "order.refunded"))
        try:
            await job.result(timeout=30)
        except JobFailed as error:
            print("given up:", str(error).partition("dead: ")[2])

        stop.set()
        await worker
    receiver.shutdown()
    receiver.server_close()


if __name__ == "__main__":
    asyncio.run(main())
