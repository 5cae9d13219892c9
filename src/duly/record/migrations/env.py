"""
What Alembic runs: the steps that are missing, in the transaction of the connection that it was given.
"""

from __future__ import annotations

from alembic import context

from duly.record.tables import metadata

#: Beside the tables of the application, which may have an Alembic of its own.
VERSION_TABLE = "duly_version"


def run() -> None:
    """
    Go the steps that are missing.
    """
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        # Only MySQL commits each definition of a table by itself.
        transactional_ddl=connection.dialect.name not in ("mysql", "mariadb"),
    )
    with context.begin_transaction():
        context.run_migrations()


# Alembic gives its context a config and then runs this file; who merely imports it changes nothing.
if hasattr(context, "config"):
    run()
