"""
A handler that is a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.backoff import Backoff, Exponential
from duly.callbacks.deliver import Delivery
from duly.codec import decode
from duly.context import current_job
from duly.handlers import AsyncHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from duly.binding import Call
    from duly.callbacks.deliver import Deliverer
    from duly.context import CurrentJob

MAX_ATTEMPTS = 10
BACKOFF = Exponential(base=5, cap=3600)
SPARE_S = 30.0  #: of the time to run, beyond what a POST may take


class CallbackHandler(AsyncHandler[..., Any]):
    """
    Runs the jobs of a topic by POSTing them.
    """

    def __init__(
        self,
        topic: str,
        url: str | Callable[[CurrentJob], str],
        deliverer: Deliverer,
        *,
        source: str = "/duly",
        max_attempts: int = MAX_ATTEMPTS,
        backoff: Backoff = BACKOFF,
        concurrency: int | None = None,
    ) -> None:
        """
        Say where to: a URL, or what knows it for each job.

        Raises:
            UsageError: The URL cannot be read, or there is no secret to sign with.
        """
        if isinstance(url, str):
            deliverer.check(topic, url)
        self._url = url
        self._deliverer = deliverer
        self._source = source
        super().__init__(
            self._run,
            topic,
            max_attempts=max_attempts,
            backoff=backoff,
            ttr=deliverer.total_s + SPARE_S,
            concurrency=concurrency,
        )

    def bind(self, payload: bytes) -> Call:
        """
        The payload as it is: what it means is the receiver's business.

        Raises:
            Unreadable: It is no JSON.
        """
        if payload:
            decode(payload)
        return (payload,), {}

    async def _run(self, payload: bytes) -> Any:
        job = current_job()
        url = self._url if isinstance(self._url, str) else self._url(job)
        delivery = Delivery(
            job.topic,
            job.id,
            job.revision,
            job.attempt,
            job.due_at,
            payload,
            job.context,
            self._source,
        )
        return await self._deliverer.deliver(url, delivery)
