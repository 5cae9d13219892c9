"""
The token of a lease as text: opaque to clients, and all that is needed to find the job and end its run.
"""

from __future__ import annotations

import binascii
import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from duly.errors import UsageError
from duly.http.problems import Problem
from duly.job import JobKey, Lane, Lease, check_id, check_topic, shard_of

if TYPE_CHECKING:
    from starlette.requests import Request

#: Form of the token, fence, attempt, time to run, lateness, when it was claimed; the job's name follows.
_HEAD = Struct(">B16sHIIQ")
_SUM = Struct(">I")
_FORM = 1
_TEXT = re.compile(r"[A-Za-z0-9_-]{1,700}")
_MOST = 0xFFFFFFFF


class Token(NamedTuple):
    """
    What a token says.  Only the fence gives a right: a client that changes the rest fools itself.
    """

    key: JobKey
    fence: bytes
    attempt: int
    ttr_ms: int
    lateness_ms: int
    claimed_ms: int

    def lease(self, shards: int) -> Lease:
        """
        The lease, as far as the store asks for it.
        """
        counter, nonce = int.from_bytes(self.fence[:8], "big"), self.fence[8:]
        return Lease(
            self.key,
            shard_of(*self.key, shards),
            Lane.normal,
            revision=0,
            token=counter,
            nonce=nonce,
            attempt=self.attempt,
            crashes=0,
            due_ms=0,
            claimed_ms=self.claimed_ms,
            expires_ms=0,
            ttr_ms=self.ttr_ms,
            floor_ms=0,
            payload=b"",
        )


def token_of(lease: Lease, lateness_ms: int) -> str:
    """
    Write the token of a lease.
    """
    head = _HEAD.pack(
        _FORM,
        lease.fence_bytes,
        min(lease.attempt, 0xFFFF),
        min(lease.ttr_ms, _MOST),
        min(max(lateness_ms, 0), _MOST),
        lease.claimed_ms,
    )
    data = head + lease.key.member.encode()
    return urlsafe_b64encode(data + _SUM.pack(zlib.crc32(data))).rstrip(b"=").decode()


def read_token(text: str) -> Token:
    """
    Read a token.

    Raises:
        Problem: It cannot be one (422), or is damaged or made up (409).
    """
    detail = "this is no token of a lease; send it as the claim gave it"
    if not _TEXT.fullmatch(text):
        raise Problem("invalid", detail, field="token")
    refusal = Problem("lease-lost", detail, field="token")
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise refusal from None
    data, told = data[: -_SUM.size], data[-_SUM.size :]
    if len(data) <= _HEAD.size or _SUM.pack(zlib.crc32(data)) != told:
        raise refusal
    form, fence, attempt, ttr_ms, lateness_ms, claimed_ms = _HEAD.unpack_from(data)
    topic, _, id_ = data[_HEAD.size :].decode(errors="replace").partition("/")
    try:
        key = JobKey(check_topic(topic), check_id(id_))
    except UsageError:
        raise refusal from None
    if form != _FORM:
        raise refusal
    return Token(key, fence, attempt, ttr_ms, lateness_ms, claimed_ms)


def topic_of(request: Request) -> str | None:
    """
    The topic that a request concerns by its token; None where that is damaged, which is told later.
    """
    try:
        return read_token(request.path_params["token"]).key.topic
    except Problem:
        return None
