"""
The driver: a crew whose worker runs batches, until it is told to stop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from duly.errors import UsageError
from duly.spark.work.notes import Notes
from duly.spark.work.worker import BatchWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from duly.app import Duly


async def work(
    app: Duly,
    spark: SparkSession,
    *,
    topics: Sequence[str] | None = None,
    stop: asyncio.Event,
    stalled: Callable[[list[str]], None] | None = None,
) -> None:
    """
    Run jobs of the batch handlers of *app* until *stop* is set or the task is cancelled; then drain.

    Raises:
        UsageError: There is no batch handler, or none of such a topic.
        WornOut: A function does not stop although its time is over: the process should be started anew.
    """
    known = batch_topics(app, topics)
    await app.queue()
    store = await app.store()
    crew = app.crew(app.settings, topics=known, stalled=stalled, worker=partial(BatchWorker, spark=spark))
    worker = crew.worker
    assert isinstance(worker, BatchWorker)  # noqa: S101  # made by the line above
    notes = Notes(store, worker)
    noting = asyncio.create_task(notes.keep())
    try:
        await crew.run(stop)
    except Exception as error:
        notes.wrong = f"{type(error).__name__}: {error}"
        raise
    finally:
        noting.cancel()
        await asyncio.gather(noting, return_exceptions=True)
        await notes.note()


def batch_topics(app: Duly, topics: Sequence[str] | None = None) -> list[str]:
    """
    The topics to take: those that were chosen, or all that have a batch handler.

    Raises:
        UsageError: There is none of them.
    """
    known = [handler.topic for handler in app.handlers.batches()]
    if not known:
        raise UsageError("there is no batch handler: decorate a function with @app.batch_handler(topic)")
    for topic in topics or ():
        if topic not in known:
            raise UsageError(f"there is no batch handler of topic {topic}; known are {', '.join(known)}")
    return list(topics or known)
