"""
Real databases for tests of the record: started by us, ended by us, by their own process id.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from duly.record.schema import migrate
from duly.record.tables import metadata

REMEDY = {
    "postgresql": "apt-get install postgresql (13 or later; its service need not run)",
    "mariadb": "apt-get install mariadb-server-core mariadb-client-core (10.6 or later)",
}
STARTS_WITHIN_S = 60
AGAIN_S = 0.2
FREE_PORT_TRIES = 5


def program(kind: str, name: str) -> str:
    """
    The path of a database's program, or a skip on a laptop, or a failure in CI, with the remedy.
    """
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *_debian()]))
    if found:
        return found
    text = f"no {kind} here: {REMEDY[kind]}"
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []  # it has ended, or this is no Linux


def _runs(pid: str) -> bool:
    try:
        # Of one that has ended and that nobody has waited for yet, this is empty.
        return bool(Path("/proc", pid, "cmdline").read_bytes())
    except OSError:
        return False


def _debian() -> list[str]:
    # Debian keeps each release of PostgreSQL in a folder of its own, which no PATH names.
    return [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Database:
    """
    One database process with its files in a directory of its own, and a database of its own for each test.

    Neither server runs as root: where the tests do, the server is run by somebody who owns nothing else.
    """

    kind = ""
    made = 0

    def __init__(self) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="duly-db-"))
        self.user = "nobody" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(self.dir, self.user)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def files(self) -> Path:
        return self.dir / "data"

    def start(self) -> Database:
        """
        Start it, at the first time on a free port, later on the same one.
        """
        if not (self._start_again() if self.port else self._start_first()):
            raise RuntimeError((self.dir / "log").read_text(errors="replace"))
        return self

    def _start_first(self) -> bool:
        self._install()
        for _ in range(FREE_PORT_TRIES):
            port = _free_port()
            if self._start(port):
                self.port = port
                return True
        return False

    def _start_again(self) -> bool:
        # The children of a killed server may outlive it for a moment, and hold its memory.
        deadline = time.monotonic() + STARTS_WITHIN_S
        while not self._start(self.port):
            if time.monotonic() > deadline:
                return False
            time.sleep(AGAIN_S)
        return True

    def _start(self, port: int) -> bool:
        with (self.dir / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(port), stdout=log, stderr=log, user=self.user, cwd=self.dir
            )
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answers(port):
                return True
            time.sleep(0.02)
        self.kill()
        return False

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, user=self.user, cwd=self.dir)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed:\n{done.stdout}\n{done.stderr}")

    def kill(self) -> None:
        """
        Let it die without a chance to put anything in order.
        """
        assert self.process
        # Those of PostgreSQL serve their clients until they notice that they are alone.
        children = _children(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        deadline = time.monotonic() + STARTS_WITHIN_S
        while any(map(_runs, children)) and time.monotonic() < deadline:
            time.sleep(0.01)

    def stop(self) -> None:
        if self.process:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    def fresh(self, options: str = "") -> str:
        """
        Make an empty database and return its URL.
        """
        Database.made += 1
        name = f"test_{os.getpid()}_{Database.made}"
        self._execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def migrated(self) -> str:
        """
        Make a database with the tables of a record and return its URL.
        """
        raise NotImplementedError

    def drop(self, url: str) -> None:
        self._execute(self._drop.format(name=url.rpartition("/")[2]))

    _drop = "DROP DATABASE IF EXISTS {name}"

    def url(self, name: str) -> str:
        raise NotImplementedError

    def _install(self) -> None:
        raise NotImplementedError

    def _command(self, port: int) -> list[str]:
        raise NotImplementedError

    def _answers(self, port: int) -> bool:
        raise NotImplementedError

    def _execute(self, sql: str) -> None:
        raise NotImplementedError


class PostgreSQL(Database):
    kind = "postgresql"
    # Whoever is still connected was left behind by the test that is over.
    _drop = "DROP DATABASE IF EXISTS {name} WITH (FORCE)"

    def url(self, name: str) -> str:
        return f"postgresql://duly@127.0.0.1:{self.port}/{name}"

    template = ""

    def migrated(self) -> str:
        if not self.template:
            url = self.fresh()
            migrate(url)
            self.template = url.rpartition("/")[2]
        return self.fresh(f"TEMPLATE {self.template}")

    def _install(self) -> None:
        initdb = program(self.kind, "initdb")
        self._run(
            initdb,
            "-D",
            str(self.files),
            "-U",
            "duly",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )

    def _command(self, port: int) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": "",
            # The tests kill processes and never the machine: what the system has been given is kept.
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "16MB",
            "max_connections": 60,
            "jit": "off",
        }
        flags = [flag for name, value in options.items() for flag in ("-c", f"{name}={value}")]
        return [program(self.kind, "postgres"), "-D", str(self.files), *flags]

    def _answers(self, port: int) -> bool:
        import psycopg

        try:
            psycopg.connect(f"postgresql://duly@127.0.0.1:{port}/postgres", connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _execute(self, sql: str) -> None:
        import psycopg

        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql)


class MariaDB(Database):
    kind = "mariadb"

    def url(self, name: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{name}"

    def __init__(self) -> None:
        super().__init__()
        self._spare: list[str] = []
        self._in_use: set[str] = set()

    def migrated(self) -> str:
        """
        Hand out one whose test is over, emptied: tables in partitions take their time to be made.
        """
        if self._spare:
            url = self._spare.pop()
        else:
            url = self.fresh()
            migrate(url)
        self._in_use.add(url)
        return url

    def drop(self, url: str) -> None:
        if url not in self._in_use:
            super().drop(url)
            return
        self._in_use.remove(url)
        self._part(url.rpartition("/")[2])
        for table in metadata.sorted_tables:
            name = f"{url.rpartition('/')[2]}.{table.name}"
            self._execute(f"DELETE FROM {name}")  # noqa: S608  # a name of ours
        self._spare.append(url)

    def _install(self) -> None:
        install = program(self.kind, "mariadb-install-db")
        program(self.kind, "mariadbd")
        self._run(
            install,
            "--no-defaults",
            f"--datadir={self.files}",
            # A server that starts removes tables that others have in a folder which they share.
            f"--tmpdir={self.dir}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            "--innodb-log-file-size=16M",
            # The kernel has few slots for it, and those are shared by all that run here.
            "--innodb-use-native-aio=0",
        )

    def _command(self, port: int) -> list[str]:
        return [
            program(self.kind, "mariadbd"),
            "--no-defaults",
            f"--datadir={self.files}",
            f"--tmpdir={self.dir}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            f"--socket={self.dir / 's'}",
            f"--pid-file={self.dir / 'pid'}",
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=32M",
            "--innodb-log-file-size=16M",
            "--innodb-doublewrite=0",
            "--max-connections=60",
            "--performance-schema=0",
            "--innodb-use-native-aio=0",
        ]

    def _answers(self, port: int) -> bool:
        import pymysql

        try:
            pymysql.connect(host="127.0.0.1", port=port, user="root", connect_timeout=5).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _part(self, name: str) -> None:
        """
        Part with whoever is still connected: left behind by the test that is over, and holding locks.
        """
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (number,) in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # gone by itself
                    cursor.execute("KILL %s", (number,))

    def _execute(self, sql: str) -> None:
        import pymysql

        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True) as connection:
            connection.cursor().execute(sql)
