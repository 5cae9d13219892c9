"""
`duly pipeline schedule`: a table becomes jobs, also after the driver was killed, also on a cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from duly.cli.main import main
from duly.job import JobKey
from duly.runs import Runs
from duly.views import Views
from tests.eventually import eventually
from tests.spark.kit import Queue, frame, rows, without

COUNT = 6_000


def run(queue, *words):
    """
    The command in this process, with the session of the tests.
    """
    return main(["pipeline", "schedule", "--url", queue.url, "--namespace", queue.namespace, *words])


async def run_aside(queue, *words):
    # The command has a loop of its own, and this thread has one already.
    return await asyncio.to_thread(run, queue, *words)


@pytest.fixture
def table(spark, tmp_path):
    frame(spark, rows(20)).write.parquet(str(tmp_path / "table"))
    return str(tmp_path / "table")


async def test_a_table_becomes_jobs_and_the_counts_are_told(queue, table, capsys):
    assert 0 == await run_aside(queue, "--from", table, "--topic", "mail", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (20, 20, 0, 0, 0) == tuple(
        report[name] for name in ("rows", "new", "kept", "replaced", "rejected")
    )
    assert 0 == await run_aside(queue, "--from", table, "--topic", "mail")
    told = capsys.readouterr().out
    assert told.startswith("20 rows in ")
    assert told.endswith(": 0 new, 20 kept, 0 replaced, 0 rejected\n")
    [last] = await Runs(queue.store).all()
    assert ("schedule", 20) == (last.name, last.counts["kept"])


def test_a_row_that_ends_a_run_is_told_in_one_sentence_without_what_java_has_to_say(
    queue, spark_conf, tmp_path
):
    (tmp_path / "customers.csv").write_text("customer_no,next_birthday\n17,2027-01-05\n")
    words = ["--from", "customers.csv", "--topic", "mail", "--master", "local[1]"]
    for column in ("customer_no as id", "next_birthday as due_at", "'null' as payload"):
        words += ["--select", column]
    for name, value in spark_conf.items():
        words += ["--conf", f"{name}={value}"]
    command = [sys.executable, "-m", "duly", "pipeline", "schedule", "--url", queue.url]
    ended = subprocess.run(
        [*command, "--namespace", queue.namespace, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 2 == ended.returncode
    *_, last = ended.stderr.splitlines()
    assert last.startswith("duly: row with topic 'mail' and id '17': due_at: '2027-01-05' is no time; write ")
    assert "org.apache.spark" not in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_the_last_run_is_shown_by_stats(queue, table, capsys):
    await run_aside(queue, "--from", table, "--topic", "mail")
    capsys.readouterr()
    assert 0 == await asyncio.to_thread(main, ["stats", "--url", queue.url, "--namespace", queue.namespace])
    assert "20 new, 0 kept, 0 replaced, 0 rejected" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("flag", ["--plan", "--dry-run"])
async def test_a_plan_shows_the_difference_and_changes_nothing(queue, table, capsys, flag):
    assert 0 == await run_aside(queue, "--from", table, "--topic", "mail", flag)
    told = capsys.readouterr().out
    assert "20 would be new" in told
    assert "new       mail/r" in told
    assert [{}] == await queue.content("jobs")


async def test_columns_can_be_made_of_others(queue, tmp_path, capsys):
    (tmp_path / "people.csv").write_text("customer,name,born\n7,Ada,2150-01-01T09:00:00Z\n8,Bob,2150-01-01\n")
    words = (
        "--select",
        "customer as id",
        "--select",
        "born as due_at",
        "--select",
        "to_json(struct(name)) as payload",
    )
    rejects = str(tmp_path / "rejects")
    source = str(tmp_path / "people.csv")
    assert 0 == await run_aside(queue, "--from", source, "--topic", "mail", "--rejects", rejects, *words)
    assert "1 new, 0 kept, 0 replaced, 1 rejected" in capsys.readouterr().out
    job = await Views(queue.store).get(JobKey("mail", "7"))
    assert b'{"name":"Ada"}' == job.payload


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--from", "/no/such/table", "--topic", "mail"), 2, "PATH_NOT_FOUND"),
        (("--from", "TABLE", "--format", "nonsense", "--topic", "mail"), 2, "nonsense"),
        (("--from", "TABLE"), 2, "no topic: add a column `topic`, or say option topic"),
        (("--from", "TABLE", "--topic", "mail", "--select", "id"), 2, "no column due_at"),
        (("--from", "TABLE", "--topic", "mail", "--conf", "x"), 2, "--conf x: write NAME=VALUE"),
        (("--from", "TABLE", "--topic", "mail", "--select", "nothing"), 2, "nothing"),
    ],
)
async def test_a_mistake_is_a_sentence(queue, table, capsys, words, code, said):
    assert code == await run_aside(queue, *(table if word == "TABLE" else word for word in words))
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert 1 == len(told.strip().splitlines())


def program(queue, spark_conf, *words, module="duly.spark.schedule"):
    """
    The pipeline as a process of its own, at the head of its own group.
    """
    conf = [word for name, value in spark_conf.items() for word in ("--conf", f"{name}={value}")]
    return subprocess.Popen(
        [sys.executable, "-m", module, "--url", queue.url, "--namespace", queue.namespace, *conf, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


async def test_a_driver_that_was_killed_and_is_run_again_gives_the_same_set(
    spark, spark_conf, queue, tmp_path
):
    table = str(tmp_path / "table")
    frame(spark, rows(COUNT)).repartition(4).write.parquet(table)
    words = ("--from", table, "--topic", "mail", "--master", "local[2]")
    victim = program(queue, spark_conf, *words, "--rate", "1000")

    async def begun():
        assert victim.poll() is None, victim.communicate()
        assert 500 <= await queue.store.link.call("HLEN", queue.store.keys[0].fixed["jobs"])

    await eventually(begun, within_s=200)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.communicate()
    [some] = await queue.content("jobs")
    assert 500 <= len(some) < COUNT

    assert 0 == await run_aside(queue, *words)
    other = Queue(queue.url, f"{queue.namespace}-whole")
    await other.store.create()
    assert 0 == await run_aside(other, *words)
    assert without(await other.everything()) == without(await queue.everything())
    # What was accepted before the kill was not touched again.
    [after] = await queue.content("jobs")
    assert some == {member: after[member] for member in some}
    await other.store.link.aclose()


@pytest.mark.long  # two executors with a Java each
async def test_it_runs_on_executors_of_their_own(spark, spark_conf, queue, tmp_path):
    table = str(tmp_path / "table")
    frame(spark, [*rows(1_000), ("a b", None, None)]).repartition(4).write.parquet(table)
    quick = {"spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    words = ("--from", table, "--topic", "mail", "--rejects", str(tmp_path / "rejects"), "--json")
    process = program(queue, spark_conf | quick, "--master", "local-cluster[2,1,1024]", *words)
    out, err = await asyncio.to_thread(process.communicate, timeout=280)
    assert 0 == process.returncode, err
    report = json.loads(out)
    assert (1_000, 1) == (report["new"], report["rejected"])
    assert 1 == spark.read.parquet(str(tmp_path / "rejects")).count()
    assert 1_000 == spark.read.format("duly").options(**queue.options).load().count()
