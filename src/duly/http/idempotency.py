"""
Idempotency-Key: a request that is sent again makes no second job and gets the first answer.

Another request under the same key is refused.  Two that are under way at once need not wait for each
other: both make the same call for the same job, and both are told of it.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec

from duly.errors import SERVER_ERRORS
from duly.http.operations import Parameter
from duly.http.problems import Problem
from duly.idempotency import NO_KEY, digest_of, name_of
from duly.ids import Repeatable

if TYPE_CHECKING:
    from starlette.requests import Request

    from duly.errors import JobExists
    from duly.idempotency import Entries, Entry
    from duly.job import Placed
    from duly.newjob import NewJob

log = logging.getLogger("duly.http")

HEADER = "Idempotency-Key"

#: Printable ASCII; blanks around a header belong to no value.
PATTERN = "^[!-~](?:[ -~]*[!-~])?$"
_KEY = re.compile(PATTERN)

AGE = "Duly-Age"
_AGE = re.compile("[0-9]{1,12}")
AGE_PARAMETER = Parameter(
    "Duly-Age",
    "header",
    "of a request that is sent again: milliseconds since the first time",
    {"type": "string", "pattern": f"^{_AGE.pattern}$"},
)

PARAMETER = Parameter(
    "Idempotency-Key",
    "header",
    "makes sending the same again safe",
    {"type": "string", "pattern": PATTERN, "maxLength": 255},
)


def one_header(request: Request, name: str) -> str | None:
    """
    Return the header of a *name* that says one thing, None where there is none.

    Raises:
        Problem: It was sent several times: which of them counts is anybody's guess, a proxy's too.
    """
    said = request.headers.getlist(name)
    if len(said) > 1:
        raise Problem("invalid", f"{name} was sent {len(said)} times; send it once", field=name)
    return said[0] if said else None


def key_of(request: Request) -> str | None:
    """
    The key that a request carries.

    Raises:
        Problem: It is no key, or there are several.
    """
    key = one_header(request, HEADER)
    if key is None:
        return None
    if len(key) > 255 or not _KEY.fullmatch(key):
        raise Problem(
            "invalid", "Idempotency-Key must be 1 to 255 printable ASCII characters", field="Idempotency-Key"
        )
    return key


def call_of(request: Request, operation: str, said: Any = None) -> Repeatable | None:
    """
    The change of what is there that a request asks for, if it has a key: all that it says belongs to it.

    The shards remember its answer, as they do for those who call them: it takes no room of its own.

    Raises:
        Problem: What it carries is no key, or no age.
    """
    key, age = key_of(request), one_header(request, AGE)
    if age is not None and not _AGE.fullmatch(age):
        raise Problem("invalid", "Duly-Age must be a whole number of milliseconds", field="Duly-Age")
    if key is None:
        return None
    caller = getattr(request.state, "key", None)
    conditions = [request.headers.getlist(name) for name in ("if-match", "if-none-match")]
    path = sorted(request.path_params.items())
    words = (NO_KEY if caller is None else caller.id, operation, key, path, conditions, said)
    call = Repeatable(digest_of(msgspec.json.encode(words)), None if age is None else int(age))
    request.state.call = call
    return call


def entry_name(request: Request, key: str, operation: str = "jobs") -> str:
    """
    Name the entry of a key: callers and topics do not see each other's.  One of a job is none of a batch.
    """
    caller = getattr(request.state, "key", None)
    return name_of(NO_KEY if caller is None else caller.id, operation, request.path_params["topic"], key)


def digest_said(**said: Any) -> bytes:
    """
    Tell what a request asks for from anything else.

    What it does not say counts for nothing, so that a release with a new option reads it alike.
    """
    known = {name: value for name, value in said.items() if value is not None}
    return digest_of(msgspec.json.encode(known, order="sorted"))


class Call:
    """
    A request that may be sent again: what is known of it, and what is kept.
    """

    def __init__(self, entries: Entries, name: str, entry: Entry) -> None:
        self._entries = entries
        self._name = name
        self.entry = entry

    @classmethod
    async def begin(cls, entries: Entries, name: str, digest: bytes) -> Call:
        """
        Reserve a name for a request, or find what is known of it.

        Raises:
            KeyReused: It stands for another request.
            KeysFull: There is no room for another one.
        """
        return cls(entries, name, await entries.reserve(name, digest))

    def job(self, job: NewJob[Any]) -> NewJob[Any]:
        """
        The job as every repetition of this request sends it.
        """
        once = self.entry.once(self._name, self._entries.keep_ms)
        return msgspec.structs.replace(job, id=job.id or self.entry.id, once=once)

    async def keep(self, answer: Placed | JobExists) -> None:
        """
        Keep the first answer.
        """
        try:
            await self._entries.answer(self._name, self.entry.with_answer(answer))
        except SERVER_ERRORS as error:
            # The job is stored: the same request again asks for it, and finds it.
            log.warning("the answer to a request that may be sent again was not kept: %s", error)
