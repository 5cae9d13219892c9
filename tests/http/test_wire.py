"""
The service on a real connection: what leaves together, what is lost, and what that does to nobody else.
"""

from __future__ import annotations

import asyncio
import json

import httpx

from duly.http.protocol import Corked
from tests.eventually import eventually

JOBS = "/v1/topics/mail/jobs"


async def connect(url):
    return await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)


class Written:
    """
    A transport that remembers what is written to it.
    """

    def __init__(self):
        self.said = []

    def write(self, data):
        self.said.append(data)

    def close(self):
        self.said.append("closed")

    def is_closing(self):
        return "closed" in self.said


async def test_what_is_written_in_one_turn_leaves_together():
    written = Written()
    corked = Corked(written, asyncio.get_running_loop())
    corked.write(b"head ")
    corked.write(b"body")
    assert [] == written.said
    await asyncio.sleep(0)
    corked.write(b"next")
    corked.close()
    await asyncio.sleep(0)
    assert [b"head body", b"next", "closed"] == written.said


async def test_what_is_held_for_a_client_that_has_gone_is_dropped():
    written = Written()
    corked = Corked(written, asyncio.get_running_loop())
    corked.write(b"late")
    written.close()  # as the loop does when the connection is lost
    await asyncio.sleep(0)
    assert ["closed"] == written.said


async def test_answers_to_pipelined_requests_come_in_order_and_the_last_before_the_end(url):
    reader, writer = await connect(url)
    for number in range(3):
        writer.write(f"GET {JOBS}/{number} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    writer.write(f"GET {JOBS}/last HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    answers = await asyncio.wait_for(reader.read(), 60)
    told = [
        json.loads(part.partition(b"\r\n\r\n")[2]) for part in answers.split(b"HTTP/1.1 404 Not Found")[1:]
    ]
    assert [f"mail/{id_}" for id_ in (0, 1, 2, "last")] == [each["detail"].split()[4][:-1] for each in told]
    writer.close()


async def test_of_requests_that_wait_for_others_no_more_are_read_than_a_kib_of_them(served, app):
    await app.enqueue("mail", None, id="a", delay=60)
    short = b"GET /v1 HTTP/1.1\r\nhost: localhost\r\n\r\n"
    most = 1
    async with served() as (url, server):
        reader, writer = await connect(url)
        writer.write(f"GET {JOBS}/a?wait=60 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() + short * 5000)
        await eventually(lambda: any(each.pipeline for each in server.server_state.connections))
        [connection] = server.server_state.connections
        await app.job("mail", "a").cancel()
        for _ in range(5001):
            most = max(most, len(connection.pipeline))
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
        writer.close()
    assert 1024 // len(short) + 1 >= most  # and the one that the KiB ends in


async def test_a_client_that_goes_in_the_middle_of_its_request_is_no_fault_of_ours(url, app, caplog):
    reader, writer = await connect(url)
    writer.write(f"POST {JOBS} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n".encode())
    writer.write(b"content-type: application/json\r\ncontent-length: 100\r\n\r\n")
    # It is being read: the service has asked for the rest.
    assert b"HTTP/1.1 100 Continue\r\n" == await asyncio.wait_for(reader.readline(), 60)
    writer.write(b'{"id":')
    writer.close()
    await writer.wait_closed()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        assert 202 == (await client.post(JOBS, json={"id": "after", "delay": 60})).status_code
    await eventually(lambda: len([task for task in asyncio.all_tasks() if "run_asgi" in repr(task)]) == 0)
    assert [] == [record for record in caplog.records if record.name == "duly.http"]


async def test_those_who_ask_at_the_same_time_get_each_their_own_job(url):
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for number in range(20):
            await client.post(JOBS, json={"id": str(number), "payload": number, "delay": 60})
        asked = [str(number % 25) for number in range(100)]
        answers = await asyncio.gather(*(client.get(f"{JOBS}/{id_}") for id_ in asked))
    expected = [(200, int(id_)) if int(id_) < 20 else (404, None) for id_ in asked]
    assert expected == [(each.status_code, each.json().get("payload")) for each in answers]
