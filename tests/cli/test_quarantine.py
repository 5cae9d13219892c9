"""
`duly jobs quarantine`: what is damaged can be found, looked at and dropped, and everybody who looks is told.
"""

from __future__ import annotations

import base64

import pytest

from duly import Duly
from duly.job import shard_of
from duly.services.auditor import Auditor
from tests.cli.schemas import read
from tests.http.service import Served
from tests.shards import fixed_of, on_all

LONG = "y" * 3_000


def _of_no_state(record):
    return b"\7" + record[1:]


def _cut_off(record):
    return record[:16]


def _emptied(_record):
    return b""


@pytest.fixture
def damaged(arrange):
    """
    Three damaged jobs in quarantine, one of them with a long body, and a good one beside them.
    """

    async def act(app):
        store = await app.store()
        for id_, payload in (("good", 1), ("short", {"to": "ada"}), ("long", LONG), ("empty", 2)):
            await app.enqueue("mail", payload, id=id_, delay=600, ttr=60)
        # A state that there is not, in front of all that was stored; cut off; nothing left.
        for id_, damage in (("short", _of_no_state), ("long", _cut_off), ("empty", _emptied)):
            jobs = fixed_of(store, "mail", id_)["jobs"]
            was = await store.link.call("HGET", jobs, f"mail/{id_}")
            await store.link.call("HSET", jobs, f"mail/{id_}", damage(was))
        await Auditor(store).run_pass()

    arrange(act)


async def _bodies(app):
    store = await app.store()
    return [member for members in await on_all(store, "bodies", "HKEYS") for member in members]


def test_an_empty_quarantine_is_an_empty_list(duly, arrange):
    arrange(lambda app: app.store())
    assert (0, "") == duly("jobs", "quarantine", "ls", "--json")[:2]
    assert ["job", "shard", "size", "since"] == duly("jobs", "quarantine", "ls").out.split()


def test_ls_names_what_is_damaged_and_since_when(duly, damaged, shards):
    answer = duly("jobs", "quarantine", "ls", "--json")
    found = {each.id: each for each in read("jobs quarantine ls", answer.out)}
    assert (0, "", {"short", "long", "empty"}) == (answer.code, answer.err, set(found))
    assert (16, 0) == (found["long"].bytes, found["empty"].bytes)
    assert all(each.since and each.topic == "mail" for each in found.values())
    assert all(each.shard == shard_of("mail", id_, shards) for id_, each in found.items())
    table = duly("jobs", "quarantine", "ls").out
    assert all(f"mail/{id_}" in table for id_ in found)
    assert "mail/good" not in table


def test_show_tells_what_may_still_be_true(duly, damaged):
    short = read("jobs quarantine show", duly("jobs", "quarantine", "show", "mail/short", "--json").out)
    assert (None, '{"to":"ada"}') == (short.state, short.text[-12:])
    assert b"\7" == base64.b64decode(short.record)[:1]
    cut = read("jobs quarantine show", duly("jobs", "quarantine", "show", "mail/long", "--json").out)
    assert ("scheduled", True) == (cut.state, cut.revision > 0)
    assert LONG.encode() in base64.b64decode(cut.body)
    empty = read("jobs quarantine show", duly("jobs", "quarantine", "show", "mail/empty", "--json").out)
    assert (None, "", "") == (empty.state, empty.text, empty.record)
    shown = duly("jobs", "quarantine", "show", "mail/short").out
    assert "|" in shown
    assert "00000000  07 " in shown
    answer = duly("jobs", "quarantine", "show", "mail/good")
    assert (1, "duly: mail/good is not in quarantine\n") == (answer.code, answer.err)


def test_drop_asks_and_removes_and_is_recorded(duly, damaged, arrange):
    asked = duly("jobs", "quarantine", "drop", "mail/long")
    assert (2, True) == (asked.code, "say --yes" in asked.err)
    assert [b"mail/long"] == arrange(_bodies)
    answer = duly("jobs", "quarantine", "drop", "mail/long", "mail/good", "--yes", "--json")
    done, refused = read("jobs quarantine drop", answer.out)
    assert (1, "dropped", None) == (answer.code, done.outcome, done.error)
    assert ("refused", "mail/good is not in quarantine") == (refused.outcome, refused.error)
    assert [] == arrange(_bodies)
    both = read(
        "jobs quarantine drop", duly("jobs", "quarantine", "drop", "--all", "-y", "--json").out, chosen=True
    )
    assert 2 == both.dropped
    assert "" == duly("jobs", "quarantine", "ls", "--json").out
    all_, one = read("audit", duly("audit", "--json").out)
    assert (("drop", None, None, {"count": 2}), ("drop", "mail", "long", {})) == (
        (all_.action, all_.topic, all_.id, all_.details),
        (one.action, one.topic, one.id, one.details),
    )
    assert 2 == duly("jobs", "quarantine", "drop", "--yes").code
    assert 2 == duly("jobs", "quarantine", "drop", "mail/a", "--all", "--yes").code


def test_what_has_taken_the_id_of_a_damaged_job_is_left_alone(duly, damaged, arrange):
    async def again(app):
        await app.enqueue("mail", "z" * 3_000, id="long")

    arrange(again)
    shown = read("jobs quarantine show", duly("jobs", "quarantine", "show", "mail/long", "--json").out)
    assert "" == shown.body
    assert 0 == duly("jobs", "quarantine", "drop", "mail/long", "--yes").code
    assert "z" * 3_000 == duly("jobs", "show", "mail/long", "--json").json["payload"]


def test_stats_and_doctor_tell_of_them(duly, damaged):
    assert 3 == read("stats", duly("stats", "--json").out).quarantined
    assert "3 jobs in quarantine: duly jobs quarantine ls" in duly("stats").out
    found = {each["check"]: each for each in duly("doctor", "--json").json["findings"]}
    told = found["damaged jobs"]
    assert ("problem", True) == (told["level"], "duly jobs quarantine" in told["remedy"])


def test_over_http_the_commands_do_the_same(duly, damaged, valkey, namespace):
    with Served(Duly(valkey.url, namespace=namespace)) as served:
        for words in (("ls", "--json"), ("show", "mail/long", "--json")):
            direct = duly("jobs", "quarantine", *words)
            told = duly("jobs", "quarantine", *words, "--url", served.url)
            assert (0, direct.out) == (told.code, told.out), words
        answer = duly("jobs", "quarantine", "drop", "mail/long", "--yes", "--url", served.url)
        assert (0, "mail/long dropped\n") == (answer.code, answer.out)
        answer = duly("jobs", "quarantine", "drop", "--all", "--yes", "--json", "--url", served.url)
        assert {"dropped": 2} == answer.json
