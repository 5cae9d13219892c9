import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.backoff import Fixed
from duly.codec import decode, encode
from duly.errors import UsageError
from duly.outcome import Ack, Buried, Bury, Raised, Retry, RetryLater, Snooze, Unstorable, outcome_of

TWO_SECONDS = Fixed(2)
BOOM = ValueError("boom 42")


def decided(answer, *, attempt=1, max_attempts=3, backoff=TWO_SECONDS, limit=100, traceback=False):
    return outcome_of(
        answer,
        attempt=attempt,
        max_attempts=max_attempts,
        backoff=backoff,
        encode_result=lambda value: encode(value, what="result", limit=limit),
        traceback=traceback,
    )


def raised_over(ending, cause=None):
    """
    What comes out of a handler that catches one exception and raises another.
    """
    try:
        try:
            raise BOOM
        except ValueError:
            if cause is None:
                raise ending  # noqa: B904
            raise ending from cause
    except Exception as error:  # noqa: BLE001
        return Raised(error)


@pytest.mark.parametrize(
    ("result", "value"), [(b"null", None), (b'{"a":1}', {"a": 1}), (b"0", 0), (b"[]", ())]
)
def test_a_value_succeeds(result, value):
    assert Ack(result) == decided(value)


def test_an_exception_is_retried_after_the_backoff():
    later = decided(Raised(BOOM))
    assert (
        RetryLater(2_000, b'{"type":"ValueError","message":"boom 42"}', "ValueError: boom #", counted=True)
        == later
    )


def test_the_last_failure_buries_the_job():
    assert isinstance(decided(Raised(BOOM), attempt=2, max_attempts=3), RetryLater)
    expected = Buried(b'{"type":"ValueError","message":"boom 42"}', "ValueError: boom #")
    assert expected == decided(Raised(BOOM), attempt=3, max_attempts=3)
    assert expected == decided(Raised(BOOM), attempt=4, max_attempts=3)


def test_without_a_backoff_the_default_is_used():
    assert 2_000 <= decided(Raised(BOOM), backoff=None).delay_ms <= 2_200


@pytest.mark.parametrize("wrap", [lambda ending: ending, Raised])
def test_planned_endings_mean_the_same_returned_and_raised(wrap):
    later = decided(wrap(Retry(delay=timedelta(minutes=1), reason="busy")))
    assert RetryLater(60_000, b'{"type":"retry","message":"busy"}', "retry: busy", counted=True) == later
    snoozed = decided(wrap(Snooze(1.5)))
    assert RetryLater(1_500, b'{"type":"snoozed","message":""}', "snoozed", counted=False) == snoozed
    buried = decided(wrap(Bury("no such card")))
    assert Buried(b'{"type":"buried","message":"no such card"}', "buried: no such card") == buried


def test_retry_without_a_delay_waits_for_the_backoff():
    assert 2_000 == decided(Retry()).delay_ms
    assert 0 == decided(Retry(delay=0)).delay_ms


def test_retry_counts_and_ends_with_the_attempts():
    assert Buried(b'{"type":"retry","message":"busy"}', "retry: busy") == decided(
        Retry(reason="busy"), attempt=3, max_attempts=3
    )


def test_snooze_never_counts():
    assert isinstance(decided(Snooze(1), attempt=99, max_attempts=3), RetryLater)


@pytest.mark.parametrize("delay", [0, -1, "0s", "soon", timedelta(0)])
def test_a_snooze_of_no_time_is_refused_since_it_would_run_without_end(delay):
    with pytest.raises(UsageError):
        Snooze(delay)


@pytest.mark.parametrize(
    "unstorable", [object(), "x" * 200, float("nan"), ValueError("returned, not raised")]
)
def test_a_result_that_cannot_be_stored_buries_the_job(unstorable):
    dead = decided(unstorable)
    assert isinstance(dead, Buried)
    assert "result" in decode(dead.error)["message"]
    assert dead == decided(Raised(Unstorable(UsageError(decode(dead.error)["message"]))))


@pytest.mark.parametrize(("error", "becomes"), [(KeyError, Buried), (KeyboardInterrupt, RetryLater)])
def test_any_error_of_the_encoder_buries_the_job_unless_it_is_none_of_its_own(error, becomes):
    def broken(value):
        raise error

    outcome = outcome_of(1, attempt=1, max_attempts=2, backoff=Fixed(1), encode_result=broken)
    assert (becomes, error.__name__) == (type(outcome), outcome.signature)


@pytest.mark.parametrize("ending", [Retry(), Bury(), Snooze(1)])
def test_an_ending_without_a_reason_tells_the_exception_it_was_raised_over(ending):
    assert "ValueError: boom #" == decided(raised_over(ending)).signature
    ending.__context__ = None


def test_an_ending_tells_its_reason_first_and_its_cause_second():
    assert "retry: busy" == decided(raised_over(Retry(reason="busy"))).signature
    assert "KeyError: 'k'" == decided(raised_over(Bury(), cause=KeyError("k"))).signature


def test_tracebacks_are_kept_only_when_asked_for():
    assert "traceback" not in decode(decided(Raised(BOOM)).error)
    assert "boom" in decode(decided(Raised(BOOM), traceback=True).error)["traceback"]


@pytest.mark.parametrize(
    "ending", [Retry(5, "why"), Retry(reason="x"), Retry(), Snooze(delay=3), Bury(reason="r"), Bury()]
)
def test_planned_endings_survive_the_way_out_of_a_process(ending):
    copy = pickle.loads(pickle.dumps(Raised(ending)))  # noqa: S301
    assert Raised(ending) == copy
    assert decided(Raised(ending)) == decided(copy)


def test_planned_endings_compare_by_value():
    assert Retry(60, "a") == Retry(timedelta(minutes=1), "a")
    assert Retry(60) != Retry(61)
    assert Snooze(5) == Snooze(5.0)
    assert Bury("a") != Bury("b")
    assert Bury("5") != Snooze(5)
    assert 1 == len({Snooze(5), Snooze(timedelta(seconds=5))})


def test_planned_endings_can_pass_through_a_context_manager():
    from contextlib import contextmanager

    @contextmanager
    def around():
        yield

    with pytest.raises(Snooze) as told, around():
        raise Snooze(3)
    assert Snooze(3) == told.value


@given(
    attempt=st.integers(1, 50),
    max_attempts=st.integers(1, 50),
    answer=st.sampled_from(
        [None, 7, object(), Retry(), Retry(3), Snooze(3), Bury(), Raised(BOOM), Raised(Snooze(1))]
    ),
)
def test_every_answer_has_exactly_one_outcome_and_attempts_are_bounded(attempt, max_attempts, answer):
    outcome = decided(answer, attempt=attempt, max_attempts=max_attempts)
    assert isinstance(outcome, Ack | RetryLater | Buried)
    if isinstance(outcome, RetryLater) and outcome.counted:
        assert attempt < max_attempts
        assert outcome.delay_ms >= 0
