"""
One app on several event loops: each has connections of its own, which are closed with it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
import trio

from duly import Duly, UsageError
from duly.record.schema import migrate
from tests.http.service import Served
from tests.sync.conftest import working

PRELUDE = """
import asyncio, os, sys, threading, time
from duly import Duly

settings = dict(pair.split("=", 1) for pair in sys.argv[1:])
app = Duly(**settings)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


class Peak(threading.Thread):
    # The most descriptors that were open at once.
    def __init__(self):
        super().__init__(daemon=True)
        self.most = 0
        self._ended = threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self.join()

    def run(self):
        while not self._ended.wait(0.002):
            self.most = max(self.most, descriptors())


def more_than(before):
    # A thread of SQLite that was broken off closes its file by itself, a moment later.
    deadline = time.monotonic() + 20
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return max(0, descriptors() - before)


def on_loops(count, use):
    # Each in a thread of its own, all at once.
    errors = []
    together = threading.Barrier(count)

    def run(number):
        together.wait()
        try:
            asyncio.run(use(number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == errors, errors
"""


def script(body: str, *words: str, cwd: object = None) -> str:
    """
    Run a program of its own; the answer is what it prints, and nothing may be on its stderr.
    """
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", PRELUDE + textwrap.dedent(body), *words],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
    )
    assert (0, "") == (done.returncode, done.stderr), done
    return done.stdout


@pytest.fixture(params=["plain", "record", "http"])
def face(request, valkey, namespace, tmp_path):
    """
    An app with a worker, and the settings of another program that uses its queue.
    """
    record = {}
    if request.param == "record":
        record = {"record": f"sqlite:///{tmp_path}/record.db"}
        migrate(record["record"])
    app = Duly(valkey.url, namespace=namespace, drain_grace=0.2, **record)

    @app.handler("add")
    async def add(left: int, right: int) -> int:
        return left + right

    words = [f"url={valkey.url}", f"namespace={namespace}", *(f"record={url}" for url in record.values())]
    with working(app):
        if request.param != "http":
            yield words
            return
        with Served(Duly(valkey.url, namespace=namespace)) as service:
            yield [f"url={service.url}"]


SENDS = """
    async def use(number):
        for turn in range({jobs}):
            job = await app.enqueue("add", {{"left": number, "right": turn}})
            assert number + turn == await job.result(timeout=100)

    all_done = threading.Barrier({loops})

    async def use_and_hold(number):
        await use(number)
        await asyncio.to_thread(all_done.wait, 100)

    on_loops(1, use)
    before = descriptors()
    with Peak() as peak:
        on_loops({loops}, use_and_hold)
    print(peak.most - before, more_than(before))
"""
OF_ASYNCIO = 3  #: descriptors that asyncio itself opens for a loop: a selector, and a pair of sockets


def peak_of(loops: int, jobs: int, face: list[str]) -> int:
    """
    Send and wait on so many loops at once; the answer is how many descriptors were open for them at most.
    """
    peak, left = map(int, script(SENDS.format(loops=loops, jobs=jobs), *face).split())
    assert 0 == left
    assert peak > OF_ASYNCIO * loops
    return peak


def test_many_loops_send_and_wait_with_fewer_than_64_descriptors(face):
    assert peak_of(16, 2, face) - OF_ASYNCIO * 16 < 64


SIZES = [
    pytest.param(face, loops, marks=[] if (face, loops) == ("plain", 2) else pytest.mark.long)
    for face in ("plain", "record", "http")
    for loops in (2, 4, 16)
]


@pytest.mark.parametrize(("face", "loops"), SIZES, indirect=["face"])
def test_many_loops_send_and_wait_for_long(face, loops):
    # Sixteen loops have 48 descriptors of asyncio alone; of a few, all count.
    assert peak_of(loops, 200, face) - (OF_ASYNCIO * loops if loops > 4 else 0) < 64


def test_loops_that_begin_at_once_start_one_embedded_server(tmp_path):
    printed = script(
        """
        async def use(number):
            await app.enqueue("add", id=str(number))

        on_loops(8, use)
        asyncio.run(app.aclose())
        print(*[asyncio.run(app.job("add", str(number)).get()).state.name for number in range(8)])
        asyncio.run(app.aclose())
        """,
        "namespace=one",
        cwd=tmp_path,
    )
    assert ["ready"] * 8 == printed.split()


@pytest.mark.parametrize("face", ["record"], indirect=True)
def test_a_loop_that_ends_within_a_transaction_of_sqlite_lets_it_end(face):
    printed = script(
        """
        from sqlalchemy import event

        async def main():
            database = (await app.record()).database
            ending = asyncio.Event()

            def end(connection, *_):
                # The rollback that follows waits in the thread of the connection; the loop ends meanwhile.
                connection.driver_connection._execute(time.sleep, 0.2).send(None)
                ending.set()

            event.listen(database.engine.sync_engine, "reset", end)
            asyncio.create_task(database.read(lambda _: None))
            await ending.wait()

        asyncio.run(main())
        print("ended")
        """,
        *face,
    )
    assert "ended\n" == printed


@pytest.mark.parametrize("face", ["record"], indirect=True)
def test_a_loop_that_ends_while_it_connects_to_a_record_of_sqlite_leaves_nothing_behind(face):
    printed = script(
        """
        from aiosqlite import Connection

        def counted(call):
            async def counting(*args, **kwargs):
                global left
                left -= 1
                if left == 0:
                    ending.set()
                return await call(*args, **kwargs)

            return counting

        Connection._connect, Connection._execute = counted(Connection._connect), counted(Connection._execute)

        async def cut_off(calls):
            # The loop ends while so many calls to SQLite have begun, the last one in its thread.
            global app, left, ending
            app, left, ending = Duly(**settings), calls, asyncio.Event()
            sent = asyncio.create_task(app.enqueue("add", delay=3600))
            sent.add_done_callback(lambda _: ending.set())
            await ending.wait()
            return sent.done()

        before = descriptors()
        calls = 1
        while not asyncio.run(cut_off(calls)):
            calls += 1
        print(calls > 10, more_than(before))
        """,
        *face,
    )
    assert "True 0\n" == printed


@pytest.mark.parametrize("face", ["plain"], indirect=True)
def test_connections_are_closed_with_their_loop_however_that_was_begun(face):
    printed = script(
        """
        import gc, warnings
        import uvloop
        from asgiref.sync import async_to_sync

        async def use():
            job = await app.enqueue("add", {"left": 1, "right": 2})
            assert 3 == await job.result(timeout=100)

        async def send():
            await app.enqueue("add", {"left": 1, "right": 2})

        def only_closed():
            # Python itself warns of transports that were not closed, where warnings are shown.
            warnings.simplefilter("ignore", ResourceWarning)
            loop = asyncio.new_event_loop()
            loop.run_until_complete(send())
            loop.close()

        uvloop.run(use())  # keeps two of its own for good
        before = descriptors()
        for run in (lambda: asyncio.run(use()), lambda: uvloop.run(use()), async_to_sync(use), only_closed):
            for _ in range(5):
                run()
            # What is left of a loop that was only closed is forgotten when the next one connects.
            asyncio.run(use())
            gc.collect()
            print(descriptors() - before)
        """,
        *face,
    )
    assert ["0", "0", "0", "0"] == printed.split()


@pytest.mark.parametrize("face", ["plain", "record"], indirect=True)
def test_nothing_is_printed_of_a_loop_that_was_only_closed(face):
    printed = script(
        """
        import gc, warnings
        # Python itself warns of transports that were not closed.
        warnings.simplefilter("ignore", ResourceWarning)

        async def send():
            await app.enqueue("nobody", {})

        async def wait():
            try:
                await (await app.enqueue("nobody", {})).result(timeout=0.01)
            except TimeoutError:
                pass

        async def collect():
            gc.collect()

        # With a record, who waits may be left in the middle of a transaction.
        for use in (send, send if app.settings.record else wait) * 5:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(use())
            loop.close()
            del loop
            gc.collect()
            asyncio.run(collect())
        print("over")
        """,
        *face,
    )
    assert "over\n" == printed


def test_a_loop_that_is_closed_by_its_user_leaves_the_others_alone(app, valkey):
    raw = redis.Redis(unix_socket_path=str(valkey.socket))
    asked, closed = threading.Event(), threading.Event()

    async def stay() -> int:
        mine = await (await app.store()).link.call("CLIENT", "ID")
        asked.set()
        await asyncio.to_thread(closed.wait)
        assert mine == await (await app.store()).link.call("CLIENT", "ID")
        return mine

    async def leave() -> int:
        await asyncio.to_thread(asked.wait)
        mine = await (await app.store()).link.call("CLIENT", "ID")
        await app.aclose()
        closed.set()
        return mine

    with ThreadPoolExecutor(2) as threads:
        ids = {thread.result() for thread in [threads.submit(asyncio.run, each()) for each in (stay, leave)]}
    assert 2 == len(ids)
    assert app.loop is None
    assert ids.isdisjoint(int(each["id"]) for each in raw.client_list())


def test_a_reply_is_acked_on_another_loop_than_it_came_on(app):
    @app.handler("add")
    async def add(left: int, right: int) -> int:
        return left + right

    async def first():
        await app.enqueue(add.job(1, 2), reply_to="mine")
        return await anext(app.replies("mine", wait=60))

    with working(app), asyncio.Runner() as one, asyncio.Runner() as other:
        reply = one.run(first())
        other.run(app.stats())
        other.run(reply.ack())
        assert 0 == other.run(_acked_again(app, reply))
        other.run(app.aclose())
        one.run(app.aclose())


async def _acked_again(app, reply):
    return await (await app.reply_queue()).ack(reply.name, [reply.id])


def test_what_a_loop_was_given_is_refused_on_another_in_a_sentence(face_url):
    app = Duly(**face_url)
    with asyncio.Runner() as one:
        views = one.run(app.views())
        one.run(views.topics())
        with pytest.raises(UsageError, match="connected on another event loop, which still runs"):
            asyncio.run(views.topics())
        one.run(app.aclose())


@pytest.fixture(params=["plain", "http"])
def face_url(request, valkey, namespace):
    if request.param == "plain":
        yield {"url": valkey.url, "namespace": namespace}
        return
    with Served(Duly(valkey.url, namespace=namespace)) as service:
        yield {"url": service.url}


def test_a_store_beside_the_loop_of_its_record_has_the_record_agree_there(app, tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    recorded = Duly(app.settings.url, namespace=app.settings.namespace, record=url)

    async def main() -> None:
        async with recorded:
            store = recorded.make_store()  # as the heartbeat has one, on a loop of its own
            record = await recorded.record()
            async with record.guard._one_at_a_time:
                beside = asyncio.create_task(asyncio.to_thread(asyncio.run, store.agree()))
                await asyncio.wait([beside], timeout=0.1)
            await beside

    asyncio.run(main())


def test_a_forked_child_has_connections_of_its_own_on_its_loops(valkey, namespace):
    printed = script(
        """
        from concurrent.futures import ThreadPoolExecutor

        async def client_id():
            return await (await app.store()).link.call("CLIENT", "ID")

        async def main():
            mine = await client_id()
            pid = os.fork()
            if pid == 0:
                with ThreadPoolExecutor(1) as thread:
                    assert mine != thread.submit(asyncio.run, client_id()).result()
                sys.exit(0)  # ends the loop that it has from its parent
            assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(mine == await client_id())

        asyncio.run(main())
        """,
        f"url={valkey.url}",
        f"namespace={namespace}",
    )
    assert "True\n" == printed


@pytest.mark.parametrize("call", ["enqueue", "result", "events", "replies", "aclose"])
def test_under_trio_each_call_says_what_to_use_instead(app, call):
    async def main() -> None:
        match call:
            case "enqueue":
                await app.enqueue("add")
            case "result":
                await app.job("add", "a").result(timeout=1)
            case "events":
                await anext(app.events())
            case "replies":
                await anext(app.replies("mine"))
            case "aclose":
                await app.aclose()

    with pytest.raises(
        UsageError, match=r"^trio runs here, and duly awaits on asyncio: use asyncio, or call"
    ):
        trio.run(main)


def test_under_trio_the_twin_is_used_in_a_thread(app):
    async def main() -> None:
        with pytest.raises(UsageError, match="this thread runs trio"):
            app.sync.enqueue("add")
        await trio.to_thread.run_sync(lambda: app.sync.enqueue("add", id="a"))

    trio.run(main)
    assert "ready" == app.sync.job("add", "a").get().state.name


def test_without_any_loop_a_call_says_so(app):
    call = app.enqueue("add")
    with pytest.raises(UsageError, match=r"^no event loop of asyncio runs here"):
        call.send(None)
