"""
A session that is ready: a Java found, this Python for its workers, times in UTC, our formats known.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from duly.errors import UsageError
from duly.extras import needed
from duly.spark.formats import sources
from duly.spark.java import find_java
from duly.spark.trouble import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What our pipelines count on, whoever made the session.
NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
}
#: What a Java has to say about itself: by default on the output that our commands write their answers to.
ASIDE = "-Xlog:disable -Xlog:all=warning:stderr"
DEFAULTS = {
    "spark.app.name": "duly",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark puts these before the options of the user's own.
    "spark.driver.defaultJavaOptions": ASIDE,
    "spark.executor.defaultJavaOptions": ASIDE,
}
#: Driver and executors on this machine: nobody else needs to reach them, and few cores share what is
#: shuffled.  Into Spark's own 200 parts every task would write 200 files.
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "16",
}


def session(master: str | None = None, **conf: str) -> SparkSession:
    """
    Return a session with our formats registered; one that runs already is taken as it is.

    Without *master*, Spark runs on all cores of this machine, or where `spark-submit` started us.
    Names of settings have dots: ``session("local[2]", **{"spark.driver.memory": "4g"})``.

    Raises:
        UsageError: PySpark or a Java is missing, or Spark did not start.
    """
    with needed("duly.spark"):
        from pyspark.sql import SparkSession  # noqa: PLC0415  # a package that need not be there
    builder = SparkSession.builder
    settings = {**NEEDED, **conf}
    # What spark-submit started has its Java, its master and its settings.
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = master or "local[*]"
        settings = {**DEFAULTS, **settings}
        if SparkSession.getActiveSession() is None:
            os.environ["JAVA_HOME"] = str(find_java().home)
            # Workers run what runs here: another Python on the path would lack our packages.
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
            if master.startswith("local"):
                settings = {**LOCAL, **settings}
                os.environ.setdefault("SPARK_LOCAL_IP", LOCAL["spark.driver.host"])
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except Exception as error:
        raise UsageError(
            f"Spark did not start{f' on {master}' if master else ''}: {first_line(error)}"
        ) from error
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """
    Make the formats of duly known to a session, and switch on what they need.
    """
    use(spark)
    for name, value in NEEDED.items():
        spark.conf.set(name, value)
    for source in sources():
        spark.dataSource.register(source)


def use(spark: SparkSession) -> None:
    """
    Make *spark* the session of this thread.

    In another thread than the one that made it, Spark looks for formats nowhere and finds none.
    """
    # The only public call that does it; no job is run.
    spark.createDataFrame([], "nothing int")
