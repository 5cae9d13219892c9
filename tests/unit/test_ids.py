import os
import re
import threading
import time

import pytest

from duly import ids
from duly.ids import _Ids, new_id, new_nonce, new_request
from duly.job import check_id


def milliseconds_of(made: str) -> int:
    ms = 0
    for character in made[:8]:
        ms = ms * 62 + ids.ALPHABET.index(character)
    return ms


def test_an_id_is_a_valid_job_id_of_letters_and_digits():
    made = new_id()
    assert re.fullmatch(r"[0-9A-Za-z]{22}", made)
    assert made == check_id(made)


def test_an_id_begins_with_the_time_it_was_made():
    before = time.time_ns() // 1_000_000
    made = milliseconds_of(new_id())
    after = time.time_ns() // 1_000_000
    assert before <= made <= after


def test_ids_follow_a_clock_that_is_set_back_by_far(monkeypatch):
    now_ms = [2_000_000_000_000]
    monkeypatch.setattr("duly.ids.time.time_ns", lambda: now_ms[0] * 1_000_000)
    ids = _Ids()
    made = []
    for now_ms[0] in (2_000_000_000_000, 1_999_999_970_000, 1_900_000_000_000):  # read by the clock
        made.append(milliseconds_of(ids.take()))
    assert [2_000_000_000_000, 2_000_000_000_000, 1_900_000_000_000] == made


def test_later_ids_sort_behind_earlier_ones():
    made = [new_id() for _ in range(50_000)]
    assert sorted(set(made)) == made


def test_ids_keep_growing_while_the_clock_runs_backwards(monkeypatch):
    made_ids = ids._Ids()
    now = 2_000_000_000_000_000_000
    monkeypatch.setattr(ids.time, "time_ns", lambda: now)
    first = made_ids.take()
    now -= 30_000_000_000
    second = made_ids.take()
    assert first < second
    assert milliseconds_of(first) == milliseconds_of(second)


def test_a_full_millisecond_goes_on_in_the_next(monkeypatch):
    made_ids = ids._Ids()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 2_000_000_000_000_000_000)
    first = made_ids.take()
    made_ids._count = 62**7 - 1
    last = made_ids.take()
    assert first < last
    assert milliseconds_of(first) + 1 == milliseconds_of(last)


def test_threads_never_share_an_id_a_request_or_a_nonce():
    made: list[list[str | bytes]] = []

    def make() -> None:
        made.append([make_one() for _ in range(3_000) for make_one in (new_id, new_request, new_nonce)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 8 * 9_000 == len({one for some in made for one in some})


def test_requests_are_six_bytes_and_nonces_eight():
    assert (6, 8) == (len(new_request()), len(new_nonce()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_repeat_its_parent():
    new_id(), new_request(), new_nonce()  # so that there is something to inherit
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_request() + new_nonce() + new_id()[8:].encode())
        os._exit(0)
    os.waitpid(child, 0)
    told = os.read(reading, 100)
    os.close(reading)
    os.close(writing)
    requests = {new_request() for _ in range(ids._BLOCK)}
    nonces = {new_nonce() for _ in range(ids._BLOCK)}
    assert told[:6] not in requests
    assert told[6:14] not in nonces
    assert told[14:] != new_id()[8:].encode()
    assert 28 == len(told)
