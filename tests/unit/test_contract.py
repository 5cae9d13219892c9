"""
The contract suite leaves out no verb, and no mark of it names a face in vain.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from duly import Duly, JobHandle, Reply
from duly.follower import Follower
from duly.quarantine import Quarantine
from duly.views import Views
from tests.contract import faces, table

CONTRACT = Path(table.__file__).parent

#: What is no verb of the queue: declarations of an app, its connections, and steps of the service.
OTHERS = {
    Duly: {
        *("handler", "batch_handler", "remove_handler", "read_result", "inherit", "trace_with"),
        *("on_start", "on_success", "on_failure", "on_timeout", "on_lease_lost"),
        *("around_enqueue", "around_handler"),
        *("store", "queue", "record", "promises", "waiters", "key_ring", "reply_queue", "crew", "make_store"),
        *("aclose", "redirect", "purge_some", "enqueue_awaited", "need_handlers"),
    },
    # Called by `async for` and `async with`.
    Follower: {"begin", "next", "aclose"},
    # What a pipeline asks for among the shards of a server, and what tells one answer from another.
    Views: {"newest", "changed", "shard_of", "workers"},
}


@pytest.mark.parametrize("kind", [Duly, JobHandle, Views, Reply, Follower, Quarantine])
def test_every_verb_is_in_the_contract(kind):
    text = "".join(file.read_text("utf-8") for file in CONTRACT.glob("test_*.py"))
    verbs = {
        name
        for name, _ in inspect.getmembers(kind, inspect.isroutine)
        if not name.startswith("_") and name not in OTHERS.get(kind, set())
    }
    assert set() == {verb for verb in verbs if not re.search(rf"\.{verb}\b", text)}


def test_every_mark_names_faces_and_a_reason():
    limits = [limit for verb in table.verbs() for limit in verb.limits]
    assert limits
    for limit in limits:
        assert limit.faces
        assert set(limit.faces) <= set(faces.FACES)
        assert limit.reason


def test_every_file_of_the_contract_says_what_its_verb_is():
    for verb in table.verbs():
        assert verb.name
        assert verb.about
        assert verb.rules


def test_no_test_of_the_contract_asks_on_which_face_it_runs():
    for file in CONTRACT.glob("test_*.py"):
        text = file.read_text("utf-8")
        assert not re.search(r"\bface\b", text), file.name
        assert [] == faces_outside_of_marks(ast.parse(text)), file.name


def faces_outside_of_marks(tree):
    """
    The names of faces that stand anywhere but in the arguments of a mark.
    """
    marks = {f"pytest.mark.{mark}" for mark in table.ENDINGS}
    named = {name for name in vars(faces) if name.isupper()}
    told = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in marks
        for inner in ast.walk(node)
    }
    return [
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in named and id(node) not in told
    ]


def test_a_test_that_asks_by_the_name_of_a_face_is_found():
    asks = "@pytest.mark.broken(HTTP, reason='')\ndef test_it():\n    if opened.queue in OVER_HTTP: return"
    assert ["OVER_HTTP"] == faces_outside_of_marks(ast.parse(asks))
