"""
The first tables: jobs and attempts in partitions by id where the database can, and three small ones.

What is written here stays: a database that has gone this step will not go it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

PARTITIONS = 16
# Per cent of a page of PostgreSQL that new rows of jobs fill.  The rest is for what becomes of them: an
# ending that is written beside what it ends needs no new entry in any index.
FILLED = 60


def _name(length: int) -> Any:
    ascii_ = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii_, "mysql", "mariadb")


def _bytes() -> Any:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def upgrade() -> None:
    """
    Make them, those that are not there: on MySQL a step that broke off half-way is begun again.
    """
    request = sa.LargeBinary(6).with_variant(mysql.VARBINARY(6), "mysql", "mariadb")
    _partitioned(
        "duly_jobs",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("topic", _name(100), primary_key=True),
        sa.Column("id", _name(200), primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("request", request, nullable=False),
        sa.Column("state", sa.SmallInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("relay_ms", sa.BigInteger),
        sa.Column("hydrated", sa.BigInteger, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("lane", sa.SmallInteger, nullable=False),
        sa.Column("ttr_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_ms", sa.BigInteger, nullable=False),
        sa.Column("retain_s", sa.BigInteger),
        sa.Column("max_crashes", sa.SmallInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("crashes", sa.Integer, nullable=False),
        sa.Column("payload", _bytes(), nullable=False),
        sa.Column("envelope", _bytes(), nullable=False),
        sa.Column("outcome", _bytes()),
        sa.Column("accepted_ms", sa.BigInteger, nullable=False),
        sa.Column("changed_ms", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("lateness_ms", sa.BigInteger),
        filled=FILLED,
    )
    waiting = sa.text("relay_ms IS NOT NULL")
    op.create_index(
        "duly_jobs_relay",
        "duly_jobs",
        ["relay_ms", "namespace"],
        if_not_exists=True,
        postgresql_where=waiting,
        sqlite_where=waiting,
    )
    op.create_index("duly_jobs_changed", "duly_jobs", ["changed_ms", "namespace"], if_not_exists=True)
    _partitioned(
        "duly_attempts",
        sa.Column("namespace", _name(100)),
        sa.Column("topic", _name(100)),
        sa.Column("id", _name(200)),
        sa.Column("token", sa.BigInteger, autoincrement=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("word", sa.String(16), nullable=False),
        sa.Column("worker", _name(200), nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("lateness_ms", sa.BigInteger),
        sa.Column("error", _bytes()),
        sa.PrimaryKeyConstraint("id", "token", "topic", "namespace"),
    )
    op.create_index("duly_attempts_ended", "duly_attempts", ["ended_ms", "namespace"], if_not_exists=True)
    _plain(
        "duly_positions",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.String(64), nullable=False),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )
    _plain(
        "duly_generations",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("generation", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("record_id", sa.String(32), nullable=False),
        sa.Column("server_id", sa.String(100), nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.String(400), nullable=False),
    )
    _plain(
        "duly_api_keys",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("key", _name(200), primary_key=True),
        sa.Column("about", _bytes(), nullable=False),
    )


def _plain(name: str, *columns: SchemaItem, **options: Any) -> None:
    op.create_table(name, *columns, if_not_exists=True, mysql_engine="InnoDB", **options)


def _partitioned(name: str, *columns: SchemaItem, filled: int = 100) -> None:
    _plain(
        name,
        *columns,
        postgresql_partition_by="HASH (id)",
        mysql_partition_by="KEY (id)",
        mysql_partitions=str(PARTITIONS),
    )
    if op.get_bind().dialect.name == "postgresql":
        for number in range(PARTITIONS):
            op.execute(
                f"CREATE TABLE {name}_p{number} PARTITION OF {name} "
                f"FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {number}) WITH (fillfactor = {filled})"
            )


def downgrade() -> None:
    """
    Refuse: it would forget what was promised.
    """
    msg = "the first tables are not removed by duly: they hold what was promised"
    raise NotImplementedError(msg)
