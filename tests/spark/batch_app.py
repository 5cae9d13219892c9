"""
The app that drivers of batch tests run: its function says when a batch begins, outside the store.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from duly import Duly, Fixed

app = Duly()


@app.batch_handler("score", max_rows=500, backoff=Fixed(0.1))
def score(jobs):
    folder = Path(os.environ["FOLDER"])
    (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
    begun = len(list(folder.glob(f"{os.getpid()}-*")))
    while (folder / f"hold-{begun}").exists():
        time.sleep(0.01)
    number = F.get_json_object("payload", "$.n").cast("int")
    fails = (number % 10 == 0) & (F.col("attempt") == 1)
    return jobs.select(
        "id",
        F.when(number % 7 == 0, "bury").when(fails, "retry").otherwise("ok").alias("outcome"),
        F.struct((number * 2).alias("twice")).alias("result"),
    )
