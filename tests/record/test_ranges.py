"""
A record cut into parts: small topics together, large ones in pieces, and every row in one of them.
"""

from __future__ import annotations

import pytest

from duly.record import ranges
from duly.record.ranges import key_ranges, read_range
from duly.record.schema import reached
from tests.record.kit import row, write_rows


async def test_every_row_is_in_one_part(database, migrated_url, namespace, monkeypatch):
    counts = {"a": 3, "B": 23, "c": 4, "d": 9}
    names = [(topic, f"{n:02}") for topic, count in counts.items() for n in range(count)]
    await write_rows(database, *(row(namespace, id_, topic=topic) for topic, id_ in names))
    await write_rows(database, row("other", "00"))
    monkeypatch.setattr(ranges, "PAGE", 5)
    with reached(migrated_url) as engine:
        with engine.connect() as connection:
            parts = key_ranges(connection, namespace, 8)
        read = [
            [seen.key for each in part for page in read_range(engine, namespace, each) for seen in page]
            for part in parts
        ]
    assert sorted(names) == sorted(tuple(key) for part in read for key in part)
    assert [["B"], ["B"], ["a", "c"], ["d"]] == sorted(sorted({key.topic for key in part}) for part in read)
    assert [7, 8, 9, 15] == sorted(map(len, read))


@pytest.mark.parametrize("migrated_url", ["sqlite"], indirect=True)
async def test_an_empty_record_has_no_parts(migrated_url, namespace):
    with reached(migrated_url) as engine, engine.connect() as connection:
        assert [] == key_ranges(connection, namespace, 8)
