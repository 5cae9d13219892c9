"""
A handler that is a URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duly.backoff import Exponential
from duly.callbacks.deliver import Delivery
from duly.codec import decode
from duly.context import current_job
from duly.handlers import AsyncHandler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.binding import Call
    from duly.callbacks.deliver import Deliverer
    from duly.context import CurrentJob
    from duly.newjob import Limits

MAX_ATTEMPTS = 10
BACKOFF = Exponential(base=5, cap=3600)
SPARE_S = 30.0  #: of the time to run, beyond what a POST may take


class CallbackHandler(AsyncHandler[..., Any]):
    """
    Runs jobs of a topic by POSTing them.
    """

    def __init__(
        self,
        topic: str,
        url_of: Callable[[CurrentJob], Awaitable[str]],
        deliverer: Deliverer,
        *,
        source: str,
        limits: Limits,
    ) -> None:
        self._url_of = url_of
        self._deliverer = deliverer
        self._source = source
        super().__init__(
            self._run,
            topic,
            max_attempts=MAX_ATTEMPTS,
            backoff=BACKOFF,
            ttr=deliverer.total_s + SPARE_S,
            limits=limits,
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
        url = await self._url_of(job)
        delivery = Delivery(
            job.topic, job.id, job.revision, job.attempt, job.due_at, payload, job.context, self._source
        )
        return await self._deliverer.deliver(url, delivery)
