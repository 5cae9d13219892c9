"""
The blocking twin in real processes: forks, and the end of the interpreter.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import os, sys, threading
from duly import Duly, JobState, OutcomeUnknown

app = Duly(sys.argv[1], namespace=sys.argv[2])


def client_id():
    async def ask():
        return await (await app.sync.here().store()).link.call("CLIENT", "ID")

    return app.sync.run(ask())


def wait(job):
    try:
        job.result()
    except OutcomeUnknown:
        pass


def in_child(work):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    work()
    sys.exit(0)  # the whole end of the interpreter, as a pre-fork server's worker has it
"""


@pytest.fixture
def script(valkey, namespace):
    def run(body: str, url: str = "") -> str:
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "default",
                "-c",
                PRELUDE + textwrap.dedent(body),
                url or valkey.url,
                namespace,
            ],
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert (0, "") == (done.returncode, done.stderr), done
        return done.stdout

    return run


def test_a_child_forked_after_the_first_use_has_connections_of_its_own(script):
    printed = script("""
        job = app.sync.enqueue("greet", id="parent")
        mine = client_id()

        def child():
            assert JobState.ready == job.get().state  # a handle from before the fork
            app.sync.enqueue("greet", id=f"child-{os.getpid()}")
            assert mine != client_id()

        assert [0, 0, 0] == [in_child(child) for _ in range(3)]
        assert mine == client_id(), "the parent had to connect anew"
        print(app.sync.views().stats().topics[0].counts["ready"])
    """)
    assert "4\n" == printed


def test_a_child_that_never_uses_the_twin_leaves_the_parent_alone(script):
    script("""
        app.sync.enqueue("greet", id="parent")
        mine = client_id()
        assert 0 == in_child(lambda: None)
        assert mine == client_id()
    """)


def test_a_fork_while_other_threads_send_does_not_hang_the_child(script):
    script("""
        stop = threading.Event()

        def send():
            own = Duly(sys.argv[1], namespace=sys.argv[2])
            while not stop.is_set():
                own.sync.enqueue("greet")
                own.sync.close()

        app.sync.enqueue("greet")  # what is imported on first use must not be under way
        app.sync.close()
        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        codes = [in_child(lambda: app.sync.enqueue("greet")) for _ in range(10)]
        stop.set()
        for thread in threads:
            thread.join()
        assert [0] * 10 == codes, codes
    """)


@pytest.mark.parametrize(
    "last",
    [
        pytest.param("", id="nothing closed"),
        pytest.param("app.sync.close()", id="closed"),
        pytest.param(
            "threading.Thread(target=wait, args=[app.sync.enqueue('wait', delay=3600)], daemon=True).start()",
            id="somebody waits for ever",
        ),
        pytest.param(
            "threading.Thread(target=app.sync.enqueue('wait', delay=3600).result, daemon=True).start()",
            id="a daemon thread waits for ever",
        ),
        pytest.param("import atexit; atexit.register(app.sync.enqueue, 'greet')", id="used while ending"),
    ],
)
def test_the_interpreter_ends_without_hanging_and_without_a_word(script, last):
    script(f"app.sync.enqueue('greet')\n{last}")


def test_the_interpreter_ends_without_hanging_on_an_embedded_server(script, tmp_path, monkeypatch):
    monkeypatch.setenv("DULY_DATA", str(tmp_path))
    script("""
        app = Duly(data=os.environ["DULY_DATA"])
        print(app.sync.enqueue("greet", id="a").id)
    """)


def test_the_interpreter_lets_go_of_an_embedded_server_before_it_ends(script, tmp_path, monkeypatch):
    monkeypatch.setenv("DULY_DATA", str(tmp_path))
    printed = script("""
        from duly.embedded.server import EmbeddedServer

        leave = EmbeddedServer.close
        EmbeddedServer.close = lambda self: print("left:", leave(self), flush=True)
        app = Duly(data=os.environ["DULY_DATA"])
        app.sync.enqueue("greet", id="a")
        print("the last line", flush=True)
    """)
    assert "the last line\nleft: None\n" == printed


def test_making_an_app_starts_no_thread(script):
    assert "1\n" == script("print(threading.active_count(), flush=True)")
