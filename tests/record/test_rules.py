"""
The rules by which record and queue are compared, case by case.
"""

from __future__ import annotations

import pytest

from duly.job import JobState
from duly.record.rules import REPAIRS, Difference, Promised, Queued, judge

ROW = Promised(revision=7, ended=False, due_ms=1_000, body=b"body")
JOB = Queued(revision=7, state=JobState.scheduled, due_ms=1_000, body=b"body")
OPEN = [JobState.scheduled, JobState.ready, JobState.running]
ENDED = [JobState.succeeded, JobState.dead, JobState.cancelled]


def test_what_both_say_alike_is_no_difference():
    assert judge(ROW, JOB) is None
    assert judge(None, None) is None


def test_what_was_promised_and_is_not_there_is_missing():
    assert Difference.missing is judge(ROW, None)


def test_what_has_ended_need_not_be_there():
    assert judge(ROW._replace(ended=True), None) is None


@pytest.mark.parametrize(
    "job", [None, JOB._replace(revision=6), JOB._replace(revision=6, state=JobState.running)]
)
@pytest.mark.parametrize("ended", [False, True])
def test_what_the_relay_will_take_there_is_left_to_it(job, ended):
    assert judge(ROW._replace(on_its_way=True, ended=ended), job) is None


@pytest.mark.parametrize("state", OPEN)
@pytest.mark.parametrize("revision", [6, 7])
def test_what_has_ended_and_still_waits_is_finished(state, revision):
    row = ROW._replace(ended=True)
    assert Difference.finished is judge(row, JOB._replace(state=state, revision=revision))


@pytest.mark.parametrize("state", ENDED)
def test_what_ended_on_both_sides_is_no_difference(state):
    assert judge(ROW._replace(ended=True), JOB._replace(state=state)) is None


@pytest.mark.parametrize("state", ENDED)
def test_an_end_that_the_record_has_not_heard_of_is_unrecorded(state):
    assert Difference.unrecorded is judge(ROW, JOB._replace(state=state))


@pytest.mark.parametrize("state", [*OPEN, *ENDED])
def test_an_older_revision_is_behind_in_whatever_state(state):
    assert Difference.behind is judge(ROW, JOB._replace(revision=6, state=state))


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("on_its_way", [False, True])
@pytest.mark.parametrize("state", [*OPEN, *ENDED])
def test_a_newer_revision_is_ahead_and_never_overwritten(ended, on_its_way, state):
    row = ROW._replace(ended=ended, on_its_way=on_its_way)
    assert Difference.ahead is judge(row, JOB._replace(revision=8, state=state))


@pytest.mark.parametrize("state", OPEN)
def test_what_nobody_promised_is_an_orphan(state):
    assert Difference.orphan is judge(None, JOB._replace(state=state))


@pytest.mark.parametrize("state", ENDED)
def test_what_ended_and_is_not_in_the_record_is_past(state):
    assert judge(None, JOB._replace(state=state)) is None


def test_another_time_is_a_difference():
    assert Difference.due is judge(ROW, JOB._replace(due_ms=1_001))


def test_a_retry_has_a_time_of_its_own():
    assert judge(ROW, JOB._replace(due_ms=5_000, began=True)) is None


def test_what_is_due_has_no_time_to_differ_in():
    assert judge(ROW, JOB._replace(state=JobState.ready, due_ms=999)) is None


def test_what_runs_is_not_put_back():
    assert judge(ROW, JOB._replace(state=JobState.running, due_ms=999, body=b"other")) is None


@pytest.mark.parametrize("state", [JobState.scheduled, JobState.ready])
def test_another_payload_is_a_difference_before_another_time(state):
    assert Difference.payload is judge(ROW, JOB._replace(state=state, body=b"other", due_ms=1_001))


def test_something_is_done_about_every_difference():
    assert set(Difference) == set(REPAIRS)
