"""
Forks while other threads import what is imported on first use; each in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from duly.record.schema import migrate
from tests.ports import held_port

PRELUDE = """
import faulthandler, os, signal, sys, threading
from duly import forks
from duly.forks import at_fork, importing

faulthandler.dump_traceback_later(80, exit=True)


def fork(see):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # should it hang
        code = 9
        try:
            code = see()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def start(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread
"""


def run(body: str, *args: str) -> tuple[str, str]:
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(body), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert 0 == done.returncode, done
    return done.stdout, done.stderr


def test_a_fork_waits_for_an_import_that_is_under_way():
    said = run("""
        begun, preparing, ended = threading.Event(), threading.Event(), threading.Event()
        at_fork(preparing.set, lambda: None, lambda told: None)

        def work():
            with importing():
                begun.set()
                preparing.wait()
                forked.wait(0.2)  # it must not
                ended.set()

        forked = threading.Event()
        thread = start(work)
        begun.wait()
        code = fork(lambda: int(ended.is_set()))
        forked.set()
        thread.join()
        print(code, fork(lambda: int(forks._forks.importing.acquire(blocking=False))))
    """)
    assert ("1 1\n", "") == said


def test_what_is_imported_while_a_fork_waits_is_prepared_as_well():
    said = run("""
        begun, preparing, told = threading.Event(), threading.Event(), []
        at_fork(preparing.set, lambda: None, lambda told: None)

        def work():
            with importing():
                begun.set()
                preparing.wait()
                at_fork(lambda: 5, lambda: None, told.append)

        thread = start(work)
        begun.wait()
        print(fork(lambda: told[0]))
        thread.join()
    """)
    assert ("5\n", "") == said


def test_a_module_may_fork_while_it_is_imported():
    said = run("""
        with importing():
            print(fork(lambda: 5))
        print(fork(lambda: 6))
    """)
    assert ("5\n6\n", "") == said


def test_threads_fork_one_after_the_other():
    said = run("""
        under_way, most, codes = [], [], []
        here = threading.Barrier(8)

        def before():
            under_way.append(1)
            most.append(len(under_way))

        at_fork(before, under_way.pop, lambda told: None)

        def work():
            here.wait()
            codes.extend(fork(lambda: 5) for _ in range(5))

        for thread in [start(work) for _ in range(8)]:
            thread.join()
        print(max(most), set(codes), len(codes))
    """)
    assert ("1 {5} 40\n", "") == said


def test_a_preparation_that_is_interrupted_holds_up_no_later_fork():
    out, err = run("""
        told = []

        def before():
            if not told:
                told.append("interrupted")
                raise KeyboardInterrupt
            return "prepared"

        at_fork(before, lambda: None, told.append)
        print(fork(lambda: int(told == ["interrupted", None])), flush=True)
        thread = start(lambda: print(fork(lambda: int(told == ["interrupted", "prepared"]))))
        thread.join()
    """)
    assert "1\n1\n" == out
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize("what", ["queue", "record", "http"])
def test_no_fork_happens_during_the_imports_of_a_first_use(what, valkey, namespace, tmp_path):
    record = f"sqlite:///{tmp_path}/record.db"
    migrate(record)
    with held_port() as nobody_answers:
        said = run(
            """
        from duly import Duly, DulyError

        found = []

        class Look:
            def find_spec(self, name, path=None, target=None):
                if sys._getframe(2).f_code.co_name != "_find_and_load_unlocked":
                    return  # nothing is imported: somebody asks whether it is there
                if not forks._forks.importing._is_owned():
                    found.append(name)

        url, namespace, record = sys.argv[1:]
        app = Duly(url, namespace=namespace, record=record or None)
        sys.meta_path.insert(0, Look())
        imported = set(sys.modules)
        try:
            app.sync.enqueue("greet")
        except DulyError as error:
            assert url.startswith("http"), error
        app.sync.close()
        print(found, len(set(sys.modules) - imported) > 0)
        """,
            f"http://127.0.0.1:{nobody_answers}" if what == "http" else valkey.url,
            "default" if what == "http" else namespace,
            record if what == "record" else "",
        )
    assert ("[] True\n", "") == said


def test_a_child_may_be_scraped_that_is_forked_while_its_parent_is(valkey, namespace):
    said = run(
        """
        from duly import Duly
        from duly.metrics import Metrics

        app = Duly(sys.argv[1], namespace=sys.argv[2])
        metrics = Metrics(app)
        reading, go = threading.Event(), threading.Event()
        read = metrics._read

        async def read_slowly():
            reading.set()
            go.wait()
            await read()

        metrics._read = read_slowly
        thread = start(lambda: list(metrics.collect()))
        reading.wait()
        metrics._read = read
        print(fork(lambda: int("duly_queue_jobs" in {family.name for family in metrics.collect()})))
        go.set()
        thread.join()
        app.sync.close()
        """,
        valkey.url,
        namespace,
    )
    assert ("1\n", "") == said


def test_a_child_may_ask_for_the_event_of_a_job_while_its_parent_does():
    said = run("""
        from duly import context

        with context._making_event:
            print(fork(lambda: int(context._making_event.acquire(blocking=False))))
    """)
    assert ("1\n", "") == said
