"""
The tables of reports, by small histories; and the page, with all of it.
"""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from duly.errors import UsageError
from duly.spark.report import schemas, transforms
from duly.spark.report.drawing import DARK, PAGE, PAPER, PHONE
from duly.spark.report.page import Figure, Section, page
from duly.spark.report.pipeline import Report, ReportOptions, report, tables_of, write_tables
from tests.spark.stories import NOON, Story, ms

HOUR = timedelta(hours=1)


def ended(story, id_, late_ms, verb="acked", *, at=NOON, **more):
    return story.tell(id_, verb, at=at, lateness_ms=late_ms, run_ms=100, **more)


def same(found, rows, schema):
    assertSchemaEqual(found.schema, schema, ignoreNullable=True)
    assertDataFrameEqual(found, found.sparkSession.createDataFrame(rows, schema), ignoreNullable=True)


def test_retries_do_not_count_as_late(spark):
    story = Story()
    ended(story, "a", 40, at=NOON + timedelta(minutes=5))
    ended(story, "b", 90, "retried", at=NOON + timedelta(minutes=6))
    ended(story, "b", 30_000, attempt=2, at=NOON + timedelta(minutes=7))
    found = transforms.on_time(story.frame(spark), slo_ms=50)
    same(found, [("mail", NOON, 2, 0.5, 40, 90, 90, 90)], schemas.ON_TIME)


def lose(story, id_, *, due=NOON, worker="w1", lease_s=15, crashes=0, attempt=1):
    """
    A run that begins when it is due, and is taken back when its lease is over.
    """
    story.tell(id_, "claimed", at=due, due_ms=ms(due), worker=worker, crashes=crashes, attempt=attempt)
    back = due + timedelta(seconds=lease_s)
    run_ms = 1000 * lease_s
    return story.tell(
        *(id_, "recovered"), at=back, crashes=crashes + 1, attempt=attempt, reason="crashed", run_ms=run_ms
    )


def claimed_again(story, id_, *, at, worker="w2", crashes=1, attempt=1):
    return story.tell(id_, "claimed", at=at, due_ms=ms(at), worker=worker, crashes=crashes, attempt=attempt)


LATER = NOON + timedelta(seconds=16)


def test_a_job_whose_worker_was_lost_is_late_by_that(spark):
    story = lose(Story(), "a")
    claimed_again(story, "a", at=LATER)
    # The run that came after began within 5 ms of when the job was taken back; nobody waits for that.
    ended(story, "a", 5, crashes=1, at=LATER + timedelta(milliseconds=100))
    ended(story, "b", 7, at=NOON + timedelta(seconds=30))
    found = transforms.on_time(story.frame(spark), slo_ms=1_000)
    same(found, [("mail", NOON, 2, 0.5, 7, 16_000, 16_000, 16_000)], schemas.ON_TIME)
    [row] = transforms.budget(story.frame(spark), slo_ms=1_000, goal=0.9).collect()
    assert (2, 1) == (row.jobs, row.late)


def test_a_job_that_failed_after_its_worker_was_lost_is_late_as_well(spark):
    story = lose(Story(), "a")
    claimed_again(story, "a", at=LATER)
    # A failure that is counted sets the crashes back.
    ended(story, "a", 5, "retried", crashes=0, at=LATER + timedelta(milliseconds=100))
    [row] = transforms.on_time(story.frame(spark), slo_ms=1_000).collect()
    assert (1, 16_000) == (row.jobs, row.max_ms)


def test_where_the_claim_is_not_in_the_history_the_lost_run_tells_when_it_was_due(spark):
    story = lose(Story(), "a")
    del story.rows[0]
    ended(story, "a", 5, crashes=1, at=LATER + timedelta(milliseconds=100))
    [row] = transforms.on_time(story.frame(spark), slo_ms=1_000).collect()
    assert (1, 16_000) == (row.jobs, row.max_ms)


def test_what_was_put_off_after_a_crash_has_another_due_time(spark):
    story = lose(Story(), "a")
    claimed_again(story, "a", at=LATER)
    ended(story, "a", 5, "retried", crashes=1, attempt=0, at=LATER + timedelta(seconds=1))
    ended(story, "a", 9, crashes=1, at=NOON + timedelta(minutes=50))
    [row] = transforms.on_time(story.frame(spark), slo_ms=1_000).collect()
    assert (1, 9) == (row.jobs, row.max_ms)


