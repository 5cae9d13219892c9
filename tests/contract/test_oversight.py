"""
Oversight: the document of the queue, what was changed by hand, and jobs that cannot be read.
"""

from __future__ import annotations

import re

import pytest

from duly import JobNotFound, UsageError
from duly.audit import Actor, Audit, Change
from duly.job import JobKey
from tests.contract.kit import WRONG_CURSORS, new

ADA = Actor("user", "ada", "1@here")


async def test_the_document_of_the_queue_counts_its_jobs(queue):
    await queue.enqueue_many([new("mail", n, delay=60) for n in range(7)])
    await queue.pause("mail")
    document = await queue.stats()
    [mail] = document.topics
    assert ("mail", 7, True) == (mail.topic, mail.scheduled, mail.paused)


async def test_what_nobody_changed_by_hand_is_not_in_the_audit(queue):
    await queue.enqueue("mail", delay=60)
    assert [] == await queue.audit()
    for wrong in (0, 10_001):
        with pytest.raises(UsageError):
            await queue.audit(wrong)


async def test_what_was_changed_by_hand_is_told_newest_first(queue, beside):
    audit = Audit(await beside.store())
    for number in range(3):
        await audit.note(ADA, "cli", Change(action="cancel", topic="mail", id=str(number)))
    found = await queue.audit()
    assert ["2", "1", "0"] == [record.id for record in found]
    assert {("cancel", "mail", "ada", "cli")} == {(r.action, r.topic, r.by.name, r.via) for r in found}
    assert ["2"] == [record.id for record in await queue.audit(1)]


async def test_what_quarantine_cannot_have_is_refused(queue):
    quarantine = await queue.quarantine()
    for cursor in WRONG_CURSORS:
        with pytest.raises(UsageError, match=f"^{re.escape(repr(cursor))} is not a cursor of this list"):
            await quarantine.page(cursor)
    for limit in ("x", None, 1.5, True):
        with pytest.raises(UsageError, match=r"limit=.* must be a whole number"):
            await quarantine.page(None, limit)
    assert [] == (await quarantine.page(None, 0))[0]
    for key in ("mail/a", None, ("mail", "a")):
        for call in (quarantine.content(key), quarantine.drop([key])):
            with pytest.raises(UsageError, match="names no job"):
                await call


async def test_jobs_that_were_put_aside_are_shown_and_dropped(queue, beside):
    store, views = await beside.store(), await beside.views()
    left = {JobKey("mail", id_): id_.encode()[:5] for id_ in ("first", "second", "third")}
    for key, text in left.items():
        aside = store.keys[views.shard_of(key)].fixed["quarantine"]
        await store.link.call("HSET", aside, key.member, text)
    quarantine = await queue.quarantine()
    assert 3 == await quarantine.size()
    found, cursor = await quarantine.page()
    while cursor is not None:
        more, cursor = await quarantine.page(cursor)
        found += more
    assert dict.fromkeys(left, 5) == {JobKey(each.topic, each.id): each.bytes for each in found}
    for key, text in left.items():
        assert text == (await quarantine.content(key)).record
    assert [True] == await quarantine.drop([JobKey("mail", "first")])
    assert 2 == await quarantine.size()
    assert 2 == await quarantine.drop_all()
    assert (0, []) == (await quarantine.size(), (await quarantine.page())[0])


async def test_a_queue_whose_jobs_can_be_read_has_none_in_quarantine(queue):
    await queue.enqueue("mail", id="a", delay=60)
    quarantine = await queue.quarantine()
    assert (0, []) == (await quarantine.size(), (await quarantine.page())[0])
    assert [False] == await quarantine.drop([JobKey("mail", "a")])
    assert 0 == await quarantine.drop_all()
    with pytest.raises(JobNotFound):
        await quarantine.content(JobKey("mail", "a"))
