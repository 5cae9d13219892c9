"""
Hooks and middleware that are registered again: each of them is called once, and different ones all are.
"""

from __future__ import annotations

import functools
import importlib
import sys

import pytest

from duly import Duly

HOOKS = ("on_start", "on_success", "on_failure", "on_timeout", "on_lease_lost")
AROUND = ("around_enqueue", "around_handler")


def registered(app, name):
    if name in AROUND:
        return getattr(app.middleware, name.removeprefix("around_"))
    return getattr(app.hooks, name.removeprefix("on_"))


@pytest.mark.parametrize("name", [*HOOKS, *AROUND])
def test_what_a_factory_registers_again_takes_the_place_of_what_it_was(name):
    app = Duly()

    def create(tenant):
        @getattr(app, name)
        async def first(*about):
            return tenant

        @getattr(app, name)
        async def second(*about):
            return tenant

        return [first, second]

    create("acme")
    again = create("other")
    assert again == registered(app, name)


@pytest.fixture
def run_cell():
    """
    A notebook: each cell is compiled when it runs, in the same namespace.
    """
    namespace = {"__name__": "__main__", "app": Duly(), "functools": functools}

    def run(source):
        exec(compile(source, "<cell>", "exec"), namespace)  # noqa: S102  # of our own
        return namespace

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("@app.on_success\ndef tell(*about): ...", "\n\n@app.on_success\ndef tell(job, result, x=2): ..."),
        ("@app.on_success\ndef tell(*about, x=1): ...", "@app.on_success\ndef tell(job, result, x=2): ..."),
        ("app.on_success(lambda job, result: 1)", "app.on_success(lambda job, result: 1)"),
    ],
)
def test_a_cell_that_runs_again_replaces_its_hook(run_cell, before, after):
    run_cell(before)
    app = run_cell(after)["app"]
    [hook] = app.hooks.success
    assert hook.__defaults__ == ((2,) if "x=2" in after else None)


def test_a_cell_with_a_decorator_replaces_its_hook(run_cell):
    run_cell("""def timed(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)
    return wrapper
""")
    for number in range(3):
        found = run_cell(f"@app.on_success\n@timed\ndef tell(job, result): return {number}")
    [hook] = found["app"].hooks.success
    assert 2 == hook(None, None)


def test_a_module_that_is_reloaded_replaces_its_hooks(tmp_path, monkeypatch):
    app = Duly()
    monkeypatch.setitem(sys.modules, "the_app", type("Module", (), {"app": app}))
    monkeypatch.syspath_prepend(tmp_path)
    source = "from the_app import app\n\n@app.on_start\ndef tell(job): ...\n"
    file = tmp_path / "reloaded_hooks.py"
    file.write_text(source, "utf-8")
    module = importlib.import_module("reloaded_hooks")
    file.write_text(source.replace("\n\n", "\n\n\n\nMORE = 1\n\n"), "utf-8")
    importlib.invalidate_caches()
    module = importlib.reload(module)
    assert [module.tell] == app.hooks.start
    monkeypatch.delitem(sys.modules, "reloaded_hooks")


def test_two_functions_of_one_name_in_one_file_both_stay():
    app = Duly()

    @app.on_start
    def tell(job): ...

    first = tell

    @app.on_start
    def tell(job): ...

    assert [first, tell] == app.hooks.start


def notifier(channel):
    def notify(job, error):
        return channel

    return notify


def test_functions_that_another_one_made_stay_where_it_was_told_other_things():
    app = Duly()
    for channel in ("mail", "chat", "mail", ["a"], ["a"]):
        app.on_failure(notifier(channel))
    assert ["mail", "chat", ["a"], ["a"]] == [hook(None, None) for hook in app.hooks.failure]


def test_a_loop_registers_each_of_its_functions():
    app = Duly()
    for number in range(3):

        @app.on_start
        def tell(job, number=number):
            return number

    for number in range(3):
        app.on_start(lambda job, number=number: number)
        app.on_start(functools.partial(tell, number=number))

    assert [0, 1, 2, 0, 0, 1, 1, 2, 2] == [hook(None) for hook in app.hooks.start]


class Counter:
    def count(self, job): ...

    def __call__(self, job): ...


def test_methods_and_objects_are_known_by_what_they_belong_to():
    app = Duly()
    first, second = Counter(), Counter()
    for counter in (first, second, first):
        app.on_start(counter.count)
        app.on_start(counter)
    assert [first.count, first, second.count, second] == app.hooks.start


def test_a_function_that_holds_itself_is_compared_all_the_same():
    app = Duly()

    def made(value):
        def tell(job):
            return (tell, value)

        return tell

    for value in (1, 2):
        app.on_start(made(value))
    assert 2 == len(app.hooks.start)
