"""
The pipelines on a cluster: a master, a worker and the executor that it starts are processes of their own.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from duly.views import Views
from tests.spark.kit import frame, rows
from tests.spark.standalone import QUICK, Cluster

pytestmark = [
    pytest.mark.long,  # four Javas
    pytest.mark.timeout(600),
]
COUNT = 2_000

#: Runs commands one after the other, in one driver.
PROGRAM = """
import json, sys
from duly.cli.main import main
for words in json.loads(sys.argv[1]):
    code = main(["pipeline", *words])
    if code:
        sys.exit(code)
from duly.spark import session
jobs = session().read.format("duly").options(**json.loads(sys.argv[2])).load()
where = jobs.sparkSession.sparkContext.master
counts = {row.state: row["count"] for row in jobs.groupBy("state").count().collect()}
print(json.dumps({"master": where, "counts": counts}))
"""


@pytest.fixture
def cluster(tmp_path, spark_conf):
    cluster = Cluster(tmp_path)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


async def test_schedule_scan_and_history_run_on_a_standalone_cluster(
    spark, spark_conf, cluster, queue, tmp_path
):
    table, history, rejects = (str(tmp_path / name) for name in ("table", "history", "rejects"))
    frame(spark, [*rows(COUNT), ("a b", None, None)]).repartition(4).write.parquet(table)
    where = ["--url", queue.url, "--namespace", queue.namespace, "--json"]
    conf = spark_conf | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "768m",
        "spark.executor.extraJavaOptions": QUICK,
    }
    on = [
        "--master",
        cluster.url,
        *(w for name, value in conf.items() for w in ("--conf", f"{name}={value}")),
    ]
    commands = [
        ["schedule", "--from", table, "--topic", "mail", "--rejects", rejects, *on, *where],
        ["schedule", "--from", table, "--topic", "mail", "--rejects", rejects, *on, *where],
        ["history", "--once", "--table", history, *on, *where],
        ["ledger", "--table", history, *on, "--json"],
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(commands), json.dumps(queue.options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    out, err = await asyncio.to_thread(process.communicate, timeout=500)
    assert 0 == process.returncode, err
    first, again, moved, _, scanned = _documents(out)
    assert (COUNT, 0, 1) == (first["new"], first["kept"], first["rejected"])
    assert (0, COUNT, 1) == (again["new"], again["kept"], again["rejected"])
    assert COUNT == moved["events"]
    assert {"master": cluster.url, "counts": {"scheduled": COUNT}} == scanned
    assert COUNT == (await Views(queue.store).stats()).topics[0].counts["scheduled"]
    # Not the driver: an executor, which the worker started.
    assert list((tmp_path / "work").glob("app-*/0/stderr"))


def _documents(text):
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text.rstrip()):
        document, at = decoder.raw_decode(text, at)
        found.append(document)
        at += len(text[at:]) - len(text[at:].lstrip())
    return found
