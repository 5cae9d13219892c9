"""
GET /v1/events: what happens, as it happens, as Server-Sent Events.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

import msgspec
from starlette.responses import Response

from duly import apikeys
from duly.errors import UsageError
from duly.events import Verb
from duly.feed import EventsLost
from duly.http.live import ALL, Place, read_places, write_places
from duly.http.operations import TOPIC, Answer, Operation, Parameter
from duly.http.problems import Problem
from duly.job import check_topic
from duly.views import CANARY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from duly.apikeys import ApiKey
    from duly.http.live import Entry, Places
    from duly.http.service import Service

MEDIA_TYPE = "text/event-stream"
ROWS = 100  #: events that are sent at once; the next are made when the client has taken these
RETRY_MS = 1000  #: how long a client waits before it comes back


class EventMessage(msgspec.Struct, omit_defaults=True):
    """
    One message: data is a JSON document, an event or what was lost; id goes on behind it.
    """

    data: str = ""
    event: Literal["message", "lost"] = "message"
    id: str = ""


class Lost(msgspec.Struct):
    """
    Events that are gone: those of one shard with these numbers; null where nobody knows.
    """

    shard: int
    since: int | None
    until: int | None
    why: str


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
        self._topics = frozenset(check_topic(name) for name in query.getlist("topic"))
        verbs = query.getlist("verb")
        unknown = [verb for verb in verbs if verb not in set(Verb)]
        if unknown:
            raise Problem("invalid", f"verb={unknown[0]!r} must be one of {', '.join(Verb)}", field="verb")
        self._verbs = frozenset(Verb(verb) for verb in verbs)
        for topic in self._topics:
            if key and not key.sees(topic):
                raise Problem("forbidden", f"key {key.name} has not the scope read on topic {topic}")

    def passes(self, topic: str, verb: Verb) -> bool:
        """
        Whether it is one of them.
        """
        if self._verbs and verb not in self._verbs:
            return False
        if self._topics:
            return topic in self._topics
        return topic != CANARY and (self._key is None or self._key.sees(topic))


class Stream:
    """
    The events for one client, made no faster than it takes them.
    """

    def __init__(
        self, service: Service, request: Request, places: Places, sieve: Sieve, unread: str = ""
    ) -> None:
        self._service, self._request = service, request
        self._places, self._sieve = places, sieve
        self._unread = unread  #: why the id of the client says nothing
        self._checked_s = time.monotonic()

    async def parts(self) -> AsyncIterator[bytes]:
        """
        What is sent, until the service drains, the key is revoked or it has gone on for too long.
        """
        service, live = self._service, self._service.live
        beat_s = service.settings.heartbeat_s
        end_s = time.monotonic() + service.settings.max_stream_s
        # The id alone: who is cut off before the first event comes back to the same place.
        yield f"retry: {RETRY_MS}\nid: {write_places(self._places)}\n\n".encode()
        for shard in range(live.shards) if self._unread else ():
            yield self._lost(Lost(shard, None, None, self._unread))
        sent_s = time.monotonic()
        while await self._goes_on() and time.monotonic() < end_s:
            news, found = live.news, False
            for shard in range(live.shards):
                async for part in self._of_shard(shard):
                    found = True
                    if part:
                        yield part
                        sent_s = time.monotonic()
            now_s = time.monotonic()
            if now_s - sent_s >= beat_s:
                # With the id: what was filtered out need not be looked at again.
                yield f": alive\nid: {write_places(self._places)}\n\n".encode()
                sent_s = now_s
            if not found:
                wait_s = min(sent_s + beat_s, end_s, self._checked_s + apikeys.FRESH_S) - now_s
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(wait_s, 0.01)):
                        await news.wait()

    async def _goes_on(self) -> bool:
        if self._service.draining:
            return False
        if time.monotonic() - self._checked_s < apikeys.FRESH_S:
            return True
        self._checked_s = time.monotonic()
        return await self._service.access.still(self._request, self._request.state.key)

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
            lines.append(b"id: %b\ndata: %b\n\n" % (self._id(), row.data))
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
        tasks = [asyncio.create_task(self._send(send)), asyncio.create_task(_gone(receive))]
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


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


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
    stream = Stream(service, request, places, sieve, unread)
    return EventStream(service, stream, empty=request.method == "HEAD")


_TOPICS = {"type": "array", "items": dict(TOPIC.schema)}
_VERBS = {"type": "array", "items": {"type": "string", "enum": list(Verb)}}

OPERATIONS = [
    Operation(
        name="followEvents",
        method="GET",
        path="/v1/events",
        about="What happens, as it happens: Server-Sent Events. The data of each is a JSON document with "
        "verb, job and state; one named `lost` tells of events that are gone. The id goes on behind it.",
        run=follow,
        scope="read",
        of_topics=True,
        parameters=(
            Parameter("topic", "query", "only these topics", _TOPICS),
            Parameter("verb", "query", "only these verbs", _VERBS),
            Parameter(
                "from",
                "query",
                "without an id: what comes now, or all that is still there",
                {"type": "string", "enum": ["now", "start"]},
            ),
            Parameter("last_event_id", "query", "as the header, for clients that cannot set it"),
            Parameter("Last-Event-ID", "header", "the id of the last event that came: go on behind it"),
        ),
        answers={200: Answer("events, until the client goes", EventMessage, media=MEDIA_TYPE)},
        problems=("invalid",),
    ),
]
