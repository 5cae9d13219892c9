"""
Nobody is given less durability than they asked for.
"""

import pytest

from duly.embedded.layout import Layout
from duly.embedded.probe import ask
from duly.errors import UsageError
from tests.embedded.helpers import eventually, kill, living_in, server_pid


def running(data):
    return ask(Layout(data).socket, "CONFIG", "GET", "appendfsync").split()[-1]


@pytest.mark.parametrize("durability", ["always", "everysec"])
def test_a_server_runs_with_the_durability_asked_for(data, embedded, durability):
    embedded(durability).start()
    assert durability == running(data)


def test_a_stricter_user_raises_the_durability_for_all(data, embedded):
    embedded("everysec").start()
    embedded("always").start()
    assert "always" == running(data)


def test_an_easier_user_changes_nothing(data, embedded):
    embedded("always").start()
    embedded("everysec").start()
    assert "always" == running(data)


def test_a_server_brought_up_by_an_easier_user_is_as_strict_as_the_strictest(data, embedded):
    easy, strict = embedded("everysec"), embedded("always")
    strict.start()
    easy.start()
    kill(server_pid(data))
    easy.ensure()
    assert "always" == running(data)


def test_strictness_ends_with_the_user_who_asked_for_it(data, embedded):
    strict = embedded("always")
    strict.start()
    strict.close()
    eventually(lambda: not living_in(data))
    embedded("everysec").start()
    assert "everysec" == running(data)


def test_another_word_is_refused(embedded):
    with pytest.raises(UsageError, match="'sometimes' is not one of always, everysec"):
        embedded("sometimes")


@pytest.mark.parametrize(
    ("name", "value"), [("appendonly", "yes"), ("maxmemory-policy", "noeviction"), ("port", "0")]
)
def test_nothing_is_evicted_kept_in_memory_only_or_open_to_the_network(data, embedded, name, value):
    embedded().start()
    assert value == ask(Layout(data).socket, "CONFIG", "GET", name).split()[-1]


def test_a_busy_queue_does_not_fork_every_second(data, embedded):
    embedded().start()
    told = ask(Layout(data).socket, "CONFIG", "GET", "auto-aof-rewrite-min-size")
    assert 256 * 1024**2 == int(told.split()[-1])
