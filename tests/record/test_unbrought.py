"""
Rows that the queue has not been given: found by their own index, however many others are beside them.
"""

from __future__ import annotations

import re

import pytest
from sqlalchemy import Select, text

from duly.job import JobKey, JobState
from duly.record.database import sync_engine
from duly.record.dialects import insert_absent
from duly.record.tables import jobs
from duly.record.unbrought import FarTopic, far_times, far_topics, near_rows, to_bring
from duly.record.views import waiting
from tests.record.way.kit import NOW, promised

FAR = NOW + 60_000


class Explained:
    """
    A connection that notes by which index it would read rows.
    """

    def __init__(self, connection):
        self.dialect, self.indexes = connection.dialect, []
        self._connection = connection

    def execute(self, statement):
        assert isinstance(statement, Select)
        explain = "EXPLAIN QUERY PLAN" if self.dialect.name == "sqlite" else "EXPLAIN"
        said = statement.compile(self._connection, compile_kwargs={"literal_binds": True})
        plan = self._connection.execute(text(f"{explain} {said}")).all()
        if self.dialect.name in ("mysql", "mariadb"):
            found = [line.key for line in plan if line.table == "duly_jobs"]
        else:
            told = "\n".join(str(line) for line in plan)
            found = re.findall(r"(?:USING INDEX|Index Scan using|Index Scan on) (\w+)", told)
        self.indexes.append(set(found))
        return self._connection.execute(statement)


@pytest.fixture
def connection(migrated_url, namespace):
    """
    Thousands of ended jobs, ten to be brought soon and twenty beyond the horizon; every fifth was cancelled.
    """
    engine = sync_engine(migrated_url)
    over = {"relay_ms": None, "state": JobState.succeeded.value}
    rows = [promised(f"o{at}", namespace=namespace, **over) for at in range(5_000)]
    for at in range(30):
        due_ms = NOW + at if at < 10 else FAR + at
        state = JobState.cancelled if at % 5 == 4 else JobState.scheduled
        row = promised(f"w{at:02}", due_ms, namespace=namespace, state=state.value)
        rows.append(row._replace(topic="sms" if at % 2 else "mail"))
    with engine.begin() as connection:
        for at in range(0, len(rows), 500):
            insert_absent(connection, jobs, [row._asdict() for row in rows[at : at + 500]])
    with engine.connect() as connection:
        if connection.dialect.name != "sqlite":
            analyze = "ANALYZE" if connection.dialect.name == "postgresql" else "ANALYZE TABLE duly_jobs"
            connection.execute(text(analyze))
            connection.commit()
        if connection.dialect.name == "postgresql":
            # To read a small table as a whole is quicker, and says nothing of a large one.
            connection.execute(text("SET enable_seqscan = off"))
        yield connection
    engine.dispose()


def test_open_rows_are_found_on_both_sides_of_the_horizon(connection, namespace):
    near = near_rows(connection, namespace, ["mail"], FAR)
    assert {JobKey("mail", f"w{at:02}") for at in (0, 2, 6, 8)} == set(near)
    assert {"mail": FarTopic(8, FAR + 10), "sms": FarTopic(8, FAR + 11)} == far_topics(
        connection, namespace, FAR
    )
    assert [FAR + 10, FAR + 11, FAR + 12] == far_times(connection, namespace, FAR, FAR + 13, 100)
    assert {} == far_topics(connection, "another", FAR)


def test_no_more_rows_are_looked_at_than_was_said(connection, namespace):
    assert {JobKey("mail", "w00")} == set(near_rows(connection, namespace, ["mail"], FAR, limit=2))
    assert {"mail": 2, "sms": 2} == {
        topic: about.jobs for topic, about in far_topics(connection, namespace, FAR, limit=5).items()
    }


def test_they_are_found_by_their_own_index(connection, namespace):
    explained = Explained(connection)
    assert 10 == len(to_bring(explained, namespace, FAR, 500))
    near_rows(explained, namespace, ["mail"], FAR)
    far_topics(explained, namespace, FAR)
    far_times(explained, namespace, FAR, FAR + 100, 100)
    for topic in (None, "mail"):
        waiting(explained, namespace, topic, (0, "", ""), 100)
    assert 6 == len(explained.indexes)
    for indexes in explained.indexes:
        assert indexes
        assert all("relay" in index for index in indexes), indexes
