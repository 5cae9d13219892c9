"""
API keys: who may do what over HTTP.  Only hashes are stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import msgspec

from duly.errors import SERVER_ERRORS, DulyError, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from duly.store import Store

log = logging.getLogger("duly.keys")

Scope = Literal["enqueue", "work", "read", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

FRESH_S = 5.0  #: how long what was read is believed: a revoked key works at most that much longer
RECALL_S = 2.0  #: how long a look for news at a record that answered before may take
ANSWERS_WITHIN_S = 2.0  #: how long a queue is waited for whose keys a record has, too
DOUBT_S = 60.0  #: how often it is said that the record does not tell of keys
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

    async def required(self) -> bool:
        """
        Return whether it has ever kept a key, or was told to require them.
        """

    async def require(self) -> None:
        """
        Remember that this queue requires keys.
        """

    async def put(self, id_: str, about: bytes) -> None:
        """
        Keep a key.
        """

    async def drop(self, id_: str) -> None:
        """
        Keep a key no longer.
        """

    async def kept(self) -> dict[str, bytes]:
        """
        Return every key that it keeps, by id.
        """


class KeyRing:
    """
    The keys of a namespace, and those that the environment brings.
    """

    def __init__(
        self,
        store: Store,
        environ: Mapping[str, str] = os.environ,
        *,
        keeper: Keeper | None = None,
        marker: Path | None = None,
    ) -> None:
        """
        Read the environment.  The file *marker* remembers that there was a key.

        Raises:
            UsageError: ``DULY_API_KEYS`` cannot be read.
        """
        self._store = store
        self._keeper = keeper
        self._marker = marker
        self._seen: bool | None = None  #: whether there ever was a key; None before anybody was asked
        self._kept = False  #: that is remembered where it outlives this process
        self._given = keys_of_environment(environ)
        self._known: dict[str, ApiKey] = {}
        self._read_s = -FRESH_S
        self._reading: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None  #: asks the queue, also when nobody waits for it
        self._away = False  #: the queue did not answer when it was asked last
        self._answered = False  #: the queue has answered what it is being asked, or was asked last
        self._doubted_s = -DOUBT_S  #: when it was said last that the record does not tell of keys

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
        self._kept = await self._keep()
        if self._keeper is not None:
            await self._keeper.put(key.id, about)
        await self._store.put_key(key.id, about)
        self._read_s = -FRESH_S
        return f"duly_{key.id}_{secret}", key

    async def all(self) -> list[ApiKey]:
        """
        Every key, oldest first; those of the environment at the end.
        """
        await self._read()
        stored = sorted(self._known.values(), key=lambda key: key.created_ms)
        return stored + [key for _, key in self._given]

    async def revoke(self, id_or_name: str, *, force: bool = False) -> list[ApiKey]:
        """
        Forget keys by their id or their name; which ones that were.

        Raises:
            UsageError: No key would be left, and *force* is not said.
        """
        there = await self.all()
        gone = [key for key in there if id_or_name in (key.id, key.name) and key.digest]
        if gone and len(gone) == len(there) and not force:
            raise UsageError(
                f"{id_or_name} is the last API key: without one, services that require keys answer every "
                "request with 401. Make another first with `duly keys create NAME --scope admin`, "
                "or say --force"
            )
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
        Return whether there is a key at all.
        """
        await self._read_if_old()
        return bool(self._known or self._given)

    def seen(self) -> bool:
        """
        Return whether there ever was a key, as far as `any` has found: in queue, record or marker.
        """
        return bool(self._seen)

    def fresh_s(self) -> float:
        """
        Return for how many seconds more what was read is believed, 0 if it is not.
        """
        return max(self._read_s + FRESH_S - time.monotonic(), 0.0)

    def lasting(self) -> bool:
        """
        Return whether a restart of this process still knows that there was a key, also if the queue has none.
        """
        return self._keeper is not None or self._marker is not None

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

    async def signers(self, id_: str) -> list[tuple[ApiKey, bytes]]:
        """
        Return the keys with this id, each with a secret that every process knows that knows the key.
        """
        await self._read_if_old()
        stored = self._known.get(id_)
        found = [] if stored is None else [(stored, bytes.fromhex(stored.digest))]
        return found + [(key, _stretch(secret)) for secret, key in self._given if key.id == id_]

    async def _read_if_old(self) -> None:
        if self.fresh_s():
            return
        # Requests that come meanwhile share the read: a service may get a thousand of them at once.
        if self._reading is None:
            reads = self._read() if self._keeper is None else self._read_either(self._keeper)
            self._reading = asyncio.create_task(reads)
            self._reading.add_done_callback(self._end_reading)
        await asyncio.shield(self._reading)

    def _end_reading(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # every request that waited for it may have gone

    async def _read_either(self, keeper: Keeper) -> None:
        """
        Read the keys in the queue, or while that does not answer in the record.

        A queue that is away is asked beside the requests: only the first of them wait for it.

        Raises:
            DulyError: Neither answers, or the queue has no keys and the record does not answer.
        """
        if self._asking is None:
            self._answered = False
            self._asking = asyncio.create_task(self._read())
            self._asking.add_done_callback(self._end_asking)
        asking = self._asking
        if not self._away:
            await asyncio.wait([asking], timeout=ANSWERS_WITHIN_S)
        if asking.done() or self._answered:
            try:
                return await asking
            except SERVER_ERRORS as error:
                if self._seen is None or self._answered:
                    raise
                reason = str(error)
        else:
            reason = "no answer"
        if self._seen is None:
            # A queue whose record begins now may have keys that the record has not.
            return await asking
        if not self._away:
            log.warning("API keys are read in the record while the queue is away: %s", reason)
        self._away = True
        try:
            async with asyncio.timeout(RECALL_S):
                found = await keeper.kept()
                self._seen = bool(self._seen or found or self._given) or await keeper.required()
        except TimeoutError:
            raise StoreUnavailable("neither the queue nor the record tells its API keys") from None
        self._know(found.values())
        self._read_s = time.monotonic()
        return None

    def _end_asking(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # every request that waited for it may have gone on without it

    async def _read(self) -> None:
        found = await self._store.link.call("HGETALL", self._place)
        self._answered, self._away = True, False
        self._know(found[1::2])
        await self._remember()
        self._read_s = time.monotonic()

    def _know(self, found: Iterable[bytes]) -> None:
        self._known = {key.id: key for key in (msgspec.json.decode(each, type=ApiKey) for each in found)}

    async def _remember(self) -> None:
        """
        Note the first key where a queue that loses its memory does not lose it.
        """
        if self._known or self._given:
            self._seen = True
            if not self._kept:
                self._kept = await self._keep()
        elif not self._seen:
            self._seen = await self._recall()

    async def _recall(self) -> bool:
        """
        Return whether marker or record know of a key, be it one that came and went since the last look.

        Raises:
            StoreUnavailable: The record cannot be read.
        """
        if self._marker is not None and self._marker.exists():
            return True
        if self._keeper is None:
            return False
        if self._seen is None:
            return await self._keeper.required()
        try:
            async with asyncio.timeout(RECALL_S):
                return await self._keeper.required()
        except (DulyError, TimeoutError) as error:
            # An emptied queue looks like one that never had a key, and one may have been made elsewhere.
            said = str(error) or "no answer"
            if time.monotonic() - self._doubted_s >= DOUBT_S:
                self._doubted_s = time.monotonic()
                log.critical(
                    "the queue has no API keys, and the record does not tell whether it had some (%s): "
                    "every request is answered with 503 until the record answers",
                    said,
                )
            raise StoreUnavailable("the record does not tell whether there were API keys") from error

    async def _keep(self) -> bool:
        try:
            if self._marker is not None:
                self._marker.touch(mode=0o600)
            if self._keeper is not None:
                await self._keeper.require()
        except (OSError, DulyError) as error:
            # The keys are there and work; the next look at them tries again.
            log.warning("cannot remember that this queue has API keys: %s", error)
            return False
        return True

    @property
    def _place(self) -> str:
        return self._store.keys[0].fixed["api_keys"]


async def end_reads(ring: KeyRing) -> None:
    """
    End what a ring reads at this moment, for a service that ends.
    """
    under_way = (ring._reading, ring._asking)  # noqa: SLF001  # no part of what a ring is to its users
    tasks = [task for task in under_way if task is not None]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _digest(secret: str) -> str:
    # A secret of 256 random bits needs no salt and no slow hash: there is nothing to guess.
    return hashlib.sha256(secret.encode()).hexdigest()


@cache
def _stretch(secret: str) -> bytes:
    # A person may have chosen it: whoever sees what was signed with it must not be able to try many.
    return hashlib.scrypt(secret.encode(), salt=b"duly api key", n=2**14, r=8, p=1)
