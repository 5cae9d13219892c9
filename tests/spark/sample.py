"""
A week that never was, for the pictures in docs/images: ``python -m tests.spark.sample [FOLDER]``.
"""

from __future__ import annotations

import random
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from duly.spark import session
from duly.spark.forecast.transforms import SERVICE, forecast
from duly.spark.report.pipeline import Report, ReportOptions, tables_of
from duly.spark.report.plots import due_forecast
from tests.docs.images import DRAWN, IMAGES
from tests.docs.pages import ROOT
from tests.spark.stories import NOON, Story, ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("mail.welcome", "payment.check", "report.build")
REASONS = (
    "TimeoutError: #s",
    "ConnectionError: the bank does not answer",
    "KeyError: 'user'",
    "HTTPStatusError: #",
)
DAYS = 5


def week() -> Story:
    """
    Busy by day, late when the reports are built, one bad hour, one bad day.
    """
    chance, story, number = random.Random(7), Story(), 0
    for hour in range(24 * DAYS):
        begun = NOON - timedelta(days=DAYS) + timedelta(hours=hour)
        for _ in range(50 if 8 <= begun.hour <= 18 else 25):
            number += 1
            at = begun + timedelta(seconds=3600 * chance.random())
            topic = chance.choices(TOPICS, [6, 3, 1])[0]
            late = chance.lognormvariate(1.0, 0.8) * (
                chance.choice([1, 8, 60]) if begun.hour in (9, 10) else 1
            )
            if (begun.day, begun.hour) == (13, 15):
                late *= 400
            run = int(chance.lognormvariate(4, 0.6))
            failed = chance.random() < (0.2 if begun.day == 14 else 0.06)
            verb = chance.choices(["retried", "buried"], [5, 1])[0] if failed else "acked"
            story.tell(f"j{number}", "enqueued", topic=topic, at=at - timedelta(minutes=5))
            story.tell(f"j{number}", "claimed", topic=topic, at=at)
            story.tell(
                f"j{number}",
                verb,
                topic=topic,
                at=at + timedelta(milliseconds=run),
                lateness_ms=int(late),
                run_ms=run,
                reason=chance.choices(REASONS, [5, 3, 1, 2])[0] if failed else "",
                state="dead" if failed else "succeeded",
            )
    for number in range(1_500):
        herd = number >= 1_200
        due = NOON + timedelta(hours=20 if herd else 24 * chance.random())
        topic = TOPICS[0] if herd else chance.choices(TOPICS, [6, 3, 1])[0]
        story.tell(f"s{number}", "enqueued", topic=topic, at=NOON - timedelta(hours=1), due_ms=ms(due))
    return story


def reminders(spark: SparkSession) -> bytes:
    """
    What examples/reminders has ahead of it, once the first ones are sent.
    """
    sys.path.insert(0, str(ROOT / "examples" / "reminders"))
    from customers import COLUMNS, Customers
    from plan import wanted

    with tempfile.TemporaryDirectory() as folder:
        customers = Customers(f"sqlite:///{folder}/customers.db")
        customers.create(50_000, NOON - timedelta(minutes=1), within_s=30)
        rows = wanted(spark.createDataFrame(customers.rows(), COLUMNS))
    jobs = rows.selectExpr("'mail.reminder' as topic", "unix_millis(due_at) as due_ms")
    ahead = jobs.where(f"due_ms > {ms(NOON)}")
    rates = spark.createDataFrame([], SERVICE)
    return due_forecast(forecast(ahead, rates, now_ms=ms(NOON), slice_s=3600, hours=24).toPandas())


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    spark = session("local[2]", **{"spark.sql.shuffle.partitions": "2"})
    options = ReportOptions(table="", start=NOON - timedelta(days=DAYS), end=NOON)
    frames = tables_of(week().frame(spark).cache(), options)
    tables = {name: frame.toPandas() for name, frame in frames.items()}
    report = Report(options, tables)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {**report.pictures(), "reminders": reminders(spark)}
    for name in DRAWN:
        (folder / f"spark-{name}.png").write_bytes(pictures[name])
    if len(sys.argv) > 1:
        (folder / "report.html").write_text(report.html(), "utf-8")


if __name__ == "__main__":
    main()
