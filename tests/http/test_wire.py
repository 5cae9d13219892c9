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


async def test_answers_to_pipelined_requests_come_in_order_and_the_last_before_the_end(url):
    reader, writer = await connect(url)
    for number in range(3):
        writer.write(f"GET {JOBS}/{number} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    writer.write(f"GET {JOBS}/last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answers = await asyncio.wait_for(reader.read(), 60)
    told = [
        json.loads(part.partition(b"\r\n\r\n")[2]) for part in answers.split(b"HTTP/1.1 404 Not Found")[1:]
    ]
    assert [f"mail/{id_}" for id_ in (0, 1, 2, "last")] == [each["detail"].split()[4][:-1] for each in told]
    writer.close()


async def test_a_client_that_goes_in_the_middle_of_its_request_is_no_fault_of_ours(url, app, caplog):
    reader, writer = await connect(url)
    writer.write(f"POST {JOBS} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n".encode())
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
