"""
Enqueue many: any number of jobs in one call, one outcome for each.
"""

from __future__ import annotations

from duly import DulyError, UsageError
from tests.contract.handlers import add
from tests.contract.kit import FAR, SOON_S, nested, new


async def test_each_job_has_an_outcome_in_its_place_and_wrong_ones_stop_nobody(queue):
    await queue.enqueue("mail", id="there", delay=60)
    outcomes = await queue.enqueue_many(
        [
            new("mail", 1, id="a", due_at=FAR),
            new("sms", 2, id="a", delay=60),
            new("mail", 3, delay=-1),
            new("mail", 4, id="there"),
            new("mail", 5, id="there", on_conflict="raise"),
            new("mail", 6, id="there", on_conflict="replace", delay=90),
            new("mail", 7, id="a"),
            new("mail"),
        ]
    )
    words = [
        type(each).__name__ if isinstance(each, DulyError) else f"{each.topic} {each.placed.word}"
        for each in outcomes
    ]
    assert [
        "mail created",
        "sms created",
        "UsageError",
        "mail kept",
        "JobExists",
        "mail replaced",
        "mail kept",
        "mail created",
    ] == words
    assert (FAR, FAR) == (outcomes[0].due_at, outcomes[6].due_at)
    assert b"6" == (await queue.job("mail", "there").get()).payload


class Broken(dict):
    """
    A context that cannot be looked through.
    """

    def items(self):
        raise LookupError("broken")


async def test_whatever_one_job_raises_the_others_are_sent(queue):
    jobs = [
        new("mail", id="a", due_at=FAR),
        new("mail", id="b", context={"a": nested(500)}),
        new("mail", id="c", context=Broken(a=1)),
        new("mail", id="d", due_at=FAR, context={"a": nested(499)}),
    ]
    first, deep, broken, last = await queue.enqueue_many(jobs)
    assert ("a", "d") == (first.id, last.id)
    assert "context is nested 501 levels deep, the limit is 500: make it flatter" == str(deep)
    assert isinstance(deep, UsageError)
    assert isinstance(broken, UsageError)
    assert "mail: cannot be sent: LookupError: broken" == str(broken)
    assert isinstance(broken.__cause__, LookupError)


async def test_no_jobs_have_no_outcomes(queue):
    assert [] == await queue.enqueue_many([])


async def test_jobs_may_be_made_on_the_way(queue):
    count = 700
    made = (new("mail", number, id=str(number), delay=60) for number in range(count))
    outcomes = await queue.enqueue_many(made)
    assert [str(number) for number in range(count)] == [each.id for each in outcomes]
    found = await (await queue.views()).get_many([each.key for each in outcomes])
    assert [str(number).encode() for number in range(count)] == [job.payload for job in found]


async def test_all_of_them_run(queue, working):
    outcomes = await queue.enqueue_many([add.job(number, 1) for number in range(60)])
    async with working():
        assert list(range(1, 61)) == [await each.result(timeout=SOON_S) for each in outcomes]
