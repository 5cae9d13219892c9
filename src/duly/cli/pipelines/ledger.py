"""
``duly pipeline ledger``: is every job accounted for?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from duly.cli.main import NO, OK
from duly.cli.noting import noted_if_there
from duly.cli.options import as_json, examples, server
from duly.cli.output import print_json, print_table, say
from duly.cli.sparking import open_spark, spark_options, watched

if TYPE_CHECKING:
    from pyspark.sql import Row


@click.command(
    short_help="account for every job that was accepted",
    epilog=examples("duly pipeline ledger --table lake/history"),
)
@click.option("--table", required=True, metavar="PATH", help="The history.")
@spark_options
@server
@as_json
def ledger(table: str, master: str | None, conf: tuple[str, ...], as_json: bool) -> int:
    """
    Compare, by the hour, the jobs that were accepted with those that ended or are still open.

    Exits with 1 if there is a difference, or if jobs ended that no event says were accepted. The queue is
    asked nothing; if there is one, the run is noted for `duly stats`.
    """
    from duly.spark.history.reading import read_gaps, read_history
    from duly.spark.ledger import COUNTS, LEDGER
    from duly.spark.ledger import ledger as balance

    with noted_if_there("ledger") as counts:
        spark = open_spark(master, conf)
        with watched(spark, "ledger"):
            rows = balance(read_history(spark, table)).collect()
        gaps = read_gaps(table)
        totals = {name: sum(row[name] for row in rows) for name in COUNTS}
        counts.update(totals)
    wrong = sum(1 for row in rows if row.difference)
    # Of jobs that were accepted before the history began, the beginning cannot be there.
    unexplained = 0 if gaps else totals["earlier"]
    balanced = not wrong and not unexplained
    if as_json:
        print_json(
            {
                "balanced": balanced,
                "totals": totals,
                "hours": [_document(row) for row in rows],
                "gaps": gaps,
            }
        )
    else:
        print_table(LEDGER.names, [[_hour(row), *tuple(row)[1:]] for row in rows])
        print()
        print(", ".join(f"{value:,} {name}" for name, value in totals.items()))
        for gap in gaps:
            say(f"not in the history: {gap}")
        say(_verdict(wrong, unexplained))
    return OK if balanced else NO


def _verdict(wrong: int, unexplained: int) -> str:
    if wrong:
        return f"It does not balance in {wrong:,} rows: look at their jobs in the history."
    if unexplained:
        return f"{unexplained:,} jobs were never accepted, and the history has no gap that would explain it."
    return "Every job is accounted for."


def _hour(row: Row) -> str:
    return f"{row.hour:%Y-%m-%d %H:00}"


def _document(row: Row) -> dict[str, object]:
    return {**row.asDict(), "hour": f"{row.hour:%Y-%m-%dT%H:00:00Z}"}
