"""
``duly replies`` prints what became of jobs, and forgets it when it is told to.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from duly.failure import reason_document
from duly.store import Want
from tests.cli.schemas import read
from tests.shards import claim_all, on_all


async def three(app):
    """
    One job for each way to end.
    """
    store = await app.store()
    for id_ in ("succeeded", "dead", "cancelled"):
        await app.enqueue("mail", {}, id=id_, reply_to="inbox")
    leases = {lease.key.id: lease for lease in await claim_all(store, [Want("mail", 3, 60_000)], worker="w")}
    await store.ack(leases["succeeded"], b'{"sent":"\\u001b[31m"}')
    await store.bury(leases["dead"], reason_document("ValueError", "no\nuser"))
    await app.job("mail", "cancelled").cancel()


async def one(app):
    await app.enqueue("mail", {}, id="late", delay=60, reply_to="inbox")
    await app.job("mail", "late").cancel()


@pytest.mark.one_shard("replies come in the order of their ends from each shard, not from all of them")
def test_replies_are_printed_and_come_again_unless_they_are_acked(duly, arrange):
    arrange(three)
    answer = duly("replies", "inbox")
    lines = [
        'mail/succeeded succeeded: {"sent":"\\u001b[31m"}',
        "mail/dead dead: ValueError: no\\nuser",
        "mail/cancelled cancelled: cancelled",
    ]
    assert (0, "\n".join(lines) + "\n") == (answer.code, answer.out)
    assert "They come again after 30 seconds" in answer.err
    assert (0, "", "") == duly("replies", "inbox")


def test_for_programs_a_line_each(duly, arrange):
    arrange(three)
    answer = duly("replies", "inbox", "--json", "--ack")
    assert (0, "") == (answer.code, answer.err)
    found = read("replies", answer.out)
    told = {reply.job.id: (reply.job.result, reply.job.error and reply.job.error.type) for reply in found}
    wanted = {"succeeded": ({"sent": "\x1b[31m"}, None), "dead": (None, "ValueError")}
    assert wanted | {"cancelled": (None, "cancelled")} == told
    assert 3 == len(found)


def test_with_ack_they_are_forgotten(duly, arrange):
    arrange(three)

    async def kept(app):
        store = await app.store()
        return sum(await on_all(store, "replies", "XLEN"))

    assert 3 == arrange(kept)
    duly("replies", "inbox", "--ack")
    assert 0 == arrange(kept)


def test_follow_prints_what_comes_until_it_is_interrupted(here, arrange):
    arrange(three)
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "duly", "replies", "inbox", "--follow", "--ack", "--json"],
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    try:
        first = [msgspec.json.decode(process.stdout.readline())["job"]["id"] for _ in range(3)]
        assert ["cancelled", "dead", "succeeded"] == sorted(first)
        arrange(one)
        assert "late" == msgspec.json.decode(process.stdout.readline())["job"]["id"]
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(30)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("name", ["no name", "-x", "a/b"])
def test_a_name_that_is_none_is_a_mistake(duly, arrange, name):
    arrange(three)
    answer = duly("replies", "--", name)
    assert 2 == answer.code
    assert "invalid reply queue" in answer.err
    assert "invalid reply_to" in duly("enqueue", "mail", f"--reply-to={name}").err
