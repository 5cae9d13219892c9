"""
The example of reminders from a table: its pure parts, its table on real databases, notebook and tutorial.

Its program is run by its README, see tests/docs/test_walks.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.databases import PostgreSQL
from tests.docs.pages import ROOT, blocks

EXAMPLE = ROOT / "examples" / "reminders"
NOON = datetime(2150, 1, 1, 12, tzinfo=UTC)
MODULES = ("customers", "plan", "reminders", "shop")


@pytest.fixture
def example(monkeypatch):
    """
    Its modules can be imported, as they can where the example is run.
    """
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def queued(spark, *rows):
    schema = "id string, state string, attempts int, due_at timestamp, payload string"
    return spark.createDataFrame(list(rows), schema)


def wanted_rows(spark, *rows):
    return spark.createDataFrame(list(rows), "id string, due_at timestamp, payload string")


def test_a_customer_is_reminded_four_times_and_each_has_an_id_of_its_own(spark, example):
    from customers import COLUMNS
    from plan import wanted

    ends_ms = int(NOON.timestamp() * 1000) + 1
    found = wanted(spark.createDataFrame([(7, "Ada", ends_ms)], COLUMNS))
    told = found.selectExpr("id", "unix_millis(due_at) as due_ms", "payload").collect()
    day_ms = 86_400_000
    assert [
        (f"customer-7-{days}", ends_ms - days * day_ms, {"customer": 7, "name": "Ada", "days": days})
        for days in (30, 7, 1, 0)
    ] == [(row.id, row.due_ms, json.loads(row.payload)) for row in told]


def test_each_kind_of_difference_is_told_and_nothing_else(spark, example):
    from plan import differences

    past, later = NOON - timedelta(days=1), NOON + timedelta(days=1)
    should = wanted_rows(
        spark,
        ("new", later, "{}"),
        ("moved", later, "{}"),
        ("reworded", later, "{}"),
        ("over", past, "{}"),
        ("forgotten", past, "{}"),
        ("retried", NOON, "{}"),
        ("right", later, "{}"),
        ("running", later, "{}"),
    )
    have = queued(
        spark,
        ("moved", "scheduled", 0, NOON, "{}"),
        ("reworded", "scheduled", 0, later, '{"old": 1}'),
        ("over", "succeeded", 1, past, "{}"),
        ("retried", "scheduled", 1, later, "{}"),
        ("right", "scheduled", 0, later, "{}"),
        ("running", "running", 1, NOON, "{}"),
        ("unwanted", "scheduled", 0, later, "{}"),
        ("unwanted and over", "succeeded", 1, past, "{}"),
    )
    found = {row.id: row.kind for row in differences(should, have, NOON).collect()}
    assert {"new": "missing", "moved": "due", "reworded": "payload", "unwanted": "orphan"} == found


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/customers.db"
        return
    server = PostgreSQL()
    server.start()
    try:
        url = server.fresh()
        yield re.sub(r"^postgresql\+\w+:", "postgresql:", url)
    finally:
        server.stop()


def test_the_table_of_customers_is_the_same_on_either_database(database, example):
    from customers import Customers

    customers = Customers(database)
    for _ in range(2):  # made anew each time
        customers.create(400, NOON, within_s=10)
    before = {customer: ends_ms for customer, _, ends_ms in customers.rows()}
    assert set(range(400)) == set(before)
    month_ms, begin_ms = 30 * 86_400_000, int(NOON.timestamp() * 1000)
    soon = {customer for customer, ends_ms in before.items() if ends_ms - month_ms < begin_ms + 10_000}
    assert set(range(0, 400, 25)) == soon
    assert (4, 2, 3) == (customers.leave(), customers.renew(), customers.join(400, 3, NOON))
    after = {customer: ends_ms for customer, _, ends_ms in customers.rows()}
    assert {99, 199, 299, 399} == set(before) - set(after)
    assert {400, 401, 402} == set(after) - set(before)
    assert {98, 298} == {
        customer for customer in set(after) & set(before) if before[customer] != after[customer]
    }


def test_a_database_that_is_not_there_is_a_sentence(example, unused_tcp_port):
    from customers import Customers

    with pytest.raises(SystemExit, match="say sqlite:///FILE or postgresql://"):
        Customers("mysql://x")
    with pytest.raises(SystemExit, match="the database cannot be reached: "):
        Customers(f"postgresql://nobody@127.0.0.1:{unused_tcp_port}/none").rows()


async def test_the_notebook_runs_from_top_to_bottom(example, spark, monkeypatch, tmp_path, capsys):
    notebook = json.loads((EXAMPLE / "reminders.ipynb").read_text("utf-8"))
    assert (4, 5) == (notebook["nbformat"], notebook["nbformat_minor"])
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    monkeypatch.setenv("CUSTOMERS", "400")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = {"__name__": "__main__"}
    for cell in code:
        # As Jupyter does it: a loop runs already, and a cell may await.
        compiled = compile("".join(cell["source"]), cell["id"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        answer = eval(compiled, names)  # noqa: S307  # our own notebook
        if inspect.isawaitable(answer):
            await answer
    said = capsys.readouterr().out
    assert "1,600 reminders in " in said
    assert "s: 1,600 new, 0 kept" in said
    assert "8 sent or moved, 16 cancelled\nnow the queue differs: nothing" in said
    assert "16 of 16 that are due soon are sent" in said
    [page] = tmp_path.glob("reminders-*/report.html")
    assert "mail.reminder" in page.read_text("utf-8")


def test_the_tutorial_shows_what_is_in_the_example():
    mark = re.compile(r"not run: from examples/reminders/(\w+\.py)")
    shown = [block for block in blocks(ROOT / "docs/tutorial/reminders.md") if block.language == "python"]
    assert len(shown) > 4
    for block in shown:
        assert (found := mark.fullmatch(block.mark)), f"{block} says not where it is from"
        assert block.text in (EXAMPLE / found[1]).read_text("utf-8"), f"{block} is not in {found[1]}"
