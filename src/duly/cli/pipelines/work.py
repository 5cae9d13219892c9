"""
``duly pipeline work``: the driver of batch handlers.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from duly.cli.draining import drained, leave, stopping_when_idle
from duly.cli.loading import load_app
from duly.cli.loop import run
from duly.cli.main import OK
from duly.cli.options import examples, own_server
from duly.cli.sparking import open_spark, spark_options
from duly.logs import set_up
from duly.services.worker import WornOut

if TYPE_CHECKING:
    import asyncio

    from pyspark.sql import SparkSession

    from duly.app import Duly

log = logging.getLogger("duly.batches")


@click.command(
    short_help="run the jobs of an app's batch handlers until SIGTERM or Ctrl-C",
    epilog=examples(
        "duly pipeline work -A shop.jobs:app",
        "duly pipeline work -A shop.jobs:app --topic score --master spark://head:7077",
        "duly pipeline work -A shop.jobs:app --burst",
    ),
)
@click.option("--app", "-A", "app", required=True, metavar="MODULE:APP", help="Where the batch handlers are.")
@own_server
@click.option("--topic", "topics", multiple=True, metavar="NAME", help="Take only this topic; repeatable.")
@click.option("--burst", is_flag=True, help="End once nothing is due now, ready or running.")
@click.option(
    "--log-level", default="INFO", show_default=True, type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"])
)
@click.option("--log-format", default="text", show_default=True, type=click.Choice(["text", "json"]))
@spark_options
def work(
    app: str,
    topics: tuple[str, ...],
    burst: bool,
    log_level: str,
    log_format: str,
    master: str | None,
    conf: tuple[str, ...],
) -> int:
    """
    Run the jobs of the batch handlers of MODULE:APP, many at a time, until SIGTERM or Ctrl-C.

    Then the batch that runs may finish, or is given back when the grace is over; a second signal gives it
    back at once.
    """
    from duly.spark.work.driver import batch_topics

    set_up(log_level, log_format)
    # What PySpark says on its way to the JVM is no news.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    found = load_app(app)
    chosen = batch_topics(found, topics)
    spark = open_spark(master, conf)
    try:
        # After Spark, which has a handler of its own for Ctrl-C.
        run(
            drained(
                lambda stop: _work_until(stop, found, spark, chosen, burst=burst), log, running="the batch"
            )
        )
    except WornOut as error:
        log.critical("%s", error)
        # A thread that would not stop is still there: nothing here can be tidied up.
        leave([])
    spark.stop()
    return OK


async def _work_until(
    stop: asyncio.Event, app: Duly, spark: SparkSession, topics: list[str], *, burst: bool
) -> None:
    from duly.spark.work.driver import work as drive

    async with app:
        log.info("working on batches of %s at %s", ", ".join(topics), app.place)
        async with stopping_when_idle(stop, app, topics, log) if burst else nullcontext():
            await drive(app, spark, topics=topics, stop=stop, stalled=leave)