def test_lost_workers_are_told_with_what_became_of_their_runs(spark):
    story = Story()
    for id_ in ("a", "b"):
        lose(story, id_)
    claimed_again(story, "a", at=LATER)
    claimed_again(story, "b", at=LATER + timedelta(seconds=4))
    # One that loses every worker is given up.
    lose(story, "poison", worker="w3", crashes=0, due=NOON + HOUR)
    lose(story, "poison", worker="w4", crashes=1, due=NOON + 2 * HOUR)
    claimed_again(story, "poison", worker="w5", crashes=2, at=NOON + 3 * HOUR)
    end = NOON + 3 * HOUR + timedelta(seconds=15)
    story.tell("poison", "buried", at=end, crashes=3, attempt=0, reason="crashed", run_ms=15_000)
    # Neither a jump of the clock nor a failure is a crash.
    story.tell("c", "recovered", reason="clock", run_ms=5)
    ended(story, "d", 1, "buried", reason="Boom")
    seconds = timedelta(seconds=15)
    w3, w4 = NOON + HOUR + seconds, NOON + 2 * HOUR + seconds
    rows = [
        ("w5", "mail", end, end, 1, 0, 1, None, None),
        ("w4", "mail", w4, w4, 1, 1, 0, 3_600_000, 3_600_000),
        ("w3", "mail", w3, w3, 1, 1, 0, 3_600_000, 3_600_000),
        ("w1", "mail", NOON + seconds, NOON + seconds, 2, 2, 0, 16_000, 20_000),
    ]
    same(transforms.crashes(story.frame(spark)), rows, schemas.CRASHES)


def test_lateness_counts_to_the_hour_in_which_it_was_due(spark):
    story = ended(Story(), "a", 10_000, at=NOON + timedelta(seconds=5))
    [row] = transforms.on_time(story.frame(spark), slo_ms=50).select("p99_ms", "hour").collect()
    same(
        transforms.on_time(story.frame(spark), slo_ms=50),
        [("mail", NOON - HOUR, 1, 0.0, 10_000, 10_000, 10_000, 10_000)],
        schemas.ON_TIME,
    )
    assert 10_000 == row.p99_ms


def test_the_curve_rises_to_the_latest(spark):
    story = Story()
    for late_ms in range(100):
        ended(story, f"j{late_ms}", late_ms)
    found = transforms.curve(story.frame(spark)).collect()
    assert (0.0, 0) == tuple(found[0])
    assert (1.0, 99) == tuple(found[-1])
    assert (0.5, 49) == tuple(found[100])


def test_the_budget_is_the_lateness_that_the_goal_allows(spark):
    story = Story()
    for number in range(100):
        ended(story, f"j{number}", 5_000 if number < 2 else 3)
    [row] = transforms.budget(story.frame(spark), slo_ms=1_000, goal=0.99).collect()
    assert ("mail", 100, 2, 0.98, 0.99) == (row.topic, row.jobs, row.late, round(row.on_time, 6), row.goal)
    assert 2.0 == round(row.used, 6)


def test_failures_are_grouped_by_what_was_wrong(spark):
    story = Story()
    ended(story, "a", 1, "retried", reason="Timeout: #")
    ended(story, "a", 1, "buried", reason="Timeout: #", at=NOON + HOUR, attempt=2)
    ended(story, "b", 1, "buried", reason="KeyError", topic="sms")
    rows = [
        ("mail", "Timeout: #", 1, 1, 1, NOON, NOON + HOUR, "a"),
        ("sms", "KeyError", 0, 1, 1, NOON, NOON, "b"),
    ]
    same(transforms.failures(story.frame(spark)), rows, schemas.FAILURES)


def test_hours_are_told_by_what_happened_in_them(spark):
    story = Story().tell("a", "enqueued", "claimed", "recovered", "claimed", run_ms=5)
    ended(story, "a", 1, "retried", at=NOON + timedelta(minutes=1))
    story.tell("b", "enqueued", "cancelled", at=NOON + HOUR)
    frame = story.frame(spark)
    same(transforms.busiest(frame), [(NOON, 1, 2, 0), (NOON + HOUR, 1, 0, 1)], schemas.BUSIEST)
    same(transforms.retries(frame), [("mail", NOON, 2, 1, 1, 0)], schemas.RETRIES)
    same(transforms.run_times(frame), [("mail", 1, 100, 100, 100, 100, 0.1)], schemas.RUN_TIMES)
    heat = [(NOON.date(), 12, 1, 1)]
    same(transforms.heat(frame), heat, schemas.HEAT)


def test_only_the_time_that_was_asked_for_is_reported(spark):
    story = Story()
    for number in range(-1, 3):
        ended(story, f"j{number}", 1, at=NOON + number * HOUR)
    found = transforms.between(story.frame(spark), NOON, NOON + 2 * HOUR)
    assert ["j0", "j1"] == sorted(row.id for row in found.collect())


# -- the page ----------------------------------------------------------------------------------------------


