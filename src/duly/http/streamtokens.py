"""
Stream tokens: a web page follows events for some minutes, and never sees an API key.

A browser's EventSource can send no header, and what stands in a URL is written into logs.  So a token is
taken for streams of events only, and not for long.  It is signed with its key: every process of the service
knows it, it ends with its key, and nothing is stored.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING

import msgspec

from duly.http.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from duly.apikeys import ApiKey, KeyRing

LIFETIME_S = 600
TOPICS = 20  #: that one token may name

_TEXT = re.compile(r"(?P<claims>[A-Za-z0-9_-]{1,4000})\.(?P<signature>[A-Za-z0-9_-]{43})")


class Claims(msgspec.Struct, array_like=True, frozen=True):
    """
    What a token says.
    """

    key: str  #: its id
    expires_s: int  #: since 1970
    topics: tuple[str, ...]  #: none means those of the key


_claims = msgspec.json.Decoder(Claims)


async def make_token(ring: KeyRing, key: ApiKey, topics: Sequence[str]) -> tuple[str, int]:
    """
    Make a token of a key, and say when it ends, in seconds since 1970.

    Raises:
        Problem: The key does not see a topic (403), or was revoked just now (401).
    """
    for topic in topics:
        if not key.sees(topic):
            raise Problem("forbidden", f"key {key.name} has not the scope read on topic {topic}")
    expires_s = int(time.time()) + LIFETIME_S
    text = _write(msgspec.json.encode(Claims(key.id, expires_s, tuple(topics))))
    for known, secret in await ring.signers(key.id):
        if known == key:
            return f"{text}.{_sign(secret, text)}", expires_s
    raise Problem("unauthenticated", "this API key was revoked", headers={"WWW-Authenticate": "Bearer"})


async def key_of(ring: KeyRing, token: str) -> ApiKey | None:
    """
    Return the key that a token stands for, as far as the token goes; None if it is no token of a known key.

    Raises:
        Problem: It has ended.
    """
    found = _TEXT.fullmatch(token)
    if not found:
        return None
    try:
        claims = _claims.decode(_read(found["claims"]))
    except (ValueError, RecursionError):  # also what msgspec raises
        return None
    for key, secret in await ring.signers(claims.key):
        if not hmac.compare_digest(_sign(secret, found["claims"]), found["signature"]):
            continue
        if claims.expires_s <= time.time():
            raise Problem(
                "unauthenticated",
                "this stream token has ended; ask for another with POST /v1/events/token",
                headers={"WWW-Authenticate": "Bearer"},
            )
        # A key of the environment may have lost something since.
        if key.has("read") and all(map(key.sees, claims.topics)):
            return msgspec.structs.replace(key, scopes=("read",), topics=claims.topics or key.topics)
    return None


def _sign(secret: bytes, text: str) -> str:
    return _write(hmac.new(secret, b"duly stream token\n" + text.encode(), hashlib.sha256).digest())


def _write(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _read(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
