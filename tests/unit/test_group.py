"""
Group commit: what piles up while one call is under way leaves together in the next.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.group import HALF_AT_LEAST, MAX_BYTES, MAX_JOBS, Group, chunks


class Wire:
    """
    A call that a test holds open, and lets go when it wants.
    """

    def __init__(self, fails=()):
        self.batches = []
        self.gate = asyncio.Event()
        self.fails = set(fails)

    async def send(self, batch):
        self.batches.append(batch)
        await self.gate.wait()
        if len(self.batches) in self.fails:
            raise OSError("wire cut")
        return [item.upper() for item in batch]


def group(wire, **options):
    return Group(wire.send, key=options.pop("key", str), size=options.pop("size", len), **options)


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_piles_up_behind_a_call_leaves_together_in_the_next():
    wire = Wire()
    callers = group(wire)
    first = callers.add("a")
    await settle()
    rest = [callers.add(item) for item in "bcd"]
    await settle()
    assert [["a"]] == wire.batches
    wire.gate.set()
    assert ["A", "B", "C", "D"] == await asyncio.gather(first, *rest)
    assert [["a"], ["b", "c", "d"]] == wire.batches


async def test_callers_that_go_on_leave_together_again():
    sent = []

    async def send(batch):
        sent.append(len(batch))
        await settle()
        return batch

    callers = Group(send, key=str, size=len)

    async def call_thrice(name):
        for number in range(3):
            await callers.ask(f"{name}{number}")

    await asyncio.gather(*map(call_thrice, "abcd"))
    # The very first one met nobody, and is a call ahead from then on.
    assert [1, 4, 4, 3] == sent


async def test_many_callers_leave_in_two_halves_of_which_one_is_always_under_way():
    sent, under_way, most = [], 0, 0

    async def send(batch):
        nonlocal under_way, most
        sent.append(len(batch))
        under_way += 1
        most = max(most, under_way)
        await settle()
        under_way -= 1
        return batch

    callers = Group(send, key=str, size=len, halves=True)

    async def call_thrice(name):
        for number in range(3):
            await callers.add(f"{name}-{number}")

    await asyncio.gather(*(call_thrice(name) for name in range(2 * HALF_AT_LEAST)))
    assert [HALF_AT_LEAST] * 6 == sent
    assert 2 == most
    # Nobody is left behind by a sender that has just ended.
    assert "late" == await callers.ask("late")


async def test_items_of_one_key_keep_their_order_over_two_halves():
    wire, half = Wire(), HALF_AT_LEAST
    callers = group(wire, key=lambda item: item[0], halves=True)
    first = [callers.add(f"{chr(200 + number)}1") for number in range(half)]
    # Of the second half, the third is of a key that the first half holds.
    second = [callers.add(item) for item in ("a1", "b1", f"{chr(200)}2", "c1")]
    others = [callers.add(f"{chr(500 + number)}1") for number in range(half - 4)]
    await settle()
    assert [half, half - 1] == [len(batch) for batch in wire.batches]
    wire.gate.set()
    await asyncio.gather(*first, *second, *others)
    # It waits, and holds nobody up.
    assert ["a1", "b1", "c1"] == wire.batches[1][:3]
    assert [f"{chr(200)}2"] == wire.batches[2]


async def test_callers_of_one_moment_share_the_first_call():
    wire = Wire()
    wire.gate.set()
    callers = group(wire)
    assert ["A", "B"] == await asyncio.gather(callers.add("a"), callers.add("b"))
    assert [["a", "b"]] == wire.batches


async def test_two_items_of_one_key_never_share_a_call_and_keep_their_order():
    wire = Wire()
    wire.gate.set()
    callers = group(wire, key=lambda item: item[0])
    items = ["a1", "b1", "a2", "b2", "a3"]
    await asyncio.gather(*(callers.add(item) for item in items))
    assert [["a1", "b1"], ["a2", "b2"], ["a3"]] == wire.batches


async def test_a_call_holds_no_more_jobs_than_the_limit():
    wire = Wire()
    wire.gate.set()
    callers = group(wire, max_jobs=3)
    await asyncio.gather(*(callers.add(str(item)) for item in range(8)))
    assert [3, 3, 2] == [len(batch) for batch in wire.batches]


async def test_a_call_holds_no_more_bytes_than_the_limit_but_at_least_one_job():
    wire = Wire()
    wire.gate.set()
    callers = group(wire, size=lambda item: {"l": MAX_BYTES + 5, "m": MAX_BYTES // 2, "s": 1}[item[0]])
    await asyncio.gather(*(callers.add(item) for item in ["s1", "l1", "s2", "m1", "m2", "s3", "l2", "l3"]))
    assert [["s1"], ["l1"], ["s2", "m1"], ["m2", "s3"], ["l2"], ["l3"]] == wire.batches


async def test_a_failed_call_is_told_to_each_of_its_callers_and_to_nobody_else():
    wire = Wire(fails=[1])
    callers = group(wire)
    first = [callers.add(item) for item in "ab"]
    await settle()
    second = callers.add("c")
    wire.gate.set()
    told = await asyncio.gather(*first, second, return_exceptions=True)
    assert [OSError, OSError, str] == [type(answer) for answer in told]


async def test_a_caller_that_leaves_before_the_call_is_not_sent():
    wire = Wire()
    callers = group(wire)
    callers.add("a")
    await settle()
    gone, stays = callers.add("gone"), callers.add("stays")
    gone.cancel()
    wire.gate.set()
    assert "STAYS" == await stays
    assert [["a"], ["stays"]] == wire.batches


async def test_a_caller_that_leaves_during_the_call_disturbs_nobody():
    wire = Wire()
    callers = group(wire)
    gone, stays = callers.add("gone"), callers.add("stays")
    await settle()
    gone.cancel()
    wire.gate.set()
    assert "STAYS" == await stays


async def test_callers_that_all_leave_cause_no_call():
    wire = Wire()
    callers = group(wire)
    for future in [callers.add("a"), callers.add("b")]:
        future.cancel()
    await settle()
    assert [] == wire.batches
    wire.gate.set()
    assert "C" == await callers.add("c")


async def test_who_meets_nobody_sends_at_once_and_who_comes_meanwhile_leaves_together():
    wire = Wire()
    callers = group(wire)
    leader = asyncio.create_task(callers.ask("a"))
    await settle()
    followers = [asyncio.create_task(callers.ask(item)) for item in "bc"]
    await settle()
    assert [["a"]] == wire.batches
    wire.gate.set()
    assert ["A", "B", "C"] == await asyncio.gather(leader, *followers)
    assert [["a"], ["b", "c"]] == wire.batches


async def test_a_leader_that_is_cancelled_leaves_no_follower_behind():
    wire = Wire()
    callers = group(wire)
    leader = asyncio.create_task(callers.ask("a"))
    await settle()
    follower = asyncio.create_task(callers.ask("b"))
    await settle()
    leader.cancel()
    wire.gate.set()
    assert "B" == await follower


class Held(Wire):
    """
    Calls whose first item begins with an h are held; all others go through.
    """

    async def send(self, batch):
        if batch[0].startswith("h"):
            return await super().send(batch)
        self.batches.append(batch)
        return [item.upper() for item in batch]


@pytest.mark.parametrize("how", ["ask", "add"])
async def test_who_waits_behind_a_call_that_takes_long_leaves_in_another(how):
    wire = Held()
    callers = group(wire, late_s=0.01)
    held = asyncio.ensure_future(getattr(callers, how)("h"))
    await settle()
    assert ["A", "B"] == await asyncio.gather(callers.ask("a"), callers.ask("b"))
    assert not held.done()
    # From then on nobody waits at all.
    assert "C" == await asyncio.wait_for(callers.ask("c"), 10)
    assert [["h"], ["a", "b"], ["c"]] == wire.batches
    wire.gate.set()
    assert "H" == await held
    assert (set(), {}, set()) == (callers._late, callers._senders, callers._under_way)


async def test_who_waits_behind_a_quick_call_does_not_leave_in_another():
    wire = Wire()
    callers = group(wire, late_s=60)
    first, second = callers.add("a"), callers.add("b")
    await settle()
    third = callers.add("c")
    await settle()
    assert [["a", "b"]] == wire.batches
    wire.gate.set()
    assert ["A", "B", "C"] == await asyncio.gather(first, second, third)


@pytest.mark.parametrize("how", ["ask", "add"])
async def test_an_item_does_not_pass_one_of_its_key_however_long_that_takes(how):
    wire = Held()
    callers = group(wire, key=lambda item: item[0], late_s=0.01)
    held = [asyncio.ensure_future(getattr(callers, how)(item)) for item in ("h1", "h2")]
    await settle()
    assert ["A1", "B1"] == await asyncio.gather(callers.ask("a1"), callers.ask("b1"))
    third = asyncio.ensure_future(getattr(callers, how)("h3"))
    assert "C1" == await callers.ask("c1")
    assert not any("h2" in batch or "h3" in batch for batch in wire.batches)
    wire.gate.set()
    assert ["H1", "H2", "H3"] == await asyncio.gather(*held, third)
    assert [["h1"], ["h2"], ["h3"]] == [batch for batch in wire.batches if batch[0][0] == "h"]


async def test_a_server_that_answers_nobody_gets_few_calls():
    wire = Wire()
    callers = group(wire, late_s=0.005)
    asked = []
    for number in range(60):
        asked.append(callers.add(str(number)))
        await asyncio.sleep(0.005)
    # Each doubles the time until the next: 5, 10, 20, … ms.
    assert len(wire.batches) <= 12
    wire.gate.set()
    assert [str(number) for number in range(60)] == await asyncio.gather(*asked)
    assert [str(number) for number in range(60)] == [item for batch in wire.batches for item in batch]


async def test_a_wrong_number_of_answers_is_an_error_not_a_mix_up():
    async def send(batch):
        return batch[:1]

    callers = Group(send, key=str, size=len)
    told = await asyncio.gather(*(callers.add(item) for item in "ab"), return_exceptions=True)
    assert [ValueError, ValueError] == [type(answer) for answer in told]


async def test_when_the_loop_is_shut_down_nobody_waits_for_ever():
    wire = Wire()
    callers = group(wire)
    under_way = callers.add("a")
    await settle()
    waiting = callers.add("b")
    [sender] = callers._senders
    sender.cancel()
    told = await asyncio.gather(under_way, waiting, return_exceptions=True)
    assert [asyncio.CancelledError] * 2 == [type(answer) for answer in told]


items = st.lists(st.tuples(st.integers(0, 5), st.integers(0, MAX_BYTES)), max_size=40)


@given(items)
def test_chunks_keep_the_order_and_every_limit(wanted):
    batches = chunks(wanted, key=lambda item: item[0], size=lambda item: item[1])
    assert wanted == [item for batch in batches for item in batch]
    for batch in batches:
        assert batch
        assert len(batch) <= MAX_JOBS
        assert len({item[0] for item in batch}) == len(batch)
        assert len(batch) == 1 or sum(item[1] for item in batch) <= MAX_BYTES


def test_chunks_are_as_full_as_they_may_be():
    assert [MAX_JOBS, MAX_JOBS, 1] == [
        len(batch) for batch in chunks(range(2 * MAX_JOBS + 1), key=int, size=lambda _: 1)
    ]
    assert [] == chunks([], key=int, size=lambda _: 1)
