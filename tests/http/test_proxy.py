"""
Behind a proxy: nginx as docs/how-to/expose-safely.md sets it up, and what the service makes of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from duly import Duly, UsageError
from duly.http.access import WRONG_BURST
from duly.http.api import api
from duly.http.serve import listen, server_of
from duly.http.settings import ServiceSettings
from tests import certificates
from tests.http.conftest import problem
from tests.tools import tool

PAGE = Path(__file__).parents[2] / "docs/how-to/expose-safely.md"
JOBS = "/v1/topics/mail/jobs"
NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {server}
}}
"""


@asynccontextmanager
async def served(app, **settings):
    """
    Serve on a port of this machine; the value is its address.
    """
    place = listen("127.0.0.1", 0)
    server = server_of(api(app, ServiceSettings(**settings)), 1)
    serving = asyncio.create_task(server.serve([place]))
    while not server.started:
        await asyncio.sleep(0.01)
        assert not serving.done(), serving.result()
    try:
        yield f"127.0.0.1:{place.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def behind_nginx(folder, upstream):
    """
    Run nginx with the configuration of the page in front of *upstream*; the value is its port.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    [server] = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for said, here in [
        ("443 ssl", f"127.0.0.1:{port} ssl"),
        ("/etc/ssl/queue.pem", str(folder / "s.crt")),
        ("/etc/ssl/queue.key", str(folder / "s.key")),
        ("127.0.0.1:8420", upstream),
    ]:
        assert said in server
        server = server.replace(said, here)
    settings = folder / "nginx.conf"
    settings.write_text(NGINX.format(folder=folder, server=server))
    nginx = await asyncio.create_subprocess_exec(
        tool("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(settings)
    )
    try:
        while True:
            assert nginx.returncode is None
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            break
        yield port
    finally:
        nginx.terminate()
        await nginx.wait()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("nginx")
    certificates.make(made)
    return made


@pytest.fixture
async def key(app):
    async with Duly(app.settings.url, namespace=app.settings.namespace) as other:
        text, _ = await (await other.key_ring()).create("shop", ["admin"])
    return text


@pytest.fixture
async def service(app, key):
    async with served(app, root_path="/queue", trusted_proxies="127.0.0.1") as address:
        yield address


@pytest.fixture
async def proxy(service, folder, key):
    """
    Make clients of the proxy: `proxy("127.0.0.2")` sends from that address.
    """
    async with behind_nginx(folder, service) as port:
        trust = ssl.create_default_context(cafile=folder / "ca.crt")
        clients = []

        def client(address, **headers):
            clients.append(
                httpx.AsyncClient(
                    transport=httpx.AsyncHTTPTransport(verify=trust, local_address=address),
                    base_url=f"https://localhost:{port}",
                    headers={"Authorization": f"Bearer {key}", **headers},
                )
            )
            return clients[-1]

        yield client
        for each in clients:
            await each.aclose()


async def test_what_the_service_tells_is_found_under_the_prefix(proxy):
    client = proxy("127.0.0.2")
    sent = await client.post(f"/queue{JOBS}", json={"id": "a", "delay": 60})
    assert (202, f"/queue{JOBS}/a") == (sent.status_code, sent.headers["location"])
    assert "a" == (await client.get(sent.headers["location"])).json()["id"]
    assert [{"url": "/queue"}] == (await client.get("/queue/openapi.json")).json()["servers"]


async def test_a_slash_at_the_end_is_no_redirect(proxy):
    answer = await proxy("127.0.0.2").get(f"/queue{JOBS}/")
    assert "without the slash" in problem(answer, 404, "not-found")["detail"]
    assert "location" not in answer.headers


async def test_wrong_keys_are_counted_by_the_address_of_the_client(proxy):
    guesser, other = proxy("127.0.0.2", Authorization="Bearer wrong"), proxy("127.0.0.3")
    for number in range(WRONG_BURST):
        # Another address each time, which the proxy passes on with the real one behind it.
        forged = {"X-Forwarded-For": f"203.0.113.{number}", "Forwarded": f"for=203.0.113.{number}"}
        assert 401 == (await guesser.get(f"/queue{JOBS}", headers=forged)).status_code
    problem(await guesser.get(f"/queue{JOBS}"), 429, "too-many-requests")
    assert 200 == (await other.get(f"/queue{JOBS}")).status_code


async def test_the_audit_tells_the_address_of_the_client(proxy):
    client = proxy("127.0.0.2", **{"X-Forwarded-For": "203.0.113.7"})
    assert 200 == (await client.post("/queue/v1/topics/mail/pause")).status_code
    [record] = (await client.get("/queue/v1/audit")).json()["records"]
    assert "127.0.0.2" == record["details"]["address"]


async def test_from_elsewhere_the_header_says_nothing(service):
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    wrong = {"Authorization": "Bearer wrong"}
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{service}", headers=wrong) as client:
        for number in range(WRONG_BURST):
            forged = {"X-Forwarded-For": f"203.0.113.{number}"}
            assert 401 == (await client.get(JOBS, headers=forged)).status_code
        problem(await client.get(JOBS, headers={"X-Forwarded-For": "203.0.113.99"}), 429, "too-many-requests")


async def test_the_python_client_works_through_the_proxy(proxy, key, folder, monkeypatch):
    monkeypatch.setitem(os.environ, "SSL_CERT_FILE", str(folder / "ca.crt"))
    place = str(proxy("127.0.0.1").base_url).rstrip("/")
    async with Duly(f"{place}/queue", api_key=key) as remote:
        sent = await remote.enqueue("mail", 1, delay=60)
        assert "scheduled" == (await sent.get()).state.name
        [event] = [each async for each in remote.events(since="start", wait=0)]
        assert "enqueued" == event.verb


@pytest.mark.parametrize("path", ["/queue/v1/topics/mail/jobs", "/v1/topics/mail/jobs"])
async def test_the_proxy_may_leave_the_prefix_or_take_it_off(serving, path):
    async with serving(root_path="/queue/") as client:
        sent = await client.post(path, json={"id": "a"})
        assert f"/queue{JOBS}/a" == sent.headers["location"]


async def test_behind_a_proxy_keys_are_required(serving):
    async with serving(trusted_proxies="10.0.0.0/8, ::1") as client:
        problem(await client.get(JOBS), 401, "unauthenticated")


@pytest.mark.parametrize(
    "settings",
    [
        {"root_path": "queue"},
        {"root_path": "/v1"},
        {"root_path": "https://queue.example.com"},
        {"trusted_proxies": "*"},
        {"trusted_proxies": "10.0.0.1/8"},
        {"trusted_proxies": "proxy.internal"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_told_in_a_sentence(app, settings):
    [(name, value)] = settings.items()
    with pytest.raises(UsageError, match=f"^{name}={re.escape(repr(value))} "):
        api(app, ServiceSettings(**settings))
