"""
What a loss of the queue is found by, how its jobs are brought back, and who does it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _name(length: int) -> sa.types.TypeEngine[str]:
    ascii_ = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii_, "mysql", "mariadb")


def upgrade() -> None:
    """
    Make what is not there: on MySQL a step that broke off half-way is begun again.

    Generations are begun anew: the first process to come compares its queue with the record.
    """
    op.create_table(
        "duly_watermarks",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.String(64), nullable=False),
        sa.Column("counter", sa.BigInteger, nullable=False),
        sa.Column("nonce", sa.String(32), nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
    )
    op.create_table(
        "duly_leaders",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("holder", _name(200), nullable=False),
        sa.Column("term", sa.BigInteger, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
    )
    there = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("duly_generations")}
    with op.batch_alter_table("duly_generations") as table:
        if "server_id" in there:
            table.drop_column("server_id")
        for column in (
            sa.Column("lives", sa.Text, nullable=False, server_default="[]"),
            sa.Column("lost", sa.Text, nullable=False, server_default="[]"),
            sa.Column("renewed", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("back_pass", sa.SmallInteger),
            sa.Column("back_from_ms", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("back_ms", sa.BigInteger, nullable=False, server_default="0"),
            sa.Column("back_topic", _name(100), nullable=False, server_default=""),
            sa.Column("back_id", _name(200), nullable=False, server_default=""),
            sa.Column("brought_back", sa.BigInteger, nullable=False, server_default="0"),
        ):
            if column.name not in there:
                table.add_column(column)
    op.create_index("duly_jobs_due", "duly_jobs", ["due_ms", "namespace"], if_not_exists=True)
    op.drop_index("duly_attempts_ended", "duly_attempts", if_exists=True)


def downgrade() -> None:
    """
    Refuse: a queue that has lost something would not be found out.
    """
    msg = "the tables that show a loss of the queue are not removed by duly"
    raise NotImplementedError(msg)
