"""
What a session is like, and what is said where none can be had.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql.functions import udf

from duly.spark import session


def test_a_session_speaks_utc_and_pushes_filters_down(spark):
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")
    assert "true" == spark.conf.get("spark.sql.python.filterPushdown.enabled")
    assert [3] == [row.n for row in spark.sql("select 1 + 2 as n").collect()]


def test_workers_of_a_session_run_the_python_of_the_driver(spark):
    executable = udf(lambda _: __import__("sys").executable)
    assert sys.executable == spark.range(1).select(executable("id")).first()[0]


def test_formats_are_found_in_other_threads_too(spark, queue):
    def count():
        session()
        return spark.read.format("duly").options(**queue.options).load().count()

    with ThreadPoolExecutor(1) as pool:
        assert 0 == pool.submit(count).result()
