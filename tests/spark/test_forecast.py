"""
What is scheduled, cut into slices, against how fast it is worked off.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.testing import assertSchemaEqual

from duly.errors import UsageError
from duly.spark.forecast.transforms import FORECAST, SCHEDULED, SERVICE, forecast, scheduled_of, service
from tests.spark.stories import NOON, Story, ms

NOW = ms(NOON)


def due(*seconds, topic="mail"):
    return [(topic, NOW + round(second * 1000)) for second in seconds]


def ahead(spark, scheduled, services, **options):
    frames = spark.createDataFrame(scheduled, SCHEDULED), spark.createDataFrame(services, SERVICE)
    return forecast(*frames, now_ms=NOW, slice_s=10, hours=1, **options)


def test_what_one_slice_cannot_take_is_left_to_the_next(spark):
    # Two a second are worked off: twenty in a slice.
    scheduled = due(*[1] * 50, *[12] * 5, *[31] * 10)
    found = ahead(spark, scheduled, [("mail", 100, 400.0, 2.0)])
    assertSchemaEqual(found.schema, FORECAST, ignoreNullable=True)
    rows = [(row.due, row.backlog, row.drain_s, row.slots) for row in found.collect()]
    assert [(50, 30, 15.0, 2), (5, 15, 7.5, 1), (0, 0, 0.0, 0), (10, 0, 0.0, 1)] == rows


def test_what_is_overdue_is_due_now_and_what_is_far_away_is_left_out(spark):
    found = ahead(spark, due(-500, -3, 2, 7200), [("mail", 1, 1.0, 1.0)])
    assert [3] == [row.due for row in found.collect()]


def test_many_in_one_second_are_a_herd_unless_they_are_worked_off_at_once(spark):
    scheduled = due(*[3.0 + at / 1000 for at in range(200)])
    scheduled += due(*[3.0 + at / 1000 for at in range(200)], topic="fast")
    scheduled += due(*[3] * 200, topic="new") + due(*[3] * 20, topic="few")
    services = [("mail", 10, 1.0, 2.0), ("fast", 10, 1.0, 500.0), ("few", 1, 1.0, 0.1)]
    found = {
        row.topic: (row.herd, row.peak_per_s, row.backlog)
        for row in ahead(spark, scheduled, services).collect()
    }
    assert {
        "mail": (True, 200, 180),
        "fast": (False, 200, 0),
        "new": (True, 200, None),
        "few": (False, 20, 19),
    } == found


def test_a_rate_that_is_given_takes_the_place_of_the_measured_one(spark):
    [row] = ahead(spark, due(*[1] * 50), [("mail", 10, 1.0, 2.0)], rate_per_s=4).collect()
    assert (10, 2.5) == (row.backlog, row.drain_s)


def test_the_history_knows_what_is_scheduled(spark):
    story = Story().tell("a", "enqueued", due_ms=NOW + 5)
    story.tell("b", "enqueued", due_ms=NOW + 6).tell(
        "b", "rescheduled", due_ms=NOW + 9, at=NOON + timedelta(minutes=1)
    )
    story.tell("c", "enqueued", "cancelled").tell("d", "enqueued", "promoted")
    story.tell("e", "enqueued", "claimed", "retried", due_ms=NOW + 7)
    found = scheduled_of(story.frame(spark))
    assertSchemaEqual(found.schema, SCHEDULED, ignoreNullable=True)
    assert [NOW + 5, NOW + 7, NOW + 9] == sorted(row.due_ms for row in found.collect())


def test_the_busiest_minute_tells_the_rate(spark):
    story = Story()
    for second in range(90):
        story.tell(f"j{second}", "acked", at=NOON + timedelta(seconds=second), run_ms=second % 2 * 200)
    found = service(story.frame(spark))
    assertSchemaEqual(found.schema, SERVICE, ignoreNullable=True)
    assert [("mail", 90, 100.0, 1.0)] == [tuple(row) for row in found.collect()]


def test_too_many_slices_are_refused(spark):
    with pytest.raises(UsageError, match="slices"):
        frames = spark.createDataFrame([], SCHEDULED), spark.createDataFrame([], SERVICE)
        forecast(*frames, now_ms=NOW, slice_s=1, hours=1000)
