"""
The table of scopes: each kind of key makes each call, and the service answers as the reference says.
"""

from __future__ import annotations

import base64

import pytest

from duly.apikeys import KeyRing
from duly.http import cursors
from duly.http.api import OPERATIONS
from duly.http.streamtokens import make_token
from duly.job import JobState
from tests.docs.operations import KEYS, PATH, answer_to


@pytest.fixture
async def headers(app, client, monkeypatch):
    """
    Make a key of each kind; the value is what a request with it sends.
    """
    monkeypatch.setattr("duly.apikeys.FRESH_S", 0.0)
    ring, found = KeyRing(await app.store()), {}
    for kind, key in KEYS.items():
        text = None if key is None else (await ring.create(key.name, key.scopes, key.topics))[0]
        found[kind] = {"Authorization": f"Bearer {text}"} if text else {}
    return found


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_each_key_is_answered_as_the_table_says(client, headers, operation):
    path = operation.path.format(**PATH)
    if operation.name == "followEvents":
        path += "?wait=0"
    answers = {}
    for kind, sent in headers.items():
        answer = await client.request(operation.method, path, headers=sent)
        answers[kind] = answer.status_code if answer.status_code in (401, 403) else "let in"
    told = {kind: answer_to(operation, key) for kind, key in KEYS.items()}
    assert answers == {kind: int(word) if word.isdigit() else "let in" for kind, word in told.items()}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_a_stream_token_is_taken_where_the_table_says(app, client, headers, operation):
    ring = await app.key_ring()
    key = next(key for key in await ring.all() if key.scopes == ("admin",) and not key.topics)
    token, _ = await make_token(ring, key, [])
    query = {"token": token} | ({"wait": "0"} if operation.name == "followEvents" else {})
    answer = await client.request(operation.method, operation.path.format(**PATH), params=query)
    expected = "let in" if operation.scope is None or operation.by_token else 401
    assert expected == (answer.status_code if answer.status_code in (401, 403) else "let in")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
async def test_where_no_key_is_required_this_machine_alone_may_make_every_call(client, operation):
    path = operation.path.format(**PATH)
    query = {"wait": "0"} if operation.name == "followEvents" else {}
    answer = await client.request(operation.method, path, params=query)
    # A token of events is made of a key, and there is none.
    assert answer.status_code not in (401, 403, 421), answer.text
    rebound = await client.request(operation.method, path, params=query, headers={"Host": "evil.example"})
    assert 421 == rebound.status_code


async def test_of_a_list_a_bound_key_is_shown_what_is_of_its_topics(client, headers):
    for topic in ("mail", "other.news"):
        sent = {**headers["admin"], "Content-Type": "application/json"}
        assert 202 == (await client.post(f"/v1/topics/{topic}/jobs", headers=sent, content=b"{}")).status_code
    seen = {}
    for kind in ("admin", "`admin`, bound to the topic", "`admin`, bound to another"):
        seen[kind], query = [], {"state": "ready"}
        while query.get("cursor", "") is not None:
            page = (await client.get("/v1/jobs", params=query, headers=headers[kind])).json()
            seen[kind] += [job["topic"] for job in page["jobs"]]
            query["cursor"] = page["cursor"]
        seen[kind].sort()
    assert [["mail", "other.news"], ["mail"], ["other.news"]] == list(seen.values())


BOUND, TRAVELLING = "`admin`, bound to the topic", "`admin`, bound to another"


def told_by(cursor):
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()


async def through(client, sent, **query):
    """
    Go through the list over all topics; each page as its jobs and cursor.
    """
    pages = []
    while query.get("cursor", "") is not None:
        answer = await client.get("/v1/jobs", params=query, headers=sent)
        assert 200 == answer.status_code, answer.text
        page = answer.json()
        pages.append(([f"{job['topic']}/{job['id']}" for job in page["jobs"]], page["cursor"]))
        query["cursor"] = page["cursor"]
        assert len(pages) < 1000, "a list without an end"
    return pages


def jobs_of(pages):
    return [job for page, _ in pages for job in page]


async def test_no_cursor_of_a_bound_key_tells_of_jobs_of_others(app, client, headers):
    for number in range(8):
        await app.enqueue("mail", id=f"m{number}", delay=60 + number)
        await app.enqueue("hidden", id=f"h{number}", delay=60 + number)
        await app.enqueue("hidden", id=f"r{number}")
        await app.enqueue("mail", id=f"c{number}", delay=60)
        await app.enqueue("hidden", id=f"c{number}", delay=60)
        for topic in ("hidden", "mail"):
            await app.job(topic, f"c{number}").cancel()
    for limit in (1, 3, 100):
        pages = await through(client, headers[BOUND], limit=limit)
        assert sorted(f"mail/{kind}{n}" for kind in "mc" for n in range(8)) == sorted(jobs_of(pages))
        assert not [cursor for _, cursor in pages if cursor and "hidden" in told_by(cursor)]


async def test_a_page_of_a_bound_key_is_filled_from_topic_to_topic(app, client, headers):
    topics = [f"other.{number:03d}" for number in range(30)]
    for topic in topics:
        await app.enqueue(topic, id="a", delay=60)
        await app.enqueue("hidden", delay=60)
    expected = [f"{topic}/a" for topic in topics]
    pages = await through(client, headers[TRAVELLING], state="scheduled", limit=10)
    assert expected == jobs_of(pages)
    assert [10, 10, 10] == [len(page) for page, _ in pages if page]


async def test_one_page_of_a_bound_key_looks_at_a_bounded_number_of_topics(app, client, headers, monkeypatch):
    monkeypatch.setattr("duly.http.jobs.LOOKS", 4)
    for number in range(30):
        await app.enqueue(f"other.{number:03d}", id="a", delay=60 if number % 10 == 9 else 0)
    pages = await through(client, headers[TRAVELLING], state="scheduled")
    assert ["other.009/a", "other.019/a", "other.029/a"] == jobs_of(pages)
    assert len(pages) >= 30 // 4


async def test_a_cursor_that_leads_to_topics_of_others_is_refused(client, headers):
    for state, place in ((JobState.scheduled, "0:12 hidden/a"), (JobState.ready, "0:hidden normal 1-1")):
        for cursor in (
            cursors.write(state, place),
            cursors.write(state, place, "hidden"),
            cursors.write(state, place, "mail"),
            cursors.write(state, "", "hidden"),
        ):
            answer = await client.get("/v1/jobs", params={"cursor": cursor}, headers=headers[BOUND])
            assert (422, "cursor") == (answer.status_code, answer.json().get("field")), told_by(cursor)


async def test_a_list_of_one_topic_goes_on_behind_no_job_of_another(app, client, headers, monkeypatch):
    monkeypatch.setattr("duly.views.PAGE", 3)
    for topic in ("aside", "mail", "zoo"):
        for number in range(5):
            await app.enqueue(topic, id=f"{number}", delay=60)
            await app.job(topic, f"{number}").cancel()
    seen, told, query = [], "", {"state": "cancelled"}
    while query.get("cursor", "") is not None:
        page = (await client.get("/v1/topics/mail/jobs", params=query, headers=headers[BOUND])).json()
        seen += [job["id"] for job in page["jobs"]]
        query["cursor"] = page["cursor"]
        told += told_by(page["cursor"] or "")
    assert ["0", "1", "2", "3", "4"] == sorted(seen)
    assert "aside" not in told
    assert "zoo" not in told
