"""
A table for what is kept of requests with an Idempotency-Key.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def _name(length: int) -> sa.types.TypeEngine[str]:
    ascii_ = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii_, "mysql", "mariadb")


def upgrade() -> None:
    """
    Make it, unless a step that broke off half-way has.
    """
    op.create_table(
        "duly_idempotency",
        sa.Column("namespace", _name(100), primary_key=True),
        sa.Column("name", _name(200), primary_key=True),
        sa.Column(
            "about", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False
        ),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
    )
    op.create_index(
        "duly_idempotency_until", "duly_idempotency", ["until_ms", "namespace"], if_not_exists=True
    )


def downgrade() -> None:
    """
    Drop it: what was sent under a key counts as new then.
    """
    op.drop_table("duly_idempotency")
