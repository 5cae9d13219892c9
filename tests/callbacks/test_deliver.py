"""
A job becomes a signed CloudEvent, and the answer decides what becomes of the job.
"""

from __future__ import annotations

import time
from email.utils import formatdate

import msgspec
import pytest

from duly import Bury, Retry
from duly.callbacks import verify
from tests.callbacks.conftest import SECRET, delivery
from tests.callbacks.receivers import answering, receiving


async def deliver(deliverer, behaviour, what=None):
    async with receiving(behaviour) as receiver:
        answer = await deliverer(receiver.allow).deliver(receiver.url(), what or delivery())
    return answer, receiver.requests[0]


async def test_a_job_is_posted_as_a_cloud_event(deliverer):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    what = delivery(context={"traceparent": trace, "tracestate": "a=1", "tenant": "acme"})
    _, request = await deliver(deliverer, answering(), what)
    assert "POST /hook?from=duly HTTP/1.1" == request.line
    assert "application/cloudevents+json; charset=utf-8" == request.headers["content-type"]
    assert (trace, "a=1") == (request.headers["traceparent"], request.headers["tracestate"])
    assert "1" == request.headers["duly-attempt"]
    event = msgspec.json.decode(request.body)
    assert {
        "specversion": "1.0",
        "type": "duly.job.due",
        "source": "/duly/shop",
        "id": request.headers["webhook-id"],
        "subject": "order.paid/o-42",
        "time": "2026-01-02T03:04:05.678Z",
        "datacontenttype": "application/json",
        "attempt": 1,
        "revision": 7,
        "traceparent": trace,
        "tracestate": "a=1",
        "data": {"order": 42},
    } == event
    assert "acme" not in request.body.decode()


async def test_it_is_signed(deliverer):
    _, request = await deliver(deliverer, answering())
    verify(request.headers, request.body, SECRET)


def test_its_id_is_the_same_in_every_attempt_and_another_in_every_revision():
    one = delivery()
    assert one.message_id == delivery(context={"a": 1}).message_id
    ids = {one.message_id}
    for changed in ({"topic": "order"}, {"id": "o-43"}, {"revision": 8}, {"source": "/duly/other"}):
        fields = {
            name: getattr(one, name) for name in ("topic", "id", "revision", "attempt", "due_at", "payload")
        }
        ids.add(type(one)(**{**fields, "source": one.source, **changed}).message_id)
    assert 5 == len(ids)


@pytest.mark.parametrize(
    "parent", ["", "00-xyz", 5, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Evil: 1"]
)
async def test_trace_headers_that_are_none_are_left_out(deliverer, parent):
    _, request = await deliver(deliverer, answering(), delivery(context={"traceparent": parent}))
    assert not {"traceparent", "x-evil"} & set(request.headers)


@pytest.mark.parametrize(
    ("body", "kind", "result"),
    [
        (b'{"ok":true}', "application/json", {"ok": True}),
        (b"[1]", "Application/JSON; charset=utf-8", [1]),
        (b"[1]", "application/vnd.shop+json", [1]),
        (b"1" + 65_535 * b" ", "application/json", 1),
        (b"1" + 65_536 * b" ", "application/json", None),
        (b"", "application/json", None),
        (b"thanks", "text/plain", None),
        (b"[1", "application/json", None),
        (b"\xff", "application/json", None),
        (b"[" * 60_000, "application/json", None),
    ],
)
async def test_a_body_that_is_json_is_the_result(deliverer, body, kind, result):
    answer, _ = await deliver(deliverer, answering("201 Created", body, content_type=kind))
    assert result == answer


async def test_a_body_that_is_compressed_is_no_result(deliverer):
    behaviour = answering(body=b"[1]", content_type="application/json", content_encoding="gzip")
    assert (await deliver(deliverer, behaviour))[0] is None


async def test_410_buries(deliverer):
    with pytest.raises(Bury, match="410"):
        await deliver(deliverer, answering("410 Gone"))


@pytest.mark.parametrize(
    "status", ["400 Bad", "401 No", "404 Not Found", "409 X", "429 Slow", "500 Oh", "503 X"]
)
async def test_other_answers_retry_after_the_backoff(deliverer, status):
    with pytest.raises(Retry, match=status[:3]) as caught:
        await deliver(deliverer, answering(status, b"secret of theirs"))
    assert caught.value.delay is None
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("wish", "least", "most"),
    [
        ("120", 120, 120),
        ("0", 1, 1),
        ("999999999999999", 3600, 3600),
        (600, 300, 601),
        (-600, 1, 1),
    ],
    ids=["seconds", "none", "for ever", "a time", "a time that is past"],
)
async def test_a_wish_to_be_left_alone_is_granted_within_bounds(deliverer, wish, least, most):
    # A time is so far from the start of the test, which may be long after the tests were collected.
    text = wish if isinstance(wish, str) else formatdate(time.time() + wish, usegmt=True)
    with pytest.raises(Retry) as caught:
        await deliver(deliverer, answering("503 Busy", retry_after=text))
    assert least <= caught.value.delay <= most


@pytest.mark.parametrize("text", ["soon", "-5", "", "1.5", "Mon, 99 Foo 2026 00:00:00 GMT"])
async def test_a_wish_that_cannot_be_read_is_none(deliverer, text):
    with pytest.raises(Retry) as caught:
        await deliver(deliverer, answering("503 Busy", retry_after=text))
    assert caught.value.delay is None


@pytest.mark.parametrize("url", ["ftp://example.com/", "https://user:pw@example.com/", "no url"])
async def test_a_url_that_is_none_buries(deliverer, url):
    with pytest.raises(Bury):
        await deliverer().deliver(url, delivery())
