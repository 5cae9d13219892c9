"""
Connections that SQLAlchemy did not make: lent to duly for a moment, in the transaction that they are in.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Dialect, create_engine
from sqlalchemy.dialects import registry
from sqlalchemy.pool import StaticPool

from duly.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

#: For each package of database connections, as its classes' modules begin: what SQLAlchemy calls it, and what
#: keeps it from asking for more than it is lent.
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "sqlite3": ("sqlite+pysqlite", {}),
    "psycopg": ("postgresql+psycopg", {"use_native_hstore": False}),
    "psycopg2": ("postgresql+psycopg2", {"use_native_hstore": False}),
    "pymysql": ("mysql+pymysql", {}),
    "MySQLdb": ("mysql+mysqldb", {}),
}
_PREFIX = "duly_"  #: of the databases' names for `_Guest`


class _Guest(Dialect):
    """
    Makes SQLAlchemy's dialects those of a guest: they change nothing about a connection that they are lent.

    SQLAlchemy would register types, functions or handlers with it, and its owner would get other values.
    """

    @classmethod
    def get_dialect_cls(cls, url: URL) -> type[Dialect]:
        """
        Find the dialect that *url* names, as a guest.
        """
        theirs = url.set(drivername=url.drivername.removeprefix(_PREFIX)).get_dialect()
        mine = {"on_connect": lambda _: None, "supports_statement_cache": True}
        return type(f"Guest_{theirs.__name__}", (theirs,), mine)


for _name, _ in _KINDS.values():
    registry.register((_PREFIX + _name).replace("+", "."), __name__, "_Guest")


class _Lent:
    """
    A connection whose transaction is its owner's: nothing here begins, ends or closes anything.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """
        Leave it to the owner.
        """

    rollback = close = commit


@contextmanager
def lend(connection: Any) -> Iterator[Connection]:
    """
    Make a ``session=`` of a DB-API connection: of sqlite3, psycopg, psycopg2, PyMySQL or mysqlclient.

    What is sent with it is part of the transaction that the connection is in, and its owner commits that or
    rolls it back.  Under Django that connection is ``django.db.connection.connection``.

    Raises:
        UsageError: It is none of these.
    """
    kind = _kind(connection)
    if kind is None:
        what = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise UsageError(f"cannot lend a {what}: it must be a connection of {', '.join(_KINDS)}")
    name, options = kind
    engine = create_engine(
        f"{_PREFIX}{name}://",
        creator=lambda: _Lent(connection),
        poolclass=StaticPool,
        # Its owner's settings stand: nothing is reset when it is given back.
        pool_reset_on_return=None,
        **options,
    )
    try:
        with engine.connect() as lent:
            yield lent
    finally:
        engine.dispose(close=False)


def _kind(connection: Any) -> tuple[str, dict[str, Any]] | None:
    # Frameworks make classes of their own out of these.
    for kind in type(connection).__mro__:
        found = _KINDS.get(kind.__module__.partition(".")[0])
        if found is not None and kind.__qualname__.rpartition(".")[2] != "AsyncConnection":
            return found
    return None
