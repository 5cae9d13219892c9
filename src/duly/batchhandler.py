"""
Batch handlers: functions from a table of jobs to a table of outcomes, run by `duly pipeline work`.

Nothing here needs Spark: an app that has them can be imported by senders and plain workers alike.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from duly.backoff import Backoff, check_backoff
from duly.binding import check_function, is_async
from duly.codec import DEFAULT_CODEC, Codec
from duly.defaults import DEFAULTS, Defaults
from duly.durations import Seconds, parse_duration
from duly.errors import UsageError
from duly.job import check_topic
from duly.newjob import Limits, NewJob
from duly.options import at_least_one, positive_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    BatchFunction: TypeAlias = Callable[[DataFrame], DataFrame]

MOST_ROWS = 1_000_000  #: in one batch: all of them have leases, and are held in the memory of the driver


class BatchHandler:
    """
    A function that runs many jobs of one topic at once.
    """

    def __init__(
        self,
        fn: BatchFunction,
        topic: str,
        *,
        max_rows: int = 10_000,
        every: Seconds = 0,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        ttr: Seconds | None = None,
        defaults: Defaults = DEFAULTS,
        limits: Limits | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.fn = _check(fn, topic)
        self.topic = check_topic(topic)
        self.max_rows = at_least_one(max_rows, "max_rows", MOST_ROWS)
        self.every_s = parse_duration(every, "every") / 1000  #: from the start of a batch to that of the next
        self.max_attempts = (
            defaults.max_attempts if max_attempts is None else at_least_one(max_attempts, "max_attempts")
        )
        self.backoff = defaults.backoff if backoff is None else backoff
        self.ttr_ms = (
            defaults.ttr_ms if ttr is None else positive_ms(ttr, "ttr")
        )  #: how long one batch may take
        self.limits = limits or Limits()
        self.codec = codec or DEFAULT_CODEC
        check_backoff(self.backoff)
        functools.update_wrapper(cast("Any", self), fn, updated=())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.topic}: {getattr(self.fn, '__qualname__', self.fn)}>"

    def __call__(self, jobs: DataFrame) -> DataFrame:
        """
        Call the function here and now.
        """
        return self.fn(jobs)

    def job(self, payload: object = None) -> NewJob[Any]:
        """
        Describe one row of a batch.  Sends nothing.

        Raises:
            UsageError: The payload has no form in JSON, or is too large.
        """
        return NewJob(self.topic, self.codec.encode(payload, limit=self.limits.payload))


def _check(fn: BatchFunction, topic: str) -> BatchFunction:
    check_function(fn, f"batch handler of {topic}")
    if is_async(fn):
        raise UsageError(f"batch handler of {topic}: Spark calls a plain def, not an async one")
    try:
        inspect.signature(fn).bind(None)
    except TypeError:
        raise UsageError(
            f"batch handler of {topic}: the function must take one argument, the DataFrame of jobs"
        ) from None
    return fn
