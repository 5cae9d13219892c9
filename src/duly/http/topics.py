"""
Topics: list them; pause, resume, limit and purge them, and have their jobs delivered.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from duly.allowlist import check_callback
from duly.app.topics import MAX_BACKLOG, purge_page
from duly.errors import UsageError
from duly.glance import TopicDocument, topic_document
from duly.http import cursors, idempotency
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.grammar import CURSOR_PATTERN, Url
from duly.http.jobs import queue_for
from duly.http.operations import TOPIC, Answer, Operation
from duly.http.pages import PARAMETERS, page_of
from duly.http.problems import Problem, after_change
from duly.http.repeats import Repeats
from duly.job import JobState, check_topic

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service


class Topics(msgspec.Struct):
    """
    Topics that have or had jobs, by name, and where to go on; null at the end.
    """

    topics: list[TopicDocument]
    cursor: str | None


class Limit(msgspec.Struct, forbid_unknown_fields=True):
    """
    How many jobs may wait; null lifts the limit.
    """

    # A number, because to JSON 100.0 is as whole as 100.
    limit: Annotated[float, msgspec.Meta(ge=1, le=MAX_BACKLOG, multiple_of=1)] | None


class Callback(msgspec.Struct, forbid_unknown_fields=True):
    """
    Where the jobs of a topic are delivered to.
    """

    url: Url


class Purge(msgspec.Struct, forbid_unknown_fields=True):
    """
    Which jobs that wait: scheduled, ready, or both; and where the call before ended.
    """

    state: Literal["scheduled", "ready"] | None = None
    cursor: Annotated[str, msgspec.Meta(pattern=CURSOR_PATTERN, max_length=1000)] | None = None


class Purged(msgspec.Struct):
    """
    How many jobs one call has cancelled, and where the next one goes on; null at the end.
    """

    topic: str
    purged: int
    cursor: str | None


PURGED_AT_ONCE, PURGES_FOR_S = 10_000, 2.0  #: one call ends after so many jobs, or so long

_limits = msgspec.json.Decoder(Limit)
_callbacks = msgspec.json.Decoder(Callback)
_purges = msgspec.json.Decoder(Purge)
_purged = msgspec.json.Decoder(Purged)


async def list_(service: Service, request: Request) -> Response:
    """
    The topics that the key sees.
    """
    found = (await (await service.app.views()).stats()).topics
    key = request.state.key
    seen = (topic_document(about) for about in found if key is None or key.sees(about.topic))
    return answer(Topics(*page_of(request, seen, lambda each: each.topic, service.settings.page_limit)))


async def _show(service: Service, topic: str) -> Response:
    found = (await (await service.app.views()).stats()).topics
    about = next((topic_document(each) for each in found if each.topic == topic), None)
    return answer(about or TopicDocument(topic=topic))


async def pause(service: Service, request: Request) -> Response:
    """
    Let no more jobs of a topic start.
    """
    topic = check_topic(request.path_params["topic"])
    store = (await service.app.store()).repeatable(idempotency.call_of(request, "pause"))
    await store.pause(topic)
    with after_change():
        return await _show(service, topic)


async def resume(service: Service, request: Request) -> Response:
    """
    Let jobs of a topic start again.
    """
    topic = check_topic(request.path_params["topic"])
    store = (await service.app.store()).repeatable(idempotency.call_of(request, "resume"))
    await store.resume(topic)
    with after_change():
        return await _show(service, topic)


async def limit(service: Service, request: Request) -> Response:
    """
    Refuse jobs beyond so many that wait.
    """
    topic = check_topic(request.path_params["topic"])
    wanted = await read_json(request, _limits, service.settings.body_limit)
    most = None if wanted.limit is None else int(wanted.limit)
    store = (await service.app.store()).repeatable(idempotency.call_of(request, "limit", most))
    await store.limit(topic, most)
    request.state.audited = {"limit": most}
    with after_change():
        return await _show(service, topic)


async def show(service: Service, request: Request) -> Response:
    """
    One topic.
    """
    return await _show(service, check_topic(request.path_params["topic"]))


async def set_callback(service: Service, request: Request) -> Response:
    """
    Have the jobs of a topic delivered.
    """
    topic = check_topic(request.path_params["topic"])
    wanted = await read_json(request, _callbacks, service.settings.body_limit)
    try:
        url = check_callback(wanted.url, service.app.settings.limits.callbacks)
    except UsageError as error:
        raise Problem("invalid", str(error), field="url") from None
    store = (await service.app.store()).repeatable(idempotency.call_of(request, "callback", url))
    await store.set_callback(topic, url)
    # The URL may hold a secret: that there is one is enough.
    request.state.audited = {"callback": True}
    with after_change():
        return await _show(service, topic)


async def remove_callback(service: Service, request: Request) -> Response:
    """
    Let workers run the jobs of a topic again.
    """
    topic = check_topic(request.path_params["topic"])
    store = (await service.app.store()).repeatable(idempotency.call_of(request, "callback"))
    await store.set_callback(topic, None)
    request.state.audited = {"callback": False}
    with after_change():
        return await _show(service, topic)


async def purge(service: Service, request: Request) -> Response:
    """
    Cancel some jobs of a topic that wait.
    """
    topic = check_topic(request.path_params["topic"])
    wanted = await read_json(request, _purges, service.settings.body_limit, empty=b"{}")
    states = [JobState[wanted.state]] if wanted.state else [JobState.scheduled, JobState.ready]
    cursor: str | None = None
    if wanted.cursor is not None:
        found = cursors.read(wanted.cursor)
        if found is None or found.state not in states or found.topic is not None:
            raise Problem("invalid", "cursor is not one that a call before this one gave", field="cursor")
        states, cursor = states[states.index(found.state) :], found.place or None
    call = idempotency.call_of(request, "purge", wanted)
    repeats, views = Repeats(await service.app.store(), request, call), await service.app.views()
    first = await repeats.begin(views.newest)
    if first is not None and first.answer:
        done = _purged.decode(first.answer)
        request.state.audited, request.state.changed = {"count": done.purged}, done.purged > 0
        return answer(done)
    # What is cancelled is bounded by when the request came first, and not by how long ago that was.
    queue = await queue_for(service, call and replace(call, age_ms=None))
    newest = None if first is None else first.newest
    purged, until_s = 0, time.monotonic() + PURGES_FOR_S
    while states and purged < PURGED_AT_ONCE and time.monotonic() < until_s:
        # A page is cancelled shard by shard: one that fails may have been begun.
        with after_change():
            count, cursor = await purge_page(views, queue, topic, states[0], cursor, newest)
        purged += count
        if cursor is None:
            states.pop(0)
    request.state.audited, request.state.changed = {"count": purged}, purged > 0
    following = cursors.write(states[0], cursor or "") if states else None
    done = Purged(topic, purged, following)
    await repeats.end(msgspec.json.encode(done))
    return answer(done)


_TOPIC = {200: Answer("the topic as it is now", TopicDocument)}

OPERATIONS = [
    Operation(
        name="listTopics",
        method="GET",
        path="/v1/topics",
        about="Topics, with how many jobs are in which state; a key sees its own.",
        run=list_,
        scope="read",
        of_topics=True,
        parameters=PARAMETERS,
        answers={200: Answer("a page of the topics that have or had jobs", Topics)},
        problems=("invalid",),
    ),
    Operation(
        name="getTopic",
        method="GET",
        path="/v1/topics/{topic}",
        about="One topic, with how many jobs are in which state, its limit and its callback.",
        run=show,
        scope="read",
        parameters=(TOPIC,),
        answers=_TOPIC,
        problems=("invalid",),
    ),
    Operation(
        name="pauseTopic",
        method="POST",
        path="/v1/topics/{topic}/pause",
        about="Let no more jobs of a topic start; running ones finish, due ones wait.",
        run=pause,
        scope="admin",
        audit="pause",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers=_TOPIC,
        problems=("invalid",),
    ),
    Operation(
        name="resumeTopic",
        method="POST",
        path="/v1/topics/{topic}/resume",
        about="Let jobs of a topic start again; the time it was paused is not lateness.",
        run=resume,
        scope="admin",
        audit="resume",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers=_TOPIC,
        problems=("invalid",),
    ),
    Operation(
        name="limitTopic",
        method="PUT",
        path="/v1/topics/{topic}/limit",
        about="Limit how many jobs of a topic may wait: further ones are refused with 503. Each shard takes "
        "an equal share, rounded up.",
        run=limit,
        scope="admin",
        audit="limit",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        body=Limit,
        answers=_TOPIC,
        problems=("too-large", "unsupported", "invalid"),
    ),
    Operation(
        name="setCallback",
        method="PUT",
        path="/v1/topics/{topic}/callback",
        about="Have the jobs of a topic delivered to a URL instead of run by workers, also those that wait.",
        run=set_callback,
        scope="admin",
        audit="callback",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        body=Callback,
        answers=_TOPIC,
        problems=("too-large", "unsupported", "invalid"),
    ),
    Operation(
        name="removeCallback",
        method="DELETE",
        path="/v1/topics/{topic}/callback",
        about="Let workers run the jobs of a topic again.",
        run=remove_callback,
        scope="admin",
        audit="callback",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        answers=_TOPIC,
        problems=("invalid",),
    ),
    Operation(
        name="purgeTopic",
        method="POST",
        path="/v1/topics/{topic}/purge",
        about="Cancel jobs of a topic that wait, a bounded number of them: call again with the cursor of the "
        "answer until it is null.",
        run=purge,
        scope="admin",
        audit="purge",
        parameters=(TOPIC, idempotency.PARAMETER, idempotency.AGE_PARAMETER),
        body=Purge,
        body_required=False,
        answers={200: Answer("how many were cancelled, and where to go on", Purged)},
        problems=("too-large", "unsupported", "invalid"),
    ),
]
