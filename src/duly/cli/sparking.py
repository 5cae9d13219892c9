"""
What the commands of `duly pipeline` share: where Spark runs, and how far it is.
"""

from __future__ import annotations

import functools
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duly.cli.output import console, plain
from duly.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

F = TypeVar("F", bound="Callable[..., Any]")

LOOK_S = 0.2
PACKAGES = ("pyspark", "pyarrow", "pandas", "deltalake")  #: that pipelines use


def spark_options(command: F) -> F:
    """
    Say where Spark runs: ``master`` and ``conf``, for `open_spark`.

    Without Spark the command says so before it does anything else; its help needs none.
    """

    @functools.wraps(command)
    def with_spark(*args: Any, **options: Any) -> Any:
        need(f"duly pipeline {click.get_current_context().info_name}", *PACKAGES)
        return command(*args, **options)

    found = with_spark
    for option in (
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeatable."),
        click.option(
            "--master", metavar="URL", help="Where Spark runs. Default: local[*], or as spark-submit says."
        ),
    ):
        found = option(found)
    return found  # type: ignore[return-value]  # with the signature of what it wraps


def open_spark(master: str | None, conf: tuple[str, ...]) -> SparkSession:
    """
    A session with our formats.

    Raises:
        UsageError: It cannot be had, or a setting has no value.
    """
    from duly.spark import session

    settings = pairs(conf, "--conf")
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        # What fails is raised, and said in a sentence; Java would write its own frames above that, twice.
        # Where spark-submit started us, the log is its business.
        settings = {"spark.log.level": "FATAL", **settings}
    spark = session(master, **settings)
    from pyspark.logger import PySparkLogger

    # They write what is raised once more, as JSON; a command says it in a sentence.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    return spark


def pairs(words: tuple[str, ...], flag: str) -> dict[str, str]:
    """
    Read ``NAME=VALUE`` of a flag that may be repeated.

    Raises:
        UsageError: There is no `=` in one.
    """
    from duly.errors import UsageError

    for word in words:
        if "=" not in word or word.startswith("="):
            raise UsageError(f"{flag} {word}: write NAME=VALUE")
    return dict(word.split("=", 1) for word in words)


@contextmanager
def watched(spark: SparkSession, what: str) -> Iterator[None]:
    """
    Show on a terminal how many of Spark's tasks are done, while the caller waits for them.
    """
    if not console(stderr=True).is_terminal:
        yield
        return
    over = threading.Event()
    # The work stays in its thread: to Spark a session belongs to one, and so does Ctrl-C.
    thread = threading.Thread(target=_show, args=(spark, what, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _show(spark: SparkSession, what: str, over: threading.Event) -> None:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
    )
    tracker = spark.sparkContext.statusTracker()
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        while not over.wait(LOOK_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                bar.update(task, completed=done, total=sum(stage.numTasks for stage in known))


def print_examples(examples: Mapping[str, Iterable[str]]) -> None:
    """
    Print what would become of some of the rows of a plan.
    """
    for what, texts in sorted(examples.items()):
        for text in texts:
            click.echo(f"  {what:9} {plain(text)}")
