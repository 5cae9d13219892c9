"""
Servers that die, forget their scripts, drop their clients, pause, or run out of memory.
"""

from __future__ import annotations

import asyncio

import pytest
import redis

from duly.errors import JobNotFound, StoreUnavailable
from duly.events import Verb
from duly.job import JobKey
from tests.acceptance.harness import seeded
from tests.acceptance.mixed import SUCCEEDED, Mixed, patiently


async def test_a_killed_server_comes_back_and_everything_resumes_by_itself(start_rig, size):
    rig, chance = await start_rig(appendfsync="always", lease="6s"), seeded()
    workers = await rig.start_workers(2)
    accepted: dict[JobKey, set] = {}

    async def send(numbers: range) -> None:
        for number in numbers:
            topic, id_ = chance.choice(["loop", "thread"]), f"j{number}"
            payload, delay = {"ms": chance.choice([0, 5, 200])}, chance.choice([0, chance.uniform(0, 3)])
            await patiently(rig.app.enqueue, topic, payload, id=id_, delay=delay)
            accepted[JobKey(topic, id_)] = SUCCEEDED
            await asyncio.sleep(0.01)

    senders = [asyncio.create_task(send(range(first, size, 5))) for first in range(5)]
    kills = 0
    while not all(sender.done() for sender in senders) or kills < 3:
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        rig.server.kill()
        kills += 1
        # Once it is away for longer than a lease: all that runs is over its time when it is back.
        await asyncio.sleep(7 if kills == 2 else chance.uniform(0, 1.5))
        await asyncio.to_thread(rig.server.start)
    await asyncio.gather(*senders)
    await rig.all_ended(within_s=60 * size / 500)

    assert size == len(accepted)
    jobs = await rig.check_each_ended_once(accepted)
    print(f"{kills} kills of the server; {size} jobs, {len(rig.ledger.read('started'))} runs")
    assert [0] == sorted({job.crashes for job in jobs.values()}), "a crash was counted that was the server's"
    assert all(worker.alive for worker in workers)


async def test_a_storm_of_flushed_scripts_killed_clients_and_pauses_changes_nothing(start_rig, size):
    rig, chance = await start_rig(lease="15s"), seeded()
    await rig.start_workers(2)
    mixed = Mixed(rig.app, chance, spread_s=3.0)
    raw = redis.Redis(unix_socket_path=str(rig.server.socket))
    sending = asyncio.create_task(mixed.send(size))
    blows = 0
    try:
        while not sending.done():
            await asyncio.sleep(chance.uniform(0.02, 0.1))
            blows += 1
            match chance.choice(["flush", "kill", "kill pubsub", "pause"]):
                case "flush":
                    raw.function_flush("SYNC")
                case "kill":
                    raw.execute_command("CLIENT", "KILL", "TYPE", "normal")
                case "kill pubsub":
                    raw.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
                case "pause":
                    raw.execute_command("CLIENT", "PAUSE", chance.choice([20, 100, 200]))
    finally:
        raw.close()
    await sending
    await rig.all_ended(within_s=60 * size / 500)

    jobs = await rig.check_each_ended_once(mixed.expected)
    mixed.check(jobs)
    print(f"{blows} blows; {len(rig.ledger.read('started'))} runs of {size} jobs")
    assert [0] == sorted({job.crashes for job in jobs.values()})


async def test_at_the_memory_limit_enqueue_is_refused_and_finishing_goes_on(start_rig, size):
    rig = await start_rig(lease="15s")
    await rig.start_workers(1)
    for number in range(size):
        # All of them still wait, run or fail when the limit is reached.
        payload = {"fail": 1, "ms": 20} if number % 3 == 1 else {"ms": 20}
        await rig.app.enqueue("loop", payload, id=f"j{number}", delay=5 if number % 3 == 0 else 0.5)
    raw = redis.Redis(unix_socket_path=str(rig.server.socket))
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] // 2)
    try:
        with pytest.raises(StoreUnavailable, match="memory limit"):
            await rig.app.enqueue("loop", {}, id="refused")
        with pytest.raises(JobNotFound):
            await rig.app.job("loop", "refused").get()
        assert 0 < (await rig.counts())["scheduled"]
        await rig.all_ended()
        with pytest.raises(StoreUnavailable, match="memory limit"):
            await rig.app.enqueue("loop", {}, id="refused")
        raw.config_set("maxmemory", 0)
    finally:
        raw.close()
    await rig.app.enqueue("loop", {}, id="accepted")
    await rig.all_ended()
    expected = [*(f"j{number}" for number in range(size)), "accepted"]
    await rig.check_each_ended_once({JobKey("loop", id_): SUCCEEDED for id_ in expected})
    assert Verb.recovered not in {event.verb for event in await rig.events()}, "a lease ran out"


async def test_a_worker_can_be_started_at_the_memory_limit(start_rig):
    rig = await start_rig()
    await rig.app.enqueue("loop", {}, id="a")
    raw = redis.Redis(unix_socket_path=str(rig.server.socket))
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] // 2)
    raw.close()
    await rig.start_workers(1)
    await rig.all_ended()
