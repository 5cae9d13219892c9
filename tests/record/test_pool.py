"""
The connections of a process to a file of SQLite: few, shared by its event loops, and closed with the last.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text

from duly.errors import RecordUnavailable
from duly.record.database import Database
from duly.record.pool import CONNECTIONS, Shares, Turns
from duly.record.schema import migrate
from tests.eventually import eventually

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture
def url(tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    return url


def open_files(url: str) -> int:
    """
    Return how often this process has the file of a database open.
    """
    file, found = Path(url.removeprefix("sqlite:///")), 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            found += descriptor.readlink() == file
    return found


def one(connection):
    return connection.execute(text("SELECT 1")).scalar()


async def test_any_number_of_transactions_share_a_few_connections(url):
    database = Database(url)
    assert [1] * 100 == await asyncio.gather(*(database.read(one) for _ in range(100)))
    assert 0 < open_files(url) <= CONNECTIONS
    await database.aclose()
    assert 0 == open_files(url)


def test_loops_share_connections_and_the_last_one_closes_them(url):
    together = threading.Barrier(20)

    async def use():
        database = Database(url)
        await asyncio.gather(*(database.write(one) for _ in range(5)))
        await asyncio.to_thread(together.wait, 60)
        held = open_files(url)
        await asyncio.to_thread(together.wait, 60)
        await database.aclose()
        return held

    with ThreadPoolExecutor(20) as threads:
        held = [each.result() for each in [threads.submit(asyncio.run, use()) for _ in range(20)]]
    assert max(held) <= CONNECTIONS
    assert 0 == open_files(url)


def test_who_leaves_closes_nothing_of_the_others(url):
    with asyncio.Runner() as here, asyncio.Runner() as there:
        first, second = Database(url), Database(url)
        here.run(first.read(one))
        there.run(second.read(one))
        here.run(first.aclose())
        assert 1 == open_files(url)
        assert 1 == there.run(second.read(one))
        there.run(second.aclose())
    assert 0 == open_files(url)


async def test_a_user_that_was_never_closed_does_not_keep_connections(url):
    database, forgotten = Database(url), Database(url)
    await asyncio.gather(database.read(one), forgotten.read(one))
    del forgotten
    gc.collect()
    await database.aclose()
    assert 0 == open_files(url)


async def test_a_connection_that_cannot_be_opened_takes_no_turn(url, monkeypatch):
    database = Database(url)
    engine = database.engine.sync_engine
    with monkeypatch.context() as patch:
        patch.setattr(engine.pool, "_create_connection", partial(_fail, OSError("no more files")))
        for _ in range(2 * CONNECTIONS):
            with pytest.raises(RecordUnavailable):
                await database.read(one)
    assert 0 == engine.pool.checkedout()
    assert 1 == await database.read(one)
    await database.aclose()


def _fail(error):
    raise error


PATCHED = """
import asyncio, os, sys, time, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "gevent":
    from gevent import monkey
    monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
from sqlalchemy import text
from duly.record import dialects
from duly.record.database import Database

dialects.BUSY_MS = 25_000  # longer than anything here takes on a busy machine: one stall is seen


def descriptors():
    return len(os.listdir("/proc/self/fd"))


async def main():
    database = Database(sys.argv[2])
    one = lambda connection: connection.execute(text("SELECT 1")).scalar()
    began = time.monotonic()
    found = await asyncio.gather(*(database.write(one) for _ in range(20)))
    await database.aclose()
    return sum(found), time.monotonic() - began < 20


async def nothing():
    pass


asyncio.run(nothing())
before = descriptors()
print(*asyncio.run(main()))
# A thread that has said good-bye has yet to end.
until = time.monotonic() + 20
while descriptors() > before and time.monotonic() < until:
    time.sleep(0.01)
print(descriptors() - before)
"""


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_transactions_do_not_hold_each_other_up_where_threads_are_patched(url, library):
    done = subprocess.run(
        [sys.executable, "-c", PATCHED, library, url], capture_output=True, text=True, timeout=100
    )
    assert (0, "20 True\n0\n", "") == (done.returncode, done.stdout, done.stderr), done


FORKS = """
import asyncio, os, sys
from sqlalchemy import text
from duly.record import pool
from duly.record.database import Database

