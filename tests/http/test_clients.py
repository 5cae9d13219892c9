"""
Clients that others' generators make of the OpenAPI document as it is served, used against the service.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from duly.apikeys import KeyRing
from tests.tools import tool

HERE = Path(__file__).parent / "clients"
NODE = Path(sys.prefix) / "clients"
STRICT = ("--strict", "--skipLibCheck", "--target", "es2022", "--module", "nodenext")


@pytest.fixture
async def key(app):
    async with app:
        return (await KeyRing(await app.store()).create("shop", ["admin"]))[0]


@pytest.fixture
async def document(key, url, tmp_path):
    """
    Fetch the document that the service serves.
    """
    del key  # made before the service, which looks at keys now and then
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/openapi.json")
    path = tmp_path / "openapi.json"
    path.write_bytes(answer.content)
    return path


async def run(*command, cwd):
    """
    Run a program, and return what it printed.
    """
    process = await asyncio.create_subprocess_exec(
        *map(str, command), cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert 0 == process.returncode, said.decode()
    return said.decode()


async def test_a_client_of_openapi_python_client_works(url, key, document, tmp_path, monkeypatch):
    program = Path(sys.prefix) / "bin" / "openapi-python-client"
    made = ("--path", document, "--output-path", tmp_path / "queue_client", "--meta", "none")
    said = await run(program, "generate", *made, cwd=tmp_path)
    # It has no name for lines, so that they come as bytes: that is all it does not know what to do with.
    warnings = [
        line for line in said.splitlines() if "unsupported" in line.lower() or "cannot" in line.lower()
    ]
    assert all("application/x-ndjson" in line for line in warnings), said
    monkeypatch.syspath_prepend(tmp_path)
    client = importlib.import_module("queue_client").AuthenticatedClient(base_url=url, token=key)
    models = importlib.import_module("queue_client.models")

    def call(name):
        return importlib.import_module(f"queue_client.api.default.{name}")

    async with client:
        high = models.JobRequestPriority.HIGH
        wanted = models.JobRequest(id="py", delay=60, payload={"n": 1}, priority=high)
        sent = await call("create_job").asyncio("mail", client=client, body=wanted)
        found = await call("get_job").asyncio("mail", sent.id, client=client)
        assert isinstance(found, models.JobView)
        assert (models.JobViewState.SCHEDULED, models.JobViewPriority.HIGH) == (found.state, found.priority)
        assert datetime.now(UTC) < found.due_at
        lines = await call("create_jobs").asyncio_detailed(
            "mail", client=client, body=[models.JobRequest(id="b1"), models.JobRequest(id="b2")]
        )
        told = [models.BatchLine.from_dict(json.loads(line)) for line in lines.content.splitlines()]
        assert [("b1", "created"), ("b2", "created")] == [(each.id, each.outcome.value) for each in told]
        moved = await call("reschedule_job").asyncio(
            "mail",
            "py",
            client=client,
            body=models.Reschedule(due_at=datetime(2036, 1, 31, 9, tzinfo=UTC)),
        )
        assert datetime(2036, 1, 31, 9, tzinfo=UTC) == moved.due_at
        missing = await call("cancel_job").asyncio("mail", "nobody", client=client)
        assert isinstance(missing, models.Problem)
        assert 404 == missing.status


async def test_a_client_of_openapi_typescript_works(url, key, document, tmp_path):
    node = tool("node")
    if not (NODE / "installed.json").exists():
        text = "no openapi-typescript here: make clients"
        pytest.fail(text) if os.environ.get("CI") else pytest.skip(text)
    modules = tmp_path / "node_modules"
    modules.symlink_to(NODE / "node_modules")
    for name in ("package.json", "use.ts"):
        shutil.copy(HERE / name, tmp_path)
    await run(
        node,
        modules / "openapi-typescript/bin/cli.js",
        document,
        "-o",
        tmp_path / "schema.d.ts",
        cwd=tmp_path,
    )
    await run(node, modules / "typescript/bin/tsc", *STRICT, "use.ts", cwd=tmp_path)
    assert {
        "state": "scheduled",
        "due": True,
        "context": {"tenant": "acme"},
        "lines": [["b1", "created"], ["b2", "created"]],
        "problem": "urn:duly:problem:job-not-found",
    } == json.loads(await run(node, "use.js", url, key, cwd=tmp_path))
