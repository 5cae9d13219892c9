"""
Delivery: a job becomes a CloudEvent, and the answer to it becomes what becomes of the job.
"""

from __future__ import annotations

import email.utils
import hashlib
import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

import duly
from duly.allowlist import Refused
from duly.callbacks.breaker import Hosts, PutOff
from duly.callbacks.guard import Guard
from duly.callbacks.lookups import Unresolved
from duly.callbacks.post import NoAnswer, Poster
from duly.callbacks.signature import SecretBook, sign
from duly.durations import say_time
from duly.errors import UsageError
from duly.outcome import Bury, Retry, Snooze
from duly.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from pathlib import Path

    from duly.callbacks.guard import Resolver
    from duly.callbacks.post import Answer
    from duly.settings import Settings

log = logging.getLogger("duly.callbacks")

TYPE = "duly.job.due"
MEDIA_TYPE = "application/cloudevents+json; charset=utf-8"
SHORTEST_S, LONGEST_S = 1.0, 3600.0  #: that a receiver may ask us to wait

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[ -~]{1,512}")
_GONE = 410


@dataclass(frozen=True, slots=True)
class Delivery:
    """
    A run of a job, as far as a receiver is told.
    """

    topic: str
    id: str
    revision: int
    attempt: int
    due_at: datetime | None
    payload: bytes
    context: Mapping[str, Any] = field(default_factory=dict)
    source: str = "/duly"

    @property
    def message_id(self) -> str:
        """
        The same for every attempt at the same revision of a job, so that receivers can tell repetitions.
        """
        name = f"{self.source}\n{self.topic}\n{self.id}\n{self.revision}"
        return f"msg_{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def trace(self) -> dict[str, str]:
        """
        The trace headers that travel with the job, if they are what they should be.
        """
        parent, state = self.context.get("traceparent"), self.context.get("tracestate")
        if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
            return {}
        if isinstance(state, str) and _TRACESTATE.fullmatch(state):
            return {"traceparent": parent, "tracestate": state.strip()}
        return {"traceparent": parent}

    def body(self) -> bytes:
        """
        The CloudEvent, in structured mode.
        """
        event: dict[str, Any] = {
            "specversion": "1.0",
            "type": TYPE,
            "source": self.source,
            "id": self.message_id,
            "subject": f"{self.topic}/{self.id}",
            "datacontenttype": "application/json",
            "attempt": self.attempt,
            "revision": self.revision,
            **self.trace(),
            "data": msgspec.Raw(self.payload or b"null"),
        }
        if self.due_at is not None:
            event["time"] = say_time(self.due_at)
        return msgspec.json.encode(event)


class Deliverer:
    """
    Delivers jobs to URLs.  What it answers is what a handler may return or raise.
    """

    def __init__(
        self,
        secrets: SecretBook,
        *,
        allow: str = "",
        connect_s: float = 5.0,
        total_s: float = 30.0,
        ca_file: Path | None = None,
        hosts: Hosts | None = None,
        resolver: Resolver | None = None,
    ) -> None:
        """
        Read the allow list and the certificates to trust.

        Raises:
            UsageError: One of them cannot be read.
        """
        guard = Guard(allow, resolver=resolver)
        try:
            self._poster = Poster(guard, connect_s=connect_s, total_s=total_s, ca_file=ca_file)
        except OSError as error:
            raise UsageError(
                f"certificates in {ca_file} cannot be read: {error.strerror or error}"
            ) from error
        self._secrets = secrets
        self.total_s = total_s
        self.hosts = hosts or Hosts()

    @classmethod
    def of(cls, settings: Settings) -> Deliverer:
        """
        A deliverer as the settings want it.

        Raises:
            UsageError: One of them is wrong, or there is no secret.
        """
        secrets = SecretBook(settings.callback_secrets)
        if not secrets:
            raise UsageError(
                "callbacks are signed, and there is no secret: set DULY_CALLBACK_SECRETS, "
                "e.g. to what `duly listen --new-secret` prints"
            )
        return cls(
            secrets,
            allow=settings.callback_allow,
            ca_file=settings.callback_ca,
        )

    async def deliver(self, url: str, delivery: Delivery) -> Any:
        """
        POST one run of a job, and return its result.

        Raises:
            Retry: Again later; counts.
            Snooze: Again later, and does not count: the host is left alone.
            Bury: Never again.
        """
        try:
            target = parse_url(url)
        except UsageError as error:
            raise Bury(str(error)) from None
        try:
            secrets = self._secrets.of(delivery.topic)
        except UsageError as error:
            # A setting of ours is wrong, not the job.
            raise Retry(reason=str(error)) from None
        body = delivery.body()
        timestamp = int(time.time())
        headers = {
            "Content-Type": MEDIA_TYPE,
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"duly/{duly.__version__}",
            "Duly-Attempt": str(delivery.attempt),
            "webhook-id": delivery.message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secrets, delivery.message_id, timestamp, body),
            **delivery.trace(),
        }
        try:
            with self.hosts.attempt(target.authority) as attempt:
                try:
                    answer = await self._poster.post(target, headers, body)
                except (NoAnswer, Unresolved):
                    attempt.failed = True
                    raise
                attempt.failed = answer.status >= 500 or answer.status == 429
        except PutOff as error:
            log.info("%s/%s is put off: %s", delivery.topic, delivery.id, error)
            raise Snooze(error.seconds) from None
        except Refused as error:
            # No connection was made.  Names may come to mean another address, so it is no reason to give up.
            raise Retry(reason=f"refused: {error}") from None
        except (NoAnswer, Unresolved) as error:
            raise Retry(reason=f"{target.host}: {error}") from None
        return _result(answer, delivery)


def _result(answer: Answer, delivery: Delivery) -> Any:
    """
    What an answer means for the job.
    """
    status = answer.status
    if 200 <= status < 300:
        return _document(answer, delivery)
    if status == _GONE:
        raise Bury("the receiver answered 410: it wants no more of these")
    what = f"the receiver answered {status}"
    if 300 <= status < 400:
        what += ", and redirects are not followed"
    raise Retry(_asked_s(answer.headers.get("retry-after", "")), what)


def _document(answer: Answer, delivery: Delivery) -> Any:
    """
    The body of an answer, if it is JSON and came whole.
    """
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if answer.body == b"" or not is_json or "content-encoding" in answer.headers:
        return None
    if answer.body is None:
        why = "it is too long, or did not come in time"
    else:
        try:
            return msgspec.json.decode(answer.body)
        except (ValueError, RecursionError):
            why = "it says that it is JSON, and cannot be read"
    log.warning("%s/%s was delivered, and its answer is not kept: %s", delivery.topic, delivery.id, why)
    return None


def _asked_s(text: str) -> float | None:
    """
    How long a receiver asks to be left alone, within bounds; None if it does not.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        seconds = float(text[:9])
    else:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, SHORTEST_S), LONGEST_S)
