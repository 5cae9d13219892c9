"""
The whole queue at a glance: figures, workers, and the newest revisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from duly.glance import StatsDocument, glance, stats_document, workers_seen
from duly.http.answers import answer
from duly.http.operations import Answer, Operation
from duly.http.pages import MAX_PAGE, PARAMETERS, first_of, page_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from duly.http.service import Service


class Workers(msgspec.Struct):
    """
    What workers say of themselves, each as `duly workers ls --json` prints it, by name, and where to go on;
    null at the end.
    """

    workers: list[dict[str, Any]]
    cursor: str | None


class Revisions(msgspec.Struct):
    """
    The newest revision of each shard; with a record, last, the newest that a row would get.
    """

    shards: int
    newest: list[int]


async def stats(service: Service, request: Request) -> Response:
    """
    Everything at a glance, or what concerns the topics of a key.
    """
    key = request.state.key
    sees = key.sees if key is not None and key.topics else None
    seen = await glance(await service.app.store(), await service.app.views(), sees, most=MAX_PAGE)
    document = stats_document(seen)
    shown = first_of(document.topics, service.settings.page_limit)
    more = document.more_topics + len(document.topics) - len(shown)
    return answer(msgspec.structs.replace(document, topics=shown, more_topics=more))


async def workers(service: Service, request: Request) -> Response:
    """
    The workers that take a topic that the key sees, and of each what concerns such topics.
    """
    views, key = await service.app.views(), request.state.key
    found = await views.workers(await views.now_ms())
    if key is not None and key.topics:
        found = workers_seen(found, key.sees)
    page = page_of(request, found, lambda each: str(each["worker"]), service.settings.page_limit)
    return answer(Workers(*page))


async def revisions(service: Service, _request: Request) -> Response:
    """
    The newest revisions.
    """
    store, views = await service.app.store(), await service.app.views()
    return answer(Revisions(store.shards, await views.newest()))


OPERATIONS = [
    Operation(
        name="getStats",
        method="GET",
        path="/v1/stats",
        about="The queue at a glance: topics, workers, events, server. A key that is bound to topics sees "
        f"what concerns these, with null for events and server. Of more than {MAX_PAGE} topics the first are "
        "shown, and how many there are besides; totals are of all.",
        run=stats,
        scope="read",
        of_topics=True,
        answers={200: Answer("what `duly stats --json` prints", StatsDocument)},
    ),
    Operation(
        name="listWorkers",
        method="GET",
        path="/v1/workers",
        about="Who works, on what: workers that live, and those that fell silent within the last day. A key "
        "that is bound to topics sees those that take one of them, without their other topics, and without "
        "`running`, `claimed`, `finished` and `fenced` where they have others.",
        run=workers,
        scope="read",
        of_topics=True,
        parameters=PARAMETERS,
        answers={200: Answer("a page of the workers", Workers)},
        problems=("invalid",),
    ),
    Operation(
        name="getRevisions",
        method="GET",
        path="/v1/revisions",
        about="The newest revisions: a job with a higher one was sent or changed later. For those who act on "
        "many jobs, and leave alone what changed meanwhile.",
        run=revisions,
        scope="read",
        of_topics=True,
        answers={200: Answer("the newest revision of each shard", Revisions)},
    ),
]
