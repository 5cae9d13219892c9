"""
Keep one Valkey server running for one data directory, as long as somebody uses it.

A program of its own, which clients run by path:  ``python -I -S keeper.py DIR BINARY DURABILITY LINGER_S``.
It imports next to nothing, because its start is part of the first ``Duly()``'s.

Four files in the directory say who is there.  They are locked with ``flock``, which ends with its holder,
however that ends; their being there means nothing.

keeper.lock   exclusive   the keeper: one at a time
server.lock   exclusive   the server itself, through a descriptor it inherits: one server at a time, also
                          when its keeper was killed; its forked children (AOF rewrite) hold it, too
users.lock    shared      every process that uses the server; the keeper holds it exclusively while it stops
strict.lock   shared      those of them that asked for durability "always"

On Linux the server gets SIGTERM when its keeper dies.  Other systems have no such signal: there a server
whose keeper was killed goes on serving and has to be ended by hand.
"""

# Importing pathlib would take as long as starting the interpreter does.
# ruff: noqa: PTH105, PTH106, PTH108, PTH109, PTH110, PTH116, PTH123

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

KEEPER_LOCK = "keeper.lock"
SERVER_LOCK = "server.lock"
USERS_LOCK = "users.lock"
STRICT_LOCK = "strict.lock"
THROW_AWAY = "throw-away"  #: a directory with this file in it is removed when the last user has gone
SOCKET = "valkey.sock"
LOG = "server.log"

PROBE_S = 0.2  #: how often the keeper looks whether anybody is there
TAKEOVER_S = 30.0  #: how long the server of a keeper that was killed may take to go
STOP_S = 10.0  #: how long a server may take to stop before it is killed
FREE_BYTES = 4 << 20  #: with less space than this the first batch would end the server again
LOG_BYTES = 1 << 20  #: a longer log is put aside at the next start

_PR_SET_PDEATHSIG = 1


class CannotServe(Exception):
    """
    There can be no server; the message is for the user.
    """


def say(text: str) -> None:
    """
    Tell the log and, while it listens, the client that started this keeper.
    """
    stamp = time.strftime("%d %b %Y %H:%M:%S")
    for write in (
        lambda: os.write(2, f"{text}\n".encode(errors="replace")),
        lambda: _append(f"{os.getpid()}:K {stamp} # {text}\n"),
    ):
        try:
            write()
        except OSError:
            continue  # the client has left, or the disk is full: neither is a reason to stop


def _append(line: str) -> None:
    with open(LOG, "ab", buffering=0) as log:
        log.write(line.encode(errors="replace"))


def take(path: str) -> int | None:
    """
    Lock *path* exclusively and return its descriptor, or None if somebody holds it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if lock(fd):
        return fd
    os.close(fd)
    return None


def lock(fd: int) -> bool:
    """
    Lock *fd* exclusively unless somebody holds it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sign(fd: int) -> None:
    """
    Write this process's id into its lock file, for people who look; nothing here reads it.
    """
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        pass  # a full disk


class Signals:
    """
    Wait for time to pass, for a child to end or for SIGTERM, whichever is first.
    """

    def __init__(self) -> None:
        self.told_to_stop = False
        self._heard, wakeup = os.pipe()
        os.set_blocking(self._heard, False)
        os.set_blocking(wakeup, False)
        # Whoever started this may have blocked or ignored signals, and both are inherited.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.told_to_stop = True

    def wait(self, seconds: float) -> None:
        """
        Return after *seconds* or at the next signal.
        """
        if select.select([self._heard], [], [], seconds)[0]:
            os.read(self._heard, 4096)


class Server:
    """
    The Valkey process, child of the keeper.
    """

    def __init__(self, binary: str, durability: str, lock_fd: int) -> None:
        self._log_from = _log_size()
        self.ended_with: int | None = None
        self.pid = _spawn(
            # Relative names, below the working directory: a Unix socket's path may have about 100 bytes only.
            [
                binary,
                *("--dir", ".", "--logfile", LOG, "--daemonize", "no"),
                *("--port", "0", "--unixsocket", SOCKET, "--unixsocketperm", "700"),
                *("--appendonly", "yes", "--appendfsync", durability, "--save", ""),
                *("--maxmemory-policy", "noeviction"),
                # An entry is deleted by walking through its node: a tenth of the time at the usual 100.
                *("--stream-node-max-entries", "16"),
                # 100,000 jobs write 120 MB: at the usual 64 MB a busy queue forks every second, and the child
                # takes a core.  To read 256 MB at a start takes less than three seconds.
                *("--auto-aof-rewrite-min-size", "256mb"),
                # Go when told to, whatever is in the way: the AOF holds all that was acknowledged.
                *("--shutdown-on-sigterm", "force"),
            ],
            lock_fd,
        )

    def ended(self) -> bool:
        """
        Say whether the process is gone, and reap it.
        """
        if self.ended_with is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.ended_with = os.waitstatus_to_exitcode(status)
        return self.ended_with is not None

    def stop(self, signals: Signals) -> None:
        """
        End the process: asked first, killed if it does not listen.
        """
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            deadline = time.monotonic() + patience_s
            if not self.ended():
                os.kill(self.pid, number)
            while not self.ended() and time.monotonic() < deadline:
                signals.wait(PROBE_S)

    def last_words(self) -> str:
        """
        Say how the process ended and what it complained of.
        """
        code = self.ended_with or 0
        how = f"signal {-code}" if code < 0 else f"status {code}"
        try:
            with open(LOG, "rb") as log:
                log.seek(max(self._log_from, _log_size() - 16_384))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            lines = []
        # `#` marks warnings; some are advice about the machine, given at every start.
        warnings = [line.partition(" # ")[2] for line in lines]
        complaints = [text for text in warnings if text and not text.startswith("WARNING")]
        return f"valkey-server ended with {how}: " + (" / ".join((complaints or lines)[-3:]) or "no word why")


