"""
A job as it is told to programs.
"""

from __future__ import annotations

import pytest

from duly.codec import Envelope
from duly.documents import EndedJob, JobDocument, error_line, job_document
from duly.http import AsyncJob
from duly.http.documents import JobView
from duly.http.handing import LeasedJob
from duly.http.replies import EndedView
from duly.job import Job, JobState
from duly.options import TOLD


def job(state, **changes):
    fields = {
        "topic": "mail",
        "id": "a",
        "state": state,
        "revision": 7,
        "priority": "normal",
        "attempts": 1,
        "crashes": 0,
        "payload": b'{"to":"Ada"}',
        "due_ms": 1_800_000_000_000,
    }
    return Job(**fields | changes)


TIMES = {"due_at", "scheduled_for", "created_at", "updated_at"}


@pytest.mark.parametrize("document", [JobDocument, EndedJob, JobView, EndedView, LeasedJob, AsyncJob])
def test_every_document_has_the_times_and_the_options_of_a_job(document):
    # Callers of an endpoint are not told what travels with the job, nor who else hears of its end.
    private = {"context", "reply_to"} if document is AsyncJob else set()
    expected = TIMES | {option.name for option in TOLD} - private
    assert not expected - set(document.__struct_fields__)


def test_times_are_in_utc_and_what_does_not_apply_is_null():
    document = job_document(job(JobState.scheduled, lease_ms=5, expires_ms=1_800_000_000_001))
    assert "2027-01-15T08:00:00.000Z" == document.due_at
    assert "2027-01-15T08:00:00.001Z" == document.expires
    assert [None] * 6 == [
        document.started_at,
        document.finished_at,
        document.lease_until,
        document.worker,
        document.ttr,
        document.context,
    ]
    assert {"to": "Ada"} == document.payload


def test_an_outcome_is_a_result_or_an_error():
    done = job_document(job(JobState.succeeded, outcome=b'{"type":"fine"}'))
    assert ({"type": "fine"}, None) == (done.result, done.error)
    retried = job(JobState.scheduled, outcome=b'{"type":"OSError","message":"no"}')
    assert (None, {"type": "OSError", "message": "no"}) == (
        job_document(retried).result,
        job_document(retried).error,
    )
    assert "OSError: no" == error_line(retried)
    assert "cancelled" == error_line(job(JobState.cancelled, outcome=b'{"type":"cancelled"}'))
    assert "" == error_line(job(JobState.ready))


def test_what_is_no_json_is_shown_all_the_same():
    document = job_document(job(JobState.dead, payload=b"\xffoops", outcome=b"also not"))
    assert (None, "\\xffoops") == (document.payload, document.unreadable)
    assert {"type": "unknown", "message": "None"} == document.error


def test_what_travels_with_a_job_is_shown():
    document = job_document(
        job(JobState.ready, envelope=Envelope(max_attempts=8, context={"tenant": "acme"}), ttr_ms=500)
    )
    assert (8, {"tenant": "acme"}, 0.5) == (document.max_attempts, document.context, document.ttr)
