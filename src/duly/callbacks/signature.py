"""
Signatures as Standard Webhooks describes them: HMAC-SHA256 over id, time and body.

Several secrets sign at once, so that one can take the place of another without a pause: a receiver accepts
a message if any of its secrets fits any of the signatures.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets as _random
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from duly.errors import DulyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "whsec_"
TOLERANCE_S = 300.0
MIN_BYTES, MAX_BYTES = 24, 64

_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,120}")


class WrongSignature(DulyError):
    """
    The message is not from who has the secret, was changed, or is too old.
    """


def new_secret() -> str:
    """
    Make a secret.
    """
    return PREFIX + base64.b64encode(_random.token_bytes(32)).decode()


def sign(secrets: Iterable[str], id_: str, timestamp: int, body: bytes) -> str:
    """
    The header ``webhook-signature``: one signature for each secret.

    Raises:
        UsageError: A secret cannot be read, or there is none.
    """
    return " ".join(_signatures(_keys(secrets), id_, str(timestamp), body))


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: str | Iterable[str],
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> None:
    """
    Check that a message was signed with one of *secrets*, not long ago.

    *headers* are those of the request, in any case; *body* is what came, byte for byte.

    Raises:
        WrongSignature: It was not.
        UsageError: A secret cannot be read, or there is none.
    """
    keys = _keys([secrets] if isinstance(secrets, str) else secrets)
    found = {name.lower(): value for name, value in headers.items()}
    try:
        id_, timestamp = found["webhook-id"], found["webhook-timestamp"]
        signatures = found["webhook-signature"].split()
    except KeyError as error:
        raise WrongSignature(f"the header {error.args[0]} is missing") from None
    if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) < 16):
        raise WrongSignature("the header webhook-timestamp is no number of seconds")
    apart_s = (time.time() if now_s is None else now_s) - int(timestamp)
    if abs(apart_s) > tolerance_s:
        word = "old" if apart_s > 0 else "early"
        raise WrongSignature(f"the message is {abs(apart_s):.0f} s too {word}: replayed, or a clock is wrong")
    expected = _signatures(keys, id_, timestamp, body)
    # All are compared, so that how long it takes says nothing.
    matches = [
        hmac.compare_digest(ours.encode(), theirs.encode()) for ours in expected for theirs in signatures
    ]
    if not any(matches):
        raise WrongSignature("no signature fits")


class SecretBook:
    """
    The secrets of every topic.
    """

    def __init__(self, text: str) -> None:
        """
        Read secrets separated by commas; one of some topics only is written ``pattern:whsec_…``.

        Raises:
            UsageError: One cannot be read.
        """
        self._general: list[str] = []
        self._special: list[tuple[str, str]] = []
        for entry in filter(None, (part.strip() for part in text.split(","))):
            pattern, colon, secret = entry.rpartition(":")
            _keys([secret])
            if not colon:
                self._general.append(secret)
            elif _PATTERN.fullmatch(pattern):
                self._special.append((pattern, secret))
            else:
                raise UsageError(
                    "callback secrets: before the colon stands the name of a topic, with * for any characters"
                )

    def __repr__(self) -> str:
        return f"<SecretBook of {len(self._general) + len(self._special)}>"

    def __bool__(self) -> bool:
        return bool(self._general or self._special)

    def of(self, topic: str) -> list[str]:
        """
        The secrets that sign callbacks of *topic*: its own if it has any.

        Raises:
            UsageError: There is none.
        """
        own = [secret for pattern, secret in self._special if fnmatchcase(topic, pattern)]
        found = own or self._general
        if not found:
            raise UsageError(
                f"there is no secret to sign callbacks of {topic} with: set DULY_CALLBACK_SECRETS, "
                "e.g. to what `duly listen --new-secret` prints"
            )
        return found


def _signatures(keys: list[bytes], id_: str, timestamp: str, body: bytes) -> list[str]:
    signed = b".".join((id_.encode(), timestamp.encode(), body))
    return ["v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode() for key in keys]


def _keys(secrets: Iterable[str]) -> list[bytes]:
    keys = [_key(secret) for secret in secrets]
    if not keys:
        raise UsageError("say at least one secret")
    return keys


def _key(secret: str) -> bytes:
    # Messages never quote what was given: it may be a secret with one letter missing.
    if not secret.startswith(PREFIX):
        raise UsageError(f"a callback secret begins with {PREFIX}; `duly listen --new-secret` prints one")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"a callback secret is {PREFIX} and base64") from None
    if not MIN_BYTES <= len(key) <= MAX_BYTES:
        raise UsageError(f"a callback secret holds {MIN_BYTES} to {MAX_BYTES} bytes, this one {len(key)}")
    return key
