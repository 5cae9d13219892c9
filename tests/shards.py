"""
The number of shards that a test runs on, and which of them a job is on.

One shard hides code that forgets the others.  So the tests of everything above the store run on three, and
with `--long` on one as well.  Store tests run on one shard, which is all that a script sees; those of methods
that go over all shards are marked `several_shards`.  A test that needs one shard says why, with
`@pytest.mark.one_shard("…")`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from duly.job import shard_of as shard_among
from duly.store import PER_CALL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from duly.job import Lease
    from duly.settings import Settings
    from duly.store import Store, Want

    Sharded = Store | Settings

SEVERAL = 3
#: The folders whose tests run on several shards.
SPREAD = {"callbacks", "cli", "http", "record", "services", "sync"}
#: Who uses none of these has no queue, and runs once.
QUEUES = {"namespace", "own_server", "server", "valkey"}

_TESTS = Path(__file__).parent


def is_spread(path: Path) -> bool:
    """
    Return whether the tests of a file run on several shards.
    """
    return path.is_relative_to(_TESTS) and path.relative_to(_TESTS).parts[0] in SPREAD


def parametrize(metafunc: pytest.Metafunc) -> None:
    """
    Give a test the numbers of shards that it runs on.

    Raises:
        pytest.UsageError: A test that runs on one shard does not say why.
    """
    if "shards" not in metafunc.fixturenames or _chosen_by_itself(metafunc):
        return
    alone = metafunc.definition.get_closest_marker("one_shard")
    if alone is not None and not (alone.args and isinstance(alone.args[0], str) and alone.args[0]):
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: one_shard needs a reason")
    spread = is_spread(metafunc.definition.path) or metafunc.definition.get_closest_marker("several_shards")
    if alone is not None or not spread:
        # One is what the fixture says by itself.
        return
    if metafunc.config.getoption("long") and not QUEUES.isdisjoint(metafunc.fixturenames):
        numbers = [SEVERAL, 1]
    else:
        numbers = [SEVERAL]
    # A test has the same name whether or not it runs on one shard as well.
    ids = [pytest.HIDDEN_PARAM, "one-shard"][: len(numbers)]
    metafunc.parametrize("shards", numbers, ids=ids, indirect=True)


def _chosen_by_itself(metafunc: pytest.Metafunc) -> bool:
    """
    Return whether a test names its numbers of shards in a parametrization of its own.
    """
    for marker in metafunc.definition.iter_markers("parametrize"):
        names = marker.args[0]
        if "shards" in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return True
    return False


def shard_of(store: Sharded, topic: str, id_: str) -> int:
    """
    Return the shard that a job is on.
    """
    return shard_among(topic, id_, store.shards)


def fixed_of(store: Store, topic: str, id_: str) -> dict[str, str]:
    """
    Return the fixed keys of the shard that a job is on.
    """
    return store.keys[shard_of(store, topic, id_)].fixed


def ids_on(store: Sharded, topic: str, shard: int, count: int, prefix: str = "") -> list[str]:
    """
    Return the first *count* ids, made of *prefix* and a number, of jobs of *topic* on a shard.
    """
    numbers = (f"{prefix}{number}" for number in itertools.count())
    return list(itertools.islice((id_ for id_ in numbers if shard_of(store, topic, id_) == shard), count))


def one_id_on_each(store: Sharded, topic: str, prefix: str = "") -> list[str]:
    """
    Return an id for each shard, in the order of the shards.
    """
    return [ids_on(store, topic, shard, 1, prefix)[0] for shard in range(store.shards)]


def in_shard_order(store: Sharded, topic: str, ids: Iterable[str]) -> list[str]:
    """
    Return ids as lists of all shards have them: those of the first shard first, of each in the order given.
    """
    return sorted(ids, key=lambda id_: shard_of(store, topic, id_))


async def claim_all(
    store: Store, wants: Sequence[Want], *, limit: int = PER_CALL, **options: Any
) -> list[Lease]:
    """
    Claim from one shard after the other: no more than *limit* together, nor than each of *wants* has free.
    """
    leases: list[Lease] = []
    asked = list(wants)
    for shard in range(store.shards):
        if shard:
            taken = Counter(lease.key.topic for lease in leases)
            left = [want._replace(free=want.free - taken[want.topic]) for want in wants]
            asked = [want for want in left if want.free > 0]
            if not asked or len(leases) >= limit:
                break
        leases += (await store.claim(shard, asked, limit=limit - len(leases), **options)).leases
    return leases


async def recover_all(store: Store, **options: Any) -> int:
    """
    Recover what has run out on every shard; how many jobs went back.
    """
    return sum([(await store.recover(shard, **options)).recovered for shard in range(store.shards)])


async def promote_all(store: Store, **options: Any) -> int:
    """
    Promote what is due on every shard; how many jobs were moved.
    """
    return sum([(await store.promote(shard, **options)).moved for shard in range(store.shards)])


async def prune_all(store: Store) -> tuple[int, bool]:
    """
    Prune every shard; how many jobs are gone, and whether there is more anywhere.
    """
    done = [await store.prune(shard) for shard in range(store.shards)]
    return sum(pruned for pruned, _ in done), any(more for _, more in done)


async def on_all(store: Store, name: str, *words: Any) -> list[Any]:
    """
    Send a command for the fixed key *name* of every shard; the answers, in the order of the shards.
    """
    command, *rest = words
    return [await store.link.call(command, keys.fixed[name], *rest) for keys in store.keys]