async def main(url):
    database = Database(url)
    await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar())
    mine, child = pool.SHARES, os.fork()
    if child == 0:
        os._exit(0 if pool.SHARES is not mine and Database(url).engine is not database.engine else 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    await database.aclose()
    return code

sys.exit(asyncio.run(main(sys.argv[1])))
"""


def test_a_forked_child_opens_its_own(url):
    # In a process of its own: what other tests have imported into this one warns of forks.
    assert 0 == subprocess.run([sys.executable, "-c", FORKS, url], check=False, timeout=100).returncode


BUSY = """
import asyncio, os, sys, threading, time
from sqlalchemy import text
from duly.errors import UsageError
from duly.record.database import Database

url, lasts_s, children = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
begun, stop = threading.Event(), threading.Event()

def put(connection):
    connection.execute(text("INSERT INTO marks (at) VALUES (1)"))
    begun.set()
    time.sleep(lasts_s)

async def keep_writing():
    database = Database(url)
    while not stop.is_set():
        await asyncio.gather(*(database.write(put) for _ in range(3)))
    await database.aclose()

async def write_once():
    database = Database(url)
    await database.write(lambda connection: connection.execute(text("INSERT INTO marks (at) VALUES (2)")))
    await database.aclose()

writer = threading.Thread(target=lambda: asyncio.run(keep_writing()))
writer.start()
begun.wait()
for _ in range(children):
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(write_once())
        except UsageError as error:
            print(error)
            sys.exit(7)
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
stop.set()
writer.join()
"""


def fork_while_writing(url: str, lasts_s: float, children: int) -> tuple[str, int]:
    """
    Return what children say that are forked during such transactions, and how many rows they wrote.
    """
    file = url.removeprefix("sqlite:///")
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE marks (at INTEGER)")
    connection.close()
    command = [sys.executable, "-c", BUSY, url, str(lasts_s), str(children)]
    said = subprocess.run(command, check=True, timeout=100, capture_output=True, text=True).stdout
    with sqlite3.connect(file) as connection:
        [written] = connection.execute("SELECT count(*) FROM marks WHERE at = 2").fetchone()
    connection.close()
    return said, written


def test_a_fork_waits_for_transactions_so_that_the_child_can_write(url):
    assert ("0\n" * 5, 5) == fork_while_writing(url, 0.02, 5)


def test_a_child_forked_during_a_transaction_that_goes_on_refuses_the_file(url):
    said, written = fork_while_writing(url, 2, 1)
    assert 0 == written
    assert said.startswith("this process was forked during a transaction of its parent on the record")
    assert said.endswith("7\n")


FORKS_ON_LOOP = """
import asyncio, os, sys, time
from sqlalchemy import text
from duly.record.database import Database

async def main(url):
    database = Database(url)
    one = lambda connection: connection.execute(text("SELECT 1")).scalar()
    going = [asyncio.ensure_future(database.write(one)) for _ in range(3)]
    await asyncio.sleep(0.001)  # they are under way, and cannot end while this thread forks
    before = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert time.monotonic() - before < 10
    assert [1, 1, 1] == await asyncio.gather(*going)
    await database.aclose()

asyncio.run(main(sys.argv[1]))
"""


def test_a_fork_on_the_loop_of_a_transaction_ends(url):
    said = subprocess.run(
        [sys.executable, "-c", FORKS_ON_LOOP, url], check=True, timeout=100, capture_output=True, text=True
    )
    assert "" == said.stderr


CLOSES = """
import asyncio, os, sqlite3, sys, threading
from sqlalchemy import text
from duly.record import pool
from duly.record.database import Database

url, way, pool.FORK_WAITS_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
closing, go, closed = threading.Event(), threading.Event(), threading.Event()

class Slow(sqlite3.Connection):
    def close(self):
        closing.set()
        go.wait()
        super().close()
        closed.set()

make = sqlite3.connect
sqlite3.connect = lambda *args, **options: make(*args, **options | {"factory": Slow})

async def use():
    database = Database(url)
    await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar())
    if way == "leave":
        await database.aclose()
    return database

