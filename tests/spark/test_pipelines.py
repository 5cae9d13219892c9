"""
The pipelines as commands: what they say, and how they end.
"""

from __future__ import annotations

import json

import pytest
from deltalake import write_deltalake

from duly.cli.main import main
from duly.spark.history.files import PARTITIONED_BY
from tests.spark.happenings import Happenings
from tests.spark.stories import Story


@pytest.fixture
def queue(valkey, namespace):
    return Happenings(valkey.url, namespace)


@pytest.fixture
def duly(spark, queue, capsys):
    def run(*words, server=True):
        where = ["--url", queue.url, "--namespace", queue.namespace] if server else []
        code = main([*words, *where])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def save(story, path):
    """
    A table of a story, as another program might have written it.
    """
    import pyarrow as pa

    from duly.spark.history.files import HISTORY_ARROW

    columns = dict(zip(HISTORY_ARROW.names, zip(*story.rows, strict=True), strict=True))
    rows = pa.table({name: list(values) for name, values in columns.items()}, HISTORY_ARROW)
    write_deltalake(str(path), rows, partition_by=list(PARTITIONED_BY))


def test_from_events_to_a_report(duly, queue, tmp_path):
    table = str(tmp_path / "lake" / "history")
    queue.live(90)
    events = len(queue.events())

    code, out, _ = duly("pipeline", "history", "--table", table, "--dry-run", "--json")
    assert (0, events) == (code, json.loads(out)["behind"])
    code, out, err = duly("pipeline", "history", "--once", "--table", table, "--json")
    assert (0, {"events": events, "batches": 1}) == (code, json.loads(out)), err
    code, out, _ = duly("pipeline", "history", "--table", table, "--dry-run", "--json")
    assert 0 == json.loads(out)["behind"]

    code, out, err = duly("pipeline", "ledger", "--table", table, "--json")
    ledger = json.loads(out)
    assert (0, True, 90, 0) == (
        code,
        ledger["balanced"],
        ledger["totals"]["accepted"],
        ledger["totals"]["difference"],
    )
    assert 90 == sum(ledger["totals"][name] for name in ("succeeded", "dead", "cancelled", "open"))
    code, out, err = duly("pipeline", "ledger", "--table", table, server=False)
    assert "Every job is accounted for." in err

    page, files = tmp_path / "pages" / "report.html", tmp_path / "files"
    words = ("--table", table, "--html", str(page), "--out", str(files), "--format", "csv")
    code, out, err = duly("pipeline", "report", *words)
    assert 0 == code, err
    assert "Bad" in out
    assert "data:image/svg+xml" in page.read_text("utf-8")
    assert (files / "on_time.csv").exists()

    picture = tmp_path / "forecast.png"
    words = ("--table", table, "--png", str(picture), "--hours", "2", "--json")
    code, out, err = duly("pipeline", "forecast", *words)
    assert 0 == code, err
    waiting = ledger["totals"]["open"]
    assert waiting == sum(topic["due"] for topic in json.loads(out)["topics"])
    assert picture.read_bytes().startswith(b"\x89PNG")

    code, out, _ = duly("stats", "--json")
    runs = {run["name"]: run for run in json.loads(out)["runs"]}
    assert {"events": events, "batches": 1} == runs["history"]["counts"]
    assert waiting == runs["forecast"]["counts"]["due"]
    assert ledger["totals"] == runs["ledger"]["counts"]
    assert {"jobs", "late"} == runs["report"]["counts"].keys()
    assert all(run["error"] is None for run in runs.values())


def test_a_run_without_a_queue_is_noted_nowhere_and_goes_well(duly, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(Story().tell("a", "enqueued", "claimed", "acked"), tmp_path / "history")
    code, _, err = duly("pipeline", "ledger", "--table", "history", server=False)
    assert (0, "Every job is accounted for.\n") == (code, err)
    assert ["history"] == [path.name for path in tmp_path.iterdir()]


def test_a_ledger_that_does_not_balance_is_a_no(duly, tmp_path):
    save(Story().tell("a", "enqueued", "claimed", "acked", "acked"), tmp_path / "history")
    code, _, err = duly("pipeline", "ledger", "--table", str(tmp_path / "history"), server=False)
    assert 1 == code
    assert "does not balance in 1 rows" in err


def test_an_ending_without_a_beginning_needs_a_gap_that_explains_it(duly, tmp_path):
    save(Story().tell("a", "claimed", "acked"), tmp_path / "history")
    code, _, err = duly("pipeline", "ledger", "--table", str(tmp_path / "history"), server=False)
    assert 1 == code
    assert "1 jobs were never accepted" in err


def test_lost_events_are_a_no_with_their_range_and_remembered(duly, spark, valkey, queue, tmp_path):
    small = Happenings(valkey.url, queue.namespace, max_event_rows=40)
    table = str(tmp_path / "history")
    small.live(5)
    assert 0 == duly("pipeline", "history", "--once", "--table", table)[0]
    for at in range(4):
        small.live(30, start=100 + 30 * at)
    code, _, err = duly("pipeline", "history", "--once", "--table", table)
    assert 1 == code
    assert "are lost: trimmed before they were read" in err
    assert "Traceback" not in err
    [run] = json.loads(duly("stats", "--json")[1])["runs"]
    assert "are lost" in run["error"]
    code, _, err = duly("pipeline", "history", "--once", "--allow-gaps", "--compact", "--table", table)
    assert 0 == code
    assert "not in the table: events" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "--table", "nowhere"), "there is no history at nowhere"),
        (("ledger", "--table", "nowhere"), "there is no history at nowhere"),
        (
            ("report", "--table", "x", "--from", "2026-11-15T00:00Z", "--to", "2026-11-14T00:00Z"),
            "covers no time",
        ),
        (("report", "--table", "x", "--goal", "1"), "choose a share"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(duly, words, said):
    code, _, err = duly("pipeline", *words, server=False)
    assert 2 == code
    assert said in err
    assert "Traceback" not in err
