"""
Silence: a connection over which nothing comes any more is told from a server that is slow as a whole.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time

import pytest

from duly import connection
from duly.connection import TRY_S, Link
from duly.errors import OutcomeUnknown, StoreUnavailable
from duly.job import JobState
from duly.namespace import create
from duly.scripts import library
from duly.store import Store
from duly.waiting import Waiters
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.servers import Server, binary
from tests.store.kit import claim, enqueue, key, order

CONNECTIONS = 60
SOON_S = 0.5 * TRY_S  #: what waits for no silent connection takes milliseconds


@pytest.fixture
def server(valkey):
    """
    It is the client that tells; what it sends is tested on both servers.
    """
    return valkey


@pytest.fixture
async def proxy(server):
    proxy = Proxy(server.socket)
    yield proxy
    await asyncio.to_thread(proxy.close)


@pytest.fixture
async def far(proxy, store, clock):
    """
    The same namespace, over connections that can fall silent.
    """
    link = Link(proxy.url)
    yield Store(link, namespace=store.namespace, now=clock)
    await link.aclose()


@pytest.fixture
def stoppable():
    """
    A server that a test may stop; it goes on in the end.
    """
    server = Server(binary("valkey")).start()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.stop()


async def open_many(link, number=CONNECTIONS):
    """
    Make so many calls at once that each has a connection, which is idle afterwards.
    """
    return await asyncio.gather(*(link.call("CLIENT", "ID") for _ in range(number)))


def pings(raw):
    """
    How often the server was asked whether it is there.
    """
    found = re.search(rb"cmdstat_ping:calls=(\d+)", raw.execute_command("INFO", "commandstats"))
    return int(found[1]) if found else 0


# -- one connection ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3])
async def test_a_claim_whose_reply_is_held_is_repeated_and_brings_its_leases(far, proxy, look, times):
    await far.enqueue_many([order(str(at)) for at in range(6)])
    proxy.cut("silent", library().function("claim"), times=times)
    leases = await claim(far, limit=4)
    assert (times, 4) == (proxy.made, len(leases))
    running = {member: job.token for member, job in look().jobs.items() if job.state is JobState.running}
    assert running == {lease.key.member: lease.token for lease in leases}
    for lease in leases:
        await far.ack(lease)
    assert {0} == {job.crashes for job in look().jobs.values()}


@pytest.mark.parametrize("verb", ["enqueue", "replace", "reschedule", "ack", "cancel"])
async def test_a_call_whose_reply_is_held_is_made_once(far, proxy, look, verb):
    await enqueue(far, "a", delay_ms=0 if verb == "ack" else 100)
    leases = await claim(far) if verb == "ack" else []
    proxy.cut("silent", library().function({"enqueue": "add", "replace": "enqueue"}.get(verb, verb)))
    match verb:
        case "enqueue":
            assert "created" == (await enqueue(far, "b")).word
        case "replace":
            placed = await enqueue(far, "a", delay_ms=200, on_conflict="replace")
            assert ("replaced", 1_000_200) == (placed.word, placed.due_ms)
        case "reschedule":
            assert "rescheduled" == (await far.reschedule(key("a"), delay_ms=50)).word
        case "ack":
            await far.ack(leases[0])
        case "cancel":
            assert [JobState.cancelled] == await far.cancel([key("a")])
    assert 1 == proxy.made
    look()


async def test_a_reply_that_stays_away_is_an_unknown_outcome_when_the_patience_is_over(far, proxy):
    far.link.patience_s = 1.0
    proxy.cut("silent", library().function("add"), times=1_000)
    with pytest.raises(OutcomeUnknown, match="calling again is safe"):
        await asyncio.wait_for(enqueue(far, "a"), 30)
    assert proxy.made > 2, "it was sent several times"
    proxy.mend()
    assert "kept" == (await enqueue(far, "a")).word


async def test_a_long_reply_that_comes_in_parts_is_no_silence(tmp_path):
    """
    The last comes later than a try may last, and another connection is answered at once.
    """
    asked, serving = [], set()

    async def serve(reader, writer):
        serving.add(writer)
        while head := await reader.readline():
            parts = []
            for _ in range(int(head[1:])):
                size = int((await reader.readline())[1:])
                parts.append((await reader.readexactly(size + 2))[:-2])
            if parts[0] != b"GET":
                writer.write(b"+OK\r\n")
                continue
            asked.append(parts)
            for part in (b"$6\r\n", b"ab", b"cd", b"ef", b"\r\n"):
                writer.write(part)
                await asyncio.sleep(0.15)
        writer.close()
        await writer.wait_closed()
        serving.discard(writer)

    listening = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    link = Link(f"unix://{tmp_path / 's'}", patience_s=2.0)
    assert 0.15 < link.try_s < 5 * 0.15
    assert b"abcdef" == await link.call("GET", "a")
    assert 1 == len(asked)
    await link.aclose()
    await eventually(lambda: not serving)
    listening.close()


async def test_a_reply_that_came_while_the_loop_was_blocked_is_no_silence(far):
    link = far.link
    link.patience_s = 0.2
    number = await link.call("CLIENT", "ID")
    call = asyncio.create_task(link.call("CLIENT", "ID"))
    await asyncio.sleep(0)
    time.sleep(4 * link.patience_s)  # as a handler does that blocks
    assert number == await call
    assert number == await link.call("CLIENT", "ID")


# -- a pool of them ---------------------------------------------------------------------------------------


async def test_one_silent_connection_of_many_costs_one_try_and_later_calls_nothing(far, proxy):
    await open_many(far.link)
    proxy.silence()
    assert "created" == (await enqueue(far, "first")).word
    begun_s = time.monotonic()
    for at in range(20):
        assert "created" == (await enqueue(far, str(at))).word
    assert time.monotonic() - begun_s < CONNECTIONS * SOON_S, "each silent one would have cost a try"
    assert 1 == sum(library().function("add").encode() in request for request in proxy.swallowed)


async def test_as_many_calls_as_there_are_silent_connections_all_succeed(far, proxy):
    await open_many(far.link)
    proxy.silence()
    told = await asyncio.gather(*(far.link.call("ECHO", str(at)) for at in range(CONNECTIONS)))
    assert [str(at).encode() for at in range(CONNECTIONS)] == told


async def test_a_connection_that_answered_since_is_kept(far, proxy):
    """
    One reply of one connection is held; the others work, and those that were used meanwhile prove it.
    """
    link = far.link
    before = set(await open_many(link, 3))
    proxy.cut("silent", "ECHO")
    held = asyncio.create_task(link.call("ECHO", "held"))
    await eventually(lambda: proxy.made == 1)
    used = await link.call("CLIENT", "ID")
    assert b"held" == await held
    await eventually(lambda: link._telling is None)
    assert {used} == before & set(await open_many(link, 3))


async def test_what_was_idle_for_long_is_asked_before_a_call_is_trusted_to_it(far, proxy, monkeypatch):
    await open_many(far.link)
    monkeypatch.setattr(connection, "REST_S", 0.0)
    proxy.silence()
    assert "created" == (await enqueue(far, "a")).word
    assert {b"*1\r\n$4\r\nPING\r\n"} == set(proxy.swallowed), "the call itself was sent to nobody"


async def test_what_was_used_just_now_is_not_asked_first(far, raw):
    await enqueue(far, "a")
    asked = pings(raw)
    for at in range(20):
        await enqueue(far, str(at))
    assert asked == pings(raw)


async def test_a_subscription_that_fell_silent_is_made_again(far, proxy, store, monkeypatch):
    monkeypatch.setattr(connection, "QUIET_S", 0.1)
    far.link.patience_s = 0.5
    heard = far.link.listen("news")
    assert ("", b"") == await anext(heard)
    proxy.silence()
    assert ("", b"") == await asyncio.wait_for(anext(heard), 30), "subscribed again"
    await store.link.call("PUBLISH", "news", "late")
    assert ("news", b"late") == await asyncio.wait_for(anext(heard), 30)
    await heard.aclose()


async def test_a_subscription_over_which_little_comes_is_kept(far, raw, monkeypatch):
    monkeypatch.setattr(connection, "QUIET_S", 0.01)
    heard = far.link.listen("news")
    await anext(heard)
    calls = pings(raw)
    waiting = asyncio.ensure_future(anext(heard))
    await eventually(lambda: pings(raw) > calls + 5)
    assert not waiting.done()
    raw.publish("news", "now")
    assert ("news", b"now") == await waiting
    await heard.aclose()


async def test_a_wait_over_a_silent_connection_ends_and_says_that_there_may_be_work(far, proxy, raw):
    far.link.patience_s = 0.5
    waiting = asyncio.create_task(far.wait(["mail"], 0.2))
    await eventually(lambda: b" cmd=blpop " in raw.execute_command("CLIENT", "LIST"))
    proxy.silence()
    # The token may be lost with the reply, so whoever waited has to look.
    assert await asyncio.wait_for(waiting, 30)


async def test_waits_end_as_soon_as_a_call_found_its_connection_silent(far, proxy, raw):
    await enqueue(far, "warm up", "other")
    waiting = asyncio.create_task(far.wait(["mail"], 600))
    await eventually(lambda: b" cmd=blpop " in raw.execute_command("CLIENT", "LIST"))
    # The call that finds out is newer than the wait.
    proxy.silence()
    await far.link.call("PING")
    assert await asyncio.wait_for(waiting, 30)


# -- a server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rested", [False, True], ids=["used just now", "idle for long"])
async def test_a_server_that_is_silent_for_two_seconds_costs_no_connection_and_no_replay(
    stoppable, monkeypatch, rested
):
    link = Link(stoppable.url)
    before = set(await open_many(link, 20))
    if rested:
        monkeypatch.setattr(connection, "REST_S", 0.0)
    stoppable.process.send_signal(signal.SIGSTOP)
    calls = [asyncio.create_task(link.call("INCR", "sent")) for _ in range(10)]
    await asyncio.sleep(2 * TRY_S)
    assert not any(call.done() for call in calls)
    stoppable.process.send_signal(signal.SIGCONT)
    assert set(range(1, 11)) == set(await asyncio.gather(*calls)), "each was sent once"
    monkeypatch.undo()
    assert before == set(await open_many(link, 20))
    await link.aclose()


async def test_a_server_that_stays_silent_is_waited_for_as_long_as_the_patience_lasts(stoppable, namespace):
    link = Link(stoppable.url, patience_s=0.5)
    await create(link, namespace, 1)
    store = Store(link, namespace=namespace)
    await enqueue(store, "a")
    stoppable.process.send_signal(signal.SIGSTOP)
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(enqueue(store, "b"), 30)
    # Not even a connection is made now, so nothing was sent.
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await asyncio.wait_for(enqueue(store, "c"), 30)
    stoppable.process.send_signal(signal.SIGCONT)
    link.patience_s = 30
    assert ["created", "kept"] == [(await enqueue(store, id_)).word for id_ in ("c", "b")]
    await link.aclose()


async def test_all_who_wait_for_a_job_while_the_server_is_silent_are_told_the_same(stoppable, namespace):
    link = Link(stoppable.url, patience_s=0.5)
    await create(link, namespace, 1)
    store = Store(link, namespace=namespace)
    await enqueue(store, "a", delay_ms=3_600_000)
    await open_many(link, 4)
    waiters = Waiters(store)
    stoppable.process.send_signal(signal.SIGSTOP)
    # Some are sent over connections that are there, and others find none.
    waiting = (asyncio.wait_for(waiters.ended(key("a")), 60) for _ in range(12))
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert [StoreUnavailable] * 12 == [type(each) for each in told]
    await waiters.aclose()
    await link.aclose()


# -- calls that leave together ----------------------------------------------------------------------------


async def test_calls_that_leave_together_do_not_wait_behind_a_silent_connection(far, proxy, monkeypatch):
    far.link.patience_s = 30
    monkeypatch.setattr(connection, "TRY_S", 6.0)
    await open_many(far.link, 4)
    proxy.cut("silent", library().function("add"))
    held = asyncio.create_task(enqueue(far, "held"))
    await eventually(lambda: proxy.made == 1)
    others = await asyncio.gather(*(enqueue(far, str(at)) for at in range(50)))
    assert not held.done()
    assert {"created"} == {placed.word for placed in others}
    assert "created" == (await held).word
