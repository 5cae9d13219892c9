"""
The response queue: what became of jobs that were sent with a reply_to.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import msgspec

from duly.documents import EndedJob, ended_fields_of
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.documents import STATUS_CODES, StatusCode
from duly.http.grammar import TOPIC_PATTERN
from duly.http.operations import PREFER, WAIT, Answer, Operation, Parameter
from duly.http.problems import Problem
from duly.job import check_topic
from duly.replies import LEASE_S, MAX_TAKEN, Taken

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.apikeys import ApiKey
    from duly.http.service import Service
    from duly.replies import Reply

ReplyId = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,5}-[0-9]{1,16}$", max_length=22)]


class EndedView(EndedJob, kw_only=True, frozen=True):
    """
    A job as it was when it ended.
    """

    status_code: StatusCode


class ReplyView(msgspec.Struct):
    """
    What became of one job; the id is that of the reply, for the ack.
    """

    id: str
    job: EndedView


class RepliesAnswer(msgspec.Struct):
    """
    Replies, oldest first, and how many of this queue were dropped unread since it was empty last.
    """

    replies: list[ReplyView]
    dropped: int


class RepliesAck(msgspec.Struct, forbid_unknown_fields=True):
    """
    Which replies have been dealt with.
    """

    ids: Annotated[list[ReplyId], msgspec.Meta(min_length=1, max_length=MAX_TAKEN)]


class RepliesAcked(msgspec.Struct):
    """
    How many of them were still there.
    """

    acked: int


_acks = msgspec.json.Decoder(RepliesAck)


def may_reply_to(request: Request, name: str | None) -> None:
    """
    See that a job tells its end to a queue of the sender's.

    Raises:
        Problem: The key is bound to topics, and the name of the queue is none of them: 403.
    """
    key: ApiKey | None = request.state.key
    if name is not None and key is not None and not key.sees(name):
        raise Problem(
            "forbidden",
            f"key {key.name} is bound to topics, and reply_to={name} is none of them",
            field="reply_to",
        )


def _name(request: Request) -> str:
    return check_topic(request.path_params["name"], "reply queue")


def _queue_in_path(request: Request) -> str | None:
    name: str | None = request.path_params.get("name")
    return name


async def take(service: Service, request: Request) -> Response:
    """
    Lease replies to who asks, or wait for the first.
    """
    name, limit, wait_s = _name(request), _limit(request), service.wait_s(request)
    queue = await service.app.reply_queue()
    taken = await queue.take(name, limit=limit)
    if wait_s and not taken.replies:
        gone = asyncio.create_task(_gone(request))
        try:
            later = await service.patiently(queue.take(name, limit=limit, wait_s=wait_s), wait_s + 1, gone)
        finally:
            gone.cancel()
        if later is not None:
            taken = Taken(later.replies, max(taken.dropped, later.dropped))
    return answer(RepliesAnswer([_view(reply) for reply in taken.replies], taken.dropped))


async def _gone(request: Request) -> None:
    """
    Return when the client has gone: what came then would be kept from others for nothing.
    """
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _limit(request: Request) -> int:
    said = request.query_params.get("limit", "1")
    if not said.isascii() or not said.isdigit() or not 1 <= int(said[:9]) <= MAX_TAKEN:
        raise Problem("invalid", f"limit={said!r} must be a number from 1 to {MAX_TAKEN}", field="limit")
    return int(said)


def _view(reply: Reply) -> ReplyView:
    job = reply.job
    return ReplyView(reply.id, EndedView(**ended_fields_of(job), status_code=STATUS_CODES[job.state]))


async def ack(service: Service, request: Request) -> Response:
    """
    Forget replies.
    """
    name = _name(request)
    said = await read_json(request, _acks, service.settings.body_limit)
    return answer(RepliesAcked(await (await service.app.reply_queue()).ack(name, said.ids)))


_NAME = Parameter(
    "name",
    "path",
    "the queue, as reply_to names it",
    {"type": "string", "pattern": TOPIC_PATTERN, "minLength": 1, "maxLength": 100},
)

# Not for the scope read: what one reader takes, others do not see.  Who sends a job is told its end anyway.
OPERATIONS = [
    Operation(
        name="takeReplies",
        method="GET",
        path="/v1/replies/{name}",
        about="What became of jobs that were sent with this reply_to, oldest first; with wait, once there is "
        f"one, if that is in time. They are leased for {LEASE_S} seconds: what is not acked comes again.",
        run=take,
        scope="enqueue",
        topic_of=_queue_in_path,
        parameters=(
            _NAME,
            Parameter(
                "limit",
                "query",
                "at most so many replies",
                {"type": "integer", "minimum": 1, "maximum": MAX_TAKEN, "default": 1},
            ),
            WAIT,
            PREFER,
        ),
        answers={200: Answer("the replies; none if there was nothing in time", RepliesAnswer)},
        problems=("invalid",),
    ),
    Operation(
        name="ackReplies",
        method="POST",
        path="/v1/replies/{name}/ack",
        about="Forget replies that have been dealt with. The same again is answered alike, and acks none.",
        run=ack,
        scope="enqueue",
        topic_of=_queue_in_path,
        parameters=(_NAME,),
        body=RepliesAck,
        answers={200: Answer("done", RepliesAcked)},
        problems=("too-large", "unsupported", "invalid"),
    ),
]
