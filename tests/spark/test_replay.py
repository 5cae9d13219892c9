"""
Replay: what SQL chooses is sent again once, and the new job says which one it comes from.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from duly import Duly
from duly.cli.main import main
from duly.connection import Link
from duly.job import JobState, Order
from duly.namespace import create
from duly.record.schema import migrate
from duly.record.sight import members
from duly.spark.replay.choosing import jobs_of_history, last_events, with_errors
from duly.store import Store
from duly.views import Views
from tests.record.kit import read_rows
from tests.spark.kit import SOON
from tests.spark.stories import NOON, Story
from tests.store.kit import claim, key

TIMEOUT = b'{"type": "TimeoutError", "message": "no answer in 5 s"}'
BROKEN = b'{"type": "ValueError", "message": "no such address"}'


@pytest.fixture
def on_queue(valkey, namespace):
    """
    Runs something on the store, from a test without a loop.
    """

    def on_queue(work):
        async def run():
            link = Link(valkey.url)
            try:
                await create(link, namespace, 1)
                return await work(Store(link, namespace=namespace))
            finally:
                await link.aclose()

        return asyncio.run(run())

    return on_queue


@pytest.fixture
def duly(spark, valkey, namespace, capsys):
    def run(*words):
        code = main(["pipeline", *words, "--url", valkey.url, "--namespace", namespace])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def replay(duly):
    def run(*words):
        code, out, err = duly("replay", "--json", *words)
        assert 0 == code, err
        return json.loads(out)

    return run


async def bury(store):
    """
    Six jobs of customers die, four of them because nobody answered.
    """
    orders = [
        Order(key(f"j{n}"), b'{"customer": %d}' % n, ttr_ms=7_000, envelope=b'{"context":{"tenant":"x"}}')
        for n in range(6)
    ]
    await store.enqueue_many(orders)
    for lease in await claim(store):
        slow = int(lease.key.id[1:]) < 4
        await store.bury(lease, TIMEOUT if slow else BROKEN, "TimeoutError" if slow else "ValueError")


async def jobs(store):
    keys = [each async for some in members(store) for each in some]
    return {job.id: job for job in await Views(store).get_many(keys) if job is not None}


def test_dead_jobs_are_chosen_by_sql_and_by_a_table_of_the_users(replay, on_queue, tmp_path):
    on_queue(bury)
    (tmp_path / "vips.csv").write_text("customer\n1\n3\n5\n")
    words = (
        *("--from-dead", "--view", f"vip={tmp_path}/vips.csv", "--where"),
        "error like '%no answer%' and get_json_object(payload, '$.customer') in (select customer from vip)",
    )
    before = on_queue(jobs)
    told = replay(*words, "--dry-run")
    assert (2, 2, 0) == (told["chosen"], told["sent"]["new"], told["without_payload"])
    assert before == on_queue(jobs)

    told = replay(*words, "--rate", "1000")
    assert (2, 2, 0) == (told["chosen"], told["sent"]["new"], told["sent"]["kept"])
    found = on_queue(jobs)
    fresh = {id_: job for id_, job in found.items() if id_ not in before}
    assert ["j1", "j3"] == sorted(id_.partition("~")[0] for id_ in fresh)
    for id_, job in fresh.items():
        old = before[id_.partition("~")[0]]
        assert (old.payload, 7_000) == (job.payload, job.ttr_ms)
        assert {
            "tenant": "x",
            "replayed_from": f"mail/{old.id}@{old.revision}",
            "replay": told["run"],
        } == job.envelope.context

    # Also when one of them has died again: it is what this replay made.
    async def bury_again(store):
        for lease in await claim(store, limit=1):
            await store.bury(lease, TIMEOUT, "TimeoutError")

    on_queue(bury_again)
    told = replay(*words)
    assert (2, 0, 2) == (told["chosen"], told["sent"]["new"], told["sent"]["kept"])
    told = replay(*words, "--run", "another")
    assert (3, 3) == (told["chosen"], told["sent"]["new"])


def test_the_same_ids_take_the_place_of_jobs_that_the_history_names(duly, replay, on_queue, tmp_path):
    on_queue(bury)
    table = str(tmp_path / "history")
    assert 0 == duly("history", "--once", "--table", table)[0]
    query = (
        "select j.topic, j.id, timestamp '2150-01-01 00:00:00' as due_at, "
        "case when j.id = 'j0' then '{\"mended\": true}' end as payload "
        "from jobs j join history h on j.topic = h.topic and j.id = h.id "
        "where h.verb = 'buried' and h.reason = 'TimeoutError'"
    )
    words = ("--table", table, "--same-ids", "--where", query)
    told = replay(*words)
    assert (4, 0, 4) == (told["chosen"], told["sent"]["new"], told["sent"]["replaced"])
    found = on_queue(jobs)
    assert 6 == len(found)
    assert {"j4", "j5"} == {id_ for id_, job in found.items() if job.state is JobState.dead}
    assert (b'{"mended": true}', b'{"customer": 1}') == (found["j0"].payload, found["j1"].payload)
    assert {int(SOON.timestamp() * 1000)} == {found[f"j{n}"].due_ms for n in range(4)}
    # The table still says that they are dead; the queue knows better.
    assert 0 == replay(*words)["chosen"]


def test_with_a_record_what_is_sent_is_promised(duly, replay, valkey, namespace, tmp_path):
    record = f"sqlite:///{tmp_path}/record.db"
    migrate(record)

    def on_both(work):
        async def run():
            async with Duly(valkey.url, namespace=namespace, record=record) as app:
                found = await app.record()
                return await work(found.database, found.store)

        return asyncio.run(run())

    on_both(lambda _, store: bury(store))
    words = ("--from-dead", "--where", "id = 'j1'")
    code, _, err = duly("replay", *words)
    assert 0 != code
    assert "has a record" in err
    assert 1 == replay(*words, "--record", record)["sent"]["new"]
    [row] = on_both(lambda database, _: read_rows(database)).values()
    assert (b'{"customer": 1}', JobState.scheduled) == (row.payload, row.state)


def test_jobs_that_are_open_or_newer_in_the_queue_are_left_out(spark):
    story = Story()
    for id_ in ("gone", "there", "newer", "open"):
        story.tell(id_, "enqueued", "claimed", "buried", "pruned", revision=5, reason="Boom")
    story.tell("alive", "enqueued", "claimed", revision=5)
    scanned = "topic string, id string, revision long, state string, outcome string, priority string, "
    scanned += "attempts int, crashes int, due_at timestamp, finished_at timestamp, lateness_ms long, "
    scanned += (
        "payload string, ttr double, max_attempts int, context string, callback string, reply_to string"
    )
    rest = ("normal", 1, 0, NOON, NOON, None, "{}", None, None, None, None, None)
    queued = [
        ("mail", "there", 5, "dead", '{"type": "Boom", "message": "loud"}', *rest),
        ("mail", "newer", 6, "dead", None, *rest),
        ("mail", "open", 5, "ready", None, *rest),
    ]
    last = last_events(story.frame(spark))
    found = jobs_of_history(last, with_errors(spark.createDataFrame(queued, scanned))).collect()
    assert {("gone", "Boom", None), ("there", "Boom: loud", "{}")} == {
        (job.id, job.error, job.payload) for job in found
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--where", "true"), "Say --table HISTORY, or --from-dead"),
        (("--from-dead", "--where", "nothing = 1"), "nothing"),
        (("--from-dead", "--where", "select id from jobs"), "gives no column topic"),
        (("--from-dead", "--where", "true", "--view", "jobs=x.csv"), "none of jobs, dead, history"),
        (("--table", "nowhere", "--where", "true"), "there is no history at nowhere"),
    ],
)
def test_a_mistake_is_said_in_a_sentence(duly, on_queue, words, said):
    on_queue(lambda store: asyncio.sleep(0))
    code, _, err = duly("replay", *words)
    assert 2 == code
    assert said in err
    assert "Traceback" not in err
