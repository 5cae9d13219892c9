"""
Every way to the queue has every verb: the store, a record and the HTTP client take the same calls.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import duly
from duly import Duly
from duly.follower import Follower, StoreFollower
from duly.quarantine import Quarantine, StoreQuarantine
from duly.record.assembly import WholeRecord
from duly.record.views import RecordViews
from duly.remote.follower import RemoteFollower
from duly.remote.oversight import RemoteQuarantine
from duly.remote.replies import RemoteReplies
from duly.remote.store import RemoteStore
from duly.remote.views import RemoteViews
from duly.remote.waiting import RemoteWaiters
from duly.replies import ReplyQueue, StoreReplies
from duly.store import Store
from duly.sync.follower import SyncFollower
from duly.sync.quarantine import SyncQuarantine
from duly.sync.twin import SyncDuly
from duly.views import Views
from duly.waiting import Waiters

SOURCE = Path(duly.__file__).parent
#: Where the queue is used by whoever does not know which face it has.
CALLERS = [SOURCE / "handle.py"]
for folder in ("app", "cli", "sync"):
    CALLERS += sorted((SOURCE / folder).glob("*.py"))

RECORDED = {"session"}  #: said only to a record
REMOTE = {"purge"}  #: asked only of a service


#: What functions say that take it from their caller.
HANDED_ON = {"queue": "Store | WholeRecord", "views": "Views"}


class Uses(ast.NodeVisitor):
    """
    Which methods are called of what some method of the app gives, by itself or by the name it was given.
    """

    def __init__(self, giver):
        self.giver = giver
        self.named = set()
        self.found = {}

    def visit_FunctionDef(self, node):
        taken = {
            each.arg
            for each in node.args.args
            if each.annotation is not None and ast.unparse(each.annotation) == HANDED_ON[self.giver]
        }
        before, self.named = self.named, taken
        self.generic_visit(node)
        self.named = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  # as the visitor of ast calls it

    def visit_Assign(self, node):
        pairs = [(target, node.value) for target in node.targets]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
        given = {target for target, value in pairs if isinstance(target, ast.Name) and self._gives(value)}
        self.named |= {target.id for target in given}
        self.generic_visit(node)

    def visit_Call(self, node):
        called = node.func
        if isinstance(called, ast.Attribute) and (
            self._gives(called.value)
            or (isinstance(called.value, ast.Name) and called.value.id in self.named)
        ):
            words = {word.arg for word in node.keywords if word.arg}
            self.found.setdefault(called.attr, set()).update(words)
        self.generic_visit(node)

    def _gives(self, node):
        # await app.queue(), ready or await app.queue(), and ask(app.queue()) in commands.
        if isinstance(node, ast.BoolOp):
            node = node.values[-1]
        if isinstance(node, ast.Await):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            node = node.args[0]
        called = node.func if isinstance(node, ast.Call) else None
        return isinstance(called, ast.Attribute) and called.attr == self.giver


def uses(giver):
    found = {}
    for path in CALLERS:
        visitor = Uses(giver)
        visitor.visit(ast.parse(path.read_text("utf-8")))
        for name, words in visitor.found.items():
            found.setdefault(name, set()).update(words)
    return found


def test_the_verbs_that_are_used_are_found():
    verbs = {"enqueue", "enqueue_many", "cancel", "reschedule", "requeue", "pause", "resume", "limit"}
    assert verbs <= set(uses("queue"))
    assert {"get", "page", "stats", "newest", "now_ms", "workers"} <= set(uses("views"))


@pytest.mark.parametrize("face", [Store, RemoteStore, WholeRecord])
def test_every_face_has_every_verb_that_the_app_and_its_commands_use(face):
    for verb, words in uses("queue").items():
        if verb in REMOTE and face is not RemoteStore:
            continue
        method = getattr(face, verb, None)
        assert method is not None, f"{face.__name__} has no {verb}"
        missing = words - RECORDED - set(inspect.signature(method).parameters)
        assert not missing, f"{face.__name__}.{verb} does not take {missing}"


@pytest.mark.parametrize("face", [Views, RemoteViews, RecordViews])
def test_every_face_has_every_question_that_the_app_and_its_commands_ask(face):
    for name, words in uses("views").items():
        method = getattr(face, name, None)
        if name == "document" and face is not RemoteViews:
            continue
        assert method is not None, f"{face.__name__} has no {name}"
        assert words <= set(inspect.signature(method).parameters), f"{face.__name__}.{name}"


def public(kind):
    return {name: each for name, each in inspect.getmembers(kind, callable) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("kind", "face"),
    [
        (Views, RemoteViews),
        (Views, RecordViews),
        (Quarantine, StoreQuarantine),
        (Quarantine, RemoteQuarantine),
        (ReplyQueue, StoreReplies),
        (ReplyQueue, RemoteReplies),
        (Follower, StoreFollower),
        (Follower, RemoteFollower),
    ],
)
def test_every_face_takes_the_same_arguments(kind, face):
    for name, method in public(kind).items():
        ours = set(inspect.signature(method).parameters)
        theirs = set(inspect.signature(getattr(face, name)).parameters)
        assert ours <= theirs, f"{face.__name__}.{name} does not take {ours - theirs}"


def test_whoever_waits_is_asked_alike():
    for name in ("ended", "aclose"):
        ours, theirs = getattr(Waiters, name), getattr(RemoteWaiters, name)
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters


@pytest.mark.parametrize(("kind", "twin"), [(Quarantine, SyncQuarantine), (Duly, SyncDuly)])
def test_what_gives_an_iterator_or_an_object_has_a_blocking_twin(kind, twin):
    for name in {"replies", "events", "job"} if kind is Duly else public(kind):
        ours = list(inspect.signature(getattr(kind, name)).parameters)
        assert ours == list(inspect.signature(getattr(twin, name)).parameters), name


def test_a_follower_has_a_blocking_twin():
    for name in ("offset", "close", "__next__", "__enter__", "__exit__"):
        assert hasattr(SyncFollower, name)
