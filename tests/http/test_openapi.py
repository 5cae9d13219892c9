"""
The description says what the service does: fuzzed against it, and checked in.
"""

from __future__ import annotations

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
    with Served(Duly(valkey.url, namespace="schemathesis"), ServiceSettings(max_wait_s=0.05)) as served:
        yield served


schema = schemathesis.openapi.from_dict(document(OPERATIONS))


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
def test_whatever_is_sent_the_answer_is_as_described(case, served):
    case.call_and_validate(base_url=served.url, timeout=30)
