"""
A session that is ready: a Java found, this Python for its workers, times in UTC, our formats known.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from duly.errors import UsageError
from duly.spark.formats import sources
from duly.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What our pipelines count on, whoever made the session.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
DEFAULTS = {
    "spark.app.name": "duly",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
#: Driver and executors on this machine: nobody else needs to reach them.
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(master: str = "local[*]", **conf: str) -> SparkSession:
    """
    Return a session with our formats registered; one that runs already is taken as it is.

    Names of settings have dots: ``session("local[2]", **{"spark.driver.memory": "4g"})``.

    Raises:
        UsageError: PySpark or a Java is missing, or Spark did not start.
    """
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  # a package that need not be there
    except ImportError as error:
        raise UsageError(f"Spark is not installed here ({error}): pip install 'duly[spark]'") from error
    running = SparkSession.getActiveSession()
    if running is None:
        # What spark-submit started brought its own Java.
        if "PYSPARK_GATEWAY_PORT" not in os.environ:
            os.environ["JAVA_HOME"] = str(find_java().home)
        # Workers run what runs here: another Python on the path would lack our packages.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master)
    local = LOCAL if master.startswith("local") else {}
    for name, value in {**DEFAULTS, **local, **NEEDED, **conf}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise UsageError(f"Spark did not start on {master}: {said(error)}") from error
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """
    Make the formats of duly known to a session, and switch on what they need.
    """
    for name, value in NEEDED.items():
        spark.conf.set(name, value)
    for source in sources():
        spark.dataSource.register(source)


def said(error: BaseException) -> str:
    """
    What Spark says, without the frames of its own code around it.
    """
    text = str(error)
    with suppress(Exception):
        text = error.getErrorClass() + ": " + error.getMessage()  # type: ignore[attr-defined]
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
