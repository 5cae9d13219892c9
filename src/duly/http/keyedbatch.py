"""
A batch with an Idempotency-Key: the same lines again make the same jobs.

Of each line eight bytes are kept: its digest, and whether its job was stored; of one that is wrong only that,
so that it may be corrected.  Its answer is not kept.  The id of a job whose line names none, and the bytes
that tell the call for it from any other, follow from the key, the number of the line and what it says:
nothing has to be remembered to find the job again.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from duly.errors import SERVER_ERRORS, DulyError, OutcomeUnknown, StoreUnavailable
from duly.http import idempotency
from duly.http.problems import Problem, fault_of, problem_of
from duly.idempotency import LINE_BYTES, MAX_LINES, WRONG, same_line
from duly.job import Job, JobKey, Once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from duly.handle import JobHandle
    from duly.http.service import Service
    from duly.newjob import NewJob

log = logging.getLogger("duly.http")

#: What is known of a line without sending it: that it was changed, its job, or that its job is gone.
Known: TypeAlias = "Problem | Job | JobKey"

Line: TypeAlias = "tuple[int, NewJob[Any] | Problem]"

END = b"\xfe" * LINE_BYTES  #: stands behind the last line, in the place of a digest


class KeyedBatch:
    """
    The lines of one batch, slice by slice: take each, then note them, store their jobs, and note that.
    """

    def __init__(self, service: Service, name: str, ids: str) -> None:
        """
        Prepare: *name* is that of the entry, and from *ids* follow those of jobs.
        """
        self._service = service
        self._entries = service.entries
        self._name = name
        self._seed = f"{service.app.settings.namespace}\0{ids}".encode()
        self._first = 0  #: the place of the slice that is being taken
        self._digests: list[bytes] = []
        self._noted: list[bytes] = []
        self._ended = False  #: whether it is noted where the batch ends
        self._longer: Problem | None = None  #: that of a batch that had more lines

    @classmethod
    def of(cls, service: Service, request: Request) -> KeyedBatch | None:
        """
        The batch of a request with a key; None if it has none.

        Raises:
            Problem: It is no key.
        """
        key = idempotency.key_of(request)
        if key is None:
            return None
        names = idempotency.entry_name(request, key), idempotency.entry_name(request, key, "batch")
        return cls(service, *names)

    def take(self, line: bytes | Problem, job: NewJob[Any] | Problem) -> NewJob[Any] | Problem:
        """
        The job of the next line as every repetition sends it.
        """
        number = self._first + len(self._digests)
        if number >= MAX_LINES:
            detail = f"a batch with an Idempotency-Key may have {MAX_LINES} lines"
            return Problem("too-large", f"{detail}; send the rest under another key")
        if isinstance(line, Problem) or isinstance(job, Problem):
            self._digests.append(WRONG)
            return job
        digest = hashlib.blake2b(line, digest_size=LINE_BYTES).digest()
        self._digests.append(_flagged(digest, stored=False))
        told = hashlib.blake2b(self._seed + number.to_bytes(8) + digest, digest_size=22).digest()
        return msgspec.structs.replace(job, id=job.id or told[:16].hex(), once=Once(told[16:]))

    async def known(self, held: list[Line], *, last: bool) -> dict[int, Known]:
        """
        Note the lines of a slice, and behind the *last* of them that more lines are another batch.

        Of those that were sent before, *held* then says when.

        Returns: by their places, those that need not be sent.

        Raises:
            Problem: A line was changed, or the first request had more, and nothing of this one was stored.
            KeysFull: There is no room to note more lines.
        """
        lines = self._first + len(self._digests)
        self._ended = last
        sent = [*self._digests, END] if last and lines < MAX_LINES else self._digests
        if not sent:
            return {}
        since_ms, noted = await self._entries.lines(self._name, self._first, sent)
        if len(self._digests) < len(noted) and noted[-1] != END:
            self._longer = _reused(f"the first request with this Idempotency-Key had more than {lines} lines")
        self._noted = noted[: len(self._digests)]
        found: dict[int, Known] = {}
        stored: dict[int, JobKey] = {}
        corrected: dict[int, bytes] = {}
        for at, (was, digest) in enumerate(zip(self._noted, self._digests, strict=False)):
            number, job = held[at]
            if not same_line(was, digest):
                changed = _reused(
                    f"line {number} differs from that of the first request with this Idempotency-Key"
                )
                if not self._first:
                    raise changed
                found[at] = changed
            elif isinstance(job, Problem) or job.id is None or job.once is None:
                continue
            elif was == WRONG:
                corrected[at] = digest
            elif was != digest:
                stored[at] = JobKey(job.topic, job.id)
            else:
                once = msgspec.structs.replace(job.once, since_ms=since_ms)
                held[at] = number, msgspec.structs.replace(job, once=once)
        if self._longer is not None and not self._first:
            raise self._longer
        if corrected:
            # From now on each stands for what it says, whatever becomes of this request.
            self._noted = [corrected.get(at, was) for at, was in enumerate(self._noted)]
            await self._entries.stored(self._name, self._first, self._noted)
        jobs = await self._jobs(list(stored.values())) if stored else []
        return found | {at: job or key for (at, key), job in zip(stored.items(), jobs, strict=True)}

    async def _jobs(self, keys: list[JobKey]) -> Sequence[Job | None]:
        """
        What is known of jobs that were stored.  That they were is enough where the queue is away.
        """
        try:
            return await (await self._service.app.views()).get_many(keys)
        except (StoreUnavailable, OutcomeUnknown):
            return [None] * len(keys)

    async def end(self) -> None:
        """
        Note where the batch ends, if that was not done with its last lines.

        Raises:
            Problem: The first request had more lines.
        """
        if not self._ended:
            await self.known([], last=True)
        if self._longer is not None:
            raise self._longer

    async def stored(self, outcomes: Sequence[Known | JobHandle[Any] | DulyError]) -> None:
        """
        Note which jobs of the slice were stored, and go on to the next one.

        Where that cannot be noted, they are stored all the same: the repeat asks for them, and finds them.
        """
        marks = [
            self._noted[at]
            if at < len(self._noted) and isinstance(outcome, Problem | Job | JobKey)
            else _mark(digest, outcome)
            for at, (digest, outcome) in enumerate(zip(self._digests, outcomes, strict=False))
        ]
        # All that is marked as it was noted says nothing new.
        if marks and marks != (self._noted or self._digests):
            try:
                await self._entries.stored(self._name, self._first, marks)
            except SERVER_ERRORS as error:
                log.warning("it was not noted which lines of a batch were stored: %s", error)
            except Exception as error:  # noqa: BLE001  # whatever is wrong here, the jobs are stored
                fault_of(error, "the marks of a batch")
        self._first += len(marks)
        self._digests, self._noted = [], []


def _mark(digest: bytes, outcome: Known | JobHandle[Any] | DulyError) -> bytes:
    if isinstance(outcome, DulyError) and problem_of(outcome).kind in {"invalid", "too-large"}:
        return WRONG
    return _flagged(digest, stored=not isinstance(outcome, Problem | DulyError))


def _flagged(digest: bytes, *, stored: bool) -> bytes:
    return digest[:-1] + bytes([digest[-1] & 0xFE | stored])


def _reused(detail: str) -> Problem:
    return Problem("key-reused", detail, field="Idempotency-Key")
