"""
Arrays written by us are read by PostgreSQL as what they were.
"""

from __future__ import annotations

import psycopg
import pytest

from duly.job import JobState
from duly.record.dialects import array


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ["plain", 'a "quoted" one', "back\\slash", "a,b{c}", "", "NULL", None, "ä\n€"]),
        ("bytea", [b"", b'\x00\\"\xff{},', None, b"NULL"]),
        ("bigint", [0, -1, 2**62, None, JobState.succeeded]),
        ("text", []),
    ],
)
def test_what_goes_into_an_array_comes_out_of_it(postgresql, kind, values):
    with psycopg.connect(postgresql.url("postgres")) as connection:
        [[found]] = connection.execute(f"SELECT CAST(%s AS {kind}[])", [array(values)]).fetchall()
    assert values == found
