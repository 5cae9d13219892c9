"""
Pauses between tries.
"""

from __future__ import annotations

from duly.pauses import Pauses


def test_they_grow_up_to_the_longest_and_begin_anew_when_it_works():
    pauses = Pauses(1.0, 6.0)
    for most in (1, 2, 4, 6, 6):
        assert most == pauses.next_s
        assert most / 2 <= pauses.take() <= most
    pauses.reset()
    assert 1 == pauses.next_s


def test_no_two_wait_the_same():
    assert 100 == len({Pauses().take() for _ in range(100)})
