"""
The description says what the service does: fuzzed against it, and checked in.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from duly import Duly
from duly.durations import parse_duration
from duly.http import access
from duly.http.api import OPERATIONS
from duly.http.openapi import document
from duly.http.settings import ServiceSettings
from tests.http.service import Served

SECRET = "a-secret-of-the-fuzzer"
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
    *(
        {
            "include-operation-id": name,
            "checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "404", "409", "412"]}},
        }
        for name in ("createJob", "getJob", "rescheduleJob", "cancelJob", "requeueJob")
    ),
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
        # What is a host, a port and a path no pattern says.
        for name in ("callback", "url"):
            if job.get(name):
                job[name] = "https://example.com:8443/hook"
        # A cursor comes from an answer.
        job.pop("cursor", None)
        # A callback waits in a lane of its own and has no priority beside it.
        if job.get("callback"):
            job.pop("priority", None)
        backoff = job.get("backoff")
        if backoff and backoff["kind"] == "exponential":
            backoff["cap"] = max(backoff.get("cap", 300), backoff.get("base", 2), key=parse_duration)
    # A lease in text has the bounds of one in seconds.
    if isinstance(case.body, dict) and isinstance(case.body.get("lease"), str):
        case.body["lease"] = "90s"


def prepare(case):
    if case.meta.generation.mode.is_positive:
        make_true(case)
    if str((case.headers or {}).get("Duly-Age", "")).isdigit():
        case.headers["Duly-Age"] = "0"  # what is older than the queue is 503, and rightly so


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_whatever_is_sent_the_answer_is_as_described(case, served):
    prepare(case)
    case.call_and_validate(base_url=served.url, timeout=30)


#: What needs no key.
OPEN = frozenset(operation.name for operation in OPERATIONS if operation.scope is None)


@pytest.fixture(scope="module")
def locked(valkey):
    """
    A service that requires keys, and one of them; it bears any number of wrong ones.
    """
    settings = ServiceSettings(max_wait_s=0.05, max_stream_s=0.05, require_keys=True)
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(access, "WRONG_BURST", 1_000_000)
        with pytest.MonkeyPatch.context() as patch:  # not for the service without keys
            patch.setenv("DULY_API_KEYS", f"fuzz:{SECRET}:admin")
            app = Duly(valkey.url, namespace="schemathesis-locked")
            served = stack.enter_context(Served(app, settings))
        yield served.url


@schema.parametrize()
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_with_a_key_it_is_as_well_and_without_it_nobody_is_let_in(case, locked):
    prepare(case)
    if case.meta.generation.mode.is_positive and case.operation.definition.raw["operationId"] not in OPEN:
        assert 401 == case.call(base_url=locked, timeout=30).status_code
    case.call_and_validate(base_url=locked, timeout=30, headers={"Authorization": f"Bearer {SECRET}"})


#: What makes a job, and where its links lead.
LINKED = ("createJob", "getJob", "getResult", "rescheduleJob", "cancelJob", "requeueJob")

linked = schemathesis.openapi.from_dict(
    document([operation for operation in OPERATIONS if operation.name in LINKED]),
    config=schemathesis.Config.from_dict({"operations": RIGHT}),
)


@pytest.mark.long
def test_calls_that_links_lead_to_are_answered_as_described(served):
    answered = set()

    class Steps(linked.as_state_machine()):
        def before_call(self, case):
            prepare(case)
            # Of the job that a link leads to: a tag of chance is never its tag.
            for name in ("If-Match", "If-None-Match"):
                case.headers.pop(name, None)

        def get_call_kwargs(self, _case):
            return {"base_url": served.url, "timeout": 30}

        def after_call(self, response, case):
            name = case.operation.definition.raw["operationId"]
            answered.add((name, response.status_code))

    bounds = settings(
        max_examples=20,
        stateful_step_count=6,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    Steps.run(settings=bounds)
    assert {("createJob", 202), ("getJob", 200), ("rescheduleJob", 200), ("cancelJob", 200)} <= answered


def parts(schema):
    """
    Yield a schema and all that are in it.
    """
    if isinstance(schema, dict):
        yield schema
        for each in schema.values():
            yield from parts(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from parts(each)


def test_no_field_has_a_default_that_makes_it_required():
    for name, schema in document(OPERATIONS)["components"]["schemas"].items():
        fields = schema.get("properties", {})
        assert {} == {field: said for field, said in fields.items() if "default" in said}, name


def test_every_enum_has_a_type_and_every_time_a_format():
    schemas = document(OPERATIONS)["components"]["schemas"]
    assert [] == [each for each in parts(schemas) if "enum" in each and "type" not in each]
    for name, schema in schemas.items():
        for field, said in schema.get("properties", {}).items():
            texts = [each for each in (said, *said.get("anyOf", ())) if each.get("type") == "string"]
            if field.endswith(("_at", "_until")) or field in ("expires", "scheduled_for", "at"):
                assert {"date-time"} == {each.get("format") for each in texts}, (name, field)
            if field == "state" and not name.startswith("Quarantined"):
                assert all("enum" in each for each in texts), (name, field)


def test_links_lead_to_operations_with_parameters_of_these_names():
    described = document(OPERATIONS)
    by_name = {each.name: each for each in OPERATIONS}
    answers = described["paths"]["/v1/topics/{topic}/jobs"]["post"]["responses"]
    for name, link in (answers["202"]["links"] | answers["200"]["links"]).items():
        places = {each.name for each in by_name[link["operationId"]].parameters if each.place == "path"}
        assert (name, places) == (link["operationId"], set(link["parameters"]))


def test_lines_of_json_are_typed():
    batch = document(OPERATIONS)["paths"]["/v1/topics/{topic}/jobs:batch"]["post"]
    lines = batch["responses"]["202"]["content"]["application/x-ndjson"]["schema"]["contentSchema"]
    assert {"$ref": "#/components/schemas/BatchLine"} == lines["items"]
    sent = batch["requestBody"]["content"]
    as_array = sent["application/json"]["schema"]
    assert as_array == sent["application/x-ndjson"]["schema"]["contentSchema"]
