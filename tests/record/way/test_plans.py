"""
PostgreSQL finds the rows of a batch by their keys, also before it has statistics: nothing else is read.
"""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from duly.job import JobState
from duly.record.database import sync_engine
from duly.record.dialects import insert_absent
from duly.record.marks import mark
from duly.record.outcomes import write_runs
from duly.record.runs import EndedRun
from duly.record.stored import find
from duly.record.tables import jobs
from tests.record.way.kit import NOW, promised


class Nothing(list):
    """
    The answer to a statement that was not run.
    """

    rowcount = 0


class Explained:
    """
    A connection that says how a statement would be run.
    """

    def __init__(self, connection):
        self.dialect, self.plan = connection.dialect, []
        self._connection = connection

    def execute(self, statement, values=None):
        if values is None:  # a question about the generation, which is another matter
            return self._connection.execute(statement)
        self.plan += self._connection.execute(text(f"EXPLAIN {statement}"), values).scalars()
        return Nothing()


def ways_of(explained):
    return re.findall(
        r"(?:Seq Scan on|Index Scan using|Bitmap Heap Scan on) (\w+)", "\n".join(explained.plan)
    )


@pytest.fixture
def connection(postgresql):
    url = postgresql.migrated()
    engine = sync_engine(url)
    with engine.connect() as connection:
        # What a table looks like before anything is in it is remembered for a while otherwise.
        connection.execute(text("SET plan_cache_mode = force_custom_plan"))
        yield connection
    engine.dispose()
    postgresql.drop(url)


def test_marks_and_outcomes_look_up_each_row_by_its_key(connection, namespace):
    rows = [promised(str(at), NOW + at, namespace=namespace) for at in range(5_000)]
    insert_absent(connection, jobs, [row._asdict() for row in rows])
    explained = Explained(connection)
    some = rows[:100]
    mark(explained, namespace, [(row.key, row.revision) for row in some], 1, {})
    runs = [
        EndedRun(row.key, row.revision, at, "acked", JobState.succeeded, 1, 1, 0, "w", NOW, NOW, 0, b"1")
        for at, row in enumerate(some)
    ]
    write_runs(explained, namespace, [(run, 1) for run in runs])
    ways = ways_of(explained)
    assert 64 == len(ways), "16 partitions, two statements, each of which locks rows before it changes them"
    assert {"pkey"} == {way.rpartition("_")[2] for way in ways}


@pytest.mark.parametrize("lock", [False, True])
def test_what_stands_under_many_ids_is_looked_up_by_its_key(connection, namespace, lock):
    """
    Also where a whole bulk is sent once more, and all of it is there.
    """
    rows = [promised(str(at), NOW + at, namespace=namespace) for at in range(5_000)]
    insert_absent(connection, jobs, [row._asdict() for row in rows])
    keys = [row.key for row in rows[:100]]
    assert dict(zip(keys, rows, strict=False)) == find(connection, namespace, keys, lock=lock)
    explained = Explained(connection)
    find(explained, namespace, keys, lock=lock)
    assert lock == ("LockRows" in "\n".join(explained.plan))
    ways = ways_of(explained)
    assert 16 == len(ways), "one for each partition"
    assert {"pkey"} == {way.rpartition("_")[2] for way in ways}


def test_an_ending_is_written_beside_its_row_and_into_no_index_of_jobs(connection, namespace):
    rows = [promised(str(at), namespace=namespace, relay_ms=None) for at in range(200)]
    insert_absent(connection, jobs, [row._asdict() for row in rows])
    connection.commit()
    runs = [
        EndedRun(row.key, row.revision, at, "acked", JobState.succeeded, 1, 1, 0, "w", NOW, NOW + 9, 0, b"1")
        for at, row in enumerate(rows, 1)
    ]
    write_runs(connection, namespace, [(run, 1) for run in runs], new=True)
    counts = (
        "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_xact_user_tables WHERE relname LIKE :jobs"
    )
    assert (200, 200) == tuple(connection.execute(text(counts), {"jobs": "duly\\_jobs\\_%"}).one())
