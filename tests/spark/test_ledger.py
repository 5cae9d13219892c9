"""
Every job that was accepted is accounted for.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from duly.spark.ledger import LEDGER, ledger
from tests.spark.stories import NOON, Story


def balance(spark, story):
    """
    accepted, earlier, succeeded, dead, cancelled, open, difference of the only hour.
    """
    [row] = ledger(story.frame(spark)).collect()
    return tuple(row)[2:]


def test_lives_are_counted_to_the_hour_in_which_they_began(spark):
    story = Story()
    story.tell("a", "enqueued", "promoted", "claimed", "acked", "pruned")
    story.tell("b", "enqueued", "claimed", "retried", "claimed", "buried")
    story.tell("c", "enqueued", "rescheduled", "cancelled")
    story.tell("d", "enqueued", "replaced", "claimed", "released")
    story.tell("e", "enqueued", topic="sms")
    story.tell("e", "claimed", "acked", topic="sms", at=NOON + timedelta(hours=3))
    story.tell("f", "enqueued", at=NOON + timedelta(hours=2))
    story.tell("", "paused", topic="mail")
    expected = spark.createDataFrame(
        [
            (NOON, "mail", 4, 0, 1, 1, 1, 1, 0),
            (NOON, "sms", 1, 0, 1, 0, 0, 0, 0),
            (NOON + timedelta(hours=2), "mail", 1, 0, 0, 0, 0, 1, 0),
        ],
        LEDGER,
    )
    found = ledger(story.frame(spark))
    assertSchemaEqual(found.schema, LEDGER, ignoreNullable=True)
    assertDataFrameEqual(found, expected, ignoreNullable=True)


def test_a_job_that_is_run_again_lives_twice(spark):
    story = Story().tell("a", "enqueued", "claimed", "buried", "requeued", "claimed", "acked", "replaced")
    assert (3, 0, 1, 1, 0, 1, 0) == balance(spark, story)


def test_an_ending_without_a_beginning_is_from_earlier(spark):
    story = Story().tell("a", "claimed", "acked").tell("b", "promoted").tell("c", "pruned")
    assert (0, 2, 1, 0, 0, 1, 0) == balance(spark, story)


@pytest.mark.parametrize(
    ("verbs", "difference"),
    [
        (("enqueued", "claimed", "acked", "acked"), -1),  # ended twice
        (("enqueued", "enqueued", "claimed", "acked"), 1),  # the first was lost
        (("enqueued", "claimed", "pruned"), 1),  # forgotten while it ran
    ],
)
def test_what_does_not_add_up_is_a_difference(spark, verbs, difference):
    assert difference == balance(spark, Story().tell("a", *verbs))[-1]


def test_a_new_epoch_comes_after_the_old_one_although_its_counters_begin_anew(spark):
    old = Story(epoch="z").tell("a", "enqueued", "claimed", "acked")
    new = Story(epoch="b").tell("a", "enqueued", at=NOON + timedelta(minutes=5))
    old.rows += new.rows
    assert (2, 0, 1, 0, 0, 1, 0) == balance(spark, old)
