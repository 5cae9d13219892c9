"""
Remind customers before their subscriptions end: from a table, by Spark, and the table stays in charge.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from customers import COLUMNS, SOON, Customers
from plan import differences, wanted
from pyspark.sql import DataFrame, SparkSession
from shop import TOPIC

from duly import Duly
from duly.embedded.server import EmbeddedServer
from duly.spark import session
from duly.spark.history.pipeline import HistoryOptions, HistoryRun, history
from duly.spark.history.reading import read_history
from duly.spark.ledger import ledger
from duly.spark.report.pipeline import ReportOptions, report
from duly.spark.schedule import schedule

HERE = Path(__file__).parent


@asynccontextmanager
async def queue(folder: Path) -> AsyncIterator[Duly]:
    """
    The queue that DULY_URL names, or else one in *folder*.
    """
    with ExitStack() as stack:
        url = os.environ.get("DULY_URL")
        if url is None:
            url = stack.enter_context(EmbeddedServer(folder / "queue", "everysec")).url
        async with Duly(url) as app:
            yield app


def read(spark: SparkSession, customers: Customers) -> DataFrame:
    """
    The table as it is now.
    """
    # So many fit through this process.  Of millions, let Spark read ranges of the key, or use its JDBC.
    return spark.createDataFrame(customers.rows(), COLUMNS)


def compare(spark: SparkSession, customers: Customers, app: Duly) -> DataFrame:
    """
    What differs between the table and the queue at this moment.
    """
    queued = spark.read.format("duly").options(url=app.settings.url, topic=TOPIC).load()
    return differences(wanted(read(spark, customers)), queued, datetime.now(UTC))


async def repair(found: DataFrame, app: Duly) -> tuple[int, int]:
    """
    Put right what `compare` found: how many were sent or moved, and how many cancelled.
    """
    rows = found.where("kind != 'orphan'").select("id", "due_at", "payload")
    sent = schedule(rows, topic=TOPIC, on_conflict="replace", url=app.settings.url)
    orphans = [row.id for row in found.where("kind = 'orphan'").collect()]
    await asyncio.gather(*(app.job(TOPIC, id_).cancel() for id_ in orphans))
    return sent.new + sent.replaced, len(orphans)


def counts(found: DataFrame) -> str:
    """
    How many differences there are of each kind.
    """
    rows = found.groupBy("kind").count().orderBy("kind").collect()
    return ", ".join(f"{row['count']:,} {row.kind}" for row in rows) or "nothing"


@contextmanager
def workers(count: int, app: Duly, log: Path) -> Iterator[None]:
    """
    Some worker processes; in the end they finish what they run.
    """
    command = [sys.executable, "-m", "duly", "work", "shop:app"]
    env = os.environ | {"DULY_URL": str(app.settings.url)}
    with log.open("ab") as out:
        running = [subprocess.Popen(command, cwd=HERE, env=env, stdout=out, stderr=out) for _ in range(count)]
        try:
            yield
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait()


async def wait_until_sent(app: Duly, count: int, within_s: float) -> int:
    """
    Wait for the workers: how many reminders have come to their end, one way or the other.
    """
    views = await app.views()
    deadline = time.monotonic() + within_s
    while True:
        topics = (await views.stats()).topics
        sent = sum(topic.counts.get(state, 0) for topic in topics for state in ("succeeded", "dead"))
        if sent >= count or time.monotonic() > deadline:
            return sent
        await asyncio.sleep(0.1)


def keep(spark: SparkSession, app: Duly, table: Path) -> HistoryRun:
    """
    Bring the history up to date.
    """
    return history(spark, HistoryOptions(url=str(app.settings.url), table=str(table)))


def write_page(spark: SparkSession, table: Path, page: Path) -> None:
    """
    Report on the last day.
    """
    end = datetime.now(UTC)
    made = report(spark, ReportOptions(table=str(table), start=end - timedelta(days=1), end=end))
    page.write_text(made.html(), "utf-8")


async def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--customers", type=int, default=50_000, help="each gets four reminders")
    options.add_argument("--database", metavar="URL", help="sqlite:///FILE or postgresql://USER@HOST/NAME")
    options.add_argument("--folder", type=Path, default=Path("run"), help="for all that is written")
    asked = options.parse_args()
    folder = asked.folder.absolute()
    if asked.customers < 200:
        raise SystemExit(f"--customers {asked.customers}: of fewer than 200, nobody would leave or stay")
    if folder.exists():
        raise SystemExit(f"{asked.folder} is there from an earlier run: remove it, or say --folder")
    folder.mkdir(parents=True)
    customers = Customers(asked.database or f"sqlite:///{folder}/customers.db")
    async with queue(folder) as app:
        with workers(2, app, folder / "workers.log"):
            await play(app, customers, asked.customers, folder)


async def play(app: Duly, customers: Customers, count: int, folder: Path) -> None:
    spark = session()
    within_s = 5 if count < 5_000 else 30
    begin = datetime.now(UTC) + timedelta(seconds=3)
    customers.create(count, begin, within_s)
    print(f"{count:,} customers")

    for _ in range(2):
        done = schedule(wanted(read(spark, customers)), topic=TOPIC, url=app.settings.url)
        print(f"{done.rows:,} reminders: {done.new:,} new, {done.kept:,} kept")

    left, renewed = customers.leave(), customers.renew()
    joined = customers.join(count, count // 500, begin)
    print(f"{left:,} customers leave, {renewed:,} stay longer, {joined:,} are new")

    found = compare(spark, customers, app).cache()
    print("the queue differs:", counts(found))
    print("{:,} sent or moved, {:,} cancelled".format(*await repair(found, app)))
    found.unpersist()
    print("the queue differs:", counts(compare(spark, customers, app)))

    soon = len(range(0, count, SOON))
    print(f"{await wait_until_sent(app, soon, within_s + 120):,} reminders are sent, some after a retry")
    print(f"{keep(spark, app, folder / 'history').rows:,} events are kept")
    wrong = ledger(read_history(spark, str(folder / "history"))).where("difference != 0").count()
    print("every job is accounted for" if not wrong else f"{wrong} hours do not balance")
    write_page(spark, folder / "history", folder / "report.html")
    print(f"the report is {folder / 'report.html'}")
    spark.stop()


if __name__ == "__main__":
    asyncio.run(main())
