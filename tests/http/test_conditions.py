"""
Conditional requests: RFC 9110, section 13, on every call that shows or changes one job.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from duly.http.conditions import etag_of
from duly.store import Want
from tests.http.conftest import problem
from tests.http.test_results import run
from tests.shards import claim_all

JOB = "/v1/topics/mail/jobs/a"
JOBS = "/v1/topics/mail/jobs"


async def sent(client, **more):
    """
    Send a job, and return its tag.
    """
    answer = await client.post(JOBS, json={"id": "a", "delay": 60, **more})
    assert 202 == answer.status_code
    return answer.headers["etag"]


async def ended(client):
    """
    Send a job and cancel it, and return its tag.
    """
    await sent(client)
    return (await client.delete(JOB)).headers["etag"]


def patch(client, **headers):
    return client.patch(JOB, json={"delay": 90}, headers=headers)


def delete(client, **headers):
    return client.delete(JOB, headers=headers)


def requeue(client, **headers):
    return client.post(f"{JOB}/requeue", headers=headers)


CHANGES = [(sent, patch), (sent, delete), (ended, requeue)]
NAMES = ["patch", "delete", "requeue"]


@pytest.mark.parametrize(("begin", "change"), CHANGES, ids=NAMES)
@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"If-Match": "{tag}"}, True),
        ({"If-Match": '"{revision}"'}, True),
        ({"If-Match": "*"}, True),
        ({"If-Match": '"1", {tag}'}, True),
        ({"If-Match": ', "x,y" ,,{tag} , "z"'}, True),
        ({"If-Match": "{tag},"}, True),
        ({"If-Match": ",,{tag}"}, True),
        ({"If-Match": ", *,"}, True),
        ({"If-Match": ""}, False),
        ({"If-Match": " , ,"}, False),
        ({"If-Match": '"1"'}, False),
        ({"If-Match": '"1", "2"'}, False),
        ({"If-Match": "W/{tag}"}, False),
        ({"If-Match": "{revision}"}, False),
        ({"If-Match": '"another"'}, False),
        ({"If-None-Match": "{tag}"}, False),
        ({"If-None-Match": "W/{tag}"}, False),
        ({"If-None-Match": "*"}, False),
        ({"If-None-Match": "{tag},"}, False),
        ({"If-None-Match": ",,{tag}"}, False),
        ({"If-None-Match": ",*"}, False),
        ({"If-None-Match": ""}, True),
        ({"If-None-Match": '"1"'}, True),
        ({"If-Match": "{tag}", "If-None-Match": "{tag}"}, False),
        ({"If-Match": "{tag}", "If-None-Match": '"1"'}, True),
        ({"If-Match": '"1"', "If-None-Match": '"1"'}, False),
    ],
    ids=str,
)
async def test_a_change_is_made_only_if_its_conditions_hold(client, begin, change, conditions, holds):
    tag = await begin(client)
    revision = tag.strip('"').partition("-")[0]
    before = (await client.get(JOB)).json()
    said = {name: value.format(tag=tag, revision=revision) for name, value in conditions.items()}
    answer = await change(client, **said)
    if holds:
        assert answer.status_code in (200, 202)
        return
    problem(answer, 412, "outdated")
    assert tag == answer.headers["etag"]
    assert before == (await client.get(JOB)).json()


@pytest.mark.parametrize(
    ("begin", "changes"),
    [(sent, [patch] * 8), (ended, [requeue] * 8), (sent, [patch, delete])],
    ids=["patch", "requeue", "both"],
)
@pytest.mark.parametrize("tags", ["{tag}", '"1", {tag}'], ids=["one", "list"])
async def test_of_many_changes_of_one_revision_one_is_made(client, begin, changes, tags):
    said = {"If-Match": tags.format(tag=await begin(client))}
    answers = await asyncio.gather(*(change(client, **said) for change in changes))
    refused = [each for each in answers if each.status_code not in (200, 202)]
    assert len(changes) - 1 == len(refused)
    assert {each.status_code for each in refused} <= {409, 412}


@pytest.mark.parametrize(("begin", "change"), CHANGES, ids=NAMES)
@pytest.mark.parametrize("tags", ["*", '"1"', '"1", "2"'])
async def test_a_job_that_is_not_there_is_not_found_whatever_the_condition(client, begin, change, tags):
    del begin
    problem(await change(client, **{"If-Match": tags}), 404, "job-not-found")


async def test_a_job_that_has_not_changed_is_not_sent_again(client):
    tag = await sent(client)
    for named in (tag, f"W/{tag}", f'"1", {tag}', f"{tag},", f",,{tag}", "*"):
        kept = await client.get(JOB, headers={"If-None-Match": named})
        assert (304, b"", tag) == (kept.status_code, kept.content, kept.headers["etag"])
    assert 304 == (await client.head(JOB, headers={"If-None-Match": tag})).status_code
    assert 200 == (await client.get(JOB, headers={"If-None-Match": '"1"'})).status_code


async def test_what_changes_without_a_revision_has_another_tag(client):
    tag = await sent(client, delay=0)
    claimed = await client.post("/v1/topics/mail/claim", json={"worker": "w"})
    assert 200 == claimed.status_code
    running = await client.get(JOB, headers={"If-None-Match": tag})
    assert (200, "running") == (running.status_code, running.json()["state"])
    assert tag != running.headers["etag"]
    assert 304 == (await client.get(JOB, headers={"If-None-Match": running.headers["etag"]})).status_code
    # Nobody has changed what was asked for: a cancel with the first tag is made.
    assert 200 == (await delete(client, **{"If-Match": tag})).status_code


async def test_if_match_comes_before_if_none_match(client):
    tag = await sent(client)
    problem(await client.get(JOB, headers={"If-Match": '"1"', "If-None-Match": tag}), 412, "outdated")
    assert 304 == (await client.get(JOB, headers={"If-Match": tag, "If-None-Match": tag})).status_code


async def test_if_match_holds_for_a_result_as_for_its_job(client, app):
    await client.post(JOBS, json={"id": "a"})
    await run(app)
    tag = (await client.get(JOB)).headers["etag"]
    revision = tag.strip('"').partition("-")[0]
    for place in (JOB, f"{JOB}/result"):
        for held in (tag, f'"{revision}"', f'"1", {tag}', "*"):
            assert 200 == (await client.get(place, headers={"If-Match": held})).status_code
        for other in ('"1"', '"another"', f"W/{tag}", ""):
            refused = await client.get(place, headers={"If-Match": other})
            assert "If-Match" == problem(refused, 412, "outdated")["field"]
            assert tag == refused.headers["etag"]
        problem(await client.get(place, headers={"If-Match": '"1"', "If-None-Match": tag}), 412, "outdated")
        assert 412 == (await client.head(place, headers={"If-Match": '"1"'})).status_code


async def test_a_result_that_is_not_there_is_told_whatever_the_condition(client):
    await sent(client)
    problem(await client.get(f"{JOB}/result", headers={"If-Match": '"1"'}), 409, "unfinished")


async def test_a_job_is_made_only_where_there_is_none(client):
    only = {"If-None-Match": "*"}
    first = await client.post(JOBS, json={"id": "a", "delay": 60}, headers=only)
    assert (202, "created") == (first.status_code, first.headers["duly-outcome"])
    again = await client.post(JOBS, json={"id": "a", "on_conflict": "replace"}, headers=only)
    problem(again, 412, "outdated")
    assert first.headers["etag"] == (await client.get(JOB)).headers["etag"]


@pytest.mark.parametrize("tags", ["*", '"1"', "{tag}"])
@pytest.mark.parametrize("id_", ["a", "b"])
async def test_if_match_never_holds_for_a_list_of_jobs(client, tags, id_):
    tag = await sent(client)
    said = {"If-Match": tags.format(tag=tag)}
    body = {"id": id_, "payload": 2, "on_conflict": "replace"}
    assert "If-Match" == problem(await client.post(JOBS, json=body, headers=said), 412, "outdated")["field"]
    problem(await client.post(f"{JOBS}:batch", json=[body], headers=said), 412, "outdated")
    assert tag == (await client.get(JOB)).headers["etag"]
    assert 404 == (await client.get(f"{JOBS}/b")).status_code


@pytest.mark.parametrize("on_conflict", ["keep", "replace", "raise"])
async def test_a_job_is_not_made_over_one_that_has_a_tag_of_the_list(client, on_conflict):
    tag = await sent(client)
    body = {"id": "a", "payload": 2, "on_conflict": on_conflict}
    for named in (tag, f"W/{tag}", f'"1", {tag}'):
        answer = await client.post(JOBS, json=body, headers={"If-None-Match": named})
        assert "If-None-Match" == problem(answer, 412, "outdated")["field"]
    assert tag == (await client.get(JOB)).headers["etag"]
    others = {"If-None-Match": '"1", "2"'}
    expected = {"keep": "kept", "replace": "replaced"}.get(on_conflict)
    assert expected == (await client.post(JOBS, json=body, headers=others)).headers.get("duly-outcome")
    assert 202 == (await client.post(JOBS, json={"id": "b"}, headers={"If-None-Match": tag})).status_code


async def test_a_request_under_a_key_is_answered_alike_although_its_tag_is_old(client):
    tag = await sent(client)
    said = {"If-None-Match": '"1"', "Idempotency-Key": "k"}
    body = {"id": "a", "payload": 2, "on_conflict": "replace", "delay": 60}
    first, again = [await client.post(JOBS, json=body, headers=said) for _ in range(2)]
    assert (202, "replaced") == (first.status_code, first.headers["duly-outcome"])
    assert (first.content, first.headers["etag"]) == (again.content, again.headers["etag"])
    assert tag != first.headers["etag"]


@pytest.mark.parametrize("tags", ["*", '"1"'])
async def test_a_batch_refuses_if_none_match_which_is_about_one_job(client, tags):
    answer = await client.post(f"{JOBS}:batch", json=[{"id": "a"}], headers={"If-None-Match": tags})
    assert "If-None-Match" == problem(answer, 422, "invalid")["field"]
    assert 404 == (await client.get(JOB)).status_code


async def test_a_result_that_the_client_has_is_not_sent_again(client, app):
    await client.post(JOBS, json={"id": "a"})
    await run(app)
    first = await client.get(f"{JOB}/result")
    tag = first.headers["etag"]
    assert (200, (await client.get(JOB)).headers["etag"]) == (first.status_code, tag)
    kept = await client.get(f"{JOB}/result", headers={"If-None-Match": tag})
    assert (304, b"", tag) == (kept.status_code, kept.content, kept.headers["etag"])
    assert 200 == (await client.get(f"{JOB}/result", headers={"If-None-Match": '"1"'})).status_code


async def finished(app, end):
    """
    Send a job that a worker ends, and return it.
    """
    store = await app.store()
    await app.enqueue("mail", id="a")
    [lease] = await claim_all(store, [Want("mail", 1, 60_000)], worker="w4111")
    if end == "succeeded":
        await store.ack(lease, b'"4111"')
    else:
        await store.bury(lease, b'{"type":"Denied","message":"4111"}')
    return await app.job("mail", "a").get()


@pytest.mark.parametrize("end", ["succeeded", "dead"])
async def test_a_tag_tells_nothing_that_its_caller_is_not_shown(app, end):
    job = await finished(app, end)
    hidden = {"worker": "other", "lease_ms": 1, "crashes": 1, "payload": b"1", "envelope": None}
    unread = {"outcome": b"1", "progress": b"1", "attempts": 7, "result_gone": True}
    for name, value in hidden.items():
        other = replace(job, **{name: value})
        for shown in ("receipt", "answer"):
            assert etag_of(job, shown) == etag_of(other, shown), (name, shown)
    for name, value in unread.items():
        other = replace(job, **{name: value})
        assert etag_of(job, "receipt") == etag_of(other, "receipt"), name
        is_shown = name != "outcome" or end == "succeeded"
        assert is_shown == (etag_of(job, "answer") != etag_of(other, "answer")), name
        assert etag_of(job, "all") != etag_of(other, "all"), name


@pytest.mark.parametrize("end", ["succeeded", "dead"])
async def test_every_answer_to_a_key_that_may_only_enqueue_has_a_tag_of_what_it_shows(
    client, app, end, monkeypatch
):
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    text, _ = await (await app.key_ring()).create("shop", ["enqueue"])
    reader, _ = await (await app.key_ring()).create("reader", ["read"])
    shop = {"Authorization": f"Bearer {text}"}
    job = await finished(app, end)
    tag, full = etag_of(job, "receipt"), etag_of(job, "all")
    assert tag != full
    assert full == (await client.get(JOB, headers={"Authorization": f"Bearer {reader}"})).headers["etag"]
    again = await client.post(JOBS, json={"id": "a"}, headers=shop)
    refused = await requeue(client, **shop, **{"If-Match": '"1"'})
    problem(refused, 412, "outdated")
    known = await requeue(client, **shop, **{"If-None-Match": tag})
    problem(known, 412, "outdated")
    assert [tag] * 3 == [each.headers["etag"] for each in (again, refused, known)]
    guessed = await requeue(client, **shop, **{"If-None-Match": full})
    assert 202 == guessed.status_code, "or it would tell whether a guess of the result is right"


@pytest.mark.parametrize("shown", ["receipt", "all"])
async def test_if_match_holds_with_the_tag_of_any_key(client, app, shown):
    job = await finished(app, "dead")
    assert 202 == (await requeue(client, **{"If-Match": etag_of(job, shown)})).status_code
