"""
One Spark for all tests: its start takes longer than any of them.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from tests.spark.kit import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from duly.spark.java import Java
    from tests.servers import Server

#: Small data: quick to start beats quick in the long run.
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.ui.enabled": "false",
}


def missing() -> str:
    """
    Why no Spark can run here, or nothing.
    """
    from duly.errors import UsageError
    from duly.spark.java import find_java

    try:
        import pyspark  # noqa: F401

        find_java()
    except ImportError:
        return "no PySpark here: pip install 'duly[spark]'"
    except UsageError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def spark_conf() -> dict[str, str]:
    """
    How tests start a Spark, also one in a process of its own.
    """
    if why := missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from duly.spark.java import find_java

    shared = archive(find_java())
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
    if shared.exists():
        options += f" -XX:SharedArchiveFile={shared}"
    return {**CONF, "spark.driver.extraJavaOptions": options}


@pytest.fixture(scope="session")
def spark(spark_conf: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pyspark import SparkContext

    from duly.spark import session
    from duly.spark.java import find_java

    shared = archive(find_java())
    fresh = shared.with_suffix(f".{os.getpid()}")
    conf = {
        **spark_conf,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    if not shared.exists():
        shared.parent.mkdir(parents=True, exist_ok=True)
        conf["spark.driver.extraJavaOptions"] += f" -XX:ArchiveClassesAtExit={fresh}"
    spark = session("local[2]", **conf)
    yield spark
    gateway = SparkContext._gateway
    spark.stop()
    # The machine behind it ends with its input; only then the archive is written.
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(timeout=100)
    if fresh.exists():
        fresh.replace(shared)


def archive(java: Java) -> Path:
    """
    Where the classes that Spark loads at its start are kept, ready made: this halves the time it takes.
    """
    from duly.spark.java import cache_folder

    return cache_folder() / f"spark-{version('pyspark')}-java-{java.version}.jsa"


@pytest.fixture
async def queue(valkey: Server, namespace: str) -> AsyncIterator[Queue]:
    """
    An empty queue on the clock of its server, as Spark meets it.
    """
    queue = Queue(valkey.url, namespace)
    await queue.store.create()
    yield queue
    await queue.store.link.aclose()
