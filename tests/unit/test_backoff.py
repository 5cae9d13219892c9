import logging
import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.backoff import (
    DEFAULT,
    Exponential,
    Fixed,
    Intervals,
    check_backoff,
    delay_ms,
    from_wire,
    to_wire,
)
from duly.errors import UsageError

NO_JITTER = Exponential(base=2, cap=300, jitter=0)


def always(share: float):
    return lambda: share


def test_fixed_waits_the_same_every_time():
    assert [2_500, 2_500, 2_500] == [delay_ms(Fixed(2.5), attempt) for attempt in (1, 2, 99)]


def test_exponential_doubles_up_to_its_cap():
    waits = [delay_ms(NO_JITTER, attempt) for attempt in range(1, 11)]
    assert [2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000] == waits


def test_intervals_repeat_the_last():
    backoff = Intervals([10, timedelta(minutes=1), 300])
    assert [10_000, 60_000, 300_000, 300_000] == [delay_ms(backoff, attempt) for attempt in (1, 2, 3, 1_000)]


@pytest.mark.parametrize("factor", [1, 2, 2.0, 1_000])
def test_an_attempt_beyond_all_numbers_waits_for_the_cap(factor):
    backoff = Exponential(base=1, cap=300, factor=factor, jitter=0)
    assert (1_000 if factor == 1 else 300_000) == delay_ms(backoff, 100_000)


@given(
    base=st.floats(0, 1_000),
    factor=st.floats(1, 10),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 2_000),
    share=st.floats(0, 1, exclude_max=True),
)
def test_jitter_only_adds_and_no_more_than_its_share(base, factor, jitter, attempt, share):
    asked = delay_ms(Exponential(base, 3_600, factor, 0), attempt)
    waited = delay_ms(Exponential(base, 3_600, factor, jitter), attempt, always(share))
    assert asked <= waited <= asked * (1 + jitter)


@given(base=st.integers(1, 100), attempt=st.integers(1, 12))
def test_exponential_is_never_early(base, attempt):
    assert min(base * 2 ** (attempt - 1), 3_600) * 1_000 <= delay_ms(Exponential(base, 3_600), attempt)


def test_a_callable_is_asked_with_the_attempt():
    assert 7_000 == delay_ms(lambda attempt: attempt + 4.0, 3)
    assert 3_000 == delay_ms(lambda attempt: timedelta(seconds=attempt), 3)


def raises(attempt):
    raise RuntimeError("no")


@pytest.mark.parametrize(
    "broken",
    [
        raises,
        lambda attempt: -1,
        lambda attempt: math.nan,
        lambda attempt: math.inf,
        lambda attempt: "soon",
        lambda attempt: None,
        lambda: 1,
    ],
)
def test_a_callable_that_answers_nonsense_is_replaced_by_the_default_and_reported(broken, caplog):
    with caplog.at_level(logging.WARNING, "duly.backoff"):
        assert 8_000 == delay_ms(broken, 3, always(0))
    [line] = caplog.messages
    assert broken.__qualname__ in line


@pytest.mark.parametrize("backoff", [Fixed(2.5), DEFAULT, Intervals([1, 0.5]), Exponential(1, 10, 3.0, 0.5)])
def test_a_backoff_survives_the_wire(backoff):
    assert backoff == from_wire(to_wire(backoff))


@given(
    st.one_of(
        st.builds(Fixed, st.floats(0, 1e6)),
        st.builds(Exponential, st.floats(0, 100), st.floats(100, 1e6), st.floats(1, 9), st.floats(0, 1)),
        st.builds(Intervals, st.lists(st.floats(0, 1e6), min_size=1, max_size=9)),
    ),
    st.integers(1, 40),
)
def test_a_backoff_waits_the_same_on_both_sides_of_the_wire(backoff, attempt):
    assert delay_ms(backoff, attempt, always(0.5)) == delay_ms(
        from_wire(to_wire(backoff)), attempt, always(0.5)
    )


def test_the_wire_form_is_json_words():
    expected = {"kind": "exponential", "base": 2, "cap": 300, "factor": 2.0, "jitter": 0.1}
    assert expected == to_wire(DEFAULT)
    assert {"kind": "fixed", "delay": 90} == to_wire(Fixed(timedelta(minutes=1.5)))
    assert {"kind": "intervals", "delays": [10, 60]} == to_wire(Intervals([10, 60]))


def test_a_callable_cannot_travel_with_a_job():
    with pytest.raises(UsageError, match="put it on the handler"):
        to_wire(lambda attempt: 1)


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"kind": "linear"},
        {"kind": ["fixed"]},
        {"kind": "fixed"},
        {"kind": "fixed", "delay": 1, "more": 2},
        {"kind": "fixed", "delay": "soon"},
        {"kind": "intervals", "delays": []},
        [],
        None,
    ],
)
def test_words_that_describe_no_backoff_are_refused(words):
    with pytest.raises(UsageError):
        from_wire(words)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fixed(-1),
        lambda: Fixed("soon"),
        lambda: Exponential(base=-1),
        lambda: Exponential(base=10, cap=5),
        lambda: Exponential(factor=0.5),
        lambda: Exponential(factor=math.nan),
        lambda: Exponential(jitter=-0.1),
        lambda: Exponential(jitter=1.5),
        lambda: Intervals([]),
        lambda: Intervals("10"),
        lambda: Intervals(5),
        lambda: Intervals([1, -1]),
        lambda: Fixed(10**12),
    ],
)
def test_a_backoff_that_makes_no_sense_is_refused(make):
    with pytest.raises(UsageError):
        make()


def test_equal_waits_make_equal_backoffs():
    assert Fixed(60) == Fixed(timedelta(minutes=1)) == Fixed(60.0) == Fixed("1m")
    assert Exponential(2, 300) == Exponential("2s", "5m")
    assert Intervals([1, 90]) == Intervals(["1s", "1m30s"])
    assert 1 == len({Intervals([1, 2]), Intervals((1, timedelta(seconds=2)))})


@pytest.mark.parametrize("wrong", [5, "exponential", None, Fixed])
def test_what_is_no_backoff_is_refused(wrong):
    with pytest.raises(UsageError, match="backoff must be"):
        check_backoff(wrong)
