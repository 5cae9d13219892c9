"""
The server itself: scripts on both kinds, a cluster, full memory, lost scripts, lost data, wrong servers.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter

import pytest
import redis

from duly.connection import Link, _ReplyLost
from duly.errors import (
    JobNotFound,
    LayoutMismatch,
    OutcomeUnknown,
    ServerUnsuitable,
    StoreUnavailable,
    UsageError,
)
from duly.feed import Feed
from duly.job import JobKey, JobState, Order
from duly.namespace import create, inspect
from duly.scripts import NAMES, library
from duly.services.auditor import Auditor
from duly.store import Store, Want
from duly.testing import TestClock
from duly.views import Views
from tests.ports import held_port
from tests.servers import Server, binary
from tests.store import snapshot
from tests.store.kit import claim, enqueue, key, order


@pytest.fixture
def start():
    """
    Start servers with a configuration of their own.
    """
    started = []

    def start(kind, *config):
        started.append(Server(binary(kind), *config).start())
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def port():
    with held_port() as port:
        yield port


@pytest.fixture
async def connect():
    links = []

    def connect(url, **options):
        links.append(Link(url, **options))
        return links[-1]

    yield connect
    for link in links:
        await link.aclose()


# -- scripts ----------------------------------------------------------------------------------------------


async def test_every_script_compiles_into_one_library_known_by_its_content(link):
    assert library().name.encode() == await link.call("FUNCTION", "LOAD", "REPLACE", library().source)
    [[*about]] = await link.call("FUNCTION", "LIST", "LIBRARYNAME", library().name)
    functions = dict(zip(about[::2], about[1::2], strict=True))[b"functions"]
    assert {library().function(name).encode() for name in NAMES} == {each[1] for each in functions}


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_scripts_touch_the_keys_that_they_declare_and_no_others(start, connect, kind):
    """
    An undeclared key in a slot that moves fails half-way: what the server did is compared with what was said.
    """
    server = start(kind)
    link = connect(server.url)
    clock = TestClock(1_000_000)
    await create(link, "n", 3, clock="test")
    store = Store(link, namespace="n", shards=3, now=clock)
    seen: list[tuple[str, str]] = []
    ready, done = threading.Event(), threading.Event()
    watching = asyncio.create_task(asyncio.to_thread(_watch, server, seen, ready, done))
    await asyncio.to_thread(ready.wait)
    await _live(store, Views(store), clock)
    done.set()
    await link.call("PING")
    await watching
    declared: set[str] = set()
    touched = Counter()
    for source, command in seen:
        words = command.split(" ")
        if source != "lua":
            declared = set(words[3 : 3 + int(words[2])]) if words[0] == "FCALL" else set()
            continue
        if words[0] == "TIME":
            continue
        assert words[1] in declared, f"{command} in a script that declares {sorted(declared)}"
        touched[words[0]] += 1
    assert {
        "XADD",
        "XDEL",
        "XTRIM",
        "HSET",
        "ZADD",
        "ZREM",
        "PUBLISH",
        "LPUSH",
    } <= touched.keys()


def _watch(server, seen, ready, done):
    """
    Note every command that the server runs, until the PING after *done*.
    """
    client = redis.Redis(unix_socket_path=str(server.socket))
    with client.monitor() as monitor:
        ready.set()
        for line in monitor.listen():
            if done.is_set() and line["command"] == "PING":
                break
            seen.append((line["client_type"], line["command"]))
    client.close()


@pytest.mark.parametrize("kind", ["valkey", "redis"])
async def test_the_whole_life_of_a_job_runs_in_a_cluster(start, connect, kind, port):
    """
    A server in cluster mode refuses a script whose keys are in more than one slot.
    """
    cluster = ("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
    # Nodes talk to each other over a port of their own: the usual one may be that of other tests.
    server = start(kind, *cluster, "--bind", "127.0.0.1", "--cluster-port", str(port))
    link = connect(server.url)
    await link.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    while b"cluster_state:ok" not in await link.call("CLUSTER", "INFO"):
        await asyncio.sleep(0.01)
    with pytest.raises(ServerUnsuitable, match="same slot"):
        await link.call("EVAL", "#!lua\nredis.call('GET', KEYS[1]) return redis.call('GET', 'b')", 1, "a")

    clock = TestClock(1_000_000)
    await create(link, "n", 3, clock="test")
    store, client = Store(link, namespace="n", shards=3, now=clock), snapshot.client_of(server.socket)
    views = Views(store)
    await _live(store, views, clock)
    for shard in range(3):
        snapshot.check(snapshot.take(client, store.keys[shard], ("mail", "slow")))
    client.close()


async def _live(store, views, clock):
    """
    Every verb, on jobs in every shard, small and large, in every lane.
    """
    ids = [str(at) for at in range(30)]
    shards = range(store.shards)
    assert set(shards) == {store._shard(key(id_)) for id_ in ids}

    async def take(number, topics=("mail", "slow")):
        wants = [Want(topic, 50, 60_000) for topic in topics]
        claims = [await store.claim(shard, wants, worker="w", timer="t") for shard in shards]
        return {lease.key.id: lease for claimed in claims for lease in claimed.leases}

    large = b'"' + b"x" * 3000 + b'"'
    await store.enqueue_many(
        [order(id_, delay_ms=10, payload=large if int(id_) % 3 else b"1") for id_ in ids]
    )
    await store.enqueue_many([order(id_, delay_ms=20, payload=b"2", on_conflict="replace") for id_ in ids])
    await enqueue(store, "late", "slow", delay_ms=10, expires_ms=1_000_005)
    await store.reschedule(key("0"), delay_ms=20)
    await store.limit("slow", 100)
    for id_ in ids:
        its_keys = store.keys[store._shard(key(id_))]
        watched = [its_keys.fixed["jobs"], its_keys.fixed["outcomes"], its_keys.due("mail")]
        await store.link.run("watch", watched, [key(id_).member])
    clock.advance(ms=20)
    for shard in shards:
        await store.promote(shard, timer="t")
    await store.pause("mail")
    assert {} == await take(1)
    await store.resume("mail")
    held = await take(2)
    assert 30 == len(held)
    for shard in shards:
        mine = [lease for lease in held.values() if lease.shard == shard]
        assert all(await store.extend(shard, mine))
    await store.progress(held["0"], b"1")
    for at, lease in enumerate(held.values()):
        match at % 6:
            case 0:
                await store.ack(lease, b"1")
            case 1:
                await store.retry(lease, 5, b"{}", "Boom")
            case 2:
                await store.bury(lease, b"{}", "Bad")
            case 3:
                await store.release(lease)
            case 4:
                await store.cancel([lease.key])
    await store.beat("w", b"{}")
    clock.advance(s=16)
    for shard in shards:
        await store.recover(shard)
        await store.promote(shard)
    clock.advance(s=1)
    again = await take(3)
    for lease in again.values():
        await store.ack(lease)
    while more := await take(4):
        for lease in more.values():
            await store.ack(lease)
    ended = [job for state in JobState if state.ended async for job in views.each(state)]
    assert 31 == len(ended)
    assert all(placed.word == "requeued" for placed in await store.requeue([key(id_) for id_ in ids]))
    assert 30 == sum([len(await views.peek("mail", 50))])
    await store.cancel([key(id_) for id_ in ids])
    assert 0 == await Auditor(store).run_pass()
    feed = Feed(store)
    for shard in shards:
        _, events = await feed.read(shard, None, 10_000)
        assert events
        await feed.commit("c", shard, await feed.last(shard))
        await feed.trim(shard)
    assert {"mail", "slow"} == set(await views.topics())
    clock.advance(s=200_000)
    pruned = [await store.prune(shard) for shard in shards]
    assert 31 == sum(number for number, _ in pruned)
    await store.beat("w", b"")


async def test_scripts_may_be_flushed_between_any_two_calls(store, views, clock, raw):
    link, run = store.link, store.link.run

    async def forgetful(*args, **options):
        raw.function_flush("SYNC")
        return await run(*args, **options)

    link.run = forgetful
    await _live(store, views, clock)


# -- memory -----------------------------------------------------------------------------------------------


async def test_at_the_memory_limit_work_goes_on_and_only_new_jobs_are_refused(start, connect):
    server = start("valkey", "--maxmemory-policy", "noeviction")
    link = connect(server.url, patience_s=0.5)
    clock = TestClock(1_000_000)
    await create(link, "n", 1, clock="test")
    store = Store(link, namespace="n", now=clock)
    views = Views(store)
    await store.enqueue_many([order(str(at)) for at in range(10)] + [order("later", delay_ms=100)])
    await enqueue(store, "ended")
    held = await claim(store, limit=11)
    await store.ack(held[-1])
    await link.call("CONFIG", "SET", "maxmemory", 1)

    with pytest.raises(StoreUnavailable, match=r"memory limit.*nothing was changed"):
        await enqueue(store, "refused")
    assert None is await views.get(key("refused"))

    await store.ack(held[0], b"1")
    await store.retry(held[1], 10, b"{}", "Boom")
    await store.bury(held[2], b"{}", "Bad")
    await store.release(held[3])
    await store.progress(held[4], b"1")
    assert [True] == await store.extend(0, [held[4]])
    assert [JobState.cancelled] == await store.cancel([held[5].key])
    clock.advance(s=16)
    assert 5 == (await store.recover(0)).recovered
    clock.advance(s=2)
    assert (await store.promote(0)).moved
    assert await claim(store)
    await store.pause("mail")
    await store.resume("mail")
    clock.advance(s=2_000_000)
    assert (await store.prune(0))[0]
    await Auditor(store).run_pass()
    await link.call("CONFIG", "SET", "maxmemory", 0)
    assert "created" == (await enqueue(store, "refused")).word


# -- a namespace ------------------------------------------------------------------------------------------


async def test_a_namespace_is_made_once_and_keeps_its_epoch(link, namespace):
    first = await create(link, namespace, 2)
    assert (2, first) == (len(set(first)), await create(link, namespace, 2))


async def test_a_client_that_does_not_fit_the_namespace_is_refused(link, namespace, raw):
    await create(link, namespace, 2)
    with pytest.raises(LayoutMismatch, match="shard count 2, this client expects 3: set shards = 2"):
        await create(link, namespace, 3)
    with pytest.raises(LayoutMismatch, match="clock server, this client expects test"):
        await create(link, namespace, 2, clock="test")
    raw.hset(f"{{{namespace}:0}}:meta", "layout", "99")
    with pytest.raises(LayoutMismatch, match="layout version 99"):
        await create(link, namespace, 2)


async def test_the_bounds_of_the_event_stream_follow_the_settings(link, namespace, raw):
    await create(link, namespace, 2, max_event_rows=1_000)
    await create(link, namespace, 2, max_event_rows=3_000)
    assert b"3000" == raw.hget(f"{{{namespace}:1}}:meta", "max_event_rows")


async def test_a_time_from_outside_is_refused_where_the_clock_is_the_servers(live, clock):
    store = Store(live.link, namespace=live.namespace, now=clock)
    with pytest.raises(ServerUnsuitable, match="clock of its server"):
        await enqueue(store, "a")
    assert None is await Views(live).get(key("a"))


@pytest.mark.parametrize("verb", ["enqueue", "claim", "promote", "ack", "cancel"])
async def test_after_the_server_was_emptied_the_namespace_is_made_anew(store, views, raw, look, verb):
    await enqueue(store, "a")
    [lease] = await claim(store)
    raw.delete(*raw.keys(f"{store.keys[0].prefix}*"))
    match verb:
        case "enqueue":
            assert "created" == (await enqueue(store, "a")).word
        case "claim":
            assert [] == await claim(store)
        case "promote":
            assert 0 == (await store.promote(0)).moved
        case "ack":
            with pytest.raises(JobNotFound):
                await store.ack(lease)
        case "cancel":
            assert [None] == await store.cancel([lease.key])
    assert {b"layout", b"epoch", b"clock"} <= set(raw.hkeys(store.keys[0].fixed["meta"]))
    await enqueue(store, "b")
    assert "b" in [lease.key.id for lease in await claim(store)]
    look()


async def test_many_callers_find_the_server_emptied_at_once(store, raw, look):
    raw.delete(store.keys[0].fixed["meta"])
    placed = await asyncio.gather(
        *(enqueue(store, str(at)) for at in range(20)), *(store.promote(0) for _ in range(5))
    )
    assert ["created"] * 20 == [one.word for one in placed[:20]]
    assert 20 == len(look().jobs)


# -- other servers ----------------------------------------------------------------------------------------


async def test_a_good_server_is_known_by_its_own_name_and_version(link, server):
    facts = await inspect(link)
    assert facts.name.lower() in server.path or facts.name == "Redis"
    assert (7, 0) <= facts.version
    assert ((), 40) == (facts.warnings, len(facts.run_id))


async def test_a_server_that_would_evict_jobs_is_refused(start, connect):
    link = connect(start("valkey", "--maxmemory-policy", "allkeys-lru").url)
    with pytest.raises(ServerUnsuitable, match=r"maxmemory-policy allkeys-lru.*noeviction"):
        await inspect(link)


async def test_a_server_without_an_append_only_file_is_warned_about(start, connect):
    facts = await inspect(connect(start("valkey", "--appendonly", "no").url))
    assert [True] == ["appendonly yes" in warning for warning in facts.warnings]


class Told:
    """
    A link to a server that says of itself what a test wants.
    """

    place = "somewhere:6379"

    def __init__(self, **info):
        self.info = info

    async def call(self, *_):
        return "\r\n".join(["# Server", *(f"{name}:{value}" for name, value in self.info.items())]).encode()


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"redis_version": "6.2.14"}, "somewhere:6379 runs Redis 6.2.14; duly needs Redis 7.0 or later"),
        (
            {"redis_version": "7.2.4", "valkey_version": "7.1.0"},
            "runs Valkey 7.1.0; duly needs Valkey 7.2 or later",
        ),
        ({}, "runs Redis 0"),
    ],
)
async def test_a_server_that_is_too_old_is_refused(info, words):
    with pytest.raises(ServerUnsuitable, match=re.escape(words)):
        await inspect(Told(**info))


@pytest.mark.parametrize(
    ("info", "name", "version"),
    [
        ({"redis_version": "7.0.0"}, "Redis", (7, 0)),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.2"}, "Valkey", (9, 1)),
        ({"redis_version": "255.255.255"}, "Redis", (255, 255)),
    ],
)
async def test_a_version_is_read_as_numbers(info, name, version):
    facts = await inspect(Told(**info, aof_enabled=1, aof_last_write_status="ok"))
    assert (name, version, ()) == (facts.name, facts.version, facts.warnings)


async def test_an_append_only_file_that_cannot_be_written_is_warned_about():
    facts = await inspect(Told(redis_version="7.0.0", aof_enabled=1, aof_last_write_status="err"))
    assert [True] == ["disk" in warning for warning in facts.warnings]


async def test_what_is_no_redis_at_all_is_told_from_one_that_is_down(connect):
    async def answer(reader, writer):
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    http = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    link = connect(f"redis://127.0.0.1:{port}/0", patience_s=0.3)
    with pytest.raises(ServerUnsuitable, match=rf"127\.0\.0\.1:{port} is not a Redis or Valkey server"):
        await inspect(link)
    http.close()
    await http.wait_closed()
    with pytest.raises(StoreUnavailable, match=rf"cannot use 127\.0\.0\.1:{port}"):
        await inspect(link)


async def test_an_address_that_is_none_is_refused_before_anything_is_sent():
    with pytest.raises(UsageError, match="redis://host:port/0"):
        Link("localhost:6379")


async def test_a_wrong_password_is_told(start, connect):
    server = start("valkey")
    admin = connect(server.url)
    await admin.call("CONFIG", "SET", "requirepass", "secret")
    link = connect(f"unix://:wrong@{server.socket}", patience_s=0.2)
    with pytest.raises(ServerUnsuitable, match="password") as told:
        await inspect(link)
    assert "wrong" not in str(told.value).replace("WRONGPASS", "")


REFUSED_FOR_GOOD = {
    "another program's key": ("HGET", "text", "field"),
    "a script that fails": ("EVAL", "#!lua\nreturn nil + 1", 0),
    "a script that says so": ("EVAL", "#!lua\nerror({err = 'ERR too many changes wait'})", 0),
    "an unknown command": ("NOSUCHCOMMAND",),
}


@pytest.mark.parametrize("what", REFUSED_FOR_GOOD)
async def test_what_the_server_refuses_for_good_is_no_outage(live, raw, what):
    raw.set("text", "no hash")
    with pytest.raises(ServerUnsuitable, match="refused the call, and will again"):
        await live.link.call(*REFUSED_FOR_GOOD[what])


@pytest.mark.parametrize("code", ["MISCONF", "NOREPLICAS", "MOVED"])
async def test_what_ends_by_itself_is_an_outage(live, code):
    with pytest.raises(StoreUnavailable, match="nothing was changed"):
        await live.link.call("EVAL", f"#!lua\nerror({{err = '{code} for now'}})", 0)


async def test_a_command_that_the_user_may_not_send_is_named(start, connect):
    server = start("valkey")
    await connect(server.url).call("ACL", "SETUSER", "low", "on", ">pw", "~*", "&*", "+@all", "-time")
    link = connect(f"unix://low:pw@{server.socket}")
    with pytest.raises(ServerUnsuitable, match=r"does not allow it: NOPERM.*'time'.*ACL") as told:
        await link.call("TIME")
    assert not isinstance(told.value, StoreUnavailable)


async def test_a_replay_that_is_refused_for_good_leaves_the_outcome_unknown(live, monkeypatch):
    exchange, calls = live.link._exchange, []

    async def lose_the_first(*args):
        calls.append(args)
        if len(calls) == 1:
            raise _ReplyLost("lost")
        return await exchange(*args)

    monkeypatch.setattr(live.link, "_exchange", lose_the_first)
    with pytest.raises(OutcomeUnknown, match="NOSUCHCOMMAND"):
        await live.link.call("NOSUCHCOMMAND")


async def test_a_store_over_tcp_and_one_over_a_socket_meet(start, connect, port):
    server = start("valkey", "--port", str(port), "--bind", "127.0.0.1")
    one, two = connect(server.url), connect(f"redis://127.0.0.1:{port}/0")
    await create(one, "n", 1)
    await create(two, "n", 1)
    await Store(one, namespace="n").enqueue(Order(JobKey("mail", "a"), b"1"))
    [lease] = await claim(Store(two, namespace="n"))
    await Store(one, namespace="n").ack(lease)


async def test_tokens_grow_also_across_an_emptied_server(link, store, raw, clock):
    await enqueue(store, "a")
    [before] = await claim(store)
    raw.delete(*raw.keys(f"{{{store.namespace}:*"))
    clock.advance(ms=1)
    await enqueue(store, "a")
    [after] = await claim(store)
    assert after.fence > before.fence
    assert after.revision > before.revision
