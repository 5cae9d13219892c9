"""
The response queue: what became of jobs that were sent with a reply_to.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

import msgspec

from duly.documents import EndedJob, ended_fields_of, public_error_of
from duly.durations import parse_duration
from duly.http.access import may_read
from duly.http.answers import answer
from duly.http.bodies import read_json
from duly.http.grammar import TOPIC_PATTERN, Duration
from duly.http.operations import Answer, Operation, Parameter, limit, read_limit
from duly.http.problems import Problem
from duly.job import check_topic
from duly.replies import LEASE_S, MAX_TAKEN, Taken

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.apikeys import ApiKey
    from duly.http.service import Service
    from duly.replies import Reply, ReplyQueue

FIRST = 10  #: replies that are leased before it is known how large they are

ReplyId = Annotated[str, msgspec.Meta(pattern="^[0-9]{1,5}-[0-9]{1,16}$", max_length=22)]


class EndedView(EndedJob, kw_only=True, frozen=True):
    """
    A job as it was when it ended.
    """


class ReplyView(msgspec.Struct):
    """
    What became of one job; the id is that of the reply, for the ack.
    """

    id: str
    job: EndedView


class RepliesAnswer(msgspec.Struct):
    """
    Replies, oldest first of each shard, and how many of this queue were dropped unread since it was last
    empty.
    """

    replies: list[ReplyView]
    dropped: int


class RepliesShown(RepliesAnswer):
    """
    Replies that wait; with more, others were left out because these are large enough together.
    """

    more: bool


class RepliesTake(msgspec.Struct, forbid_unknown_fields=True):
    """
    How many replies to lease, and how long to wait for the first.
    """

    #: A whole number, which in JSON may be written 5.0, too.
    limit: Annotated[float, msgspec.Meta(ge=1, le=MAX_TAKEN, multiple_of=1)] = 1
    wait: Duration = 0


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


_takes = msgspec.json.Decoder(RepliesTake)
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


async def show(service: Service, request: Request) -> Response:
    """
    Show the replies that no reader has, and leave them there.
    """
    name, most = _name(request), read_limit(request, MAX_TAKEN, 1)
    seen, more = await _peek(await service.app.reply_queue(), name, most, service.settings.page_limit)
    views = [_view(request, reply) for reply in seen.replies]
    return answer(RepliesShown(views, seen.dropped, more))


async def _peek(queue: ReplyQueue, name: str, limit: int, bound: int) -> tuple[Taken, bool]:
    """
    Look at replies, few at first, until there are *limit* or their results are *bound* bytes together.

    Returns: what is to be shown, and whether more was left out for its size.
    """
    step = min(limit, FIRST)
    while True:
        seen = await queue.peek(name, limit=step)
        sizes = list(accumulate(len(reply.job.outcome) for reply in seen.replies))
        left = seen.cut or len(sizes) == step < limit
        # As many more as fit, if they are as large as these.
        wider = 0 if len(sizes) < step else min(limit, bound * step // max(sizes[-1], 1))
        if wider <= step:
            break
        step = wider
    fit = max(1, sum(size <= bound for size in sizes))
    return Taken(seen.replies[:fit], seen.dropped), fit < len(sizes) or left


async def take(service: Service, request: Request) -> Response:
    """
    Lease replies to the client, or wait for the first.
    """
    name = _name(request)
    wanted = await read_json(request, _takes, service.settings.body_limit, empty=b"{}")
    wait_s = min(parse_duration(wanted.wait, "wait") / 1000, service.settings.max_wait_s)
    queue, limit = await service.app.reply_queue(), int(wanted.limit)
    taken = await _take(queue, name, limit, service.settings.page_limit)
    if wait_s and not taken.replies:
        # What came to a client that has gone would be kept from others for nothing.
        later = await service.patiently(
            queue.take(name, limit=min(limit, FIRST), wait_s=wait_s), wait_s + 1, request
        )
        if later is not None:
            taken = Taken(later.replies, max(taken.dropped, later.dropped))
    return _answer(request, taken)


async def _take(queue: ReplyQueue, name: str, limit: int, bound: int) -> Taken:
    """
    Lease replies few at a time, until there are *limit* or their results are *bound* bytes together.
    """
    replies: list[Reply] = []
    size, dropped, step = 0, 0, min(limit, FIRST)
    while step > 0:
        some = await queue.take(name, limit=step, wait_s=0.0)
        replies += some.replies
        dropped = max(dropped, some.dropped)
        if len(some.replies) < step:
            break
        size += sum(len(reply.job.outcome) for reply in some.replies)
        room = max(bound - size, 0) * len(replies) // max(size, 1)
        step = min(limit - len(replies), room)
    return Taken(replies, dropped)


def _answer(request: Request, taken: Taken) -> Response:
    return answer(RepliesAnswer([_view(request, reply) for reply in taken.replies], taken.dropped))


def _view(request: Request, reply: Reply) -> ReplyView:
    job = reply.job
    fields = ended_fields_of(job)
    if not may_read(request, job.topic):
        # What a job carries is not for a sender of others, however it came into this queue.
        fields |= {"error": public_error_of(job), "context": None, "callback": None}
    return ReplyView(reply.id, EndedView(**fields))


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

# For the scope enqueue: a client that sends a job may know its end.  What one reader takes, others do not
# see, so that the scope read is not enough.
OPERATIONS = [
    Operation(
        name="showReplies",
        method="GET",
        path="/v1/replies/{name}",
        about="What became of jobs that were sent with this reply_to, oldest first of each shard, as far as "
        "no reader has it. Nothing is taken. Without the scope read, an error has its type and a reference, "
        "and context and callback are null.",
        run=show,
        scope="enqueue",
        topic_of=_queue_in_path,
        parameters=(
            _NAME,
            limit("at most so many replies", MAX_TAKEN, 1),
        ),
        answers={200: Answer("the replies; none if there is nothing", RepliesShown)},
        problems=("invalid",),
    ),
    Operation(
        name="takeReplies",
        method="POST",
        path="/v1/replies/{name}/take",
        about="Lease replies, oldest first of each shard; with wait, once there is one, if that is in time. "
        f"They are kept from other readers for {LEASE_S} seconds: what is not acked comes again.",
        run=take,
        scope="enqueue",
        topic_of=_queue_in_path,
        parameters=(_NAME,),
        body=RepliesTake,
        body_required=False,
        answers={200: Answer("the replies; none if there was nothing in time", RepliesAnswer)},
        problems=("too-large", "unsupported", "invalid"),
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
