"""
Whatever is killed, nothing is left behind and nothing that was acknowledged is lost.
"""

import random
import signal

import pytest

from duly.embedded import keeper
from tests.embedded.helpers import alive, eventually, keeper_pid, kill, living_in, locked, pids, server_pid


def test_a_killed_user_leaves_nothing_behind(data, start_user):
    user = start_user().started()
    user.kill()
    eventually(lambda: not living_in(data))


def test_a_killed_user_leaves_the_server_to_the_others(data, start_user):
    victim, other = start_user().started(), start_user().started()
    victim.tell("SET from victim")
    server = server_pid(data)
    victim.kill()
    assert "$6 victim" == other.tell("GET from")
    assert alive(server)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_keeper_takes_its_server_with_it_and_a_user_brings_up_another(data, start_user, number):
    user = start_user().started()
    user.tell("SET kept yes")
    old = keeper_pid(data), server_pid(data)
    kill(old[0], number)
    eventually(lambda: not any(map(alive, old)))
    assert "up" == user.tell("ensure")
    assert "$3 yes" == user.tell("GET kept")
    eventually(lambda: set(pids(data)) == set(living_in(data)))


def test_a_keeper_goes_with_its_server_and_a_user_brings_up_another(data, start_user):
    user = start_user().started()
    user.tell("SET kept yes")
    old = keeper_pid(data), server_pid(data)
    kill(old[1])
    assert "up" == user.tell("ensure")
    assert "$3 yes" == user.tell("GET kept")
    eventually(lambda: not any(map(alive, old)))
    assert f"ended with signal {signal.SIGKILL:d}" in (data / "server.log").read_text()


def test_a_server_that_outlives_its_keeper_keeps_its_place(data, start_user):
    user = start_user().started()
    user.tell("SET kept yes")
    old_keeper, old_server = pids(data)
    kill(old_server, signal.SIGSTOP)
    kill(old_keeper)
    try:
        eventually(lambda: not alive(old_keeper))
        assert locked(data / keeper.SERVER_LOCK)
    finally:
        kill(old_server, signal.SIGCONT)
    # A process counts as ended when its main thread has; its other threads hold the lock a little longer.
    eventually(lambda: not alive(old_server) and not locked(data / keeper.SERVER_LOCK))
    assert "up" == user.tell("ensure")
    assert "$3 yes" == user.tell("GET kept")


def test_a_user_and_the_keeper_killed_together_leave_nothing_behind(data, start_user):
    user = start_user().started()
    kill(keeper_pid(data))
    user.kill()
    eventually(lambda: not living_in(data))


def test_the_next_user_finds_what_was_acknowledged_before_everything_was_killed(data, start_user):
    user = start_user().started()
    user.tell("SET kept yes")
    for pid in (user.pid, keeper_pid(data), server_pid(data)):
        kill(pid)
    assert "$3 yes" == start_user().started().tell("GET kept")


def test_no_acknowledged_write_is_lost_by_kills_at_random(data, start_user):
    counters = [start_user(program="count").started() for _ in range(3)]
    for _ in range(10):
        old = eventually(lambda: pids(data))
        kill(random.choice(old), random.choice([signal.SIGKILL, signal.SIGTERM]))
        eventually(lambda old=old: not any(map(alive, old)))
    said = [line for counter in counters for line in counter.leave()]
    numbers = [line for line in said if line.startswith(":")]
    assert len(numbers) == len(set(numbers))  # a number given twice is a write that was forgotten
    total = int(start_user().started().tell("GET count").split()[-1])
    assert len(numbers) <= total <= len(said)
