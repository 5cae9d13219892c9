"""
`duly serve` and `duly keys` as processes, from the first line they say to the code they end with.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx
import msgspec
import pytest
import redis

from duly import Duly
from duly.cli.serve import serve as serve_command
from duly.errors import JobNotFound
from duly.http.access import WRONG_BURST
from duly.http.settings import ServiceSettings
from duly.settings import SERVE_VARIABLES
from tests.cli.schemas import read
from tests.live.running import Running
from tests.live.terminal import duly, environment

JOBS = "/v1/topics/mail/jobs"
SECRET = "a secret of some length"


@pytest.fixture
def here():
    # A short path: the embedded server's socket may be below it.
    with tempfile.TemporaryDirectory(prefix="duly-http-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()


@pytest.fixture
def queue(valkey, namespace, shards):
    return {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace, "DULY_SHARDS": str(shards)}


@pytest.fixture
def run(here, queue):
    """
    Run a command to its end.
    """

    def run(*words, **env):
        return subprocess.run(
            duly(*words), cwd=here, env=environment(**queue | env), capture_output=True, text=True, timeout=90
        )

    return run


@pytest.fixture
def serve(here, queue):
    """
    Start `duly serve` on a free port; the answer is the process and a client for it.
    """
    started = []

    def serve(*words, port="0", **env):
        running = Running(here, ("serve", "--port", port, *words), queue | env)
        said = running.until(lambda: re.search(r"serving on (http://\S+)", running.said()), "the address")
        client = httpx.Client(base_url=said[1], timeout=60)
        started.append((running, client))
        return running, client

    yield serve
    for running, client in started:
        client.close()
        running.close()


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


def problem_of(response):
    return response.status_code, response.json()["type"].rpartition(":")[2]


# -- serve ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(serve, number):
    running, client = serve()
    assert 202 == client.post(JOBS, json={"id": "a", "delay": 60}).status_code
    assert "scheduled" == client.get(f"{JOBS}/a").json()["state"]
    running.send(number)
    assert 0 == running.wait()
    lines = running.said().splitlines()
    assert "serving on http://127.0.0.1:" in lines[0]
    assert lines[-1].endswith("ended")
    assert "Traceback" not in running.said()


def test_what_was_served_is_there_after_a_restart_on_the_same_port(serve):
    running, client = serve()
    client.post(JOBS, json={"id": "a", "payload": [1], "delay": 60})
    running.send(signal.SIGTERM)
    assert 0 == running.wait()
    _, again = serve(port=str(client.base_url.port))
    assert [1] == again.get(f"{JOBS}/a").json()["payload"]


def test_an_embedded_server_is_served_too(serve, here):
    _, client = serve(DULY_URL="", DULY_DATA=str(here / "data"))
    assert 202 == client.post(JOBS, json={"id": "a"}).status_code
    assert (here / "data").is_dir()


def test_sigterm_answers_requests_under_way_first(serve, queue):
    """
    One that waits is told how things stand, instead of holding the service, or being cut.
    """
    running, client = serve()
    answers = []

    def wait_for_the_end():
        answers.append(client.post(JOBS, json={"id": "a", "delay": 600}, headers={"Prefer": "wait=600"}))

    waiting = threading.Thread(target=wait_for_the_end)
    waiting.start()

    async def end_once_it_waits():
        async with Duly(queue["DULY_URL"], namespace=queue["DULY_NAMESPACE"]) as app:
            async with asyncio.timeout(60):
                while not await there(app):
                    await asyncio.sleep(0.01)
        assert not answers
        running.send(signal.SIGTERM)

    asyncio.run(end_once_it_waits())
    waiting.join(60)
    assert [(202, "scheduled")] == [(each.status_code, each.json()["state"]) for each in answers]
    assert 0 == running.wait()


async def there(app):
    try:
        return await app.job("mail", "a").get()
    except JobNotFound:
        return None


def refused(port):
    with socket.socket() as client:
        client.settimeout(5)
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_sigterm_does_not_wait_for_halves_of_requests_nor_for_clients_that_read_nothing(serve):
    running, client = serve(DULY_DRAIN_GRACE="60s")
    head = "HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-ndjson\r\n"
    halves = [
        "",
        f"GET {JOBS}/a HTTP/1.1\r\n",
        f"POST {JOBS} {head}content-length: 100\r\n\r\n{{",
        f'POST {JOBS}:batch {head}transfer-encoding: chunked\r\n\r\nb\r\n{{"id":"a"}}\n\r\n5\r\n{{"id"\r\n',
        f"GET {JOBS}/a?wait=60 {head}\r\n",
        f"GET /v1/events {head}\r\n",
    ]
    there = [socket.create_connection((client.base_url.host, client.base_url.port), 30) for _ in halves]
    try:
        for connection, half in zip(there, halves, strict=True):
            connection.sendall(half.encode())
        running.until(lambda: client.get(f"{JOBS}/a").status_code == 200, "the line of the batch")
        running.send(signal.SIGTERM)
        assert 0 == running.wait(within_s=30)
        said = there[3].makefile("rb").read()
        assert b'"line":1,"outcome":"created"' in said
        assert b'"line":2,"outcome":"stopped"' in said
        assert b'"stored":1' in said
    finally:
        for connection in there:
            connection.close()
    assert "Traceback" not in running.said()
    assert "ERROR" not in running.said()


@pytest.mark.parametrize("lines", [100, 60_000], ids=["few", "more than fit between"])
def test_sigterm_lets_a_client_that_sends_all_before_it_reads_see_how_far_its_batch_came(serve, lines):
    """
    Its answer is whole although more of the body comes, and nobody wants that.
    """
    running, client = serve(DULY_DRAIN_GRACE="60s")
    address = client.base_url.host, client.base_url.port

    def body():
        for number in range(lines):
            yield b'{"id":"%d","delay":60}\n' % number
        running.until(lambda: client.get(f"{JOBS}/{lines - 1}").status_code == 200, "the last line")
        running.send(signal.SIGTERM)
        running.until(lambda: refused(address[1]), "the end")
        for _ in range(100):
            yield b'{"delay":60}\n' * 10_000

    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request(
        "POST", f"{JOBS}:batch", body(), {"Content-Type": "application/x-ndjson"}, encode_chunked=True
    )
    *_, last = connection.getresponse().read().splitlines()
    told = msgspec.json.decode(last)
    assert ("stopped", "urn:duly:problem:unavailable") == (told["outcome"], told["problem"]["type"])
    assert told["line"] - 1 == told["stored"] >= lines
    assert 0 == running.wait(within_s=30)
    connection.close()
    assert "ERROR" not in running.said()


def test_limits_of_connections_may_be_set(serve):
    _, client = serve("--header-limit", "2048", "--max-connections", "1")
    with httpx.Client(base_url=client.base_url) as other:
        assert 404 == client.get(f"{JOBS}/a").status_code
        assert (503, "busy") == problem_of(other.get(f"{JOBS}/a"))
    assert (431, "headers-too-large") == problem_of(client.get("/", headers={"x": "x" * 3000}))


def test_variables_set_limits_as_well_and_an_option_wins(serve):
    running, client = serve(
        "--body-limit", "4096", DULY_SERVE_HEADER_LIMIT="2048", DULY_SERVE_BODY_LIMIT="1024"
    )
    assert (431, "headers-too-large") == problem_of(client.get("/", headers={"x": "x" * 3000}))
    assert 202 == client.post(JOBS, json={"payload": "x" * 2_000}).status_code
    assert (413, "too-large") == problem_of(client.post(JOBS, json={"payload": "x" * 5_000}))
    assert "unknown variable" not in running.said()


def test_a_variable_that_sets_no_limit_is_a_sentence(run):
    done = run("serve", "--port", "0", DULY_SERVE_MAX_CONNECTIONS="many")
    assert 2 == done.returncode
    assert "DULY_SERVE_MAX_CONNECTIONS" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_limit_of_the_service_is_an_option_and_a_variable():
    options = {each.name: each for each in serve_command.params}
    settings = {field.name for field in dataclasses.fields(ServiceSettings)}
    elsewhere = {"cors_origins", "trusted_proxies", "require_keys", "root_path", "idempotency_s"}
    assert {"heartbeat_s"} == settings - options.keys() - elsewhere
    limits = settings - elsewhere - {"heartbeat_s"}
    variables = {options[name].envvar for name in limits}
    assert SERVE_VARIABLES == variables


def test_the_settings_of_an_app_are_those_of_its_service(serve, here, queue):
    code = f"from duly import Duly\n\napp = Duly({queue['DULY_URL']!r}, namespace='of-the-app')\n"
    (here / "shop.py").write_text(code)
    _, client = serve("shop:app", DULY_NAMESPACE="another")
    client.post(JOBS, json={"id": "a", "delay": 60})

    async def state():
        async with Duly(queue["DULY_URL"], namespace="of-the-app") as app:
            return (await app.job("mail", "a").get()).state.name

    assert "scheduled" == asyncio.run(state())


def test_a_rate_may_be_set(serve):
    _, client = serve("--rate", "0.1", "--burst", "1")
    codes = {client.get(f"{JOBS}/a").status_code for _ in range(4)}
    assert {404, 429} == codes


def test_other_machines_are_not_served_without_a_key(run):
    done = run("serve", "--host", "0.0.0.0", "--port", "0")
    assert (2, "") == (done.returncode, done.stdout)
    assert "there is no API key" in done.stderr
    assert "duly keys create" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_a_sentence(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "--port", str(taken.getsockname()[1]))
    assert 2 == done.returncode
    assert "choose another with --port" in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_of_the_environment_that_cannot_be_read_are_a_sentence(run):
    done = run("serve", "--port", "0", DULY_API_KEYS="shop:short:read")
    assert 2 == done.returncode
    assert "at least 16 characters" in done.stderr
    assert "short:" not in done.stderr
    assert "Traceback" not in done.stderr


def test_no_server_to_keep_jobs_on_is_told(run, here):
    done = run("serve", "--port", "0", DULY_URL=f"unix://{here}/nothing.sock")
    assert 3 == done.returncode
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_what_is_not_installed_is_named_with_the_remedy(here, queue, missing):
    # An entry of None is how Python itself marks a module that cannot be imported.
    code = f"import sys; sys.modules[{missing!r}] = None; from duly.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--port", "0"],
        cwd=here,
        env=environment(**queue),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert 2 == done.returncode
    assert f"duly serve needs {missing}" in done.stderr
    assert "pip install 'duly[server]'" in done.stderr
    assert "Traceback" not in done.stderr


# -- keys -------------------------------------------------------------------------------------------------


def test_a_key_is_made_listed_and_revoked(run):
    words = ("--scope", "enqueue", "--scope", "read", "--topic", "mail.*")
    done = run("keys", "create", "shop", *words, "--json")
    assert (0, "") == (done.returncode, done.stderr)
    made = read("keys create", done.stdout)
    assert ("shop", ["enqueue", "read"], ["mail.*"]) == (made.name, made.scopes, made.topics)
    assert made.key.startswith(f"duly_{made.id}_")

    listing = run("keys", "ls", "--json", DULY_API_KEYS=f"ci:{SECRET}:admin")
    stored, given = read("keys ls", listing.stdout)
    assert (made.id, made.created_at, ["mail.*"]) == (stored.id, stored.created_at, stored.topics)
    assert ("ci", ["admin"], None, None) == (given.name, given.scopes, given.topics, given.created_at)
    for text in (made.key.split("_", 2)[2], SECRET):
        assert text not in listing.stdout

    done = run("keys", "revoke", "shop")
    assert (2, "") == (done.returncode, done.stdout)
    assert "answer every request with 401" in done.stderr
    assert "--force" in done.stderr
    done = run("keys", "revoke", "shop", "--json", "--force")
    assert [made.id] == [key.id for key in read("keys revoke", done.stdout)]
    assert "" == run("keys", "ls", "--json").stdout


def test_people_see_the_key_once_and_a_table(run):
    done = run("keys", "create", "shop", "--scope", "admin")
    assert re.fullmatch(r"duly_[0-9a-f]{12}_\S{43}\n", done.stdout)
    assert "not shown again" in done.stderr
    table = run("keys", "ls").stdout
    assert ["id", "name", "scopes", "topics", "created"] == table.splitlines()[0].split()
    assert "shop" in table
    assert done.stdout.strip() not in table


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("revoke", "nobody"), 1, "no stored key nobody"),
        (("create", "a b", "--scope", "read"), 2, "name='a b'"),
        (("create", "shop", "--scope", "write"), 2, "'enqueue', 'work', 'read', 'admin'"),
        (("create", "shop"), 2, "--scope"),
        (("create", "shop", "--scope", "read", "--topic", "a b"), 2, "topics='a b'"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_code(run, words, code, said):
    run("keys", "create", "other", "--scope", "read")
    done = run("keys", *words)
    assert (code, "") == (done.returncode, done.stdout)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_looking_for_keys_makes_no_queue(run):
    done = run("keys", "ls")
    assert (1, "") == (done.returncode, done.stdout)
    assert "no app has used it yet" in done.stderr


def test_a_key_opens_what_its_scope_says_until_it_is_revoked(run, serve):
    made = read("keys create", run("keys", "create", "shop", "--scope", "read", "--json").stdout)
    running, client = serve()
    assert (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a"))
    assert (404, "job-not-found") == problem_of(client.get(f"{JOBS}/a", headers=bearer(made.key)))
    assert (403, "forbidden") == problem_of(client.post(JOBS, json={}, headers=bearer(made.key)))
    run("keys", "revoke", "shop", "--force")
    running.until(
        lambda: 401 == client.get(f"{JOBS}/a", headers=bearer(made.key)).status_code, "the key is refused"
    )
    assert (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a"))
    running.until(lambda: re.search(r"CRITICAL.*there is none", running.said()), "the alarm")


def test_a_service_that_must_have_keys_says_that_there_is_none_and_serves_nobody(run, serve):
    for words, env in (((), {"DULY_REQUIRE_KEYS": "yes"}), (("--require-keys", "--host", "0.0.0.0"), {})):
        running, client = serve(*words, **env)
        client.base_url = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
        assert (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a"))
        assert 200 == client.get("/healthz").status_code
        assert "CRITICAL" in running.said()


def test_a_data_directory_remembers_that_there_was_a_key(run, serve, here):
    env = {"DULY_URL": "", "DULY_DATA": str(here / "d")}
    run("keys", "create", "shop", "--scope", "read", **env)
    run("keys", "revoke", "shop", "--force", **env)
    running, client = serve(**env)
    assert (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a"))
    assert "only --require-keys" not in running.said()


def test_a_data_directory_remembers_keys_that_the_server_lost_also_after_a_restart(run, serve, here):
    env = {"DULY_URL": "", "DULY_DATA": str(here / "d")}
    made = read("keys create", run("keys", "create", "shop", "--scope", "admin", "--json", **env).stdout)
    running, client = serve(**env)
    assert 202 == client.post(JOBS, json={"id": "a"}, headers=bearer(made.key)).status_code
    with redis.Redis(unix_socket_path=str(here / "d" / "valkey.sock")) as raw:
        raw.flushall()

    def is_shut(client):
        asked = ((), tuple(bearer(made.key).items()))
        statuses = {client.post(JOBS, json={}, headers=headers).status_code for headers in asked}
        statuses |= {client.get("/v1/audit", headers=headers).status_code for headers in asked}
        return {401} == statuses

    running.until(
        lambda: 401 == client.get("/v1/audit", headers=bearer(made.key)).status_code, "a door that is shut"
    )
    assert is_shut(client)
    running.until(lambda: re.search(r"CRITICAL.*there is none", running.said()), "the alarm")
    running.send(signal.SIGTERM)
    assert 0 == running.wait()
    again, client = serve(**env)
    assert is_shut(client)
    assert "CRITICAL" in again.said()
    assert 200 == client.get("/healthz").status_code


def test_a_key_that_came_and_went_unseen_is_remembered_by_the_data_directory(run, serve, here):
    env = {"DULY_URL": "", "DULY_DATA": str(here / "d")}
    running, client = serve(**env)
    assert (404, "job-not-found") == problem_of(client.get(f"{JOBS}/a"))
    assert 0 == run("keys", "create", "shop", "--scope", "read", **env).returncode
    assert 0 == run("keys", "revoke", "shop", "--force", **env).returncode
    running.until(
        lambda: (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a")), "a door that is shut"
    )


@pytest.mark.parametrize(
    ("words", "env"),
    [
        (("--root-path", "/queue", "--trusted-proxy", "127.0.0.1", "--trusted-proxy", "192.0.2.9"), {}),
        ((), {"DULY_ROOT_PATH": "/queue", "DULY_TRUSTED_PROXIES": "127.0.0.1,192.0.2.9"}),
    ],
    ids=["options", "environment"],
)
def test_a_service_is_told_of_its_proxies(serve, words, env):
    _, client = serve(*words, **env)
    assert [{"url": "/queue"}] == client.get("/openapi.json").json()["servers"]
    assert (401, "unauthenticated") == problem_of(client.get(f"{JOBS}/a")), "a proxy makes it public"

    def guess(*addresses):
        headers = {"X-Forwarded-For": ", ".join(addresses), **bearer("wrong")}
        return problem_of(client.get(f"{JOBS}/a", headers=headers))

    guesses = [guess("192.0.2.1", "192.0.2.9") for _ in range(2 * WRONG_BURST)]
    assert (429, "too-many-requests") in guesses
    assert (401, "unauthenticated") == guess("192.0.2.2", "192.0.2.9"), "the client is counted, not the proxy"


def test_processes_of_a_service_count_wrong_keys_together(run, serve):
    assert 0 == run("keys", "create", "shop", "--scope", "read").returncode
    (_, one), (running, two) = serve(), serve()

    def guess(client):
        return client.get(f"{JOBS}/a", headers=bearer("duly_x_wrong")).status_code

    assert 429 in [guess(one) for _ in range(3 * WRONG_BURST)]
    # A process tells of what it counted once a second, and learns then what others have.
    sent, began_s = [], time.monotonic()

    def refused():
        if time.monotonic() - began_s > len(sent) / 4:
            sent.append(guess(two))
        return 429 in sent

    running.until(refused, "the first wrong keys count here, too")
    assert len(sent) < WRONG_BURST / 2, "by its own count it would let more through"


@pytest.mark.parametrize(("host", "said"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_service_that_other_machines_reach_requires_keys_without_remembering_them(run, serve, host, said):
    assert 0 == run("keys", "create", "shop", "--scope", "read").returncode
    running, client = serve("--host", host)
    client.base_url = str(client.base_url).replace("0.0.0.0", "127.0.0.1")
    assert 200 == client.get("/healthz").status_code
    assert said == ("only --require-keys" in running.said())


def test_a_service_without_a_lasting_memory_says_so(serve):
    running, client = serve()
    assert (404, "job-not-found") == problem_of(client.get(f"{JOBS}/a"))
    running.until(lambda: "only --require-keys" in running.said(), "the warning")
    [line] = [line for line in running.said().splitlines() if "only --require-keys" in line]
    assert " WARNING " in line


ALLOW = """
import logging, resource, sys
from duly.http.serve import allow_files
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, (256, int(sys.argv[1])))
allow_files(500)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("hard", "soft", "said"), [(4096, 650, ""), (400, 400, "raise `ulimit -n`")])
def test_the_limit_of_open_files_is_raised_to_what_connections_need(hard, soft, said):
    told = subprocess.run(
        [sys.executable, "-c", ALLOW, str(hard)], capture_output=True, text=True, timeout=60, check=True
    )
    assert str(soft) == told.stdout.strip()
    assert said in told.stderr
