"""
GET /v1/events: what happens, as it happens, as Server-Sent Events; and tokens for browsers that follow.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from starlette.responses import Response

from duly.durations import say_time
from duly.errors import EventsLost, UsageError
from duly.events import Verb
from duly.follower import EventFilter
from duly.http import streamtokens
from duly.http.answers import answer
from duly.http.bodies import client_gone, read_json
from duly.http.grammar import TOPIC_PATTERN
from duly.http.operations import TOPIC, WAIT, Answer, Operation, Parameter
from duly.http.problems import Problem
from duly.http.service import read_wait
from duly.job import check_topic
from duly.offsets import ALL, Place, read_places, write_places

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from duly.apikeys import ApiKey
    from duly.http.live import Entry
    from duly.http.service import Service
    from duly.offsets import Places

MEDIA_TYPE = "text/event-stream"
ROWS = 100  #: events that are sent at once; the next are made when the client has taken these
RETRY_MS = 1000  #: how long a client waits before it comes back


class EventMessage(msgspec.Struct, omit_defaults=True):
    """
    One message: data is a JSON document, an event or what was lost; id goes on behind it.

    One named end is the last of a stream that was asked for with wait.
    """

    data: str = ""
    event: Literal["message", "lost", "end"] = "message"
    id: str = ""


class Lost(msgspec.Struct):
    """
    Events that are gone: those of one shard with these numbers; null where nobody knows.
    """

    shard: int
    since: int | None
    until: int | None
    why: str


class StreamTokenRequest(msgspec.Struct, forbid_unknown_fields=True):
    """
    Which topics a token shows; none means all that the key sees.
    """

    topics: Annotated[
        list[Annotated[str, msgspec.Meta(pattern=TOPIC_PATTERN, min_length=1, max_length=100)]],
        msgspec.Meta(max_length=streamtokens.TOPICS),
    ] = []


class StreamToken(msgspec.Struct):
    """
    What a browser follows events with, and until when; without API keys it is empty, and none is needed.
    """

    token: str
    expires_at: str


_wanted = msgspec.json.Decoder(StreamTokenRequest)


class Sieve:
    """
    Which events a client sees.
    """

    def __init__(self, request: Request, key: ApiKey | None) -> None:
        """
        Read the query.

        Raises:
            UsageError: No topic can be called so.
            Problem: There is no such verb, or the key does not see a topic.
        """
        query = request.query_params
        self._key = key if key and key.topics else None
        verbs = query.getlist("verb")
        unknown = [verb for verb in verbs if verb not in set(Verb)]
        if unknown:
            raise Problem("invalid", f"verb={unknown[0]!r} must be one of {', '.join(Verb)}", field="verb")
        self._filter = EventFilter(query.getlist("topic") or None, verbs or None)
        for topic in self._filter.topics:
            if key and not key.sees(topic):
                raise Problem("forbidden", f"key {key.name} has not the scope read on topic {topic}")

    def passes(self, topic: str, verb: Verb) -> bool:
        """
        Whether it is one of them.
        """
        return self._filter.passes(topic, verb) and (self._key is None or self._key.sees(topic))


class Stream:
    """
    The events for one client, made no faster than it takes them.
    """

    def __init__(
        self,
        service: Service,
        request: Request,
        places: Places,
        sieve: Sieve,
        wait_s: float | None,
        unread: str = "",
    ) -> None:
        self._service, self._request = service, request
        self._places, self._sieve = places, sieve
        self._wait_s = wait_s  #: how long it goes on without an event; None: for ever
        self._unread = unread  #: why the id of the client says nothing
        self._look_s = time.monotonic() + service.access.look_s()  #: when to look at the key again
        # What a token shows, users of a web page see; the key of a header goes before a token.
        by_token = request.state.token and "authorization" not in request.headers
        self._is_public = request.state.key is not None and bool(by_token)

    async def parts(self) -> AsyncIterator[bytes]:
        """
        What is sent, until the service drains, the key is revoked or it has gone on for too long; with a
        wait, until no event came for so long and everything was sent that had happened by then.
        """
        service, live = self._service, self._service.live
        beat_s = service.settings.heartbeat_s
        wait_s = math.inf if self._wait_s is None else self._wait_s
        end_s = time.monotonic() + service.settings.max_stream_s
        # The id alone: who is cut off before the first event comes back to the same place.
        yield f"retry: {RETRY_MS}\nid: {write_places(self._places)}\n\n".encode()
        for shard in range(live.shards) if self._unread else ():
            yield self._lost(Lost(shard, None, None, self._unread))
        sent_s = told_s = time.monotonic()
        bound: Places | None = None
        while await self._goes_on() and time.monotonic() < end_s:
            news, found = live.news, False
            for shard in range(live.shards):
                async for part in self._of_shard(shard):
                    found = True
                    if part:
                        yield part
                        sent_s = told_s = time.monotonic()
            now_s = time.monotonic()
            if now_s - told_s < wait_s:
                bound = None
            elif bound is None:
                bound = await self._bound()
                continue
            elif self._passed(bound):
                yield b"id: %b\nevent: end\ndata: {}\n\n" % self._id()
                return
            if now_s - sent_s >= beat_s:
                # With the id: what was filtered out need not be looked at again.
                yield f": alive\nid: {write_places(self._places)}\n\n".encode()
                sent_s = now_s
            if not found:
                until_s = min(sent_s + beat_s, end_s, self._look_s)
                until_s = min(until_s, told_s + wait_s) if bound is None else until_s
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(until_s - now_s, 0.01)):
                        await news.wait()

    async def _bound(self) -> Places:
        """
        Behind everything that has happened; what is kept of a shard that had gone further is not believed.
        """
        live = self._service.live
        bound = await live.now()
        for shard, (last, place) in enumerate(zip(bound, self._places, strict=True)):
            if place is None or (last is not None and last.offset == place.offset):
                continue
            if last is None or last.offset.counter <= place.offset.counter:
                live.forget(shard)
        return bound

    def _passed(self, bound: Places) -> bool:
        return all(
            last is None or (place is not None and place.offset.counter >= last.offset.counter)
            for last, place in zip(bound, self._places, strict=True)
        )

    async def _goes_on(self) -> bool:
        if self._service.draining:
            return False
        if time.monotonic() < self._look_s:
            return True
        allowed = await self._service.access.still(self._request, self._request.state.key)
        self._look_s = time.monotonic() + self._service.access.look_s()
        return allowed

    async def _of_shard(self, shard: int) -> AsyncIterator[bytes]:
        """
        A page of one shard, in parts; an empty one means that something was passed over.
        """
        live, place = self._service.live, self._places[shard]
        try:
            entries = await live.after(shard, place)
        except EventsLost as lost:
            self._places[shard], until = await live.behind(lost)
            since = 1 if place is None else place.offset.counter + (place.rows == ALL)
            yield self._lost(Lost(shard, since, until, lost.why))
            return
        for entry in entries:
            for part in self._of_entry(shard, place, entry):
                yield part

    def _of_entry(self, shard: int, place: Place | None, entry: Entry) -> list[bytes]:
        """
        The events of one script call, each with an id that goes on behind it.
        """
        # An entry whose first rows were sent comes without them.
        begun = place.rows if place and place.offset == entry.offset else 0
        parts: list[bytes] = []
        lines: list[bytes] = []
        for number, row in enumerate(entry.rows, 1):
            if not self._sieve.passes(row.topic, row.verb):
                continue
            last = number == len(entry.rows)
            self._places[shard] = Place(entry.offset, ALL if last else begun + number)
            data = row.public if self._is_public else row.data
            lines.append(b"id: %b\ndata: %b\n\n" % (self._id(), data))
            if len(lines) == ROWS:
                parts.append(b"".join(lines))
                lines = []
        self._places[shard] = Place(entry.offset)
        return [*parts, b"".join(lines)]

    def _lost(self, told: Lost) -> bytes:
        return b"id: %b\nevent: lost\ndata: %b\n\n" % (self._id(), msgspec.json.encode(told))

    def _id(self) -> bytes:
        return write_places(self._places).encode()


class EventStream(Response):
    """
    Sends parts as they are made, and ends as soon as the client has gone.
    """

    def __init__(self, service: Service, stream: Stream, *, empty: bool) -> None:
        # No proxy may hold events back to send them together.
        super().__init__(None, 200, {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}, MEDIA_TYPE)
        del self.headers["content-length"]
        self._service, self._stream, self._empty = service, stream, empty

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """
        Send them.
        """
        del scope
        tasks = [asyncio.create_task(self._send(send)), asyncio.create_task(client_gone(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not tasks[0].cancelled():
            tasks[0].result()

    async def _send(self, send: Send) -> None:
        with self._service.live.following():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not self._empty:
                async for part in self._stream.parts():
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def follow(service: Service, request: Request) -> Response:
    """
    Events from a place on, for as long as the client stays.
    """
    sieve = Sieve(request, request.state.key)
    live = service.live
    said = request.headers.get("last-event-id") or request.query_params.get("last_event_id")
    since = request.query_params.get("from", "now")
    if since not in ("now", "start"):
        raise Problem("invalid", f"from={since!r} must be now or start", field="from")
    wait_s = _wait_s(request)
    places: Places | None = None if said or since == "now" else [None] * live.shards
    unread = ""
    if said:
        try:
            places = read_places(said, live.shards)
        except UsageError as error:
            # A browser would give up for good if it were refused: the queue may have been made anew.
            unread = str(error)
    if places is None:
        places = await live.now()
    if live.full:
        raise Problem(
            "unavailable",
            f"{live.followers} follow the events already, and no more may",
            headers={"Retry-After": "5"},
        )
    stream = Stream(service, request, places, sieve, wait_s, unread)
    return EventStream(service, stream, empty=request.method == "HEAD")


async def create_token(service: Service, request: Request) -> Response:
    """
    A token with which a browser follows events.
    """
    wanted = await read_json(request, _wanted, service.settings.body_limit, empty=b"{}")
    topics = [check_topic(topic) for topic in wanted.topics]
    key: ApiKey | None = request.state.key
    token, expires_s = "", int(time.time()) + streamtokens.LIFETIME_S
    if key is not None:
        token, expires_s = await streamtokens.make_token(service.keys, key, topics)
    expires_at = say_time(datetime.fromtimestamp(expires_s, UTC))
    return answer(StreamToken(token, expires_at))


def _wait_s(request: Request) -> float | None:
    said = request.query_params.get("wait")
    return None if said is None else read_wait(said)


_TOPICS = {"type": "array", "items": dict(TOPIC.schema)}
_VERBS = {"type": "array", "items": {"type": "string", "enum": list(Verb)}}

OPERATIONS = [
    Operation(
        name="followEvents",
        method="GET",
        path="/v1/events",
        about="What happens, as it happens: Server-Sent Events. The data of each is a JSON document with "
        "verb, job and state; one named `lost` tells of events that are gone. The id goes on behind it. With "
        "a stream token, the reason of a failure is its type alone.",
        run=follow,
        scope="read",
        of_topics=True,
        by_token=True,
        parameters=(
            Parameter("topic", "query", "only these topics", _TOPICS),
            Parameter("verb", "query", "only these verbs", _VERBS),
            Parameter(
                "from",
                "query",
                "without an id: what comes now, or all that is still there",
                {"type": "string", "enum": ["now", "start"]},
            ),
            Parameter(
                "wait",
                "query",
                "end when no event came for so long, with a message named end; 0: what is there now",
                WAIT.schema,
            ),
            Parameter("last_event_id", "query", "as the header, for clients that cannot set it"),
            Parameter("Last-Event-ID", "header", "the id of the last event that came: go on behind it"),
            Parameter("token", "query", "a stream token, for browsers, which cannot send a key here"),
        ),
        answers={200: Answer("events, until the client goes", EventMessage, media=MEDIA_TYPE)},
        problems=("invalid",),
    ),
    Operation(
        name="createStreamToken",
        method="POST",
        path="/v1/events/token",
        about="A stream token: with it in the query, a browser follows events for ten minutes without a key.",
        run=create_token,
        scope="read",
        of_topics=True,
        body=StreamTokenRequest,
        body_required=False,
        answers={200: Answer("the token", StreamToken)},
        problems=("invalid", "too-large", "unsupported"),
    ),
]
