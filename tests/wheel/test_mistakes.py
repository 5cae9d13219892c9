"""
Every common mistake ends in one sentence that says what was wrong, on each Python, without extras.
"""

from __future__ import annotations

import itertools

import pytest

from tests.docs.walks import shows
from tests.wheel.mistakes import mistakes
from tests.wheel.pythons import VERSIONS

ALL = mistakes()
LONGEST = 50  #: lines of a traceback; one error, not one behind the other
_numbers = itertools.count(1)


#: The oldest and the newest; those between them say nothing else, and take as long.
PYTHONS = [
    pytest.param(version, marks=() if version in {VERSIONS[0], VERSIONS[-1]} else pytest.mark.long)
    for version in VERSIONS
]


@pytest.mark.parametrize("installed", PYTHONS, indirect=True)
@pytest.mark.parametrize("mistake", ALL, ids=[each.name.replace(" ", "-") for each in ALL])
def test_a_mistake_ends_in_one_sentence(installed, here, valkey, mistake):
    mistake.write(here)
    where = {"DULY_URL": valkey.url, "DULY_NAMESPACE": f"m{next(_numbers)}"} if mistake.needs_server else {}
    done = installed.run(*mistake.command, cwd=here, **where, **mistake.env)
    assert (mistake.ends, mistake.prints) == (done.returncode, done.stdout), done.stderr
    said = done.stderr
    if said.startswith("Traceback"):
        lines = said.splitlines()
        assert not mistake.duly, said
        assert said.count("Traceback") == 1, f"one error behind the other:\n{said}"
        assert len(lines) <= LONGEST, f"{len(lines)} lines:\n{said}"
        said = lines[-1]
    assert shows(mistake.says, said), f"should say\n{mistake.says}\nand said\n{done.stderr}"


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own():
    assert 60 <= len(ALL)
    assert len(ALL) == len({each.name for each in ALL})
    kinds = [(bool(each.script), bool(each.lines), bool(each.duly)) for each in ALL]
    assert all(sum(kind) == 1 for kind in kinds)


def test_no_sentence_says_anything_at_all():
    """
    A row that only has `…` would fit whatever appears.
    """
    assert [] == [each.name for each in ALL if len(each.says.replace("…", "").split()) < 2]