def fork():
    child = os.fork()
    if child == 0:
        os._exit(2 * closed.is_set() + bool(pool.SHARES.refused))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def start(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread

codes = []
if way == "leave":
    threads = [start(lambda: asyncio.run(use()))]
else:
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(use())
    threads = [start(fork)]
closing.wait()
forked = threading.Event()
threads.append(start(lambda: (codes.append(fork()), forked.set())))
forked.wait(0.2 if pool.FORK_WAITS_S > 1 else None)  # it must not, while it may still wait
go.set()
for thread in threads:
    thread.join()
print(*codes, fork())
"""


def fork_while_closing(url: str, way: str, waits_s: float) -> str:
    """
    Return what children see that are forked while a connection is closed, and after: 2 closed, 1 refused.
    """
    command = [sys.executable, "-c", CLOSES, url, way, str(waits_s)]
    return subprocess.run(command, check=True, timeout=100, capture_output=True, text=True).stdout


@pytest.mark.parametrize("way", ["fork", "leave"])
def test_a_fork_waits_for_a_connection_that_another_thread_closes(url, way):
    assert "2 2\n" == fork_while_closing(url, way, 60)


@pytest.mark.parametrize("way", ["fork", "leave"])
def test_a_child_refuses_a_file_whose_connection_is_still_being_closed(url, way):
    assert "1 2\n" == fork_while_closing(url, way, 0.05)


async def test_nobody_begins_on_a_file_that_is_opened_during_a_fork(url):
    shares, user = Shares(), Database(url)
    shares.pause()
    pool = shares.join(user.url, user).sync_engine.pool
    taking = asyncio.create_task(pool._turns.take())
    await asyncio.sleep(0)
    assert 0 == pool.checkedout()
    shares.resume()
    await taking
    assert 1 == pool.checkedout()
    await user.aclose()


async def test_a_connection_that_was_found_broken_does_not_keep_others_open(url):
    database = Database(url)
    await asyncio.gather(*(database.write(one) for _ in range(3)))
    pool = database.engine.sync_engine.pool
    assert pool.idle > 1
    broken = pool._idle[-1]
    driver, broken.dbapi_connection = broken.driver_connection, None
    await driver.close()
    await asyncio.to_thread(pool.close_idle)
    await eventually(lambda: 0 == open_files(url))
    assert 0 == pool.idle


# -- turns ------------------------------------------------------------------------------------------------


async def test_turns_are_given_in_their_order():
    turns, order = Turns(1), []

    async def use(number):
        await turns.take()
        order.append(number)
        turns.give()

    await turns.take()
    waiting = [asyncio.create_task(use(number)) for number in range(5)]
    await asyncio.sleep(0)
    turns.give()
    await asyncio.gather(*waiting)
    assert [0, 1, 2, 3, 4] == order
    assert 0 == turns.taken


async def test_nobody_begins_during_a_pause():
    turns = Turns(2)
    await turns.take()
    turns.pause()
    turns.pause()
    waiting = [asyncio.create_task(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    turns.give()
    assert 0 == turns.taken
    turns.resume()
    assert 0 == turns.taken
    turns.resume()
    assert 2 == turns.taken
    turns.give()
    await asyncio.gather(*waiting)
    assert 2 == turns.taken


@pytest.mark.parametrize("given", [False, True], ids=["before-its-turn", "as-its-turn-comes"])
async def test_who_is_cancelled_passes_its_turn_on(given):
    turns = Turns(1)
    await turns.take()
    waiting = asyncio.create_task(turns.take())
    await asyncio.sleep(0)
    if given:
        turns.give()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not given:
        turns.give()
    await asyncio.wait_for(turns.take(), 60)
    assert 1 == turns.taken


@pytest.mark.parametrize("given", [False, True], ids=["before-its-turn", "as-its-turn-comes"])
@pytest.mark.filterwarnings("ignore")  # asyncio tells of a task that was left pending
async def test_a_loop_that_was_closed_keeps_no_turn(given):
    turns = Turns(1)
    await turns.take()

    def leave():
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(turns.take())
        loop.call_soon(loop.stop)
        loop.run_forever()
        if given:
            turns.give()
        loop.close()
        del waiting

    await asyncio.to_thread(leave)
    if not given:
        turns.give()
    gc.collect()
    await eventually(lambda: turns.taken == 0, 60)


async def test_a_turn_is_given_across_loops():
    turns = Turns(1)
    await turns.take()
    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, turns.take()))
    await eventually(lambda: len(turns._waiting) == 1, 60)
    turns.give()
    await asyncio.wait_for(elsewhere, 60)
    assert 1 == turns.taken
