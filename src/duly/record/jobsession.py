"""
The sessions that handlers get for their own transactions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from duly.record.sessions import IN_BLOCK

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection


class Result:
    """
    The result that a handler gives inside a block.
    """

    def __init__(self, encode: Callable[[object], bytes]) -> None:
        self.value: object = None
        self.data = b""
        self._encode = encode

    def set(self, value: object) -> None:
        """
        Write it down; the last one counts.

        Raises:
            UsageError: It cannot be stored.
        """
        self.data = self._encode(value)
        self.value = value


class JobSession(Session):
    """
    The session of a block in a plain function.  `commit` and `rollback` end savepoints, not the block.
    """

    def __init__(self, connection: Connection, result: Result) -> None:
        super().__init__(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        self.info[IN_BLOCK] = True
        self._result = result

    def set_result(self, value: object) -> None:
        """
        Give the result of the job, which is stored when the block ends.

        Raises:
            UsageError: It cannot be stored.
        """
        self._result.set(value)

    def driver_connection(self) -> Any:
        """
        Return the connection of psycopg, PyMySQL or sqlite3 itself, inside the transaction.

        Its ``commit`` and ``rollback`` must not be called.
        """
        return self.connection().connection.driver_connection


class AsyncJobSession(AsyncSession):
    """
    The session of a block in an async function.  `commit` and `rollback` end savepoints, not the block.
    """

    def __init__(self, connection: AsyncConnection, result: Result) -> None:
        super().__init__(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)
        self.sync_session.info[IN_BLOCK] = True
        self._result = result

    def set_result(self, value: object) -> None:
        """
        Give the result of the job, which is stored when the block ends.

        Raises:
            UsageError: It cannot be stored.
        """
        self._result.set(value)

    async def driver_connection(self) -> Any:
        """
        Return the connection of psycopg, asyncmy or aiosqlite itself, inside the transaction.

        Its ``commit`` and ``rollback`` must not be called.
        """
        connection = await self.connection()
        return (await connection.get_raw_connection()).driver_connection
