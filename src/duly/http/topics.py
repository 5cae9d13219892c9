"""
Topics: list them, pause, resume and limit them; and the whole queue at a glance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec

from duly.glance import StatsDocument, TopicDocument, glance, stats_document, topic_document
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.operations import TOPIC, Answer, Operation
from duly.job import check_topic

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service


class Topics(msgspec.Struct):
    """
    Every topic that has or had jobs.
    """

    topics: list[TopicDocument]


class Limit(msgspec.Struct, forbid_unknown_fields=True):
    """
    How many jobs may wait; null lifts the limit.
    """

    # A number, because to JSON 100.0 is as whole as 100.
    limit: Annotated[float, msgspec.Meta(ge=1, le=2**40, multiple_of=1)] | None


_limits = msgspec.json.Decoder(Limit)


async def list_(service: Service, request: Request) -> Response:
    """
    The topics that the key sees.
    """
    found = (await (await service.app.views()).stats()).topics
    key = request.state.key
    return answer(Topics([topic_document(about) for about in found if key is None or key.sees(about.topic)]))


async def _show(service: Service, topic: str) -> Response:
    found = (await (await service.app.views()).stats()).topics
    about = next((topic_document(each) for each in found if each.topic == topic), None)
    return answer(about or TopicDocument(topic=topic))


async def pause(service: Service, request: Request) -> Response:
    """
    Let no more jobs of a topic start.
    """
    topic = check_topic(request.path_params["topic"])
    await service.app.pause(topic)
    return await _show(service, topic)


async def resume(service: Service, request: Request) -> Response:
    """
    Let jobs of a topic start again.
    """
    topic = check_topic(request.path_params["topic"])
    await service.app.resume(topic)
    return await _show(service, topic)


async def limit(service: Service, request: Request) -> Response:
    """
    Refuse jobs beyond so many that wait.
    """
    topic = check_topic(request.path_params["topic"])
    wanted = await read_json(request, _limits, service.settings.body_limit)
    most = None if wanted.limit is None else int(wanted.limit)
    await service.app.limit(topic, most)
    request.state.audited = {"limit": most}
    return await _show(service, topic)


async def stats(service: Service, _request: Request) -> Response:
    """
    Everything at a glance.
    """
    return answer(stats_document(await glance(await service.app.store())))


_TOPIC = {200: Answer("the topic as it is now", TopicDocument)}

OPERATIONS = [
    Operation(
        name="getStats",
        method="GET",
        path="/v1/stats",
        about="The queue at a glance: topics, workers, events, server. Needs a key that sees every topic.",
        run=stats,
        scope="read",
        answers={200: Answer("what `duly stats --json` prints", StatsDocument)},
    ),
    Operation(
        name="listTopics",
        method="GET",
        path="/v1/topics",
        about="Topics, with how many jobs are in which state; a key sees its own.",
        run=list_,
        scope="read",
        of_topics=True,
        answers={200: Answer("every topic that has or had jobs", Topics)},
    ),
    Operation(
        name="pauseTopic",
        method="POST",
        path="/v1/topics/{topic}/pause",
        about="Let no more jobs of a topic start; running ones finish, due ones wait.",
        run=pause,
        scope="admin",
        audit="pause",
        parameters=(TOPIC,),
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
        parameters=(TOPIC,),
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
        parameters=(TOPIC,),
        body=Limit,
        answers=_TOPIC,
        problems=("too-large", "unsupported", "invalid"),
    ),
]
