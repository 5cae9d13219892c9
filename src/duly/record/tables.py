"""
The tables of a record, as SQLAlchemy sees them; `migrations` brings databases to this shape.

Times are whole milliseconds since 1970, as everywhere in duly: no database's idea of a
time zone or of precision comes in between.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects import mysql

metadata = MetaData()

# Ids differ by case and have no language; the default of MySQL would fold them.
_ASCII = {"charset": "ascii", "collation": "ascii_bin"}
Namespace = String(100).with_variant(mysql.VARCHAR(100, **_ASCII), "mysql", "mariadb")
Topic = String(100).with_variant(mysql.VARCHAR(100, **_ASCII), "mysql", "mariadb")
JobId = String(200).with_variant(mysql.VARCHAR(200, **_ASCII), "mysql", "mariadb")
Name = String(200).with_variant(mysql.VARCHAR(200, **_ASCII), "mysql", "mariadb")
Request = LargeBinary(6).with_variant(mysql.VARBINARY(6), "mysql", "mariadb")
Bytes = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")

jobs = Table(
    "duly_jobs",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("topic", Topic, primary_key=True),
    Column("id", JobId, primary_key=True),
    # Grows with every change of what was promised: the later of its last one plus one and microseconds since
    # 1970, so that a row that was pruned and accepted again never meets an equal revision in Redis.
    Column("revision", BigInteger, nullable=False),
    # Of the call that made the revision: a commit whose answer was lost is recognised when it is sent again.
    Column("request", Request, nullable=False),
    Column("state", SmallInteger, nullable=False),  # of JobState; scheduled stands for whatever is not ended
    Column("due_ms", BigInteger, nullable=False),
    # When the relay has to look at the row: at once, or when its due time comes near; NULL: Redis has it.
    Column("relay_ms", BigInteger),
    Column("hydrated", BigInteger, nullable=False),  # the revision that Redis has been given; 0: none yet
    Column("generation", Integer, nullable=False),  # of the Redis that it was given to
    Column("lane", SmallInteger, nullable=False),
    Column("ttr_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("retain_s", BigInteger),
    Column("max_crashes", SmallInteger, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("crashes", Integer, nullable=False),
    Column("payload", Bytes, nullable=False),
    Column("envelope", Bytes, nullable=False),  # as in Redis
    Column("outcome", Bytes),  # the result of a succeeded job, the error of others
    Column("accepted_ms", BigInteger, nullable=False),
    # The last change that no run made: by a call, or an ending without one.  A run tells its time in its own
    # row: as no index of this table holds what an ending run changes, PostgreSQL writes none of them for it.
    Column("changed_ms", BigInteger, nullable=False),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("lateness_ms", BigInteger),
)

# What the relay asks for, and a list of what is far ahead: soonest first.  Most rows are not in it.
# Neither index begins with the namespace: where PostgreSQL has no statistics yet it took one that does for as
# good a way to a single job as the primary key, and read the whole namespace for each.
Index(
    "duly_jobs_relay",
    jobs.c.relay_ms,
    jobs.c.namespace,
    postgresql_where=jobs.c.relay_ms.is_not(None),
    sqlite_where=jobs.c.relay_ms.is_not(None),
)
# What retention asks for.
Index("duly_jobs_changed", jobs.c.changed_ms, jobs.c.namespace)
# In this order open rows are brought back to a Redis that has lost them.
Index("duly_jobs_due", jobs.c.due_ms, jobs.c.namespace)

attempts = Table(
    "duly_attempts",
    metadata,
    Column("namespace", Namespace),
    Column("topic", Topic),
    Column("id", JobId),
    # The fencing token: every claim has its own, so that a row that is written twice is one row.
    Column("token", BigInteger, autoincrement=False),
    Column("revision", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("word", String(16), nullable=False),  # acked, retried, buried, released, recovered, cancelled
    Column("worker", Name, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    Column("lateness_ms", BigInteger),
    Column("error", Bytes),
    # What differs comes first: it is compared for every row that is written.
    PrimaryKeyConstraint("id", "token", "topic", "namespace"),
)

positions = Table(
    "duly_positions",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    # The last entry of the shard's events whose outcomes are in the rows.
    Column("epoch", String(64), nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("nonce", String(32), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)

# For each shard the last event that a mark was committed with: Redis has it, or has lost something.
watermarks = Table(
    "duly_watermarks",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("shard", Integer, primary_key=True, autoincrement=False),
    Column("epoch", String(64), nullable=False),
    Column("counter", BigInteger, nullable=False),
    Column("nonce", String(32), nullable=False),
)

generations = Table(
    "duly_generations",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    # Grows with each life of a server that is compared with the record; the newest one counts.
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("record_id", String(32), nullable=False),  # the same in all of them; the queue knows it, too
    Column("since_ms", BigInteger, nullable=False),
    Column("reason", String(400), nullable=False),
    Column("lives", Text, nullable=False),  # the life of each shard's server, a list in JSON
    Column("lost", Text, nullable=False),  # shards that were behind the record, a list in JSON
    Column("renewed", BigInteger, nullable=False),  # grows as long as its servers are approved
    # How far open rows of those shards were brought back: 1 for those due from `back_from_ms` on, then 2 for
    # those before, NULL once all were; behind which row; and how many.
    Column("back_pass", SmallInteger),
    Column("back_from_ms", BigInteger, nullable=False),
    Column("back_ms", BigInteger, nullable=False),
    Column("back_topic", Topic, nullable=False),
    Column("back_id", JobId, nullable=False),
    Column("brought_back", BigInteger, nullable=False),
)

# The process that does for all of a namespace what only one should do.
leaders = Table(
    "duly_leaders",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("holder", Name, nullable=False),  # empty once it has resigned
    Column("term", BigInteger, nullable=False),  # grows with each leader
    Column("beat", BigInteger, nullable=False),  # grows as long as the leader lives
)

api_keys = Table(
    "duly_api_keys",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("key", Name, primary_key=True),
    Column("about", Bytes, nullable=False),  # as in Redis: what it may do, and the hash of its secret
)

idempotency = Table(
    "duly_idempotency",
    metadata,
    Column("namespace", Namespace, primary_key=True),
    Column("name", Name, primary_key=True),  # a hash of the caller, the topic and the key
    Column("about", Bytes, nullable=False),  # of `duly.idempotency.Entry`
    Column("until_ms", BigInteger, nullable=False),
)

# What expiry asks for.
Index("duly_idempotency_until", idempotency.c.until_ms, idempotency.c.namespace)
