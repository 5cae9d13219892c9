"""
``duly pipeline hydrate``: what it says, and what it refuses.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from duly import Duly, JobNotFound, JobState
from duly.cli.main import main
from duly.spark.horizon import put_off


@pytest.fixture
def here(spark, valkey, namespace, tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("DULY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DULY_URL", valkey.url)
    monkeypatch.setenv("DULY_NAMESPACE", namespace)
    return tmp_path


def put(spark, *rows):
    now = datetime.now(UTC)
    given = [(id_, now + timedelta(hours=hours), "{}") for id_, hours in rows]
    frame = spark.createDataFrame(given, "id string, due_at timestamp, payload string")
    put_off(frame, "later", topic="mail")


def state(id_):
    async def look():
        async with Duly() as app:
            return (await app.job("mail", id_).get()).state

    return asyncio.run(look())


def test_a_pass_is_planned_made_and_remembered(here, spark, capsys):
    put(spark, ("soon", 0.5), ("far", 48))
    flags = ("pipeline", "hydrate", "--table", "later")
    assert 0 == main([*flags, "--dry-run"])
    assert "1 rows are due within 1h and not in the queue\n" == capsys.readouterr().out
    with pytest.raises(JobNotFound):
        state("soon")
    assert 0 == main([*flags, "--once", "--json"])
    told = msgspec.json.decode(capsys.readouterr().out)
    assert (1, 1, 0, []) == (told["number"], told["moved"], told["rejected"], told["examples"])
    assert JobState.scheduled is state("soon")
    assert 0 == main(["jobs", "cancel", "mail/far"])
    assert "mail/far accepted: cancelled if it is in the table" in capsys.readouterr().out
    assert 0 == main([*flags, "--once", "--window", "50h"])
    assert ": 0 moved, 0 kept, 1 cancelled, 0 rejected\n" in capsys.readouterr().out
    assert 0 == main(["stats"])
    assert "pipeline hydrate at " in capsys.readouterr().out


def test_what_cannot_work_is_said_before_spark_starts(here, capsys):
    flags = ("pipeline", "hydrate", "--table", "nowhere")
    assert 2 == main([*flags])
    assert f"duly: there is no table of far-future jobs at {here}/nowhere" in capsys.readouterr().err
    assert 2 == main([*flags, "--every", "2h"])
    assert "--every must be shorter than --window" in capsys.readouterr().err
