"""
API keys in the record: a queue that lost its memory must not let everybody in, nor let in who was shut out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import delete, select

from duly.record.dialects import insert_absent
from duly.record.tables import api_keys

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from duly.record.database import Database
    from duly.store import Store


REQUIRED = "*"  #: no key has this id: the row stays when the last key is revoked


class KeptKeys:
    """
    The keys of a namespace as the record has them: only hashes of their secrets.
    """

    def __init__(self, database: Database, namespace: str) -> None:
        self._database = database
        self._namespace = namespace

    async def required(self) -> bool:
        """
        Return whether the record has ever kept a key, or was told to require them.
        """
        return await self._database.read(partial(_required, namespace=self._namespace))

    async def require(self) -> None:
        """
        Remember that this queue requires keys.
        """
        await self._database.write(partial(_put, namespace=self._namespace, found={REQUIRED: b""}))

    async def put(self, id_: str, about: bytes) -> None:
        """
        Keep a key.
        """
        await self._database.write(partial(_put, namespace=self._namespace, found={id_: about}))

    async def drop(self, id_: str) -> None:
        """
        Keep a key no longer.
        """
        await self._database.write(partial(_drop, namespace=self._namespace, id_=id_))

    async def adopt(self, store: Store) -> None:
        """
        Take over the keys of a queue whose record begins now.
        """
        found = await store.link.call("HGETALL", _place(store))
        pairs = zip(found[::2], found[1::2], strict=True)
        known = {id_.decode(): about for id_, about in pairs}
        if known:
            await self._database.write(
                partial(_put, namespace=self._namespace, found={REQUIRED: b"", **known})
            )
        # One that was revoked meanwhile had no row to be dropped.
        for id_ in known.keys() - await _there(store):
            await self.drop(id_)

    async def restore(self, store: Store) -> None:
        """
        Let the queue have the keys of the record, and no others.
        """
        kept = await self.kept()
        for id_, about in kept.items():
            await store.put_key(id_, about)
        there = await _there(store)
        # Asked again, last: one that was revoked meanwhile must not come back, one that was made must stay.
        if gone := there - (await self.kept()).keys():
            await store.link.call("HDEL", _place(store), *gone)

    async def kept(self) -> dict[str, bytes]:
        """
        Return every key that the record keeps, by id.
        """
        return await self._database.read(partial(_all, namespace=self._namespace))


async def _there(store: Store) -> set[str]:
    return {id_.decode() for id_ in await store.link.call("HKEYS", _place(store))}


def _place(store: Store) -> str:
    return store.keys[0].fixed["api_keys"]


def _put(connection: Connection, namespace: str, found: dict[str, bytes]) -> None:
    rows = [{"namespace": namespace, "key": id_, "about": about} for id_, about in found.items()]
    insert_absent(connection, api_keys, rows)


def _required(connection: Connection, namespace: str) -> bool:
    any_ = select(api_keys.c.key).where(api_keys.c.namespace == namespace).limit(1)
    return connection.execute(any_).first() is not None


def _drop(connection: Connection, namespace: str, id_: str) -> None:
    connection.execute(delete(api_keys).where(api_keys.c.namespace == namespace, api_keys.c.key == id_))


def _all(connection: Connection, namespace: str) -> dict[str, bytes]:
    found = connection.execute(
        select(api_keys.c.key, api_keys.c.about).where(
            api_keys.c.namespace == namespace, api_keys.c.key != REQUIRED
        )
    )
    return {id_: bytes(about) for id_, about in found}
