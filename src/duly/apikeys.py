"""
API keys: who may do what over HTTP.  Only hashes are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from duly.store import Store

Scope = Literal["enqueue", "work", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

FRESH_S = 5.0  #: how long what was read is believed: a revoked key works at most that much longer
MIN_SECRET = 16

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PATTERN = re.compile(r"[A-Za-z0-9._*-]{1,120}")


class ApiKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What one key may do.
    """

    id: str
    name: str
    scopes: tuple[Scope, ...]
    topics: tuple[str, ...] = ()  #: patterns with ``*``; none means every topic
    created_ms: int = 0
    digest: str = ""  #: of its secret

    def allows(self, scope: Scope, topic: str | None = None) -> bool:
        """
        Whether it may do *scope*, on *topic* if one is concerned.
        """
        return self.has(scope) and (not self.topics or (topic is not None and self.sees(topic)))

    def has(self, scope: Scope) -> bool:
        """
        Whether it may do *scope*, be it on some topics only.
        """
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, topic: str) -> bool:
        """
        Whether *topic* is one of its topics.
        """
        return not self.topics or any(fnmatchcase(topic, pattern) for pattern in self.topics)


def check_key(name: str, scopes: Sequence[str], topics: Sequence[str] = ()) -> None:
    """
    Check what a new key is to be.

    Raises:
        UsageError: A name, scope or pattern is wrong.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"name={name!r} must be 1 to 64 letters, digits, dots, underscores or hyphens")
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        raise UsageError(f"scopes={', '.join(unknown) or 'none'!r} must be some of {', '.join(SCOPES)}")
    for pattern in topics:
        if not _PATTERN.fullmatch(pattern):
            raise UsageError(f"topics={pattern!r} must be names of topics, with * for any characters")


def keys_of_environment(environ: Mapping[str, str] = os.environ) -> list[tuple[str, ApiKey]]:
    """
    The keys that ``DULY_API_KEYS`` brings: ``name:secret:scopes[:topics]``, several separated by commas.

    Raises:
        UsageError: It cannot be read.
    """
    found = []
    for text in environ.get("DULY_API_KEYS", "").split(","):
        if not text.strip():
            continue
        parts = text.strip().split(":")
        if len(parts) not in (3, 4):
            raise UsageError(
                "DULY_API_KEYS must be name:secret:scopes[:topics], scopes joined by +; several by commas"
            )
        name, secret, scopes = parts[0], parts[1], parts[2].split("+")
        topics = parts[3].split("+") if len(parts) == 4 else []
        check_key(name, scopes, topics)
        if len(secret) < MIN_SECRET:
            raise UsageError(
                f"the secret of key {name} in DULY_API_KEYS must have at least {MIN_SECRET} characters"
            )
        found.append((secret, ApiKey(f"env-{name}", name, tuple(scopes), tuple(topics))))  # type: ignore[arg-type]  # checked
    return found


class Keeper(Protocol):
    """
    Where keys are kept beside the queue, so that they outlive its memory.
    """

    async def put(self, id_: str, about: bytes) -> None:
        """
        Keep a key.
        """

    async def drop(self, id_: str) -> None:
        """
        Keep a key no longer.
        """


class KeyRing:
    """
    The keys of a namespace, and those that the environment brings.
    """

    def __init__(
        self, store: Store, environ: Mapping[str, str] = os.environ, *, keeper: Keeper | None = None
    ) -> None:
        """
        Read the environment.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
        """
        self._store = store
        self._keeper = keeper
        self._given = keys_of_environment(environ)
        self._known: dict[str, ApiKey] = {}
        self._read_s = -FRESH_S

    async def create(
        self, name: str, scopes: Sequence[str], topics: Sequence[str] = ()
    ) -> tuple[str, ApiKey]:
        """
        Make a key; its text is shown this once and stored nowhere.

        Raises:
            UsageError: A name, scope or pattern is wrong.
        """
        check_key(name, scopes, topics)
        secret = secrets.token_urlsafe(32)
        key = ApiKey(
            secrets.token_hex(6),
            name,
            tuple(scopes),  # type: ignore[arg-type]  # just checked
            tuple(topics),
            int(time.time() * 1000),
            _digest(secret),
        )
        about = msgspec.json.encode(key)
        if self._keeper is not None:
            await self._keeper.put(key.id, about)
        await self._store.link.call("HSET", self._place, key.id, about)
        self._read_s = -FRESH_S
        return f"duly_{key.id}_{secret}", key

    async def all(self) -> list[ApiKey]:
        """
        Every key, oldest first; those of the environment at the end.
        """
        await self._read()
        stored = sorted(self._known.values(), key=lambda key: key.created_ms)
        return stored + [key for _, key in self._given]

    async def revoke(self, id_or_name: str) -> list[ApiKey]:
        """
        Forget keys by their id or their name; which ones that were.
        """
        gone = [key for key in await self.all() if id_or_name in (key.id, key.name) and key.digest]
        for key in gone:
            if self._keeper is not None:
                await self._keeper.drop(key.id)
            await self._store.link.call("HDEL", self._place, key.id)
            if self._keeper is not None:
                # A record that begins just then may have taken it over in between.
                await self._keeper.drop(key.id)
        self._read_s = -FRESH_S
        return gone

    async def any(self) -> bool:
        """
        Whether there is a key at all; without one, everybody may do everything.
        """
        await self._read_if_old()
        return bool(self._known or self._given)

    async def find(self, text: str) -> ApiKey | None:
        """
        The key that *text* is, if it is one.
        """
        for secret, key in self._given:
            if hmac.compare_digest(secret.encode(), text.encode()):
                return key
        word, _, rest = text.partition("_")
        id_, _, secret = rest.partition("_")
        if word != "duly" or not secret:
            return None
        await self._read_if_old()
        found = self._known.get(id_)
        if found is None or not hmac.compare_digest(found.digest, _digest(secret)):
            return None
        return found

    async def _read_if_old(self) -> None:
        if time.monotonic() - self._read_s >= FRESH_S:
            await self._read()

    async def _read(self) -> None:
        found = await self._store.link.call("HGETALL", self._place)
        self._known = {
            key.id: key for key in (msgspec.json.decode(each, type=ApiKey) for each in found[1::2])
        }
        self._read_s = time.monotonic()

    @property
    def _place(self) -> str:
        return self._store.keys[0].fixed["api_keys"]


def _digest(secret: str) -> str:
    # A secret of 256 random bits needs no salt and no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()
