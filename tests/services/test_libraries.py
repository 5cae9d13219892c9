"""
Function libraries of other releases: those in use stay, and those that nobody has used for a day go.
"""

from __future__ import annotations

from duly.scripts import library
from duly.services.libraries import KEPT_MS, NAMED, Libraries
from tests.services.conftest import working

OLD = "duly_0123456789abcdef"
SOURCE = """#!lua name={name}
redis.register_function('{name}_nothing', function() return 1 end)
"""


async def _load(store, name: str = OLD) -> None:
    await store.link.call("FUNCTION", "LOAD", "REPLACE", SOURCE.format(name=name))


async def _loaded(store) -> set[str]:
    found = await store.link.call("FUNCTION", "LIST")
    return {about[about.index(b"library_name") + 1].decode() for about in found}


async def _named_before(store, name: str, ms: int) -> None:
    seconds, _ = await store.link.call("TIME")
    await store.link.call("ZADD", NAMED, int(seconds) * 1000 - ms, name)


async def test_a_library_that_no_worker_has_named_for_a_day_is_removed(app):
    store = await app.store()
    await _load(store)
    await _named_before(store, OLD, KEPT_MS + 60_000)
    assert 1 == await Libraries(store, every_s=1).look()
    assert OLD not in await _loaded(store)
    assert library().name in await _loaded(store)


async def test_a_library_in_use_and_one_that_is_new_to_us_stay(app):
    store = await app.store()
    await _load(store)
    await store.link.call("ZREM", NAMED, OLD)
    looks = Libraries(store, every_s=1)
    assert [0, 0] == [await looks.look(), await looks.look()]
    await _named_before(store, OLD, KEPT_MS - 60_000)
    assert 0 == await looks.look()
    assert OLD in await _loaded(store)
    await store.link.call("FUNCTION", "DELETE", OLD)


async def test_functions_of_others_are_left_alone(app):
    store = await app.store()
    await _load(store, "theirs")
    await _named_before(store, "theirs", KEPT_MS + 60_000)
    assert 0 == await Libraries(store, every_s=1).look()
    assert "theirs" in await _loaded(store)
    await store.link.call("FUNCTION", "DELETE", "theirs")


async def test_a_producer_whose_library_was_removed_loads_it_again(app):
    @app.handler("greet")
    async def greet() -> str:
        return "hello"

    store = await app.store()
    await store.link.call("FUNCTION", "DELETE", library().name)
    async with working(app):
        job = await app.enqueue(greet.job())
        assert "hello" == await job.result(timeout=20)


async def test_a_server_that_is_emptied_meanwhile_stops_nobody(store, monkeypatch):
    call = store.link.call

    async def emptied_first(*command, **options):
        if command[0] == "ZSCORE":
            await call("DEL", command[1])
        return await call(*command, **options)

    monkeypatch.setattr(store.link, "call", emptied_first)
    assert 0 == await Libraries(store, every_s=1).look()
