"""
What the table of a batch handler says of its jobs, read without Spark.
"""

from __future__ import annotations

import pandas as pd
import pytest

from duly import Codec
from duly.batchhandler import BatchHandler
from duly.job import JobKey, Lane, Lease

pytest.importorskip("pyspark")

import pyarrow as pa

from duly.spark.work.outcomes import endings_of


def test_results_are_written_by_the_codec_of_the_app():
    codec = Codec()
    codec.register(pd.Timestamp, encode=lambda time: time.value, decode=pd.Timestamp)
    handler = BatchHandler(lambda jobs: jobs, "score", codec=codec)
    lease = Lease(JobKey("score", "a"), 0, Lane.normal, 1, 1, b"n" * 8, 1, 0, 0, 0, 0, 1_000, 0, b"{}")
    times = pa.array([{"at": pd.Timestamp(7)}], pa.struct([("at", pa.timestamp("ns"))]))
    answer = pa.table({"id": ["a"], "outcome": ["ok"], "result": times})
    [finish] = endings_of(handler, [lease], answer, lambda lease: 0).by_verb["ack"]
    assert (b'{"at":7}',) == finish.own
