"""
The queue or the database lost under load: what was accepted ends once, by its row.
"""

from __future__ import annotations

import asyncio

import pytest

from duly.record.schema import migrate
from tests.acceptance.harness import seeded
from tests.acceptance.recorded import Campaign
from tests.databases import MariaDB, PostgreSQL


@pytest.fixture(scope="module")
def postgresql():
    database = PostgreSQL()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture(scope="module")
def mariadb():
    database = MariaDB()
    try:
        yield database.start()
    finally:
        database.stop()


@pytest.fixture
def start_campaign(start_rig):
    async def start(url, size, **settings):
        rig = await start_rig(record=url, **settings)
        campaign = Campaign(rig, seeded(), size)
        await campaign.work()
        return campaign

    return start


@pytest.fixture
def away_s(request):
    return 10 if request.config.getoption("--long") else 3


async def test_an_emptied_queue_costs_no_job(postgresql, start_campaign, size):
    campaign = await start_campaign(postgresql.migrated(), size)
    sending = asyncio.create_task(campaign.mixed.send(size))
    for part in (0.2, 0.5):
        await campaign.done(part)
        await campaign.flush()
        await campaign.replace_worker()
    await sending
    await campaign.check()


async def test_a_queue_that_went_back_in_time_costs_no_job(postgresql, start_campaign, size):
    campaign = await start_campaign(postgresql.migrated(), size)
    sending = asyncio.create_task(campaign.mixed.send(size))
    await campaign.done(0.1)
    campaign.keep_snapshot()
    await campaign.done(0.5)
    campaign.restore_snapshot()
    await campaign.replace_worker()
    await sending
    await campaign.check()


async def test_a_queue_that_is_killed_again_and_again_costs_no_job(postgresql, start_campaign, size):
    campaign = await start_campaign(postgresql.migrated(), size, appendfsync="no")
    sending = asyncio.create_task(campaign.mixed.send(size))
    for part in (0.1, 0.3, 0.5):
        await campaign.done(part)
        campaign.kill_queue()
        await campaign.replace_worker()
    await sending
    await campaign.check()


async def test_a_database_that_is_killed_and_stays_away_for_a_while_costs_no_job(
    postgresql, start_campaign, size, away_s
):
    campaign = await start_campaign(postgresql.migrated(), size)
    sending = asyncio.create_task(campaign.mixed.send(size))
    await campaign.done(0.1)
    await campaign.stop_database(postgresql, 0)
    await campaign.done(0.2)
    before = len(campaign.rig.ledger.read("finished"))
    await campaign.stop_database(postgresql, away_s)
    meanwhile = len(campaign.rig.ledger.read("finished")) - before
    print(f"{meanwhile} jobs were run while the database was away")
    assert meanwhile
    await campaign.replace_worker()
    await sending
    assert campaign.patient.refused["RecordUnavailable"]
    await campaign.check()


async def test_queue_and_database_lost_together_cost_no_job(mariadb, start_campaign, size):
    size //= 2
    campaign = await start_campaign(mariadb.migrated(), size)
    sending = asyncio.create_task(campaign.mixed.send(size))
    await campaign.done(0.2)
    await campaign.stop_database(mariadb, 0)
    await campaign.done(0.4)
    await campaign.flush()
    await campaign.replace_worker()
    await sending
    await campaign.check()


async def test_an_emptied_queue_costs_no_job_of_a_small_record(tmp_path, start_campaign, size):
    size //= 2
    url = f"sqlite:///{tmp_path}/record.db"
    migrate(url)
    campaign = await start_campaign(url, size, appendfsync="no")
    sending = asyncio.create_task(campaign.mixed.send(size))
    await campaign.done(0.2)
    await campaign.flush()
    await campaign.done(0.5)
    campaign.kill_queue()
    await campaign.replace_worker()
    await sending
    await campaign.check()
