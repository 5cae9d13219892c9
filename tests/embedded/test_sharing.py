"""
One server for all who use a directory, from the first to the last of them.
"""

import os
import signal
import threading
from pathlib import Path

import pytest

from duly.embedded import EmbeddedServer, keeper
from duly.embedded.binary import find_binary
from duly.embedded.launch import Launch
from duly.errors import StoreUnavailable, UsageError
from tests.embedded.helpers import (
    alive,
    always,
    eventually,
    keeper_pid,
    kill,
    living_in,
    locked,
    pids,
    server_pid,
)


def test_all_processes_on_a_directory_share_one_server(data, start_user):
    users = [start_user() for _ in range(4)]
    for user in users:
        user.started()
    users[0].tell("SET who everybody")
    assert ["$9 everybody"] * 4 == [user.tell("GET who") for user in users]
    eventually(lambda: {keeper_pid(data), server_pid(data)} == set(living_in(data)))


def test_data_survives_a_full_stop(data, start_user):
    first = start_user().started()
    assert "+OK" == first.tell("SET kept yes")
    first.leave()
    eventually(lambda: not living_in(data))
    assert "ready to exit" in (data / keeper.LOG).read_text()  # it was asked, and not killed
    assert "$3 yes" == start_user().started().tell("GET kept")


def test_the_server_stays_while_one_user_is_left_and_goes_after_the_last(data, start_user):
    first, last = start_user().started(), start_user().started()
    pids = keeper_pid(data), server_pid(data)
    first.leave()
    # Longer than it takes the keeper to look, and then to lose its patience.
    always(lambda: all(map(alive, pids)), for_s=2 * keeper.PROBE_S + 0.2)
    last.leave()
    eventually(lambda: not any(map(alive, pids)))
    assert [] == living_in(data)


def test_the_server_lingers_for_the_next_user(data, start_user):
    start_user(linger_s=60.0).started().leave()
    old = pids(data)
    always(lambda: old == pids(data), for_s=2 * keeper.PROBE_S)
    start_user().started()
    assert old == pids(data)
    kill(old[0], signal.SIGTERM)


def test_a_program_started_by_a_user_does_not_keep_the_server(data, start_user):
    user = start_user().started()
    child = int(user.tell("spawn"))
    try:
        user.kill()
        eventually(lambda: not living_in_but(data, child))
        assert alive(child)
    finally:
        kill(child)


def living_in_but(data, child):
    return set(living_in(data)) - {child}


def test_of_keepers_that_race_one_wins_and_the_others_leave_without_a_word(data, embedded):
    server = embedded()
    server.start()
    server.close()
    eventually(lambda: not living_in(data))
    # Nobody uses the server of the one that wins: it is to be there still when the last has lost.
    launches = [Launch(data, find_binary(), "always", 60) for _ in range(6)]
    try:
        eventually(lambda: 5 == sum(launch.ended() for launch in launches))
        assert [""] * 6 == [launch.words for launch in launches]
        eventually(lambda: pids(data) and set(pids(data)) == set(living_in(data)))
        kill(keeper_pid(data), signal.SIGTERM)
    finally:
        for launch in launches:
            launch.close()


def test_threads_that_lose_the_server_together_get_one(data, embedded):
    server = embedded()
    server.start()
    kill(server_pid(data))
    threads = [threading.Thread(target=server.ensure) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: set(pids(data)) == set(living_in(data)))


def test_who_comes_while_the_keeper_stops_waits_for_a_new_server(data, embedded, start_user):
    user = start_user(linger_s=0.0).started()
    server = server_pid(data)
    kill(server, signal.SIGSTOP)  # a server that does not go keeps its keeper stopping
    user.leave()
    eventually(lambda: locked(data / keeper.USERS_LOCK))
    with pytest.raises(StoreUnavailable, match=r"users\.lock is held"):
        embedded(patience_s=0.2).start()
    kill(server, signal.SIGCONT)
    embedded().start()
    assert server != server_pid(data)


def test_ensure_needs_a_start(embedded):
    server = embedded()
    with pytest.raises(UsageError):
        server.ensure()
    server.start()
    server.ensure()
    server.close()
    with pytest.raises(UsageError):
        server.ensure()


def test_a_server_can_be_started_again_after_its_close(embedded):
    server = embedded()
    for _ in range(2):
        server.start()
        server.ensure()
        server.close()


def test_a_forgotten_object_lets_the_server_go(data):
    EmbeddedServer(data, linger_s=0.1).start()
    eventually(lambda: not living_in(data))


def test_no_zombie_is_left_in_the_user_process(embedded):
    before = _children()
    embedded().start()
    # Neither a zombie nor a child to be waited for later: the keeper belongs to nobody but itself.
    # One of another test may have been waited for meanwhile.
    assert _children() <= before


def _children():
    """
    The processes whose parent is this one, the dead ones too; other tests may have some.
    """
    mine = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:
            continue
        if int(rest.rpartition(")")[2].split()[1]) == os.getpid():
            mine.add(int(pid))
    return mine


def test_processes_that_come_and_go_never_miss_the_server(data, start_user, embedded):
    visitors = [start_user(program="visit", linger_s=0.0) for _ in range(8)]
    met = [visitor.leave() for visitor in visitors]
    assert [30] * 8 == [len(servers) for servers in met]
    assert 1 < len({run_id for servers in met for run_id in servers})  # or nothing was tried
    assert "$3 240" == start_user().started().tell("GET visits")