class Checker(HTMLParser):
    """
    Tags that must be closed, and what a reader without eyes gets.
    """

    def __init__(self):
        super().__init__()
        self.open, self.alts, self.sources, self.ids, self.links = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in ("meta", "img", "source"):
            self.open.append(tag)
        if tag == "img":
            self.alts.append(attributes["alt"])
            self.sources.append(attributes["src"])
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"].removeprefix("#"))

    def handle_endtag(self, tag):
        assert tag == self.open.pop()


@pytest.fixture
def told(spark):
    story = Story()
    for number in range(40):
        story.tell(f"j{number}", "enqueued", "claimed", at=NOON + timedelta(minutes=number))
        ended(story, f"j{number}", number * 20, at=NOON + timedelta(minutes=number))
    ended(story, "bad", 7, "buried", reason='<script>alert("x")</script>')
    ended(story, "again", 7, "retried", reason="Timeout: #")
    story.tell("later", "enqueued", due_ms=ms(NOON + 5 * HOUR))
    options = ReportOptions(table="", start=NOON - HOUR, end=NOON + 2 * HOUR, slo_ms=500)
    tables = {name: frame.toPandas() for name, frame in tables_of(story.frame(spark), options).items()}
    return Report(options, tables)


def test_the_page_stands_alone_and_can_be_read_without_seeing_it(told, tmp_path):
    html = told.html()
    checker = Checker()
    checker.feed(html)
    assert [] == checker.open
    assert ["on-time", "lateness", "forecast", "failures", "retries"] == list(told.pictures())
    assert 5 == len(checker.sources) == len([alt for alt in checker.alts if len(alt) > 20])
    assert all(source.startswith("data:image/svg+xml;base64,") for source in checker.sources)
    assert not re.search(r'(src|srcset|href)="(?!data:|#)', html)
    assert checker.links
    assert set(checker.links) <= set(checker.ids)
    assert "<script" not in html
    assert "&lt;script&gt;" in html


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_tables_are_written_as_files(told, tmp_path, kind):
    written = write_tables(told, tmp_path, kind)
    assert {*(f"{name}.{kind}" for name in told.tables), *(f"{name}.png" for name in told.pictures())} == {
        path.name for path in written
    }
    assert b"\x89PNG" == (tmp_path / "lateness.png").read_bytes()[:4]
    import pandas as pd

    read = {"parquet": pd.read_parquet, "csv": pd.read_csv, "json": pd.read_json}[kind]
    assert list(told.tables["on_time"].columns) == list(read(tmp_path / f"on_time.{kind}").columns)


def test_an_empty_history_makes_a_page_without_pictures(spark):
    options = ReportOptions(table="", start=NOON, end=NOON + HOUR)
    tables = {name: frame.toPandas() for name, frame in tables_of(Story().frame(spark), options).items()}
    empty = Report(options, tables)
    assert {} == empty.pictures()
    html = empty.html()
    for words in (
        "No job began and ended",
        "No job was due",
        "No job has used any of it",
        "Nothing is scheduled for the next 24 hours",
        "No run failed",
        "No run had to be repeated",
        "No worker was lost",
        "No run ended",
        "Nothing happened",
    ):
        assert words in html
    assert "<img" not in html
    assert "<table" not in html


def test_pictures_follow_the_colours_that_a_reader_prefers(told):
    for look in (PAGE, PHONE):
        for name, svg in told.pictures(look).items():
            text = svg.decode()
            [style] = re.findall(r"<style>(.*?)</style>", text)
            assert "@media screen and (prefers-color-scheme: dark)" in style, name
            assert [] == [colour for colour in DARK if colour in text.replace(style, "")], name
            assert "var(--c0)" in text
            ET.fromstring(svg)  # noqa: S314  # our own, and well formed
    assert "prefers-color-scheme: dark" in told.html()


def test_the_page_has_the_paper_of_its_pictures(told):
    assert {f"--paper: {colour};" for colour in (PAPER, DARK[PAPER])} == set(
        re.findall(r"--paper: #\w+;", told.html())
    )


def test_long_reasons_are_cut_to_the_width_of_the_picture():
    assert ("x" * 40, "x" * 75 + "…") == (PAGE.cut("x" * 40), PAGE.cut("x" * 90))
    assert len(PHONE.cut("x" * 90)) < 46


def test_units_stand_in_the_heads_of_tables(told):
    html = told.html()
    assert '<th scope="col" class="number">p99, ms</th>' in html
    assert '<th scope="col" class="number">busy, s</th>' in html
    assert '<th scope="col" class="number">peak per s</th>' in html


def test_what_others_wrote_is_shown_as_text():
    html = page("<b>", "&", [Figure("<i>", "1")], [Section('"quoted"', "<u>", "<s>")])
    assert not re.search("<[bius]>", html)


def test_times_the_wrong_way_round_are_refused(spark):
    with pytest.raises(UsageError, match="covers no time"):
        report(spark, ReportOptions(table="x", start=NOON, end=NOON))
