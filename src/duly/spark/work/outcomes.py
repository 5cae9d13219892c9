"""
What becomes of the jobs of a batch: read from the table that its function returned.  Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from duly.backoff import from_wire
from duly.codec import Unreadable, decode_envelope
from duly.errors import UsageError
from duly.failure import reason_document
from duly.outcome import Ack, Bury, Raised, Retry, RetryLater, Unstorable, outcome_of
from duly.outcome import Buried as BuriedOutcome
from duly.store import Finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pyarrow as pa

    from duly.backoff import Backoff
    from duly.batchhandler import BatchHandler
    from duly.job import Lease
    from duly.store import Ending

NEEDED = ("id", "outcome")
WORDS = ("ok", "retry", "bury")
EXAMPLES = 5
JSON = "result_json"  #: a column with results that are JSON already


class WrongAnswer(Exception):
    """
    What a batch handler returned does not say what becomes of its jobs.
    """


@dataclass(slots=True)
class Endings:
    """
    What is to be stored, by verb, and what was wrong with the answer.
    """

    by_verb: dict[Ending, list[Finish]] = field(
        default_factory=lambda: {"ack": [], "retry": [], "bury": [], "release": []}
    )
    invented: list[str] = field(default_factory=list)  #: ids in the answer that were not in the batch
    wrong: list[str] = field(default_factory=list)  #: some of what was wrong with rows, as sentences

    def add(self, other: Endings) -> None:
        """
        Take those of another part of the batch as well.
        """
        for verb, finishes in other.by_verb.items():
            self.by_verb[verb] += finishes
        self.invented += other.invented
        for sentence in other.wrong:
            self.complain(sentence)

    def complain(self, sentence: str) -> None:
        """
        Remember what was wrong, unless there are enough examples.
        """
        if len(self.wrong) < EXAMPLES:
            self.wrong.append(sentence)


def check_columns(names: Iterable[str], topic: str) -> None:
    """
    Check that an answer can be read.

    Raises:
        WrongAnswer: A column is missing.
    """
    found = list(names)
    for name in NEEDED:
        if found.count(name) != 1:
            raise WrongAnswer(
                f"the answer of the batch handler of {topic} must have one column {name}; "
                f"its columns are {', '.join(found) or 'none'}"
            )


def endings_of(
    handler: BatchHandler, leases: Sequence[Lease], answer: pa.Table, late_ms: Callable[[Lease], int]
) -> Endings:
    """
    Give every job of a batch the outcome that its row says; a job without a good one is tried again.
    """
    endings = Endings()
    acks = endings.by_verb["ack"]
    open_leases = {lease.key.id: lease for lease in leases}
    seen: dict[str, Any] = {}
    limit = handler.limits.result
    ready = JSON in answer.column_names
    for id_, word, result, error in _rows(answer):
        if id_ in seen:
            # The first one counts only if nobody says otherwise.
            seen[id_] = Raised(WrongAnswer(f"the answer has more than one row for id {id_!r}"))
        elif id_ in open_leases:
            seen[id_] = _said(word, result, error, id_)
        else:
            endings.invented.append(str(id_))
    for id_, lease in open_leases.items():
        said = seen.get(id_, _FORGOTTEN)
        if said is None or (ready and type(said) is bytes and len(said) <= limit):
            acks.append(Finish(lease, late_ms(lease), (said or b"",)))
            continue
        if type(said) is bytes and ready:
            said = Raised(Unstorable(UsageError(f"result is {len(said)} bytes, the limit is {limit}")))
        if said is _FORGOTTEN:
            said = Raised(WrongAnswer(f"the answer has no row for id {id_!r}"))
        _end(endings, handler, lease, said, late_ms(lease), limit)
    return endings


def failed(
    handler: BatchHandler,
    leases: Sequence[Lease],
    errors: Mapping[str, BaseException] | BaseException,
    late_ms: Callable[[Lease], int],
) -> Endings:
    """
    End jobs that a function never answered for: by one error for all of them, or by one for each id.
    """
    endings = Endings()
    for lease in leases:
        error = errors if isinstance(errors, BaseException) else errors[lease.key.id]
        _end(endings, handler, lease, Raised(error), late_ms(lease), handler.limits.result)
    return endings


def released(leases: Iterable[Lease]) -> Endings:
    """
    Give jobs back, uncounted.
    """
    endings = Endings()
    endings.by_verb["release"] += [Finish(lease, 0, ()) for lease in leases]
    return endings


_FORGOTTEN = object()


def _rows(answer: pa.Table) -> Iterable[tuple[Any, Any, Any, Any]]:
    none = [None] * answer.num_rows
    result = JSON if JSON in answer.column_names else "result"
    columns = [
        answer.column(name).to_pylist() if name in answer.column_names else none
        for name in ("id", "outcome", result, "error")
    ]
    return zip(*columns, strict=True)


def _said(word: object, result: object, error: object, id_: str) -> object:
    match word:
        case "ok":
            return result
        case "retry":
            return Retry(reason="" if error is None else str(error))
        case "bury":
            return Bury("" if error is None else str(error))
    return Raised(WrongAnswer(f"the outcome of id {id_!r} is {word!r}, which is none of {', '.join(WORDS)}"))


def _end(
    endings: Endings, handler: BatchHandler, lease: Lease, said: object, late_ms: int, limit: int
) -> None:
    if isinstance(said, Raised) and isinstance(said.exc, Unreadable):
        document = reason_document("unreadable", str(said.exc))
        endings.by_verb["bury"].append(Finish(lease, late_ms, (document, "unreadable")))
        return
    if isinstance(said, Raised) and isinstance(said.exc, WrongAnswer):
        endings.complain(str(said.exc))
    max_attempts, backoff = _terms(handler, lease)
    outcome = outcome_of(
        said,
        attempt=lease.attempt,
        max_attempts=max_attempts,
        backoff=backoff,
        encode_result=lambda value: handler.codec.encode(value, what="result", limit=limit),
    )
    match outcome:
        case Ack(result):
            endings.by_verb["ack"].append(Finish(lease, late_ms, (result,)))
        case RetryLater(delay_ms, error, reason):
            endings.by_verb["retry"].append(Finish(lease, late_ms, (delay_ms, "1", error, reason)))
        case BuriedOutcome(error, reason):
            endings.by_verb["bury"].append(Finish(lease, late_ms, (error, reason)))


def _terms(handler: BatchHandler, lease: Lease) -> tuple[int, Backoff]:
    """
    How often the job may be tried, and how long to wait: its own wishes, or those of the handler.
    """
    if not lease.envelope:
        return handler.max_attempts, handler.backoff
    try:
        envelope = decode_envelope(lease.envelope)
        backoff = from_wire(envelope.backoff) if envelope.backoff else handler.backoff
    except (Unreadable, UsageError):
        # Sent by a newer release, maybe.  The handler's own are better than none.
        return handler.max_attempts, handler.backoff
    return envelope.max_attempts or handler.max_attempts, backoff
