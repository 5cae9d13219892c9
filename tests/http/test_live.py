"""
The live feed: Server-Sent Events from a real port, read byte by byte, over every shard.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import pytest

from duly import Duly
from duly.apikeys import KeyRing
from duly.errors import UsageError
from duly.events import Offset
from duly.feed import Feed
from duly.http.settings import ServiceSettings
from duly.offsets import ALL, Place, read_places, write_places
from tests.http.conftest import problem
from tests.http.service import Served
from tests.shards import one_id_on_each


class Client:
    """
    What a browser does, as bytes: connects, reads events, remembers the last id.
    """

    def __init__(self, url, query="", last="", key=""):
        host, _, port = url.removeprefix("http://").partition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        headers = [f"GET /v1/events{query} HTTP/1.1", f"Host: {host}"]
        headers += [f"Last-Event-ID: {last}"] if last else []
        headers += [f"Authorization: Bearer {key}"] if key else []
        self.socket.sendall("\r\n".join([*headers, "", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.last, self.comments, self.ended = last, 0, False
        self.status = int(self.file.readline().split()[1])
        self.headers = {}
        while line := self.file.readline().strip().decode():
            name, _, value = line.partition(":")
            self.headers[name.lower()] = value.strip()
        self.buffer = b""

    def _block(self):
        """
        The lines of the next event, None when the stream has ended.
        """
        while b"\n\n" not in self.buffer:
            line = self.file.readline()
            size = int(line or b"0", 16)
            if not size:
                self.ended = bool(line)  # else it was cut off
                return None
            self.buffer += self.file.read(size)
            self.file.readline()
        block, self.buffer = self.buffer.split(b"\n\n", 1)
        return block.decode().split("\n")

    def next(self):
        """
        The next event, as its name and its data.
        """
        while True:
            lines = self._block()
            if lines is None:
                return None
            fields = dict(line.split(": ", 1) for line in lines)
            self.comments += lines[0].startswith(": ")
            self.last = fields.get("id", self.last)
            if "data" in fields:
                return fields.get("event", "message"), json.loads(fields["data"])

    def take(self, count):
        return [self.next() for _ in range(count)]

    def begun(self):
        """
        Wait until the first block has come: from here on nothing is missed.
        """
        self._first = self._block()
        self.last = dict(line.split(": ", 1) for line in self._first)["id"]
        return self

    def close(self):
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture
def app(valkey, namespace, shards):
    return Duly(valkey.url, namespace=namespace, shards=shards)


@pytest.fixture
def served(app):
    with Served(app, ServiceSettings(heartbeat_s=0.2)) as served:
        yield served


def do(app, act):
    """
    Do something with an app of the same queue, on a loop of its own.
    """

    async def main():
        async with Duly(settings=app.settings) as other:
            return await act(other)

    return asyncio.run(main())


def enqueue(app, *ids, topic="mail"):
    async def act(other):
        await asyncio.gather(*(other.enqueue(topic, {"n": 1}, id=id_) for id_ in ids))

    do(app, act)


def names(events):
    return sorted(data["id"] for _, data in events)


def test_what_happens_on_every_shard_is_told_as_it_happens(app, served, shards):
    with Client(served.url) as client:
        assert (200, "text/event-stream; charset=utf-8") == (client.status, client.headers["content-type"])
        assert "no-store" == client.headers["cache-control"]
        client.begun()
        ids = one_id_on_each(app.settings, "mail")
        enqueue(app, *ids)
        told = client.take(shards)
        assert sorted(ids) == names(told)
        assert set(range(shards)) == {data["shard"] for _, data in told}
        kind, data = told[0]
        assert ("message", "enqueued", "mail", "ready") == (kind, data["verb"], data["topic"], data["state"])
        assert "payload" not in data


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(app, served):
    ids = [f"j{number}" for number in range(40)]
    enqueue(app, *ids[:20])
    seen, last = [], ""
    # One event a connection: also in the middle of a script call, which tells of several jobs at once.
    for _ in range(15):
        with Client(served.url, "?from=start", last) as client:
            seen.append(client.next())
            last = client.last
    enqueue(app, *ids[20:])
    with Client(served.url, "", last) as client:
        seen += client.take(25)
        assert sorted(ids) == names(seen)
        last = client.last
    with Client(served.url, "", last) as client:
        client.begun()
        enqueue(app, "after")
        assert "after" == client.next()[1]["id"], "and nothing before it"


def test_an_id_is_given_before_the_first_event(app, served):
    with Client(served.url) as client:
        last = client.begun().last
    enqueue(app, "while-away")
    with Client(served.url, "", last) as client:
        assert "while-away" == client.next()[1]["id"]


def test_the_id_may_stand_in_the_query(app, served):
    with Client(served.url) as client:
        last = client.begun().last
    enqueue(app, "a")
    with Client(served.url, f"?last_event_id={last}") as client:
        assert "a" == client.next()[1]["id"]


def test_topics_and_verbs_are_chosen(app, served):
    async def act(other):
        for topic in ("mail", "sms", "fax"):
            await (await other.enqueue(topic, id="x")).cancel()

    with Client(served.url, "?topic=mail&topic=sms&verb=cancelled") as client:
        client.begun()
        do(app, act)
        told = [(data["topic"], data["verb"]) for _, data in client.take(2)]
        assert [("mail", "cancelled"), ("sms", "cancelled")] == sorted(told)


def test_silence_is_filled_and_moves_the_id_past_what_was_left_out(app, served):
    with Client(served.url, "?topic=sms") as client:
        first = client.begun().last
        enqueue(app, "a", topic="mail")
        deadline = time.monotonic() + 20
        while client.last == first or not client.comments:
            assert time.monotonic() < deadline
            lines = client._block()
            client.comments += lines[0].startswith(": ")
            client.last = dict(line.split(": ", 1) for line in lines)["id"]
        moved = client.last
    with Client(served.url, "", moved) as client:
        client.begun()
        enqueue(app, "c")
        assert "c" == client.next()[1]["id"]


def test_many_clients_see_the_same(app, served):
    clients = [Client(served.url).begun() for _ in range(20)]
    enqueue(app, *"abc")
    try:
        assert [list("abc")] * 20 == [names(client.take(3)) for client in clients]
    finally:
        for client in clients:
            client.close()


async def trim(other, shard):
    """
    Drop all but the newest entry of a shard, as the bound of the stream does; its number is returned.
    """
    store = await other.store()
    await store.link.call("XTRIM", store.keys[shard].fixed["events"], "MAXLEN", "=", 1)
    return (await Feed(store).last(shard)).counter


def test_a_gap_is_told_with_its_range_and_the_stream_goes_on(app, served, shards):
    with Client(served.url) as client:
        last = client.begun().last
    for prefix in "abc":
        enqueue(app, *one_id_on_each(app.settings, "mail", prefix))
    kept = [do(app, lambda other, shard=shard: trim(other, shard)) for shard in range(shards)]
    with Client(served.url, "?from=start") as client:
        told = client.take(2 * shards)
        lost = [data for kind, data in told if kind == "lost"]
        assert [(shard, 1, newest - 1) for shard, newest in enumerate(kept)] == sorted(
            (each["shard"], each["since"], each["until"]) for each in lost
        )
        assert shards == sum(kind == "message" for kind, _ in told), "what is there is told"
    # The id before the first event stands at the beginning, too.
    with Client(served.url, "", last) as client:
        told = client.take(2 * shards)
        assert ["lost"] * shards + ["message"] * shards == sorted(kind for kind, _ in told)


def test_who_goes_away_right_behind_a_gap_comes_back_to_its_end(app, served, shards):
    for prefix in "abc":
        enqueue(app, *one_id_on_each(app.settings, "mail", prefix))
    for shard in range(shards):
        do(app, lambda other, shard=shard: trim(other, shard))
    told, last = [], ""
    for _ in range(2 * shards):
        with Client(served.url, "?from=start", last) as client:
            told.append(client.next()[0])
            last = client.last
    assert ["lost"] * shards + ["message"] * shards == sorted(told)


def test_a_server_that_was_rolled_back_is_told(app, served, shards):
    enqueue(app, *"abcdef")
    with Client(served.url, "?from=start") as client:
        client.take(6)
        last = client.last
    # The same places in another past, as after a restart from an older copy.
    places = read_places(last, shards)
    other = [Place(place.offset._replace(nonce="00" * 8), place.rows) for place in places]
    with Client(served.url, "", write_places(other)) as client:
        lost = client.take(shards)
        assert ["lost"] * shards == [kind for kind, _ in lost]
        assert {None} == {data["until"] for _, data in lost}
        enqueue(app, "new")
        assert "new" == client.next()[1]["id"], "from now on"


def test_a_client_that_does_not_read_holds_nothing_up(app, served):
    async def flood(other):
        for part in range(10):
            jobs = [other.enqueue("mail", None, id=f"f{part}-{number}") for number in range(500)]
            await asyncio.gather(*jobs)

    with Client(served.url) as slow, Client(served.url) as quick:
        slow.begun()
        quick.begun()
        do(app, flood)
        assert 5_000 == len({data["id"] for _, data in quick.take(5_000)})
        assert 5_000 == len({data["id"] for _, data in slow.take(5_000)}), "it comes to the end, too"


def test_the_poller_rests_when_the_last_client_has_gone(app):
    served = Served(app)
    with served:
        live = served._server.config.app.state.service.live
        with Client(served.url) as client:
            client.begun()
            assert 1 == live.followers
        deadline = time.monotonic() + 20
        while live.followers:
            assert time.monotonic() < deadline, "it is noticed that a client has gone"
            time.sleep(0.01)


def test_a_stream_ends_when_the_service_drains(app):
    served = Served(app)
    with served:
        client = Client(served.url).begun()
        served._server.should_exit = True
        assert client.next() is None
        assert client.ended, "to its last chunk"
        client.close()


def test_a_stream_has_an_end(app):
    with Served(app, ServiceSettings(max_stream_s=0.1)) as served, Client(served.url) as client:
        assert client.next() is None


def test_there_are_so_many_streams_and_no_more(app):
    with Served(app, ServiceSettings(max_streams=1)) as served, Client(served.url) as client:
        client.begun()
        with Client(served.url) as other:
            assert 503 == other.status
            assert int(other.headers["retry-after"]) > 0


def test_a_key_sees_its_topics(app, served, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)

    async def keys(other):
        ring = KeyRing(await other.store())
        return [
            (await ring.create("mailer", ["read"], ["mail.*"]))[0],
            (await ring.create("writer", ["enqueue"]))[0],
        ]

    mailer, writer = do(app, keys)
    for key, query, status in (
        ("", "", 401),
        (writer, "", 403),
        (mailer, "?topic=other", 403),
        (mailer, "?topic=mail.x", 200),
    ):
        with Client(served.url, query, key=key) as client:
            assert status == client.status, (key, query)
    with Client(served.url, key=mailer) as client:
        client.begun()
        enqueue(app, "hidden", topic="other")
        enqueue(app, "seen", topic="mail.x")
        assert "seen" == client.next()[1]["id"]


def test_a_stream_ends_when_its_key_is_revoked(app, served, monkeypatch):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)

    async def create(other):
        ring = KeyRing(await other.store())
        await ring.create("other", ["admin"])
        return (await ring.create("reader", ["read"]))[0]

    async def revoke(other):
        await KeyRing(await other.store()).revoke("reader")

    key = do(app, create)
    with Client(served.url, key=key) as client:
        client.begun()
        do(app, revoke)
        assert client.next() is None


def test_a_stream_looks_at_its_key_whenever_the_keys_are_read_again(app, served, monkeypatch):
    """
    It kept time by itself, and believed for as long again what others had had read in between.
    """
    reads, read = [], KeyRing._read

    async def counted(self):
        await read(self)
        reads.append(time.monotonic())

    async def create(other):
        ring = KeyRing(await other.store())
        await ring.create("other", ["admin"])
        return (await ring.create("reader", ["read"]))[0]

    async def revoke(other):
        await KeyRing(await other.store()).revoke("reader")

    key = do(app, create)
    headers = {"Authorization": f"Bearer {key}"}
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    assert 200 == httpx.get(f"{served.url}/v1/topics", headers=headers).status_code
    monkeypatch.setattr("duly.apikeys.FRESH_S", 2.0)
    monkeypatch.setattr(KeyRing, "_read", counted)
    time.sleep(1.5)  # what was read is to get old soon after the stream has begun
    with Client(served.url, key=key) as client:
        client.begun()
        deadline_s = time.monotonic() + 10
        while not reads:
            assert time.monotonic() < deadline_s
            assert 200 == httpx.get(f"{served.url}/v1/topics", headers=headers).status_code
        do(app, revoke)
        assert client.next() is None
        assert time.monotonic() - reads[0] < 2.7


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?verb=eaten", "verb"),
        ("?from=yesterday", "from"),
        ("?wait=soon", "wait"),
        ("?wait=-1", "wait"),
        ("?topic=a/b", None),
    ],
)
async def test_a_wrong_question_is_a_422(client, query, field):
    document = problem(await client.get(f"/v1/events{query}"), 422, "invalid")
    assert field is None or field == document["field"]


def test_an_id_that_says_nothing_is_told_as_a_gap(app, served, shards):
    enqueue(app, "before")
    with Client(served.url, "", write_places([None] * 7)) as client:
        told = client.take(shards)
        assert [("lost", None, None)] * shards == [(kind, d["since"], d["until"]) for kind, d in told]
        assert "7 shards" in told[0][1]["why"]
        enqueue(app, "now")
        assert "now" == client.next()[1]["id"]
        last = client.last
    with Client(served.url, "", last) as client:
        client.begun()
        enqueue(app, "again")
        assert "again" == client.next()[1]["id"], "its next id is a good one"


async def test_who_looked_before_the_poller_began_is_woken(client, app):
    live = client._transport.app.state.service.live
    news = live.news
    with live.following():
        await live.run_once()
    assert news.is_set(), "what happened in between would wait for the next event"


async def test_head_asks_for_headers_only(client):
    response = await client.head("/v1/events")
    assert (200, b"") == (response.status_code, response.content)


def test_places_are_read_as_they_were_written():
    places = [None, Place(Offset("e1", 7, "0011223344556677"), 3), Place(Offset("é", 2**40, "ff" * 8), ALL)]
    assert places == read_places(write_places(places), 3)


@pytest.mark.parametrize("text", ["x", "é", "!!!!", write_places([None]), "gaQAAAAA", "kZQAAMQAoA"])
def test_what_is_no_id_is_refused(text):
    with pytest.raises(UsageError, match="Last-Event-ID"):
        read_places(text, 2)
