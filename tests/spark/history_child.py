"""
A history pipeline in a process of its own that stops dead in a named place, to be killed there.

python history_child.py URL NAMESPACE TABLE PLACE MAX_ROWS CONF
"""

from __future__ import annotations

import json
import sys
import threading

from duly.spark import session
from duly.spark.history import batch, pipeline
from duly.spark.history.table import HistoryTable


def stop_here(place: str) -> None:
    print("reached", place, flush=True)
    threading.Event().wait()


def main() -> None:
    url, namespace, table, place, max_rows, conf = sys.argv[1:]
    append, planned = HistoryTable.append, batch.planned

    def append_and_stop(*args: object) -> None:
        if place == "files written, not committed":
            stop_here(place)
        append(*args)
        if place == "committed, not settled":
            stop_here(place)

    def plan_and_stop(*args: object) -> object:
        if place == "batch planned":
            stop_here(place)
        return planned(*args)

    HistoryTable.append = append_and_stop
    batch.planned = plan_and_stop
    spark = session("local[2]", **json.loads(conf))
    options = pipeline.HistoryOptions(url=url, namespace=namespace, table=table, max_rows=int(max_rows))

    def tell(_: int) -> None:
        print("batch", flush=True)
        if place == "settled, not in the checkpoint":
            stop_here(place)

    pipeline.history(spark, options, tell=tell)
    print("done", flush=True)


if __name__ == "__main__":
    main()
