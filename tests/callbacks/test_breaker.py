"""
A host that fails is left alone for longer and longer; no other host waits for it.
"""

from __future__ import annotations

import pytest

from duly.callbacks import breaker
from duly.callbacks.breaker import Hosts, PutOff


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def hosts(clock):
    return Hosts(at_once=2, failures=3, pause_s=10, clock=clock)


def go(hosts, name="a", failed=True):
    with hosts.attempt(name) as attempt:
        attempt.failed = failed


def test_after_some_failures_in_a_row_a_host_is_left_alone(hosts, clock):
    for _ in range(3):
        go(hosts)
    with pytest.raises(PutOff) as put_off:
        go(hosts)
    assert 10 <= put_off.value.seconds <= 15
    go(hosts, "b", failed=False)
    clock.now += 10
    go(hosts, failed=False)


def test_a_success_in_between_forgives(hosts):
    for failed in (True, True, False, True, True):
        go(hosts, failed=failed)
    go(hosts)
    with pytest.raises(PutOff):
        go(hosts)


def test_each_failed_trial_makes_the_pause_longer_up_to_a_bound(hosts, clock):
    for _ in range(3):
        go(hosts)
    lengths = []
    for _ in range(8):
        lengths.append(hosts.paused_s("a"))
        clock.now += lengths[-1]
        go(hosts)
    assert [10, 20, 40, 80, 160, 300, 300, 300] == lengths
    clock.now += 300
    go(hosts, failed=False)
    for _ in range(3):
        go(hosts)
    assert 10 == hosts.paused_s("a")


def test_after_a_pause_one_callback_goes_first(hosts, clock):
    for _ in range(3):
        go(hosts)
    clock.now += 10
    with hosts.attempt("a") as first:
        with pytest.raises(PutOff):
            go(hosts)
        first.failed = False
    go(hosts, failed=False)


def test_a_trial_that_says_nothing_leaves_the_next_one_its_chance(hosts, clock):
    for _ in range(3):
        go(hosts)
    clock.now += 10
    go(hosts, failed=None)
    go(hosts, failed=False)
    assert 0 == hosts.paused_s("a")


def test_failures_that_were_under_way_make_no_second_pause(hosts):
    with hosts.attempt("a") as slow:
        for _ in range(3):
            go(hosts)
        slow.failed = True
    assert 10 == hosts.paused_s("a")


def test_a_host_gets_only_so_many_at_once(hosts):
    with hosts.attempt("a"), hosts.attempt("a"):
        with pytest.raises(PutOff):
            go(hosts)
        go(hosts, "b", failed=False)
    go(hosts, failed=False)


def test_an_exception_in_the_block_frees_its_place(hosts):
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), hosts.attempt("a"):
            raise ZeroDivisionError
    go(hosts, failed=False)


def test_hosts_are_not_remembered_without_end(hosts, monkeypatch):
    monkeypatch.setattr(breaker, "HOSTS", 3)
    with hosts.attempt("busy"):
        for number in range(10):
            go(hosts, f"h{number}", failed=False)
        assert {"busy", "h8", "h9"} == set(hosts._hosts)
