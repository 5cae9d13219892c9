"""
The description says what the service does: fuzzed against it, and checked in.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from duly import Duly
from duly.http.api import OPERATIONS
from duly.http.openapi import document
from duly.http.settings import ServiceSettings
from tests.http.service import Served

CHECKED_IN = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"


def test_the_description_is_checked_in():
    made = msgspec.json.format(msgspec.json.encode(document(OPERATIONS)), indent=2).decode() + "\n"
    assert made == CHECKED_IN.read_text("utf-8"), "python -m tests.http.openapi writes it"


def test_every_operation_has_a_name_of_its_own():
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))


@pytest.fixture(scope="module")
def served(valkey):
    with Served(
        Duly(valkey.url, namespace="schemathesis"), ServiceSettings(max_wait_s=0.05, max_stream_s=0.05)
    ) as served:
        yield served


#: Where the service is right, and a check cannot know.
RIGHT = [
    # A wrong job of a batch has a line of the answer that says so, and keeps no other from being stored.
    {"include-operation-id": "createJobs", "checks": {"negative_data_rejection": {"enabled": False}}},
    # Only a job knows its ETag, and how it ended.
    {
        "include-operation-id": "rescheduleJob",
        "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "412"]}},
    },
    {
        "include-operation-id": "getResult",
        "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "410", "424"]}},
    },
]

schema = schemathesis.openapi.from_dict(
    document(OPERATIONS), config=schemathesis.Config.from_dict({"operations": RIGHT})
)


@schemathesis.serializer("application/x-ndjson")
def as_it_is(_ctx, text):
    return text if isinstance(text, bytes) else str(text).encode()


keys = itertools.count()


def make_true(case):
    """
    Mend, in a request that fits its schema, what no schema can say.
    """
    # A cursor comes from a page.
    case.query.pop("cursor", None)
    if "Idempotency-Key" in case.headers:
        # Each key stands for one request, and an id may be another request's.
        case.headers["Idempotency-Key"] = f"key {next(keys)}"
        if isinstance(case.body, dict):
            case.body.pop("id", None)
    for job in case.body if isinstance(case.body, list) else [case.body]:
        if not isinstance(job, dict):
            continue
        # 3.0 is a whole number in a schema, and a float to those who read JSON into types.
        for name in ("max_attempts", "max_crashes"):
            if job.get(name):
                job[name] = int(job[name])
        # All labels of a host together have a bound, too.
        if len(job.get("callback") or "") > 200:
            job["callback"] = None
        # A callback waits in a lane of its own and has no priority beside it.
        if job.get("callback"):
            job.pop("priority", None)
        backoff = job.get("backoff")
        if backoff and backoff["kind"] == "exponential":
            backoff["cap"] = max(backoff.get("cap", 300), backoff.get("base", 2))


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_whatever_is_sent_the_answer_is_as_described(case, served):
    if case.meta.generation.mode.is_positive:
        make_true(case)
    case.call_and_validate(base_url=served.url, timeout=30)
