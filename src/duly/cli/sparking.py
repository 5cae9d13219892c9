"""
What the commands of `duly pipeline` share: where Spark runs, and how far it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from duly.cli.output import console

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import SparkSession

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")

LOOK_S = 0.2


def spark_options(command: F) -> F:
    """
    Say where Spark runs: ``master`` and ``conf``, for `open_spark`.
    """
    for option in (
        click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; repeatable."),
        click.option(
            "--master", metavar="URL", help="Where Spark runs. Default: local[*], or as spark-submit says."
        ),
    ):
        command = option(command)
    return command


def open_spark(master: str | None, conf: tuple[str, ...]) -> SparkSession:
    """
    A session with our formats.

    Raises:
        UsageError: It cannot be had, or a setting has no value.
    """
    from duly.spark import session

    return session(master, **pairs(conf, "--conf"))


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


def watched(spark: SparkSession, what: str, work: Callable[[], T]) -> T:
    """
    Do *work*, and show on a terminal how many of Spark's tasks are done; Ctrl-C stops them.
    """
    answer: list[T] = []
    failure: list[BaseException] = []

    def do() -> None:
        try:
            answer.append(work())
        except BaseException as error:  # noqa: BLE001  # raised again below, where it is waited for
            failure.append(error)

    from pyspark import InheritableThread

    thread = InheritableThread(target=do, daemon=True)
    out = console(stderr=True)
    thread.start()
    try:
        if out.is_terminal:
            _show(spark, what, thread)
        thread.join()
    except KeyboardInterrupt:
        spark.sparkContext.cancelAllJobs()
        thread.join()
        raise
    if failure:
        raise failure[0]
    return answer[0]


def _show(spark: SparkSession, what: str, thread: threading.Thread) -> None:
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
        while thread.is_alive():
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                bar.update(task, completed=done, total=sum(stage.numTasks for stage in known))
            thread.join(LOOK_S)
