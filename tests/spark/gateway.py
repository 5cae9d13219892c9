"""
The way to Java, after a test that was cut short.
"""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql import SparkSession

from duly.spark.session import use


def forget_answer() -> None:
    """
    Let nobody read the answer that Java owes to a call which was cut short in this thread.

    Answers have no names: the next call would take it for its own, and each that follows the one before.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    if (connection := gateway._gateway_client.get_thread_connection()) is not None:
        connection.close()
    if SparkContext._active_spark_context is None:
        # Cut short while it started.  Java goes on with that, and would have no second one beside it.
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.kill()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
    elif (session := SparkSession._instantiatedSession) is not None:
        use(session)  # there is a new thread behind the new connection
