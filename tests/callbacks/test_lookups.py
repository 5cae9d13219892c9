"""
A silent name server holds up deliveries to its own hosts, and to no others.
"""

from __future__ import annotations

import asyncio

import pytest

from duly import Retry, Snooze
from duly.callbacks import lookups
from duly.callbacks.breaker import PutOff
from duly.callbacks.deliver import Deliverer
from duly.callbacks.lookups import Lookups, Unresolved
from duly.callbacks.signature import SecretBook
from tests.callbacks.conftest import SECRET, delivery
from tests.callbacks.receivers import answering, receiving
from tests.eventually import eventually


@pytest.fixture
def short(monkeypatch):
    """
    A delivery does not wait long for a look-up.
    """
    init = Lookups.__init__
    monkeypatch.setattr(Lookups, "__init__", lambda self: init(self, limit_s=2.0, turn_s=0.05))


async def outcome_of(call):
    try:
        return await call
    except Exception as error:  # noqa: BLE001  # it is what the test asks for
        return error


async def test_silent_names_fail_no_delivery_to_other_hosts(names, short):
    async with receiving(answering()) as receiver:
        deliverer = Deliverer(SecretBook(SECRET), allow="*", total_s=20)

        async def send(host):
            return await outcome_of(deliverer.deliver(receiver.url(host), delivery()))

        assert await send("known.example") is None
        silent = [asyncio.create_task(send(f"silent.example{n}")) for n in range(40)]
        await eventually(lambda: len(names.asked) > 32)
        # A host that has answered before is reached, and one that is new is put off: neither has failed.
        assert await send("known.example") is None
        for _ in range(6):
            assert isinstance(await send("new.example"), Snooze)
        assert 0 == deliverer.hosts.paused_s(f"new.example:{receiver.port}")
        failed = await asyncio.gather(*silent)
        assert 32 == sum(isinstance(each, Retry) and "no name server" in each.reason for each in failed)
        assert 8 == sum(isinstance(each, Snooze) for each in failed)
        # Their threads are still held: only when these end, there is room.
        names.speak.set()

        async def is_reached():
            assert await send("new.example") is None

        await eventually(is_reached)


async def test_many_names_of_one_domain_take_few_threads(names):
    found = Lookups(limit_s=100, turn_s=0.05)
    tasks = [asyncio.create_task(outcome_of(found.addresses(f"silent{n}.evil.example"))) for n in range(40)]
    assert ["127.0.0.1"] == await found.addresses("hooks.good.test")
    await eventually(lambda: lookups.OF_DOMAIN == sum(not task.done() for task in tasks))
    assert lookups.OF_DOMAIN + 1 == len(names.asked)
    names.speak.set()
    outcomes = await asyncio.gather(*tasks)
    assert 40 - lookups.OF_DOMAIN == sum(isinstance(each, PutOff) for each in outcomes)


async def test_a_name_is_looked_up_once_for_all_who_wait_and_again_afterwards(names, short):
    found = Lookups()
    waiting = [outcome_of(found.addresses("silent.example")) for _ in range(10)]
    assert {Unresolved} == {type(each) for each in await asyncio.gather(*waiting)}
    assert ["silent.example"] == names.asked
    # The thread goes on: whoever asks now waits for it, too.
    late = asyncio.create_task(found.addresses("silent.example"))
    names.speak.set()
    assert ["127.0.0.1"] == await late
    assert "slow" == found._records["silent.example"]
    assert ["127.0.0.1"] == await found.addresses("silent.example")
    assert "answered" == found._records["silent.example"]


async def test_names_that_were_slow_take_no_thread_of_new_ones(names):
    found = Lookups(limit_s=100, turn_s=0.05)
    slow = [f"silent.example{n}" for n in range(20)]
    for host in slow:
        found._note(host, "slow")
    tasks = [asyncio.create_task(outcome_of(found.addresses(host))) for host in slow]
    await eventually(lambda: lookups.THREADS["slow"] == sum(not task.done() for task in tasks))
    assert lookups.THREADS["slow"] == len(names.asked)
    assert ["127.0.0.1"] == await found.addresses("new.example")
    names.speak.set()
    outcomes = await asyncio.gather(*tasks)
    assert 20 - lookups.THREADS["slow"] == sum(isinstance(each, PutOff) for each in outcomes)


async def test_a_name_without_an_address_is_told_at_once(names):
    with pytest.raises(Unresolved, match=r"nobody\.example has no address: Name or service not known"):
        await Lookups().addresses("nobody.example")


async def test_whoever_stops_waiting_stops_nobody_else(names):
    found = Lookups()
    first, second = (asyncio.create_task(found.addresses("silent.example")) for _ in range(2))
    await eventually(lambda: bool(names.asked))
    first.cancel()
    names.speak.set()
    assert ["127.0.0.1"] == await second


async def test_names_are_forgotten_beyond_a_bound(names, monkeypatch):
    monkeypatch.setattr(lookups, "NAMES", 3)
    found = Lookups()
    for n in range(5):
        await found.addresses(f"host{n}.example")
    assert ["host2.example", "host3.example", "host4.example"] == list(found._records)