def _log_size() -> int:
    try:
        return os.stat(LOG).st_size
    except OSError:
        return 0


def _spawn(command: list[str], lock_fd: int) -> int:
    bind_to_keeper = _death_signal()
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        bind_to_keeper()
        if os.getppid() != keeper:
            os._exit(1)  # it died before the death signal was set
        sign(lock_fd)
        os.set_inheritable(lock_fd, True)  # noqa: FBT003  a flag of the standard library
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            output = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            output = nothing
        for fd, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(fd, target)
        os.execv(command[0], command)  # noqa: S606  no shell is meant to be there
    except OSError as error:
        say(f"{command[0]}: {error.strerror}")
    finally:
        os._exit(127)


def _death_signal() -> Callable[[], object]:
    if sys.platform != "linux":
        return lambda: None
    import ctypes  # noqa: PLC0415  only here, and before the fork

    prctl = ctypes.CDLL(None).prctl
    # It fires when the spawning *thread* ends.  The keeper has only its main thread.
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def check_space() -> None:
    """
    Refuse to start on a full disk: the server would end at its first write, again and again.

    Raises:
        CannotServe: There is no room for a batch of jobs.
    """
    try:
        with open("space.probe", "wb", buffering=0) as probe:
            os.unlink(probe.name)
            left = FREE_BYTES
            while left:
                left -= probe.write(bytes(left)) or 0
    except OSError as error:
        need = f"{FREE_BYTES >> 20} MiB must be free to start"
        raise CannotServe(f"cannot write to {os.getcwd()}: {error.strerror} ({need})") from error


def take_server_lock(signals: Signals) -> int:
    """
    Wait until the server of an earlier keeper is gone, then lock its place.

    Raises:
        CannotServe: It does not go, or this keeper was told to stop.
    """
    start = time.monotonic()
    said = False
    while not signals.told_to_stop:
        fd = take(SERVER_LOCK)
        if fd is not None:
            return fd
        waited = time.monotonic() - start
        if waited > TAKEOVER_S:
            raise CannotServe(f"the server of an earlier keeper does not end; its pid is in {SERVER_LOCK}")
        if waited > 1 and not said:
            said = True
            say("waiting for the server of an earlier keeper to end")
        signals.wait(0.01)
    raise CannotServe("told to stop before the server was started")


def keep(binary: str, durability: str, linger_s: float) -> None:
    """
    Start the server, and stop it when nobody has used it for *linger_s*.

    Raises:
        CannotServe: The server could not be started, or ended by itself.
    """
    place = take(KEEPER_LOCK)
    if place is None:
        return  # another keeper was faster
    sign(place)
    signals = Signals()
    users = os.open(USERS_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    server_lock = take_server_lock(signals)
    check_space()
    if _log_size() > LOG_BYTES:
        os.replace(LOG, LOG + ".old")
    strict = take(STRICT_LOCK)
    if strict is None:
        durability = "always"
    else:
        os.close(strict)
    server = Server(binary, durability, server_lock)
    os.close(server_lock)  # from here on it is locked exactly as long as the server lives

    unused_since: float | None = None
    unused = False
    while not signals.told_to_stop and _still_there(place):
        signals.wait(PROBE_S)
        if server.ended():
            raise CannotServe(server.last_words())
        if not lock(users):
            unused_since = None
            continue
        now = time.monotonic()
        if unused_since is None:
            unused_since = now
        if now - unused_since >= linger_s:
            # The lock is kept: who comes now waits until the server is down, and then starts a new one.
            unused = True
            break
        fcntl.flock(users, fcntl.LOCK_UN)
    server.stop(signals)
    if unused and os.path.exists(THROW_AWAY):
        remove_all(os.getcwd())


def remove_all(directory: str) -> None:
    """
    Remove a directory with all that is in it.
    """
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                remove_all(entry.path)
            else:
                os.unlink(entry.path)
    os.rmdir(directory)


def _still_there(place: int) -> bool:
    # The directory may have been removed, and even made anew, below a running server.
    try:
        return os.path.samestat(os.stat(KEEPER_LOCK), os.fstat(place))
    except OSError:
        return False


def main(directory: str, binary: str, durability: str, linger_s: str) -> int:
    """
    Leave the process that asked, and keep its server.
    """
    # The client is to wait for nobody: its child ends here, and the keeper goes on as a child of init.
    if os.fork():
        return 0
    try:
        os.chdir(directory)
        os.umask(0o077)
        keep(binary, durability, float(linger_s))
    except CannotServe as error:
        say(str(error))
        return 1
    except Exception as error:  # noqa: BLE001  nobody else is there to tell
        say(f"the keeper failed: {error!r}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
