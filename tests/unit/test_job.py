import zlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.errors import UsageError
from duly.job import (
    ID,
    TOPIC,
    Job,
    JobKey,
    JobState,
    Lane,
    Lease,
    Placed,
    check_id,
    check_topic,
    moment,
    shard_of,
)

topics = st.from_regex(TOPIC, fullmatch=True)
ids = st.from_regex(ID, fullmatch=True).filter(lambda text: text not in (".", ".."))


@given(topics, ids)
def test_a_member_can_be_taken_apart_again(topic, id_):
    key = JobKey(check_topic(topic), check_id(id_))
    assert key == JobKey.of(key.member)
    assert key == JobKey.of(key.member.encode())


@pytest.mark.parametrize("topic", ["a", "0", "payment.check", "A_b-c.9", "x" * 100])
def test_valid_topics_are_returned(topic):
    assert topic == check_topic(topic)


@pytest.mark.parametrize(
    "topic", ["", ".a", "-a", "_a", "a/b", "a b", "a:b", "ä", "a\n", "x" * 101, None, 5, b"a"]
)
def test_invalid_topics_are_refused(topic):
    with pytest.raises(UsageError, match="invalid topic"):
        check_topic(topic)


@pytest.mark.parametrize("id_", ["a", "...", "p-1", "a@b.c", "k=v+1~x:y", "x" * 200])
def test_valid_ids_are_returned(id_):
    assert id_ == check_id(id_)


@pytest.mark.parametrize("id_", ["", ".", "..", "a/b", "a b", "a\n", "ä", "a\0", "x" * 201, None, 5, b"a"])
def test_invalid_ids_are_refused(id_):
    with pytest.raises(UsageError, match="invalid job id"):
        check_id(id_)


@given(topics, ids, st.integers(1, 256))
def test_the_same_job_always_falls_on_the_same_shard(topic, id_, shards):
    shard = shard_of(topic, id_, shards)
    assert 0 <= shard < shards
    assert zlib.crc32(topic.encode() + b"\0" + id_.encode()) % shards == shard


def test_ids_spread_over_all_shards():
    assert set(range(16)) == {shard_of("mail", f"m-{number}", 16) for number in range(1_000)}


def test_only_three_states_are_final():
    assert ["succeeded", "dead", "cancelled"] == [state.name for state in JobState if state.ended]


def test_a_moment_is_exact_up_to_the_last_one():
    assert datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) == moment(253_402_300_799_999)


def test_zero_and_none_are_no_moments():
    assert (None, None) == (moment(0), moment(None))
    assert datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC) == moment(1_500)


@pytest.mark.parametrize(
    ("created", "word"),
    [(True, "created"), (False, "kept"), (True, "replaced"), (True, "rescheduled"), (True, "requeued")],
)
def test_only_a_kept_job_was_not_created_by_the_call(created, word):
    assert created == Placed(JobKey("a", "b"), word, 1, 1, JobState.ready).created


def lease(token: int) -> Lease:
    return Lease(JobKey("a", "b"), 0, Lane.normal, 1, token, b"\xff\x00", 1, 0, 1, 1, 1, 1, 1, b"")


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_fences_sort_as_their_tokens_do(one, other):
    assert (one < other) == (lease(one).fence[:16] < lease(other).fence[:16])


def test_a_fence_ends_with_the_nonce():
    assert "0000000000000009-ff00" == lease(9).fence


def test_a_job_tells_its_times_as_aware_datetimes():
    job = Job("mail", "m-1", JobState.running, 1, "normal", 1, 0, b"{}", due_ms=1_000, started_ms=2_000)
    assert JobKey("mail", "m-1") == job.key
    assert (moment(1_000), moment(2_000), None) == (job.due_at, job.started_at, job.finished_at)


@pytest.mark.parametrize("topic", ["duly.canary", "duly.callbacks", "duly.x"])
def test_topics_of_dulys_own_are_refused_to_users(topic):
    for what in ("topic", "reply queue"):
        with pytest.raises(UsageError, match="duly's own"):
            check_topic(topic, what)
    assert "duly" == check_topic("duly")
