"""
A fault of the service is no outage: what clients send never makes one, and what does is told apart.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import httpx
import pytest

from duly import Duly, LayoutMismatch, ServiceFault, UsageError
from duly.durations import parse_duration
from duly.http.api import OPERATIONS
from duly.http.live import Live
from tests.http.conftest import problem

ZEROS = "0" * 4_400
#: What no parameter and no header takes, or only some do.
VALUES = (
    "",
    "0",
    "-1",
    "1e999",
    "nan",
    "9" * 25,
    "9" * 5_000,
    f"1{ZEROS}",
    f"{ZEROS}1",
    f"000000010{ZEROS}",
    f"{ZEROS}s",
    f"P{'9' * 5_000}D",
    f"wait={'9' * 5_000}",
    f"wait={ZEROS}1",
    f'"{"9" * 19}"',
    f'"{"9" * 5_000}"',
    "99999999999999999999-99999999999999999999",
    "0-99999999999999999999",
    "\u0661\u0662",
    "\u00b2",
    "\x00",
    "\ud800",
    "%",
    ",",
    "*",
    "../..",
)
PATHS = {"topic": "mail", "id": "a", "name": "answers", "worker": "w", "lease": "l"}


def requests_of(operation):
    """
    Put each value into each parameter of an operation, one at a time.
    """
    for parameter in operation.parameters:
        for value in VALUES:
            sent = value.encode("utf-8", "surrogatepass")
            parts = dict.fromkeys(re.findall(r"{(\w+)}", operation.path), "x") | PATHS
            query, headers = "", {"Content-Type": "application/json"}
            if parameter.place == "path":
                parts[parameter.name] = quote(sent, safe="")
            elif parameter.place == "query":
                query = f"?{parameter.name}={quote(sent)}"
            else:
                headers[parameter.name] = sent
            yield operation.path.format(**parts) + query, headers


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_no_parameter_makes_a_fault(serving, operation):
    async with serving(max_wait_s=0.001, max_stream_s=0.001) as client:
        for place, headers in requests_of(operation):
            body = None if operation.body is None else b"{}"
            answer = await client.request(operation.method, place, headers=headers, content=body)
            assert 500 > answer.status_code, (place[:100], headers, answer.text[:500])


def logged(caplog):
    """
    Return what was logged with a traceback, by whichever logger.
    """
    return [each for each in caplog.records if each.exc_info]


@pytest.fixture
def broken(app, monkeypatch):
    """
    Plant a fault into reading jobs, and count how often it is met.
    """
    met = []

    async def views():
        met.append(1)
        raise RuntimeError("the secret of the house")

    monkeypatch.setattr(app, "views", views)
    return met


@pytest.mark.usefixtures("broken")
async def test_a_fault_is_a_500_and_logged_once_with_its_id(url, monkeypatch, caplog):
    async with httpx.AsyncClient(base_url=url) as client:
        answer = await client.get("/v1/topics/mail/jobs/a")
        document = problem(answer, 500, "fault")
        assert "retry-after" not in answer.headers
        assert "secret" not in answer.text
        [record] = logged(caplog)
        assert ("ERROR", "duly.http") == (record.levelname, record.name)
        assert document["reference"] in record.getMessage()
        assert "GET /v1/topics/mail/jobs/a" in record.getMessage()
        monkeypatch.undo()
        assert 'operation="getJob",status="500"' in (await client.get("/metrics")).text


async def test_a_fault_in_a_stream_cuts_the_answer_off(url, app, monkeypatch, caplog):
    async def after(*_):
        raise RuntimeError("no such place")

    monkeypatch.setattr(Live, "after", after)
    async with httpx.AsyncClient(base_url=url) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/v1/events")
    [record] = logged(caplog)
    assert "GET /v1/events: no such place" in record.getMessage()


async def test_the_client_does_not_repeat_what_met_a_fault(url, broken):
    async with Duly(url) as remote:
        with pytest.raises(ServiceFault, match=r"its log says why at \w{22}$"):
            await remote.job("mail", "a").get()
        with pytest.raises(ServiceFault):
            await (await remote.views()).page("ready")
    assert 2 == len(broken)


async def test_a_queue_that_needs_mending_is_a_fault_and_no_outage(client, app, monkeypatch, caplog):
    async def views():
        raise LayoutMismatch("redis://inner-host has another layout")

    monkeypatch.setattr(app, "views", views)
    document = problem(await client.get("/v1/topics/mail/jobs/a"), 500, "fault")
    assert "inner-host" not in document["detail"]
    [record] = logged(caplog)
    assert document["reference"] in record.getMessage()
    assert "inner-host" in record.getMessage()


@pytest.mark.parametrize("text", [f"{ZEROS}1", f"{ZEROS}1s", f"PT{ZEROS}1S", f"0.{ZEROS}1"])
def test_a_duration_of_thousands_of_digits_is_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match=r"^delay must be text of at most 200 characters, not \d+$"):
        parse_duration(text, "delay")


async def test_a_service_that_only_steers_goes_on_after_its_machine_slept(client, app):
    jobs = [await app.enqueue("mail", number, id=str(number), delay=600) for number in range(8)]
    store = await app.store()
    for shard in range(store.shards):
        heard = await store._ask(shard)
        store._heard[shard] = heard._replace(server_ms=heard.server_ms - 3_600_000, seen=0)
    async with Duly(app.settings.url, namespace=app.settings.namespace) as others:
        for _ in range(3):
            for keys in store.keys:
                await store.link.call("HSET", keys.fixed["meta"], "requests_began", 0)
            await others.pause("another")
    for action in ("pause", "resume"):
        assert 200 == (await client.post(f"/v1/topics/mail/{action}")).status_code
    assert 200 == (await client.put("/v1/topics/mail/limit", json={"limit": 9})).status_code
    for job in jobs:
        path = f"/v1/topics/mail/jobs/{job.id}"
        assert 200 == (await client.patch(path, json={"delay": 90})).status_code
        assert 200 == (await client.delete(path)).status_code
