"""
`duly serve` and `duly keys` as processes, from the first line they say to the code they end with.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import pytest

from duly import Duly
from duly.errors import JobNotFound
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
def queue(valkey, namespace):
    return {"DULY_URL": valkey.url, "DULY_NAMESPACE": namespace}


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

    done = run("keys", "revoke", "shop", "--json")
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
    # Another key stays, so that the last one gone does not open the service to all.
    run("keys", "create", "other", "--scope", "admin")
    run("keys", "revoke", "shop")
    running.until(
        lambda: 401 == client.get(f"{JOBS}/a", headers=bearer(made.key)).status_code, "the key is refused"
    )
