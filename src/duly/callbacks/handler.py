"""
A handler that is a URL.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from duly.callbacks.deliver import Delivery
from duly.codec import decode
from duly.context import current_job
from duly.defaults import CALLBACK_ATTEMPTS, CALLBACK_BACKOFF
from duly.errors import UsageError
from duly.handlers import AsyncHandler
from duly.job import RESERVED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from duly.binding import Call
    from duly.callbacks.deliver import Deliverer
    from duly.context import CurrentJob
    from duly.newjob import Limits

log = logging.getLogger("duly.callbacks")

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
            topic.removeprefix(RESERVED),
            max_attempts=CALLBACK_ATTEMPTS,
            backoff=CALLBACK_BACKOFF,
            ttr=deliverer.total_s + SPARE_S,
            limits=limits,
        )
        self.topic = topic  # one of duly's own is refused to users, and not here

    def bind(self, payload: bytes) -> Call:
        """
        The payload as it is: what it means is the receiver's business.

        Raises:
            Unreadable: It is no JSON.
        """
        if payload:
            decode(payload)
        return (payload,), {}

    def encode_result(self, result: object) -> bytes:
        """
        Write the answer of a receiver; one that cannot be kept is left out, because the receiver has the job.
        """
        try:
            return super().encode_result(result)
        except (UsageError, ValueError, RecursionError) as error:
            job = current_job()
            log.warning("%s/%s was delivered, and its answer is not kept: %s", job.topic, job.id, error)
            return b""

    async def _run(self, payload: bytes) -> Any:
        job = current_job()
        url = await self._url_of(job)
        delivery = Delivery(
            job.topic, job.id, job.revision, job.attempt, job.due_at, payload, job.context, self._source
        )
        return await self._deliverer.deliver(url, delivery)
