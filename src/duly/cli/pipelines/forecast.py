"""
``duly pipeline forecast``: can what is scheduled be worked off?
"""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

from duly.cli.loop import session
from duly.cli.main import OK
from duly.cli.noting import noted
from duly.cli.options import DURATION, app_of, as_json, examples, server
from duly.cli.output import print_json, print_table, say
from duly.cli.sparking import open_spark, spark_options, watched
from duly.durations import say_duration

if TYPE_CHECKING:
    from datetime import timedelta

    from duly.spark.forecast.pipeline import Forecast


@click.command(
    short_help="what is due when, and whether it can be worked off",
    epilog=examples(
        "duly pipeline forecast --table lake/history",
        "duly pipeline forecast --rate 500 --slice 5m --hours 72 --png forecast.png",
    ),
)
@click.option("--table", metavar="PATH", help="A history, from which the rate of each topic is taken.")
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Jobs a second, instead of measured rates."
)
@click.option("--slice", "width", type=DURATION, metavar="TIME", default="1m", help="Default: 1m.")
@click.option(
    "--hours", type=click.FloatRange(min=0, min_open=True), default=24, help="How far ahead. Default: 24."
)
@click.option("--png", type=click.Path(path_type=Path), help="Draw what is due to this file.")
@spark_options
@server
@as_json
def forecast(
    table: str | None,
    rate: float | None,
    width: timedelta,
    hours: float,
    png: Path | None,
    master: str | None,
    conf: tuple[str, ...],
    as_json: bool,
) -> int:
    """
    Look ahead: the jobs that are scheduled are the known future.

    Tells by topic how many are due, the most that will be left over at the end of a slice and how long that
    takes, how many handlers at once would leave nothing over, and seconds in which a herd is due.
    """
    app = app_of(existing=True)
    with session(app) as ask:
        store = ask(app.store())
        from duly.spark.forecast.pipeline import ForecastOptions, look_ahead

        options = ForecastOptions(
            url=store.link.url,
            namespace=app.settings.namespace,
            table=table,
            slice_s=max(1, round(width.total_seconds())),
            hours=hours,
            rate_per_s=rate,
        )
        with noted("forecast", app, ask) as counts:
            spark = open_spark(master, conf)
            with watched(spark, "forecast"):
                found = look_ahead(spark, options)
            counts.update(due=int(found.topics["due"].sum()), herds=int(found.topics["herds"].sum()))
    if png is not None:
        _draw(found, png)
    if as_json:
        print_json({"topics": _records(found.topics), "slices": _records(found.slices)})
    else:
        _print(found, table=table, rate=rate)
    return OK


def _draw(found: Forecast, png: Path) -> None:
    from duly.spark.report.plots import due_forecast

    if not len(found.slices):
        say("Nothing is scheduled: there is nothing to draw.")
        return
    png.parent.mkdir(parents=True, exist_ok=True)
    png.write_bytes(due_forecast(found.slices))
    say(f"The picture is {png}")


def _records(table: object) -> object:
    import msgspec

    return msgspec.json.decode(table.to_json(orient="records", date_format="iso"))  # type: ignore[attr-defined]  # pandas without stubs


def _print(found: Forecast, *, table: str | None, rate: float | None) -> None:
    if not len(found.topics):
        print("Nothing is scheduled within that time.")
        return
    rows = [
        [
            row.topic,
            int(row.due),
            f"{row.busiest:%m-%d %H:%M}",
            int(row.busiest_due),
            _whole(row.max_backlog),
            "" if isnan(row.max_drain_s) else say_duration(round(row.max_drain_s * 1000)),
            _whole(row.slots),
            int(row.herds),
        ]
        for row in found.topics.itertuples()
    ]
    print_table(["topic", "due", "busiest", "due then", "left over", "drains in", "slots", "herds"], rows)
    if table is None and rate is None:
        say("Rates are not known: name a history by --table, or a rate by --rate.")


def _whole(value: float) -> int | None:
    return None if isnan(value) else int(value)
